"""Turn prompts into exact token ids within a token budget, or raise an error that gives the numbers.

Templates are data files, which also determine the order of question, memory and chunk. This module depends on
tokenizers and kinds of prompt, not on readers, models or backends.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from memagent_lib import paths
from memagent_lib.errors import UserError, nearest
from memagent_lib.settings import parse, read_toml, require_at_least
from memagent_lib.thinking import Thoughts
from memagent_lib.tokenizer import Tokenizer
from memagent_lib.trace import PARTS, Kind, Prompt, Reply

TEMPLATE_FOLDER = Path(__file__).parent / "templates"
SEAM_TOKENS = 8
"""Tokens reserved for the text that a reader puts between two memories of one prompt."""


class BudgetError(UserError, ValueError):
    """A text or a turn exceeds its token budget. Nothing was truncated, and the model was not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The largest sizes of a chunk, a memory, a question and an answer, in tokens of the policy's tokenizer.

    The defaults are the paper's; together with a template they fill a window of 8K tokens. ``thinking_tokens``, for
    a model that thinks, are added to the limit of every reply; the limits of memory and answer then apply to the text
    after the thought. With 0, a thought counts towards the memory or the answer.
    """

    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    question_tokens: int = 1024
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, *(field.name for field in fields(self) if field.name != "thinking_tokens"))
        require_at_least(self, 0, "thinking_tokens")


@dataclass(frozen=True)
class Template:
    """The wording of prompts: a text for each kind of prompt, and the text that stands for an empty memory.

    ``kinds`` maps kinds of prompt that readers define to their texts. A kind without an entry
    uses the text that its reader declares.
    """

    name: str
    empty_memory: str
    read: str
    answer: str
    direct: str
    blind: str
    kinds: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, words: Template | str | Path | Mapping[str, Any]) -> Template:
        """Return a template from its name or path, or from a table of its entries. A template is returned unchanged."""
        if isinstance(words, Template):
            return words
        if isinstance(words, Mapping):
            return parse(cls, words, "template")
        return cls.load(words)

    @classmethod
    def load(cls, name: str | Path) -> Template:
        """Load a template by its name, if it ships with the library, or from the path of your own TOML file.

        A relative path is looked up in the working directory and then by :func:`~memagent_lib.paths.input_path`. White
        space at the ends of an entry is removed, unless the file has ``verbatim = true``.
        """
        path = template_path(str(name))
        if not path.is_file():
            near = nearest(name, cls.shipped())
            raise ValueError(f"no template {str(name)!r}; give a .toml file or {', '.join(cls.shipped())}{near}")
        entries = read_toml(path, "template")
        # TOML's multi-line strings end in a line break, which no template wants.
        if not entries.pop("verbatim", False):
            entries = _stripped(entries)
        return parse(cls, {"name": path.stem, **entries}, str(path))

    @property
    def saved(self) -> str | dict[str, Any]:
        """What a file names this template by: its name if it ships with the library, else a table of its entries."""
        ships = self.name in self.shipped() and self.load(self.name) == self
        return self.name if ships else asdict(self)

    @classmethod
    def shipped(cls) -> list[str]:
        return sorted(path.stem for path in TEMPLATE_FOLDER.glob("*.toml"))

    def __post_init__(self) -> None:
        self.require((Kind.READ, Kind.ANSWER, Kind.DIRECT, Kind.BLIND))

    def require(self, kinds: Iterable[Kind]) -> None:
        """Raise :class:`ValueError` unless the text for each kind uses exactly the parts that the kind displays."""
        for kind in kinds:
            found = {part for _, part in self.wording(kind) if part is not None}
            if found != kind.parts:
                use = f"must use exactly {_braced(kind.parts)}, not {_braced(found)}"
                raise ValueError(f"template {self.name!r}: {kind} {use}")

    def words(self, kind: Kind) -> str:
        """Return the text for a kind of prompt, with the placeholders ``{question}``, ``{memory}`` and ``{chunk}``."""
        if kind.name in ("read", "answer", "direct", "blind"):
            return getattr(self, kind.name)
        own = self.kinds.get(kind.name, kind.words)
        # A reader's own kind is the read prompt with more instructions, so every template has words for it.
        base = getattr(self, kind.after) if kind.after else ""
        return "\n\n".join(words for words in (base, own) if words)

    def render(self, prompt: Prompt) -> str:
        """Return the user message. White space at the ends of a chunk is removed; nothing else is changed."""
        displayed = {"question": prompt.question, "memory": prompt.memory or self.empty_memory, None: ""}
        if prompt.chunk is not None:
            displayed["chunk"] = prompt.chunk.text.strip()
        return "".join(f"{words}{displayed[part]}" for words, part in self.wording(prompt.kind))

    def wording(self, kind: Kind) -> tuple[tuple[str, str | None], ...]:
        """Return the literal texts of a kind of prompt, each with the name of the part that follows it, if any."""
        return _pieces(self.words(kind))


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt in the form that a backend takes: token ids, the message as text, and the longest reply allowed.

    ``thoughts`` splits the reply into thoughts and text. ``attempt`` is 1 for a prompt that is sent once more because
    its first reply was not a memory.
    """

    ids: tuple[int, ...]
    text: str
    max_tokens: int
    thoughts: Thoughts = field(default_factory=Thoughts)
    attempt: int = 0


