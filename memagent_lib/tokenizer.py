"""A policy's own tokenizer: exact ids, places of tokens, chat frames. Nothing in a document can act as a control token.

Long texts are encoded once and put together from known tokens. Knows no prompt and no model.
"""

from __future__ import annotations

import copy
import json
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.errors import MissingFile

THINKING = "<think>"
END_OF_THINKING = "</think>"
LONG_CHARS, LONG_TOKENS = 500, 250
"""A text so long is not encoded a second time but for its ends,"""
MARGIN_TOKENS, SAME_TOKENS = 24, 10
"""which are this long, and have this many tokens in common with what is known of it."""
REMEMBERED_TEXTS = 256
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokens(NamedTuple):
    """Ids, and the character at which each token starts; tokens inside one character share its start."""

    ids: array[int]
    starts: array[int]


class _Anchor(NamedTuple):
    """Token number ``at`` of a long part, whose text begins ``shift`` characters into a seam's text."""

    tokens: Tokens
    at: int
    shift: int

    def met(self, seam: Tokens, before: bool) -> int | None:
        """Which token of the seam is this one, if the tokens beside it, inside the part, are the same in both."""
        place = self.tokens.starts[self.at] + self.shift
        found = bisect_left(seam.starts, place)
        if found == len(seam.starts) or seam.starts[found] != place or found < before * SAME_TOKENS:
            return None
        back = -SAME_TOKENS if before else 0
        here = seam.ids[found + back : found + back + SAME_TOKENS]
        there = self.tokens.ids[self.at + back : self.at + back + SAME_TOKENS]
        return found if here == there else None


def _ends(tokens: Tokens) -> tuple[int, ...] | None:
    """The tokens between which a long text's ends are encoded again, two at each end; ``None`` for a short one."""
    n = len(tokens.ids)
    if n < LONG_TOKENS:
        return None
    borders = (MARGIN_TOKENS, 2 * MARGIN_TOKENS, n - 2 * MARGIN_TOKENS, n - MARGIN_TOKENS)
    whole = tuple(_begins_character(tokens.starts, at) for at in borders)
    return None if None in whole else whole


def _begins_character(starts: array[int], at: int) -> int | None:
    return next((i for i in range(at, min(at + 8, len(starts))) if starts[i] > starts[i - 1]), None)


