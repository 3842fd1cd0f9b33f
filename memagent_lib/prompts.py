"""The words of a prompt and its token budget: a prompt goes in, exact token ids come out, or an error that names the
numbers.

Templates are data files, and the order of their parts is part of the template. Knows tokenizers and readers' prompts;
knows no model and no backend.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from memagent_lib.errors import UserError
from memagent_lib.settings import parse, read_toml, require_at_least
from memagent_lib.tokenizer import END_OF_THINKING, Tokenizer
from memagent_lib.trace import Kind, Prompt, Reply

TEMPLATE_FOLDER = Path(__file__).parent / "templates"
SEAM_TOKENS = 8
_PARTS = {
    Kind.READ: {"question", "chunk", "memory"},
    Kind.ANSWER: {"question", "memory"},
    Kind.DIRECT: {"question", "chunk"},
    Kind.BLIND: {"question"},
}
_READS_LIKE = (Kind.GATE, Kind.RECALL, Kind.MERGE)
_PARTS |= dict.fromkeys(_READS_LIKE, _PARTS[Kind.READ])
# What the `read` words of any template are followed by when the reader understands more than a memory. A template may
# say it otherwise.
GATE_NOTE = """
If this piece brings nothing for the question, reply with the single word KEEP and the memory stays as it is. If the \
memory already holds all that the question needs, begin the reply with the single word DONE, then a line break, then \
the memory."""
RECALL_NOTE = """
If something that an earlier memory held is missing now, end the reply with a line that begins with RECALL: and names \
it in a few words; you will then see that earlier memory beside the next piece."""


class BudgetError(UserError, ValueError):
    """Something does not fit its token budget. Nothing was cut and no model was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much is read at once and how much may be remembered, in tokens of the policy's tokenizer.

    The defaults are the published ones: with a template they fill an 8K window.
    """

    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    question_tokens: int = 1024

    def __post_init__(self) -> None:
        require_at_least(self, 1, *(field.name for field in fields(self)))


@dataclass(frozen=True)
class Template:
    """The wording of the four kinds of prompt, and the words that stand for an empty memory.

    ``gate`` and ``recall`` are notes put after ``read`` for the readers that need them; a template may leave them out.
    """

    name: str
    empty_memory: str
    read: str
    answer: str
    direct: str
    blind: str
    gate: str = GATE_NOTE.strip()
    recall: str = RECALL_NOTE.strip()

    @classmethod
    def of(cls, words: Template | str | Path | Mapping[str, str]) -> Template:
        """A template as it is, by its name or path, or from a table of its words."""
        if isinstance(words, Template):
            return words
        return parse(cls, words, "template") if isinstance(words, Mapping) else cls.load(words)

    @classmethod
    def load(cls, name: str | Path) -> Template:
        """A template that ships with the library by its name, or a TOML file of your own by its path.

        White space at the edges of its words is left out, unless the file says ``verbatim = true``.
        """
        path = Path(name) if str(name).endswith(".toml") else TEMPLATE_FOLDER / f"{name}.toml"
        if not path.is_file():
            shipped = ", ".join(cls.shipped())
            raise ValueError(f"no template {str(name)!r}; choose from {shipped}, or give the path of a .toml file")
        words = read_toml(path, "template")
        if not words.pop("verbatim", False):
            words = {key: text.strip() if isinstance(text, str) else text for key, text in words.items()}
        return parse(cls, {"name": path.stem, **words}, str(path))

    @classmethod
    def shipped(cls) -> list[str]:
        return sorted(path.stem for path in TEMPLATE_FOLDER.glob("*.toml"))

    def __post_init__(self) -> None:
        for kind, needed in _PARTS.items():
            found = {part for _, part in _pieces(self.words(kind)) if part is not None}
            if found != needed:
                raise ValueError(
                    f"template {self.name!r}: {kind!s} must use exactly {_braced(needed)}, and uses {_braced(found)}"
                )

    def words(self, kind: Kind) -> str:
        if kind not in _READS_LIKE:
            return getattr(self, kind.value)
        return self.read if kind is Kind.MERGE else f"{self.read}\n\n{getattr(self, kind.value)}"

    def render(self, prompt: Prompt) -> str:
        """The user message. White space at the edges of a chunk is not shown; everything else is shown as it is."""
        return "".join(self.parts(prompt))

    def parts(self, prompt: Prompt) -> list[str]:
        """The user message in pieces: the template's words, and between them what the prompt shows."""
        shown = {"question": prompt.question, "memory": prompt.memory or self.empty_memory}
        if prompt.chunk is not None:
            shown["chunk"] = prompt.chunk.text.strip()
        return [
            piece for words, part in _pieces(self.words(prompt.kind)) for piece in (words, shown[part] if part else "")
        ]

    @property
    def chunk_first(self) -> bool:
        """Whether the prompts of one chunk share question and chunk as a prefix, whatever the memory."""
        return self.read.index("{chunk}") < self.read.index("{memory}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt in the form a backend takes: the exact ids, the message they say, and the longest reply allowed.

    ``draft`` is what the reply may well be, in tokens: most chunks change little in a memory. An engine that can check
    a draft in one pass need not say the same words one by one; it never changes a reply.
    """

    ids: tuple[int, ...]
    text: str
    max_tokens: int
    draft: tuple[int, ...] = ()


class Encoder:
    """Turns prompts into requests, and what a backend returns into replies, within one budget.

    ``shows`` is what the reader shows (:func:`memagent_lib.readers.shows`), MemAgent's own unless given: sizes follow
    from it.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: Template, budget: Budget, shows: Mapping[Kind, int] | None = None
    ):
        self.tokenizer, self.template, self.budget = tokenizer, template, budget
        self._shows = shows or {Kind.READ: 1, Kind.ANSWER: 1}
        # What every prompt repeats is counted once: template words and questions, and what follows from them.
        self._counted = lru_cache(maxsize=256)(tokenizer.count)
        self.prompt_limit = lru_cache(maxsize=64)(self.prompt_limit)

    def overhead(self, kind: Kind) -> int:
        """The tokens of a prompt of this kind beside question, memory and chunk, and one for each seam between them."""
        bare = self.template.words(kind).format(**dict.fromkeys(_PARTS[kind], "x"))
        return self.tokenizer.chat_tokens + self._counted(bare)

    def prompt_limit(self, kind: Kind, memories: int = 1) -> int:
        """The longest prompt of this kind: template + question + memories, with seams between them, + chunk."""
        budget = self.budget
        memory = memories * max(budget.memory_tokens, self._counted(self.template.empty_memory))
        memory += SEAM_TOKENS * (memories - 1)
        sizes = {"question": budget.question_tokens, "chunk": budget.chunk_tokens, "memory": memory}
        return self.overhead(kind) + sum(sizes[part] for part in _PARTS[kind])

    def reply_limit(self, kind: Kind) -> int:
        return self.budget.answer_tokens if kind.answers else self.budget.memory_tokens

    @property
    def longest_prompt(self) -> int:
        return max(self.prompt_limit(kind, memories) for kind, memories in self._shows.items())

    @property
    def longest_reply(self) -> int:
        return max(map(self.reply_limit, self._shows))

    @property
    def window(self) -> int:
        """The window that this template and budget need: the longest prompt and reply of any kind of turn."""
        return self.window_of(self._shows)

    def window_of(self, shows: Mapping[Kind, int]) -> int:
        """The window that a reader needs which shows this many memories in these kinds of prompt."""
        return max(self.prompt_limit(kind, memories) + self.reply_limit(kind) for kind, memories in shows.items())

    def require_window(self, allowed: int, whose: str, shows: Mapping[Kind, int] | None = None) -> None:
        """Raise :class:`BudgetError` when ``allowed`` tokens cannot hold the longest turn of the reader."""
        needed = self.window if shows is None else self.window_of(shows)
        if needed <= allowed:
            return
        b = self.budget
        most = b.chunk_tokens - (needed - allowed)
        fix = f"chunk_tokens to at most {most:,}" if most >= 1 else "memory_tokens, answer_tokens or question_tokens"
        raise BudgetError(
            f"a turn can need {needed:,} tokens (template {self.overhead(Kind.READ):,} + question "
            f"{b.question_tokens:,} + memory {b.memory_tokens:,} + chunk {b.chunk_tokens:,} + reply "
            f"{self.reply_limit(Kind.READ):,}) and {whose} allows {allowed:,}; lower {fix}"
        )

    def encode(self, prompt: Prompt) -> Request:
        """The request for ``prompt``; :class:`BudgetError` when the question or the whole prompt is over its budget."""
        asked = self._counted(prompt.question)
        if asked > self.budget.question_tokens:
            raise BudgetError(
                f"the question is {asked:,} tokens and question_tokens allows {self.budget.question_tokens:,}; "
                "shorten it or raise question_tokens"
            )
        parts = self.template.parts(prompt)
        ids = self.tokenizer.chat(*parts)
        if len(ids) > (limit := self.prompt_limit(prompt.kind, prompt.memories)):
            raise BudgetError(self._too_long(prompt, len(ids), limit))
        replaced = prompt.memory if not prompt.kind.answers and prompt.memories == 1 else ""
        draft = tuple(self.tokenizer.known_tokens(replaced).ids) if replaced else ()
        return Request(tuple(ids), "".join(parts), self.reply_limit(prompt.kind), draft)

    def _too_long(self, prompt: Prompt, tokens: int, limit: int) -> str:
        shown, fix = f"a memory of {self.tokenizer.count(prompt.memory):,} tokens", ""
        if prompt.chunk is not None:
            shown = f"a chunk of {prompt.chunk.tokens:,} tokens"
        if prompt.kind is Kind.DIRECT:
            fix = f"; raise chunk_tokens to {prompt.chunk.tokens:,} if the window holds it, or read with a memory"
        return f"the {prompt.kind!s} prompt is {tokens:,} tokens with {shown}, and the budget allows {limit:,}{fix}"

    def interpret(self, prompt: Prompt, request: Request, raw: Reply) -> Reply:
        """The reply that a reader gets: thinking is set aside, and a memory is cut to its budget.

        Sampled ids decode to text that can need more tokens than were sampled (broken bytes do). Such a memory is cut
        to what fits and marked ``finish_reason="length"``, like one that the engine cut.
        """
        thinking, _, text = raw.text.rpartition(END_OF_THINKING)
        text = text.strip()
        finish_reason = raw.finish_reason
        if not prompt.kind.answers:
            memory = self._within_budget(text)
            if memory != text:
                finish_reason = "length"
            text = memory
        return replace(
            raw,
            text=text,
            finish_reason=finish_reason,
            thinking=thinking.strip(),
            prompt_tokens=raw.prompt_tokens or len(request.ids),
            prompt_ids=request.ids,
        )

    def _within_budget(self, memory: str) -> str:
        limit = self.budget.memory_tokens
        while len((tokens := self.tokenizer.tokens(memory)).ids) > limit:
            memory = memory[: tokens.starts[limit]]
        self.tokenizer.remember(memory, tokens)
        return memory


@lru_cache(maxsize=64)
def _pieces(words: str) -> tuple[tuple[str, str | None], ...]:
    """The words of a template, each run with the name of the part that follows it."""
    return tuple((literal, part) for literal, part, _, _ in string.Formatter().parse(words))


def _braced(parts: set[str]) -> str:
    return ", ".join(f"{{{part}}}" for part in sorted(parts)) or "no parts"
