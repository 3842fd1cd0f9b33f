"""Encode text and chat messages exactly as a policy's own tokenizer does, with character offsets.

A long text is encoded only once, and prompts that contain it reuse its tokens (:mod:`memagent_lib.token_seams`). This
module does not depend on prompts or models.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.byte_level import ByteLevel
from memagent_lib.errors import MissingFile, MissingPackage
from memagent_lib.thinking import Thoughts, special_marks
from memagent_lib.token_seams import LONG_TOKENS, Tokens, joined_ids
from memagent_lib.tokenizer_files import (
    TokenizerFiles,
    downloaded,
    looks_like_path,
    require_tokenizer_file,
    template_arguments,
)

LONG_CHARS = 500
"""A part of a prompt of at least this length is looked up among the texts that were encoded before."""
BYTE_LEVEL_CHARS = 2000
"""A text of this length is encoded without tracking offsets if they follow from the tokens."""
REMEMBERED_TEXTS = 256
MARK = "<<memagent content>>"
"""A placeholder message, by which a chat template is rendered to find what it writes around messages."""


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
            raise TypeError(
                f"{type(hf_tokenizer).__name__} is not a fast tokenizer; memagent needs character offsets, "
                "which only fast ones have"
            )
        self.source = hf_tokenizer
        # Training scripts leave both in tokenizer.json; transformers too sets them anew in every call.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self._plain = _without_added_tokens(backend)  # the original parses them, which the chat frame needs
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
            require_tokenizer_file(folder)
        try:
            files = folder or downloaded(str(model))
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
                first_line = str(failure).strip().partition("\n")[0]
                raise ValueError(f"the tokenizer of {folder} cannot be loaded: {first_line}") from failure
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
        used = template_arguments(str(self.source.chat_template or ""))
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

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the tokenizer and its chat template, without :attr:`chat_arguments`.

        The template counts as it is written, because some templates render the day's date.
        """
        if isinstance(self.source, TokenizerFiles):  # ten times faster than the text form, for 150,000 tokens
            tokens = (self.source.folder / "tokenizer.json").read_bytes()
        else:
            specials = sorted(number for number, token in self._added_tokens.items() if token.special)
            tokens = f"{self._plain.to_str()}\0{specials}".encode("utf-8", "surrogatepass")
        found = hashlib.sha256(tokens)
        names = ("chat_template", "bos_token", "eos_token", "add_bos_token")
        settings = [getattr(self.source, name, None) for name in names]
        found.update(json.dumps(settings, default=str).encode())
        return found.hexdigest()[:16]

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

        ``known`` has the tokens of each part within a longer text (default: from the cache).
        """
        if known is None:
            known = [self.known_tokens(part) if len(part) >= LONG_CHARS else None for part in parts]
        return joined_ids(self, parts, known)

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
        frame = self._chat_frame
        return [*frame.before, *self.encode_parts([frame.prefix, *parts, frame.suffix]), *frame.after]

    @property
    def chat_tokens(self) -> int:
        """The number of tokens that the chat template adds to a message."""
        return len(self.chat("x")) - self.count("x")

    @cached_property
    def thoughts(self) -> Thoughts:
        """How to split a reply of this tokenizer's model into thoughts and text."""
        added = {token.content for token in self._added_tokens.values()}
        thoughts = Thoughts.of(str(self.source.chat_template or ""), added, self._chat_frame.end)
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
    def _chat_frame(self) -> _Frame:
        if not self.source.chat_template:
            # A base model has no chat template: a line break ends the message.
            return _Frame(self._begin_ids, "", "", self.encode("\n"), "\n")
        messages = [{"role": "user", "content": MARK}]
        framed = self.source.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.chat_arguments
        )
        # The frame is encoded with special tokens, the content without: nothing in a document acts as a control token.
        before, found, after = framed.partition(MARK)
        if not found:
            raise ValueError("the tokenizer's chat template does not contain the user's message as it is")
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
