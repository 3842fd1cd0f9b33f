"""Encode text and chat messages exactly as a policy's own tokenizer does, with character offsets.

A long text is encoded only once. In a later prompt that contains it, only its ends and the text around it are encoded;
the ids are the same as if the whole prompt were encoded. This module does not depend on prompts or models.
"""

from __future__ import annotations

import copy
import json
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.byte_level import ByteLevel
from memagent_lib.errors import MissingFile, MissingPackage
from memagent_lib.thinking import Thoughts, special_marks

LONG_CHARS = 500
LONG_TOKENS = 250
"""A text of this length is encoded once. Later only its ends are, as their tokens depend on the text beside them."""
BYTE_LEVEL_CHARS = 2000
"""A text of this length is encoded without tracking offsets if they follow from the tokens."""
MARGIN_TOKENS = 24
"""Each end of 2 * MARGIN_TOKENS is encoded again; its inner half only confirms that the known tokens fit."""
SAME_TOKENS = 10
"""How many tokens in a row must be unchanged before the rest of a text's known tokens are reused."""
REMEMBERED_TEXTS = 256
MARK = "<<memagent content>>"
"""A placeholder message, by which a chat template is rendered to find what it writes around messages."""
_OF_EVERY_TEMPLATE = ("messages", "add_generation_prompt", "raise_exception", "strftime_now", "tools", "documents")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokens(NamedTuple):
    """Token ids, and the character offset at which each token starts. Tokens of one character share its offset.

    Offsets count from ``origin``, where the text begins in the longer text that it is a slice of.
    """

    ids: array[int]
    starts: array[int]
    origin: int = 0

    def start(self, index: int) -> int:
        """Return the offset of a token in the text itself."""
        return self.starts[index] - self.origin

    def within(self, begin: int, end: int) -> Tokens:
        """Return the tokens of the slice ``[begin:end]`` of the text."""
        first = bisect_left(self.starts, begin + self.origin)
        last = bisect_left(self.starts, end + self.origin)
        return Tokens(self.ids[first:last], self.starts[first:last], begin + self.origin)


class _Anchor(NamedTuple):
    """Token number ``index`` of a long part, whose text begins ``shift`` characters into the text of a seam."""

    tokens: Tokens
    index: int
    shift: int

    def find(self, seam: Tokens, before: bool) -> int | None:
        """Return the index of this token in the seam if its neighbouring tokens match those of the part, else ``None``.

        The neighbours compared are inside the part: those ``before`` this token, or else this token and those after it.
        """
        start = self.tokens.start(self.index) + self.shift
        found = bisect_left(seam.starts, start)
        if found == len(seam.starts) or seam.starts[found] != start or found < before * SAME_TOKENS:
            return None
        offset = -SAME_TOKENS if before else 0
        in_seam = seam.ids[found + offset : found + offset + SAME_TOKENS]
        in_part = self.tokens.ids[self.index + offset : self.index + offset + SAME_TOKENS]
        return found if in_seam == in_part else None


class _Borders(NamedTuple):
    """Four token numbers of a long text, each the first token of a character.

    The ends ``[:head_stop]`` and ``[tail_start:]`` are encoded again; the tokens ``[head:tail]`` are reused.
    """

    head: int
    head_stop: int
    tail_start: int
    tail: int


def _borders(tokens: Tokens) -> _Borders | None:
    """Return the borders of a long text; ``None`` if it is short, or if its characters have very many tokens."""
    n = len(tokens.ids)
    if n < LONG_TOKENS:
        return None
    wanted = (MARGIN_TOKENS, 2 * MARGIN_TOKENS, n - 2 * MARGIN_TOKENS, n - MARGIN_TOKENS)
    found = [_next_character(tokens.starts, index) for index in wanted]
    if None in found:
        return None
    return _Borders(*found)


def _next_character(starts: array[int], index: int) -> int | None:
    """Return the first token from ``index`` on that begins a character, or ``None`` if the next few do not."""
    return next((i for i in range(index, min(index + 8, len(starts))) if starts[i] > starts[i - 1]), None)


