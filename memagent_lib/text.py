"""Text as a tokenizer sees it: exact, token-bounded chunks with their place in the source.

Knows no model, no prompt and no backend. A document may be a string or a stream of strings; a stream is held in memory
one block at a time, so a gigabyte costs no more than a page.
"""

from __future__ import annotations

import copy
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

BLOCK_CHARS = 1 << 17
UNSETTLED_TOKENS = 4096
SNAP_SHARE = 0.25
THINKING = "<think>"
END_OF_THINKING = "</think>"
LONG_CHARS, LONG_TOKENS = 500, 250
"""A text so long is not encoded a second time but for its ends,"""
MARGIN_TOKENS, SAME_TOKENS = 24, 10
"""which are this long, and have this many tokens in common with what is known of it."""
REMEMBERED_TEXTS = 256
_SENTENCE_ENDS = ".!?。！？…\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a document: ``document[start:end] == text``, offsets in characters."""

    index: int
    text: str
    start: int
    end: int
    tokens: int


def drop_text(chunk: Chunk) -> None:
    """Drop the text of a chunk that has been read and will not be shown again; its place stays.

    The one change ever made to a chunk: the trace of a gigabyte would otherwise hold the gigabyte.
    """
    object.__setattr__(chunk, "text", "")


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
        self.hf = hf_tokenizer
        self._plain = copy.deepcopy(backend)
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        self._lately: dict[str, Tokens] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, model: str | Path) -> Tokenizer:
        """The tokenizer of a model folder or hub name."""
        from transformers import AutoTokenizer

        if looks_like_path(model) and not Path(model).is_dir():
            raise FileNotFoundError(
                f"no model folder {str(model)!r}; give one that holds config.json and tokenizer.json, or a hub name"
            )
        try:
            return cls(AutoTokenizer.from_pretrained(str(model)))
        except OSError as missing:
            raise OSError(
                f"no tokenizer for {str(model)!r}, neither here nor on the hub; give a model folder or a hub name "
                "(for a model that only a server has a name for: --tokenizer)"
            ) from missing

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
        """The text of ``ids`` without special tokens. Ids past the vocabulary (a padded embedding can emit them) are
        dropped.
        """
        size = len(self.hf)
        return self.hf.decode(
            [i for i in ids if i < size], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

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
        frame = self.hf.decode(after)
        return frame.rfind(THINKING) > frame.rfind(END_OF_THINKING)

    @cached_property
    def _chat_frame(self) -> tuple[list[int], list[int]]:
        if not self.hf.chat_template:
            return [], self.encode("\n")
        mark = "<<memagent content>>"
        shown = self.hf.apply_chat_template(
            [{"role": "user", "content": mark}], add_generation_prompt=True, tokenize=False
        )
        before, found, after = shown.partition(mark)
        if not found:
            raise ValueError("the tokenizer's chat template does not show the user's message as it is")
        return tuple(self.hf.encode(part, add_special_tokens=False) for part in (before, after))


def looks_like_path(model: str | Path) -> bool:
    """Whether a model is named by a folder rather than by a hub name such as ``Qwen/Qwen2.5-7B-Instruct``."""
    name = str(model)
    return isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()


def chunk_stream(blocks: Iterable[str], tokenizer: Tokenizer, chunk_tokens: int) -> Iterator[Chunk]:
    """Cut a document into chunks of at most ``chunk_tokens`` tokens that, concatenated, are the document.

    A chunk ends at the last sentence end within its final quarter, else at the last white space there, else at the last
    whole character that fits. Where the cuts fall does not depend on how the text was split into ``blocks``.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    block_chars = max(BLOCK_CHARS, 16 * chunk_tokens)
    unsettled = min(8 * chunk_tokens, chunk_tokens + UNSETTLED_TOKENS)
    index = start = 0
    pending, source, finished = "", _sliced(blocks, block_chars), False
    while not finished:
        pending, finished = _fill(pending, source, block_chars)
        block, at = tokenizer.tokens(pending), 0
        starts = block.starts
        reserve = 0 if finished else unsettled  # the tokens of an unfinished block's end may still change
        while at < len(pending) and len(starts) - bisect_right(starts, at - 1) > reserve:
            cut, tokens = _cut(pending, block, at, tokenizer, chunk_tokens)
            yield Chunk(index, pending[at:cut], start, start + cut - at, tokens)
            index, start, at = index + 1, start + cut - at, cut
        pending = pending[at:]
    if not index:
        yield Chunk(0, "", 0, 0, 0)


def chunks(document: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[Chunk]:
    """:func:`chunk_stream` of a document that is in memory. An empty document is one empty chunk."""
    return list(chunk_stream([document], tokenizer, chunk_tokens))


def _sliced(blocks: Iterable[str], size: int) -> Iterator[str]:
    """``blocks`` in pieces of at most ``size``: tokenising a whole gigabyte at once would take two hundred times its
    size.
    """
    return (block[at : at + size] for block in blocks for at in range(0, len(block), size))


def _fill(pending: str, source: Iterator[str], size: int) -> tuple[str, bool]:
    parts, have = [pending], len(pending)
    for block in source:
        parts.append(block)
        have += len(block)
        if have >= size:
            return "".join(parts), False
    return "".join(parts), True


def _cut(text: str, block: Tokens, at: int, tokenizer: Tokenizer, limit: int) -> tuple[int, int]:
    """Where the chunk that begins at character ``at`` ends, and how many tokens it has on its own."""
    starts = block.starts
    first = bisect_right(starts, at - 1)
    size = limit
    while True:
        last = first + size
        if last >= len(starts):
            cut = len(text)
        else:
            floor = starts[first + int(size * (1 - SNAP_SHARE))]
            cut = _natural_break(text, starts, last, max(floor, at + 1)) or starts[last]
        if cut <= at:  # one character of more tokens than a chunk holds cannot be split
            cut = next((s for s in starts[last:] if s > at), len(text))
            return cut, tokenizer.count(text[at:cut])
        tokens = _count_alone(text[at:cut], block, at, first, tokenizer)  # can be more than in its surroundings
        if tokens <= limit:
            return cut, tokens
        size = max(0, min(size, len(starts) - first) - (tokens - limit))


def _count_alone(chunk: str, block: Tokens, at: int, first: int, tokenizer: Tokenizer) -> int:
    """How many tokens a chunk has on its own; those it has in the block are kept for the prompt that will show it."""
    if len(chunk) < LONG_CHARS:
        return tokenizer.count(chunk)
    last = bisect_left(block.starts, at + len(chunk))
    known = Tokens(block.ids[first:last], array("I", [start - at for start in block.starts[first:last]]))
    shown = chunk.strip()
    margin = len(chunk) - len(chunk.lstrip())
    inner = slice(bisect_left(known.starts, margin), bisect_left(known.starts, margin + len(shown)))
    tokenizer.remember(shown, Tokens(known.ids[inner], array("I", [s - margin for s in known.starts[inner]])))
    return len(tokenizer.encode_parts([chunk], [known]))


def _natural_break(text: str, starts: Sequence[int], last: int, floor: int) -> int | None:
    space = None
    for token in range(last, -1, -1):
        at = starts[token]
        if at < floor:
            break
        before, here = text[at - 1], text[at]
        if before == "\n" or (before in _SENTENCE_ENDS and here.isspace()) or before in "。！？":
            return at
        if space is None and (here.isspace() or before.isspace()):
            space = at
    return space


def fit(measure: Callable[[int], int], limit: int) -> int:
    """The largest ``n >= 0`` for which ``measure(n) <= limit``, where ``measure`` grows with ``n``; by doubling, then
    bisection.

    Raises ``ValueError`` when not even ``measure(0)`` fits.
    """
    if (least := measure(0)) > limit:
        raise ValueError(
            f"the shortest possible text has length {least:,}, and {limit:,} was asked for; ask for at least {least:,}"
        )
    low, high = 0, 1
    while measure(high) <= limit:
        low, high = high, 2 * high
        if high > 1 << 40:
            raise ValueError("the text does not grow with its number of parts")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle) <= limit else (low, middle)
    return low