class Encoder:
    """Turns prompts into requests within a token budget, and a backend's raw replies into the replies that readers see.

    ``prompts`` maps each kind of prompt to the most memories that it displays (a reader's ``prompts``); the longest
    prompt and reply follow from it. The default is MemAgent's: reads and answers with one memory.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: Template, budget: Budget, prompts: Mapping[Kind, int] | None = None
    ):
        if budget.thinking_tokens and tokenizer.thoughts.closed:
            raise BudgetError(f"thinking_tokens is {budget.thinking_tokens:,}, but the chat template has no thinking")
        self.tokenizer = tokenizer
        self.template = template
        self.budget = budget
        self._prompts = prompts or {Kind.READ: 1, Kind.ANSWER: 1}
        # Every prompt repeats template words and question; counting them anew would cost more than the rest of a turn.
        self._count = lru_cache(maxsize=256)(tokenizer.count)
        self._limit = lru_cache(maxsize=64)(self._limit_of_words)
        self._within = lru_cache(maxsize=256)(self._cut_to)  # most chunks leave the memory as it is

    def overhead(self, kind: Kind) -> int:
        """Return how many tokens a prompt of this kind has besides its question, memory and chunk.

        The number includes a spare token for each of these, because its first token may merge with the word before it.
        """
        # The "x" stands for a part's first token, which may join the word before it.
        bare = self.template.words(kind).format(**dict.fromkeys(kind.parts, "x"))
        return len(self.tokenizer.chat(bare))

    def prompt_limit(self, kind: Kind, memories: int = 1) -> int:
        """Return the most tokens that a prompt of this kind may have if it displays ``memories`` memories."""
        return self._limit(kind, self.template.words(kind), memories)

    def _limit_of_words(self, kind: Kind, words: str, memories: int) -> int:  # kinds of one name may differ in words
        return self.overhead(kind) + sum(self._sizes(kind, memories).values())

    def _sizes(self, kind: Kind, memories: int) -> dict[str, int]:
        """Return the most tokens of each part that a prompt of this kind displays, in all places of the part."""
        budget = self.budget
        # The words for an empty memory may be longer than a small memory.
        memory = max(budget.memory_tokens, self._count(self.template.empty_memory))
        sizes = {
            "question": budget.question_tokens,
            "memory": memories * memory + SEAM_TOKENS * (memories - 1),
            # The second memory of a merge stands where the chunk would.
            "chunk": budget.memory_tokens if kind == Kind.MERGE else budget.chunk_tokens,
        }
        places = Counter(part for _, part in self.template.wording(kind))
        return {part: places[part] * size for part, size in sizes.items() if part in places}

    def reply_limit(self, kind: Kind) -> int:
        """Return the largest size in tokens of a reply to a prompt of this kind, with the thought before its text."""
        return self.budget.thinking_tokens + self._text_limit(kind)

    def _text_limit(self, kind: Kind) -> int:
        return self.budget.answer_tokens if kind.answers else self.budget.memory_tokens

    @property
    def longest_prompt(self) -> int:
        return max(self.prompt_limit(kind, memories) for kind, memories in self._prompts.items())

    @property
    def longest_reply(self) -> int:
        return max(map(self.reply_limit, self._prompts))

    @property
    def window(self) -> int:
        """The window that this template and budget need: the largest total of prompt and reply tokens in any turn."""
        return self.window_of(self._prompts)

    def window_of(self, prompts: Mapping[Kind, int]) -> int:
        """Return the window that a reader with these ``prompts`` needs."""
        return max(self.prompt_limit(kind, memories) + self.reply_limit(kind) for kind, memories in prompts.items())

    def require_window(self, allowed: int, whose: str, prompts: Mapping[Kind, int] | None = None) -> None:
        """Raise :class:`BudgetError` if a turn of the reader may need more than ``allowed`` tokens.

        ``whose`` names the limit in the message, such as "the model's window".
        """
        prompts = prompts or self._prompts
        needs = {kind: self.window_of({kind: memories}) for kind, memories in prompts.items()}
        widest = max(needs, key=needs.get)
        if needs[widest] <= allowed:
            return
        sizes = {"template": self.overhead(widest)} | self._sizes(widest, prompts[widest])
        terms = [f"{part} {size:,}" for part, size in (sizes | {"reply": self.reply_limit(widest)}).items()]
        need = f"a turn can need {needs[widest]:,} tokens ({' + '.join(terms)})"
        raise BudgetError(f"{need} and {whose} allows {allowed:,}; lower chunk_tokens or the budget's other sizes")

    def encode(self, prompt: Prompt) -> Request:
        """Return the request for ``prompt``.

        Raises :class:`BudgetError` if the question or the whole prompt exceeds its budget.
        """
        # Checked separately, because a long question could use up the tokens that a short chunk leaves.
        tokens = self._count(prompt.question)
        most = self.budget.question_tokens
        if tokens > most:
            raise BudgetError(f"the question has {tokens:,} tokens, more than question_tokens, {most:,}; raise that")
        text = self.template.render(prompt)
        ids = self.tokenizer.chat(text, prompt.chunk.text.strip() if prompt.chunk else "")
        limit = self.prompt_limit(prompt.kind, prompt.memories)
        if len(ids) > limit:
            fix = ""
            if prompt.kind == Kind.DIRECT:
                needed = max(prompt.chunk.tokens, self.budget.chunk_tokens + len(ids) - limit)
                fix = f"; raise chunk_tokens to {needed:,} if the window holds it, or read with a memory"
            raise BudgetError(f"the {prompt.kind} prompt is {len(ids):,} tokens, and the budget allows {limit:,}{fix}")
        return Request(tuple(ids), text, self.reply_limit(prompt.kind), self.tokenizer.thoughts)

    def interpret(self, prompt: Prompt, request: Request, raw: Reply) -> Reply:
        """Return the reply as the reader sees it: without thoughts in its text, and with a memory within its budget.

        Encoding a reply's text again may give more tokens than were sampled, for example from broken bytes. If a memory
        then exceeds its budget, it is truncated and marked ``finish_reason="length"``, as if by the engine. So is an
        answer if thoughts have a budget of their own, because its text could use up what the thought left over.
        """
        parts = self.tokenizer.thoughts.split(raw.text, separated=bool(raw.thinking))
        text = parts.text
        # Only a memory becomes part of another prompt; the engine alone limits an answer without thoughts.
        if not prompt.kind.answers or self.budget.thinking_tokens:
            text = self._within(self._text_limit(prompt.kind), text)
        return replace(
            raw,
            text=text,
            finish_reason=raw.finish_reason if text == parts.text else "length",
            thinking="\n".join(filter(None, (raw.thinking.strip(), parts.thinking))),
            # If a server reports no count, the number of ids that were sent is the best one.
            prompt_tokens=raw.prompt_tokens or len(request.ids),
            prompt_ids=request.ids,
        )

    def _cut_to(self, limit: int, text: str) -> str:
        tokens = self.tokenizer.tokens(text)
        while len(tokens.ids) > limit:  # a cut can leave an end of more tokens than it had inside
            text = text[: tokens.starts[limit]]
            tokens = self.tokenizer.tokens(text)
        return text


def template_path(name: str) -> Path:
    """Return the file of a template: one that ships with the library, or a user's own file, ``NAME.toml``.

    A relative path is looked up in the working directory and then by :func:`~memagent_lib.paths.input_path`.
    """
    if not name.endswith(".toml"):
        return TEMPLATE_FOLDER / f"{name}.toml"
    here = paths.expanded(name)
    return here if here.is_file() else paths.input_path(name)


def _stripped(value: Any) -> Any:
    """Return a text, or the texts of a table, without white space at their ends."""
    if isinstance(value, Mapping):
        return {name: _stripped(entry) for name, entry in value.items()}
    return value.strip() if isinstance(value, str) else value


@lru_cache(maxsize=64)
def _pieces(words: str) -> tuple[tuple[str, str | None], ...]:
    """Split the words of a template: each literal run with the name of the part that follows it.

    Raises :class:`ValueError` for braces that are neither doubled nor around a part, and for a part with a conversion
    or a format: ``{question:>9}`` would make a prompt that no budget has counted.
    """
    pieces = []
    for literal, part, form, conversion in string.Formatter().parse(words):
        if form or conversion or part not in (None, *PARTS):
            raise ValueError(f"{{{part:.40}}} must be one of {_braced(PARTS)}; braces in the text are {{{{ and }}}}")
        pieces.append((literal, part))
    return tuple(pieces)


def _braced(parts: Iterable[str]) -> str:
    return ", ".join(f"{{{part}}}" for part in sorted(parts)) or "no parts"