class Tokenizer:
    """A policy's own tokenizer. No text in a document can act as a control token.

    Wraps any Hugging Face *fast* tokenizer. ``encode`` never parses special tokens; only :meth:`chat` adds them.
    """

    def __init__(self, hf_tokenizer: Any):
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(
                f"{type(hf_tokenizer).__name__} is not a fast tokenizer; memagent needs character offsets, "
                "which only fast ones have"
            )
        self.source = hf_tokenizer
        self.backend = backend
        self._plain = _without_added_tokens(backend)  # the original parses them, which the chat frame needs
        self._plain.no_truncation()
        self._plain.no_padding()
        self.chat_arguments: dict[str, Any] = {}
        self._recent: dict[str, Tokens] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, model: str | Path) -> Tokenizer:
        """Load the tokenizer of a model folder or hub name.

        Reads ``tokenizer.json`` directly, because transformers would import torch. A model without that file needs
        transformers. Raises :class:`MissingFile` for a missing folder, :class:`ValueError` for one whose tokenizer
        cannot be loaded, and :class:`OSError` for an unknown hub name.
        """
        folder = Path(model) if Path(model).is_dir() else None
        if folder is None and looks_like_path(model):
            raise MissingFile(
                f"no model folder {str(model)!r}; give one with config.json and tokenizer.json, or a hub name"
            )
        if folder is not None:
            _require_tokenizer_file(folder)
        try:
            files = folder or _downloaded(str(model))
            if (files / "tokenizer.json").is_file():
                return cls(TokenizerFiles(files))
            try:
                from transformers import AutoTokenizer
            except ImportError as missing:
                needs = (
                    "its other files need transformers (memagent doctor names the command), or name another --tokenizer"
                )
                raise MissingPackage(f"{model} has no tokenizer.json; {needs}") from missing
            return cls(AutoTokenizer.from_pretrained(str(model)))
        except (OSError, ValueError) as failure:
            if folder:
                raise ValueError(f"the tokenizer of {folder} cannot be loaded: {_first_line(failure)}") from failure
            raise OSError(
                f"no tokenizer for {str(model)!r}, neither here nor on the hub; give a model folder or a hub name"
            ) from failure

    def with_chat_arguments(self, arguments: Mapping[str, Any]) -> Tokenizer:
        """Return a copy with arguments for its chat template, such as ``{"enable_thinking": False}``.

        Without ``arguments``, returns the tokenizer itself. Raises :class:`ValueError` for an argument that the
        template does not use and would silently ignore.
        """
        if not arguments:
            return self
        used = _arguments_of(str(self.source.chat_template or ""))
        unknown = ", ".join(sorted(set(arguments) - used))
        if unknown:
            takes = "it uses none"
            if used:
                takes = f"it uses {', '.join(sorted(used))}"
            what = f"the model's chat template has no argument {unknown}; {takes}"
            if not self.source.chat_template:
                what = f"the model has no chat template that could take {unknown}"
            raise ValueError(f"{what}; leave {unknown} out, or give the right name")
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

        return AutoTokenizer.from_pretrained(str(self.source.folder))

    def encode(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def tokens(self, text: str) -> Tokens:
        """Encode ``text`` to token ids, with the character offset at which each token starts."""
        if len(text) >= BYTE_LEVEL_CHARS and self._byte_level:
            found = self._byte_level.encode(text)
            if found:
                return Tokens(*found)
        encoding = self._plain.encode(text, add_special_tokens=False)
        return Tokens(array("I", encoding.ids), array("I", [start for start, _ in encoding.offsets]))

    @cached_property
    def _byte_level(self) -> ByteLevel | None:
        return ByteLevel.of(self._plain)

    def known_tokens(self, text: str) -> Tokens:
        """Return a text's tokens for reuse in a longer text.

        A long text that was used recently is not encoded again.
        """
        known = self._recent.get(text)
        if known is None:
            known = self.tokens(text)
            self.remember(text, known)
        return known

    def remember(self, text: str, tokens: Tokens) -> None:
        """Cache a long text's tokens, for prompts that will contain it."""
        # Encoding a short text costs less than looking it up and joining it.
        if len(tokens.ids) < LONG_TOKENS:
            return
        with self._lock:
            self._recent.pop(text, None)  # so that it moves to the end: the oldest is dropped first
            self._recent[text] = tokens
            while len(self._recent) > REMEMBERED_TEXTS:
                del self._recent[next(iter(self._recent))]

    def encode_parts(self, parts: Sequence[str], known: Sequence[Tokens | None] | None = None) -> list[int]:
        """Return the ids of ``"".join(parts)``, without encoding the middle of long parts again.

        ``known`` has the tokens of each part within a longer text (default: from the cache). The text between two
        middles, a *seam*, is encoded as one piece. If its tokens do not join the known ones, the whole text is
        encoded.
        """
        if known is None:
            known = [self.known_tokens(part) if len(part) >= LONG_CHARS else None for part in parts]
        ids: list[int] = []
        seam = ""  # the text since the last long part's middle
        left: _Anchor | None = None  # where that middle ended
        for part, tokens in zip(parts, known, strict=True):
            borders = _borders(tokens) if tokens else None
            if borders is None:
                seam += part
                continue
            head_text = part[: tokens.start(borders.head_stop)]
            # The ends of a long text are encoded with their neighbours: a token may span the border.
            joined = self._encode_seam(seam + head_text, left, _Anchor(tokens, borders.head, len(seam)))
            if joined is None:
                return self.encode("".join(parts))
            ids += joined
            ids += tokens.ids[borders.head : borders.tail]
            tail_start = tokens.start(borders.tail_start)
            seam = part[tail_start:]
            left = _Anchor(tokens, borders.tail, -tail_start)
        rest = self._encode_seam(seam, left, None)
        if rest is None:
            return self.encode("".join(parts))
        return ids + rest

    def _encode_seam(self, text: str, left: _Anchor | None, right: _Anchor | None) -> list[int] | None:
        """Return the ids of ``text`` between its anchors; ``None`` if they do not join the anchors' tokens."""
        if left is None and right is None:
            return self.encode(text)
        seam = self.tokens(text)
        begin = 0 if left is None else left.find(seam, before=True)
        end = len(seam.ids) if right is None else right.find(seam, before=False)
        if begin is None or end is None or begin > end:
            return None
        return seam.ids[begin:end].tolist()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids`` without special tokens, except those that mark thoughts."""
        size = self.backend.get_vocab_size()  # a padded embedding can sample ids past it
        dropped = self._dropped_ids
        return self.backend.decode(
            [i for i in ids if i < size and i not in dropped], skip_special_tokens=not self._marks
        )

    @cached_property
    def _marks(self) -> frozenset[str]:
        return special_marks({token.content for token in self._added_tokens.values() if token.special})

    @cached_property
    def _dropped_ids(self) -> frozenset[int]:
        """The special tokens to leave out individually, if some special tokens must remain."""
        if not self._marks:
            return frozenset()
        return frozenset(i for i, t in self._added_tokens.items() if t.special and t.content not in self._marks)

    @cached_property
    def _added_tokens(self) -> dict[int, Any]:
        return self.backend.get_added_tokens_decoder()

    def chat(self, *parts: str) -> list[int]:
        """Return the ids of a prompt with one user message, made of ``parts``, up to the start of the model's reply."""
        before, after = self._chat_frame
        return [*before, *self.encode_parts(parts), *after]

    @property
    def chat_tokens(self) -> int:
        """The number of tokens that the chat template adds to a message."""
        return sum(map(len, self._chat_frame))

    @cached_property
    def thoughts(self) -> Thoughts:
        """How to split a reply of this tokenizer's model into thoughts and text."""
        _, after = self._chat_frame
        prompt_end = self.backend.decode(after, skip_special_tokens=False)
        added = {token.content for token in self._added_tokens.values()}
        thoughts = Thoughts.of(str(self.source.chat_template or ""), added, prompt_end)
        return replace(
            thoughts, special=thoughts.family is not None and self._marks.issuperset(thoughts.family.vocabulary)
        )

    def still_thinking(self, reply: str) -> bool:
        """Return whether a reply ends inside a thought that the reply or the chat template opened."""
        return not self.thoughts.split(reply).finished

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a reply: the token that the chat template writes after an assistant's text, then the EOS.

        A token that marks thoughts does not end a reply; gpt-oss, for example, also writes ``<|end|>`` after each
        thought.
        """
        found = []
        after = self._after_assistant()
        if after in self._added_tokens and self._added_tokens[after].content not in self._marks_of_thoughts:
            found.append(after)
        eos = getattr(self.source, "eos_token", None)
        if eos and self.backend.token_to_id(eos) is not None:
            found.append(self.backend.token_to_id(eos))
        return tuple(dict.fromkeys(found))

    @property
    def _marks_of_thoughts(self) -> tuple[str, ...]:
        family = self.thoughts.family
        return family.vocabulary if family else ()

    def _after_assistant(self) -> int | None:
        """Return the token that follows an assistant's text in a rendered conversation, or ``None`` without one."""
        if not self.source.chat_template:
            return None
        messages = [{"role": role, "content": MARK} for role in ("user", "assistant", "user")]
        try:
            framed = self.source.apply_chat_template(
                messages, add_generation_prompt=False, tokenize=False, **self.chat_arguments
            )
        except Exception:  # a template may refuse a conversation in any way, and jinja's errors have no common base
            return None
        pieces = framed.split(MARK)
        if len(pieces) != 4:
            return None
        ids = self.backend.encode(pieces[2].lstrip(), add_special_tokens=False).ids
        return ids[0] if ids else None

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
    def _chat_frame(self) -> tuple[list[int], list[int]]:
        if not self.source.chat_template:
            # A base model has no chat template: a line break ends the message.
            return self._begin_ids, self.encode("\n")
        messages = [{"role": "user", "content": MARK}]
        framed = self.source.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.chat_arguments
        )
        # The frame is encoded with special tokens, the content without: nothing in a document acts as a control token.
        before, found, after = framed.partition(MARK)
        if not found:
            raise ValueError("the tokenizer's chat template does not contain the user's message as it is")
        return tuple(self.backend.encode(part, add_special_tokens=False).ids for part in (before, after))