class Tokenizer:
    """A policy's own tokenizer, in which nothing that a document says can act as a control token.

    Wraps any Hugging Face *fast* tokenizer. ``encode`` never parses special tokens; only :meth:`chat` adds them.
    """

    def __init__(self, hf_tokenizer: Any):
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TypeError(
                f"{type(hf_tokenizer).__name__} is not a fast tokenizer; memagent needs character offsets, "
                "which only fast ones give"
            )
        self._given, self.backend = hf_tokenizer, backend
        self._plain = copy.deepcopy(backend)
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        self._lately: dict[str, Tokens] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, model: str | Path) -> Tokenizer:
        """The tokenizer of a model folder or hub name, from its files alone: transformers would import torch."""
        if looks_like_path(model) and not Path(model).is_dir():
            raise MissingFile(
                f"no model folder {str(model)!r}; give one that holds config.json and tokenizer.json, or a hub name"
            )
        folder = Path(model) if Path(model).is_dir() else None
        if folder and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            inside = f"; its folder {folder / 'model'} may be one" if (folder / "model").is_dir() else ""
            raise ValueError(f"{folder} is no model folder: it has none of {', '.join(_TOKENIZER_FILES)}{inside}")
        try:
            files = folder or _downloaded(str(model))
            if (files / "tokenizer.json").is_file():
                return cls(TokenizerFiles(files))
            from transformers import AutoTokenizer

            return cls(AutoTokenizer.from_pretrained(str(model)))
        except (OSError, ValueError) as failure:
            if folder:
                raise ValueError(f"the tokenizer of {folder} cannot be loaded: {_first_line(failure)}") from failure
            raise OSError(
                f"no tokenizer for {str(model)!r}, neither here nor on the hub; give a model folder or a hub name"
            ) from failure

    @cached_property
    def hf(self) -> Any:
        """The tokenizer as transformers' own object."""
        if not isinstance(self._given, TokenizerFiles):
            return self._given
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self._given.folder))

    def encode(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def tokens(self, text: str) -> Tokens:
        """The tokens of ``text`` with their places."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        return Tokens(array("I", encoding.ids), array("I", [start for start, _ in encoding.offsets]))

    def known_tokens(self, text: str) -> Tokens:
        """The tokens of a text in some surroundings; a long one that was met lately is not encoded again."""
        if (known := self._lately.get(text)) is None:
            self.remember(text, known := self.tokens(text))
        return known

    def remember(self, text: str, tokens: Tokens) -> None:
        """Keep the tokens of a long text, known from some surroundings, for the prompts that will show it."""
        if len(tokens.ids) < LONG_TOKENS:
            return
        with self._lock:
            self._lately.pop(text, None)
            self._lately[text] = tokens
            while len(self._lately) > REMEMBERED_TEXTS:
                del self._lately[next(iter(self._lately))]

    def encode_parts(self, parts: Sequence[str], known: Sequence[Tokens | None] | None = None) -> list[int]:
        """The ids of ``"".join(parts)``. Long parts are not encoded again but for their ends, where tokens may differ.

        ``known`` are the tokens of the parts in some surroundings (of those met lately, if not given). An end is
        encoded with what stands beside it; where the tokens found there do not meet the known ones, all is encoded.
        """
        if known is None:
            known = [self.known_tokens(part) if len(part) >= LONG_CHARS else None for part in parts]
        ids: list[int] = []
        seam, left = "", None  # text since the last long part, from within its end
        for part, tokens in zip(parts, known, strict=True):
            ends = tokens and _ends(tokens)
            if not ends:
                seam += part
                continue
            first, upto, since, last = ends
            found = self._seam(seam + part[: tokens.starts[upto]], left, _Anchor(tokens, first, len(seam)))
            if found is None:
                return self.encode("".join(parts))
            ids += [*found, *tokens.ids[first:last]]
            seam, left = part[tokens.starts[since] :], _Anchor(tokens, last, -tokens.starts[since])
        found = self._seam(seam, left, None)
        return self.encode("".join(parts)) if found is None else ids + found

    def _seam(self, text: str, left: _Anchor | None, right: _Anchor | None) -> list[int] | None:
        """The ids of ``text`` between its anchors; ``None`` where it does not meet them with the same tokens."""
        if left is right is None:
            return self.encode(text)
        seam = self.tokens(text)
        begin = 0 if left is None else left.met(seam, before=True)
        end = len(seam.ids) if right is None else right.met(seam, before=False)
        return None if begin is None or end is None or begin > end else seam.ids[begin:end].tolist()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids`` without special tokens. Ids past the vocabulary (a padded embedding can emit them) go."""
        size = self.backend.get_vocab_size()
        return self.backend.decode([i for i in ids if i < size], skip_special_tokens=True)

    def chat(self, *parts: str) -> list[int]:
        """The ids of one user message that says ``parts`` in a row, up to where the model's reply begins."""
        before, after = self._chat_frame
        return [*before, *self.encode_parts(parts), *after]

    @property
    def chat_tokens(self) -> int:
        """How many tokens the chat template adds to a message."""
        return sum(map(len, self._chat_frame))

    def still_thinking(self, reply: str) -> bool:
        """Whether a reply is an unfinished thought: begun by itself or by the chat template, and never closed."""
        return (self._opens_thinking or reply.lstrip().startswith(THINKING)) and END_OF_THINKING not in reply

    @cached_property
    def _opens_thinking(self) -> bool:
        """Whether the chat template begins the model's reply with a thought, as those of reasoning models do."""
        _, after = self._chat_frame
        frame = self.backend.decode(after, skip_special_tokens=False)
        return frame.rfind(THINKING) > frame.rfind(END_OF_THINKING)

    @cached_property
    def _chat_frame(self) -> tuple[list[int], list[int]]:
        if not self._given.chat_template:
            return [], self.encode("\n")
        mark = "<<memagent content>>"
        messages = [{"role": "user", "content": mark}]
        shown = self._given.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        before, found, after = shown.partition(mark)
        if not found:
            raise ValueError("the tokenizer's chat template does not show the user's message as it is")
        return tuple(self.backend.encode(part, add_special_tokens=False).ids for part in (before, after))


class TokenizerFiles:
    """What the files of a model folder say about its tokenizer, with the names that transformers gives it."""

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
        template = named.get("chat_template")
        if isinstance(template, list):  # several by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        path = folder / "chat_template.jinja"
        self.chat_template: str | None = path.read_text(encoding="utf-8") if path.is_file() else template

    def apply_chat_template(self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool) -> str:
        """The template's text for ``messages``, rendered as transformers does it."""
        assert not tokenize, "ids are the caller's"
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """The block that marks the assistant's words for training: its body, as it is."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template of {self.folder} refuses a user message: {message}")

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.filters["tojson"] = lambda value, **given: json.dumps(value, **({"ensure_ascii": False} | given))
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        template = environment.from_string(self.chat_template)
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return template.render(**given, **self._special)


def _downloaded(model: str) -> Path:
    """The folder with a hub model's tokenizer files, downloaded where they are not there yet."""
    from huggingface_hub import snapshot_download

    wanted = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except ValueError as odd:  # no name that the hub allows
        raise OSError(str(odd)) from odd


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as broken:
        raise ValueError(f"{path.name} is broken ({broken})") from broken


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0]


def looks_like_path(model: str | Path) -> bool:
    """Whether a model is named by a folder rather than by a hub name such as ``Qwen/Qwen2.5-7B-Instruct``."""
    name = str(model)
    return isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
