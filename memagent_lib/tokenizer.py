"""Encode text and chat messages exactly as a policy's own tokenizer does, with character offsets.

The tokenizer and its chat template are read from the files of a model folder, because transformers would import torch,
which takes seconds and which a client of a server does not need. This module does not depend on prompts or models.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.errors import MissingFile, nearest_path
from memagent_lib.thinking import Thoughts, special_marks

LONG_TOKENS = 250
"""A text of this length is encoded once. In a prompt, only its ends are encoded again, with the text beside them."""
END_TOKENS = 48
"""How much of each end is encoded again; the inner half only confirms that the known tokens follow."""
SAME_TOKENS = 10
"""How many tokens in a row must be as they are known before the rest is taken over."""
RECENT_TEXTS = 256
MARK = "<<memagent content>>"
"""A placeholder message, by which a chat template is rendered to find what it writes around messages."""
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*")
_OTHER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")
_OF_EVERY_TEMPLATE = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", "tools", "documents"}


class Tokens(NamedTuple):
    """Token ids, and the character offset at which each token starts. Tokens of one character share its offset.

    Offsets count from ``origin``, where the text begins in the longer text that it is a slice of.
    """

    ids: array[int]
    starts: array[int]
    origin: int = 0

    def within(self, begin: int, end: int) -> Tokens:
        """Return the tokens of the slice ``[begin:end]`` of the text; on its own, its ends may have other tokens."""
        origin = self.origin + begin
        first = bisect_left(self.starts, origin)
        last = bisect_left(self.starts, self.origin + end)
        return Tokens(self.ids[first:last], self.starts[first:last], origin)


class _Frame(NamedTuple):
    """What a chat template writes around a message: ids, and the text between these and the message.

    That text is encoded together with the message, because a token may span their border. ``end`` is all that follows
    the message, as text.
    """

    before: list[int]
    prefix: str
    suffix: str
    after: list[int]
    end: str


class Tokenizer:
    """A policy's own tokenizer. No text in a document can act as a control token.

    Wraps any Hugging Face *fast* tokenizer. ``encode`` never parses special tokens; only :meth:`chat` adds them.
    """

    def __init__(self, hf_tokenizer: Any):
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(f"{type(hf_tokenizer).__name__} is not a fast tokenizer, which alone has character offsets")
        self.source = hf_tokenizer
        # Training scripts leave both in tokenizer.json; transformers too sets them anew in every call.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self._plain = _without_added_tokens(backend)  # the original parses them, which the chat frame needs
        self.chat_arguments: dict[str, Any] = {}
        self._recent: dict[str, Tokens] = {}
        self._lock = threading.Lock()
        # Others choose their tokens for a whole text at once, so a change at one end may reach into the middle.
        self._is_local = "ByteLevel" in repr(backend.pre_tokenizer)

    @classmethod
    def load(cls, model: str | Path) -> Tokenizer:
        """Load the tokenizer of a model folder or hub name. One without ``tokenizer.json`` needs transformers.

        Raises :class:`MissingFile` for a missing folder, :class:`ValueError` for one whose tokenizer cannot be loaded,
        and :class:`OSError` for an unknown hub name.
        """
        if Path(model).is_dir():
            return cls._of_folder(Path(model))
        if looks_like_path(model):
            raise MissingFile(
                f"no model folder {str(model)!r}; give one or a hub name, or set tokenizer{nearest_path(model)}"
            )
        from huggingface_hub import snapshot_download

        try:
            folder = snapshot_download(str(model), allow_patterns=[*_FILES, *_OTHER_FILES, *_TEMPLATES])
        except (OSError, ValueError) as failure:
            raise OSError(f"no tokenizer for {str(model)!r}, neither here nor on the hub; set tokenizer") from failure
        return cls._of_folder(Path(folder))

    @classmethod
    def _of_folder(cls, folder: Path) -> Tokenizer:
        if (folder / "tokenizer.json").is_file():
            return cls(TokenizerFiles(folder))
        if not any((folder / name).is_file() for name in (*_FILES, *_OTHER_FILES)):
            raise ValueError(f"{folder} is not a model folder (no tokenizer.json)")
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(str(folder)))

    def with_chat_arguments(self, arguments: Mapping[str, Any]) -> Tokenizer:
        """Return a copy with arguments for its chat template, such as ``{"enable_thinking": False}``.

        Without ``arguments``, return the tokenizer itself. Raises :class:`ValueError` for an argument that the template
        does not use and would silently ignore.
        """
        if not arguments:
            return self
        used = _template_arguments(str(self.source.chat_template or ""))
        unknown = ", ".join(sorted(set(arguments) - used))
        if unknown:
            known = ", ".join(sorted(used)) or "none"
            raise ValueError(f"the model's chat template has no argument {unknown}; it uses {known}")
        other = copy.copy(self)
        other.chat_arguments = dict(arguments)
        for depends_on_frame in ("_chat_frame", "thoughts", "end_ids"):
            other.__dict__.pop(depends_on_frame, None)
        return other

    @cached_property
    def hf(self) -> Any:
        """The same tokenizer as a transformers object."""
        if not isinstance(self.source, TokenizerFiles):
            return self.source
        from transformers import AutoTokenizer

        made = AutoTokenizer.from_pretrained(str(self.source.folder))
        made.chat_template = self.source.chat_template  # it may be in a file that transformers reads for processors
        return made

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the tokenizer and its chat template, without :attr:`chat_arguments`.

        The template counts as it is written, because some templates render the day's date.
        """
        if isinstance(self.source, TokenizerFiles):  # ten times faster than the text form, for 150,000 tokens
            tokens = (self.source.folder / "tokenizer.json").read_bytes()
        else:
            tokens = self.backend.to_str().encode("utf-8", "surrogatepass")
        settings = [getattr(self.source, name, None) for name in ("chat_template", "bos_token", "eos_token")]
        return hashlib.sha256(tokens + json.dumps(settings, default=str).encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def tokens(self, text: str) -> Tokens:
        """Encode ``text`` to token ids, with the character offset at which each token starts."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        return Tokens(array("I", encoding.ids), array("I", (start for start, _ in encoding.offsets)))

    def remember(self, text: str, tokens: Tokens) -> None:
        """Keep the tokens of a long text, or those it has inside another text, for the prompts that will display it."""
        if len(tokens.ids) >= LONG_TOKENS:
            with self._lock:
                self._recent.pop(text, None)  # so that it is the last to be dropped
                self._recent[text] = tokens
                if len(self._recent) > RECENT_TEXTS:
                    del self._recent[next(iter(self._recent))]

    def encode_around(self, before: str, text: str, after: str, known: Tokens) -> list[int]:
        """Return the ids of ``before + text + after``, with the ``known`` tokens of ``text`` in its middle.

        A token may span a border, so both ends of ``text`` are encoded with what is beside them. If that does not give
        the known tokens some way inside, all of it is encoded.
        """
        ids, starts, origin = known
        if self._is_local and len(ids) >= LONG_TOKENS:
            # The first tokens of a character.
            first = bisect_right(starts, starts[END_TOKENS // 2])
            last = bisect_left(starts, starts[-END_TOKENS // 2])
            tail_at = starts[-END_TOKENS]
            head = self.tokens(before + text[: starts[END_TOKENS] - origin])
            tail = self.tokens(text[tail_at - origin :] + after)
            left = _token_at(head, len(before) + starts[first] - origin)
            right = _token_at(tail, starts[last] - tail_at)
            begins = head.ids[left : left + SAME_TOKENS] == ids[first : first + SAME_TOKENS]
            ends = tail.ids[right - SAME_TOKENS : right] == ids[last - SAME_TOKENS : last]
            if begins and ends and first < last:
                return [*head.ids[:left], *ids[first:last], *tail.ids[right:]]
        return self.encode(before + text + after)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids`` without special tokens, except those that mark thoughts."""
        size = self.backend.get_vocab_size()  # a padded embedding can sample ids past it
        dropped = self._dropped_ids
        return self.backend.decode([i for i in ids if i < size and i not in dropped], skip_special_tokens=False)

    @cached_property
    def _marks(self) -> frozenset[str]:
        return special_marks({token.content for token in self._added_tokens.values() if token.special})

    @cached_property
    def _dropped_ids(self) -> frozenset[int]:
        return frozenset(i for i, t in self._added_tokens.items() if t.special and t.content not in self._marks)

    @cached_property
    def _added_tokens(self) -> dict[int, Any]:
        return self.backend.get_added_tokens_decoder()

    def chat(self, text: str, inside: str = "") -> list[int]:
        """Return the ids of a prompt with one user message, up to the start of the model's reply.

        If the message displays ``inside``, a long text that was encoded a short time ago, its tokens are taken over.
        """
        frame = self._chat_frame
        message = f"{frame.prefix}{text}{frame.suffix}"
        known = self._recent.get(inside)
        ids = self.encode_around(*message.partition(inside), known) if known else self.encode(message)
        return [*frame.before, *ids, *frame.after]

    @property
    def chat_tokens(self) -> int:
        """The number of tokens that the chat template adds to a message."""
        return len(self.chat("x")) - self.count("x")

    @cached_property
    def thoughts(self) -> Thoughts:
        """How to split a reply of this tokenizer's model into thoughts and text."""
        added = {token.content for token in self._added_tokens.values()}
        thoughts = Thoughts.of(str(self.source.chat_template or ""), added, self._chat_frame.end)
        special = thoughts.family is not None and self._marks.issuperset(thoughts.family.vocabulary)
        return replace(thoughts, special=special)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a reply: the token that the chat template writes after an assistant's text, then the EOS.

        A token that marks thoughts does not end a reply; gpt-oss, for example, also writes ``<|end|>`` after each
        thought.
        """
        after = self._after_assistant()
        found = []
        if after in self._added_tokens:
            family = self.thoughts.family
            if not family or self._added_tokens[after].content not in family.vocabulary:
                found.append(after)
        eos = getattr(self.source, "eos_token", None)
        if eos and self.backend.token_to_id(eos) is not None:
            found.append(self.backend.token_to_id(eos))
        return tuple(dict.fromkeys(found))

    def _after_assistant(self) -> int | None:
        """Return the token that follows an assistant's text in a rendered conversation, or ``None`` without one."""
        if not self.source.chat_template:
            return None
        try:
            framed = self._render(["user", "assistant", "user"], add_generation_prompt=False)
        except Exception:  # a template may refuse a conversation in any way, and jinja's errors have no common base
            return None
        pieces = framed.split(MARK)
        ids = self.backend.encode(pieces[2].lstrip(), add_special_tokens=False).ids if len(pieces) == 4 else []
        return ids[0] if ids else None

    def _render(self, roles: Iterable[str], add_generation_prompt: bool) -> str:
        messages = [{"role": role, "content": MARK} for role in roles]
        return self.source.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=False, **self.chat_arguments
        )

    @cached_property
    def _begin_ids(self) -> list[int]:
        """The ids with which this tokenizer begins every text, such as a BOS; a chat template writes them itself.

        A BOS may be stated by ``add_bos_token`` in ``tokenizer_config.json`` alone, which transformers applies.
        """
        encoding = self.backend.encode("x", add_special_tokens=True)
        marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        ids = [i for i, _ in takewhile(lambda token: token[1], marked)]
        bos = getattr(self.source, "bos_token", None)
        if getattr(self.source, "add_bos_token", None) is True and bos and not ids:
            ids = [self.backend.token_to_id(bos)]
        return ids

    @cached_property
    def _chat_frame(self) -> _Frame:
        if not self.source.chat_template:
            # A base model has no chat template: a line break ends the message.
            return _Frame(self._begin_ids, "", "", self.encode("\n"), "\n")
        framed = self._render(["user"], add_generation_prompt=True)
        # The frame is encoded with special tokens, the content without: nothing in a document acts as a control token.
        if framed.count(MARK) != 1:
            raise ValueError("the tokenizer's chat template must display the user's message once and as it is")
        before, _, after = framed.partition(MARK)
        encode = partial(self.backend.encode, add_special_tokens=False)
        left = encode(before)
        right = encode(after)
        last = max((i for i, token in enumerate(left.ids) if token in self._added_tokens), default=-1)
        first = next((i for i, token in enumerate(right.ids) if token in self._added_tokens), len(right.ids))
        frame = _Frame(
            left.ids[: last + 1],
            before[left.offsets[last][1] :] if last >= 0 else before,
            after[: right.offsets[first][0]] if first < len(right.ids) else after,
            right.ids[first:],
            after,
        )
        inside = self.encode(f"{frame.prefix}{MARK}{frame.suffix}")
        if [*frame.before, *inside, *frame.after] == encode(framed).ids:
            return frame
        # Some tokenizers begin a text with a blank, but not the rest of a text behind an added token.
        return _Frame(left.ids, "", "", right.ids, after)