class TokenizerFiles:
    """A tokenizer read from the files of a model folder, with what this module uses of transformers' tokenizers."""

    def __init__(self, folder: Path):
        import tokenizers

        self.folder = folder
        try:
            self.backend_tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as broken:  # the class itself is what tokenizers raises
            raise ValueError(f"tokenizer.json is broken ({broken})") from broken
        named = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
        self._special = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in named.items()
            if name.endswith("_token") and token
        }
        self.eos_token: str | None = self._special.get("eos_token")
        self.bos_token: str | None = self._special.get("bos_token")
        self.add_bos_token: bool | None = named.get("add_bos_token")
        template = named.get("chat_template")
        if isinstance(template, list):  # several by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        self.chat_template: str | None = template
        path = folder / "chat_template.jinja"
        if path.is_file():
            self.chat_template = path.read_text(encoding="utf-8")

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool, **arguments: Any
    ) -> str:
        """Render the chat template for ``messages``, with the same result as transformers' method of this name."""
        assert not tokenize, "ids are the caller's"

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template of {self.folder} refuses a user message: {message}")

        environment = _environment()
        environment.filters["tojson"] = lambda value, **how: json.dumps(value, **({"ensure_ascii": False} | how))
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        template = environment.from_string(self.chat_template)
        return template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
            **arguments,
        )


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


def _arguments_of(chat_template: str) -> set[str]:
    """Return the variables that a chat template reads, except the variables that every template gets."""
    from jinja2 import meta

    environment = _environment()
    used = meta.find_undeclared_variables(environment.parse(chat_template))
    used -= {*environment.globals, *_OF_EVERY_TEMPLATE}
    return {name for name in used if not name.endswith("_token")}


def _without_added_tokens(backend: Any) -> Any:
    """Return a copy that encodes every added token as plain text, with the same ids for all else.

    ``encode_special_tokens`` alone guards tokens marked special; Qwen3's ``<think>`` and ``<tool_call>`` are not.
    """
    import tokenizers

    if all(token.special for token in backend.get_added_tokens_decoder().values()):
        plain = copy.deepcopy(backend)
    else:
        table = json.loads(backend.to_str())
        for token in table["added_tokens"]:
            token["special"] = True
        plain = tokenizers.Tokenizer.from_str(json.dumps(table))
    plain.encode_special_tokens = True  # no part of the text form
    return plain


def _downloaded(model: str) -> Path:
    """Return a folder with a hub model's tokenizer files, after downloading any missing ones."""
    from huggingface_hub import snapshot_download

    wanted = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except ValueError as odd:  # a name that the hub does not allow
        raise OSError(str(odd)) from odd


def _require_tokenizer_file(folder: Path) -> None:
    if any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return
    inside = ""
    if (folder / "model").is_dir():
        inside = f"; its folder {folder / 'model'} may be one"
    raise ValueError(f"{folder} is no model folder: it has none of {', '.join(_TOKENIZER_FILES)}{inside}")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as broken:
        raise ValueError(f"{path.name} is broken ({broken})") from broken


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0]


def looks_like_path(model: str | Path) -> bool:
    """Return whether ``model`` names a folder rather than a model on the hub such as ``Qwen/Qwen2.5-7B-Instruct``."""
    name = str(model)
    return isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