class TokenizerFiles:
    """A tokenizer read from the files of a model folder, with the attributes of transformers' own."""

    def __init__(self, folder: Path):
        import tokenizers

        self.folder = folder
        try:
            self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            named = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
        except Exception as broken:  # the class itself is what tokenizers raises
            raise ValueError(f"the tokenizer of {folder} cannot be loaded: {broken}") from broken
        self._special = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in named.items()
            if name.endswith("_token") and token
        }
        self.eos_token: str | None = self._special.get("eos_token")
        self.bos_token: str | None = self._special.get("bos_token")
        self.add_bos_token: bool | None = named.get("add_bos_token")
        self.chat_template = _chat_template(folder, named.get("chat_template"))

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool, **arguments: Any
    ) -> str:
        """Render the chat template for ``messages``, with the same result as transformers' method of this name."""
        from jinja2 import TemplateError

        assert not tokenize, "ids are the caller's"

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template of {self.folder} refuses a user message: {message}")

        environment = _environment()
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, **({"ensure_ascii": False} | how))
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        known = {"tools": None, "documents": None, **self._special, **arguments}
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **known)
        except (TemplateError, TypeError) as broken:
            raise ValueError(f"the chat template of {self.folder} cannot be used: {broken}") from broken


def _token_at(tokens: Tokens, start: int) -> int:
    """Return the first token that starts at ``start``, or the number of tokens if none does."""
    found = bisect_left(tokens.starts, start)
    return found if start in tokens.starts[found : found + 1] else len(tokens.ids)


def looks_like_path(model: str | Path) -> bool:
    """Return whether ``model`` names a folder rather than a model on the hub such as ``Qwen/Qwen2.5-7B-Instruct``."""
    name = str(model)
    return isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()


def _without_added_tokens(backend: Any) -> Any:
    """Return a copy that encodes every added token as plain text, with the same ids for all else.

    ``encode_special_tokens`` alone guards tokens marked special; Qwen3's ``<think>`` and ``<tool_call>`` are not.
    """
    import tokenizers

    table = json.loads(backend.to_str())
    for token in table["added_tokens"]:
        token["special"] = True
    plain = tokenizers.Tokenizer.from_str(json.dumps(table))
    plain.encode_special_tokens = True  # no part of the text form
    return plain


def _environment() -> Any:
    """Return jinja's environment for chat templates, with the syntax that transformers gives it."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block that marks the assistant's text for training. It renders only its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])


def _template_arguments(chat_template: str) -> set[str]:
    """Return the variables that a chat template reads, except the variables that every template gets."""
    from jinja2 import meta

    environment = _environment()
    used = meta.find_undeclared_variables(environment.parse(chat_template))
    return {name for name in used - {*environment.globals} - _OF_EVERY_TEMPLATE if not name.endswith("_token")}


def _chat_template(folder: Path, configured: Any) -> str | None:
    """Return the chat template that transformers uses for a folder: the only one, or of several the ``default``.

    Raises :class:`ValueError` for several without a default.
    """
    configured = configured or _json(folder / "chat_template.json").get("chat_template")
    if not isinstance(configured, list):
        configured = [{"name": "default", "template": configured}] if configured else []
    templates = {one["name"]: one["template"] for one in configured}
    for file in (folder / "additional_chat_templates").glob("*.jinja"):
        templates[file.stem] = file.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if templates and "default" not in templates:
        names = ", ".join(sorted(templates))
        raise ValueError(f"{folder} has only chat templates by name ({names}); save one as chat_template.jinja")
    return templates.get("default")


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
