"""Cut text into exact, token-bounded chunks with their offsets in the source.

A document is a string or a stream of strings. Only one block of a stream is in memory at a time, so a gigabyte takes no
more memory than a page. This module depends on tokenizers, not on models, prompts or backends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memagent_lib.tokenizer import Tokenizer, Tokens

BLOCK_CHARS = 1 << 17
UNSETTLED_TOKENS = 4096
"""How many tokens at the end of a block may still change with the text that follows."""
SNAP_SHARE = 0.25
"""The share of a chunk, at its end, that is searched for a sentence end."""
_SENTENCE_ENDS = ".!?。！？…\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a document: ``document[start:end] == text``, with offsets in characters.

    The text may be dropped after a chunk has been read (:meth:`memagent_lib.trace.Turn.lean`).
    """

    index: int
    text: str
    start: int
    end: int
    tokens: int


def whole_characters(text: str) -> str:
    """Join surrogate pairs in ``text``, and replace unpaired surrogates with U+FFFD, because no tokenizer accepts them.

    Surrogates come from JSON (``"\\ud83e"``), and from file names and command lines that are not UTF-8.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def chunk_stream(blocks: Iterable[str], tokenizer: Tokenizer, chunk_tokens: int) -> Iterator[Chunk]:
    """Cut a document into chunks of at most ``chunk_tokens`` tokens. Joined, the chunks are the document.

    Only a single character that has more tokens than that exceeds the limit, as a chunk of its own. A chunk ends at the
    last sentence end within its final quarter, else at the last white space there, else at the last whole character
    that fits. The cuts do not depend on how the text is split into ``blocks``.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    block_chars = max(BLOCK_CHARS, 16 * chunk_tokens)
    unsettled = min(8 * chunk_tokens, chunk_tokens + UNSETTLED_TOKENS)
    source = _sliced(blocks, block_chars)
    index = 0
    start = 0  # of the chunk, in the document
    pending = ""
    finished = False
    while not finished:
        pending, finished = _fill(pending, source, block_chars)
        block = tokenizer.tokens(pending)
        starts = block.starts
        at = 0  # where the chunk begins in the block
        reserve = 0 if finished else unsettled
        while at < len(pending) and len(starts) - bisect_right(starts, at - 1) > reserve:
            cut, tokens = _cut(pending, block, at, tokenizer, chunk_tokens)
            end = start + cut - at
            yield Chunk(index, pending[at:cut], start, end, tokens)
            index += 1
            start = end
            at = cut
        pending = pending[at:]
    if not index:
        yield Chunk(0, "", 0, 0, 0)


def chunks(document: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[Chunk]:
    """Cut a document in memory into chunks, as :func:`chunk_stream` does. An empty document gives one empty chunk."""
    return list(chunk_stream([document], tokenizer, chunk_tokens))


def _sliced(blocks: Iterable[str], size: int) -> Iterator[str]:
    """Split ``blocks`` into pieces of at most ``size`` characters.

    Tokenising a text takes about 200 times its size in memory.
    """
    return (block[at : at + size] for block in blocks for at in range(0, len(block), size))


def _fill(pending: str, source: Iterator[str], size: int) -> tuple[str, bool]:
    """Add blocks to ``pending`` until it has ``size`` characters. Return it, and whether the source is at its end."""
    parts = [pending]
    have = len(pending)
    for block in source:
        parts.append(block)
        have += len(block)
        if have >= size:
            return "".join(parts), False
    return "".join(parts), True


def _cut(text: str, block: Tokens, at: int, tokenizer: Tokenizer, limit: int) -> tuple[int, int]:
    """Return the end of the chunk that begins at character ``at``, and its number of tokens on its own."""
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
        if cut <= at:  # a character is never split, even one of more tokens than a chunk may have
            cut = next((s for s in starts[last:] if s > at), len(text))
            return cut, tokenizer.count(text[at:cut])
        tokens = _count(text, block, at, cut, tokenizer)
        if tokens <= limit:  # can be more than in the block, where its ends have neighbours
            return cut, tokens
        # Shrink by the excess and try again; a few rounds are enough, as only the ends differ.
        size = max(0, min(size, len(starts) - first) - (tokens - limit))


def _count(text: str, block: Tokens, at: int, cut: int, tokenizer: Tokenizer) -> int:
    """Return how many tokens the chunk ``text[at:cut]`` has on its own."""
    chunk = text[at:cut]
    known = block.within(at, cut)
    displayed = chunk.strip()
    margin = len(chunk) - len(chunk.lstrip())
    tokenizer.remember(displayed, known.within(margin, margin + len(displayed)))
    return len(tokenizer.encode_around("", chunk, "", known))


def _natural_break(text: str, starts: Sequence[int], last: int, floor: int) -> int | None:
    """Return the last sentence end between ``floor`` and token ``last``, else the last white space, else ``None``."""
    space = None
    for token in range(last, -1, -1):
        at = starts[token]
        if at < floor:
            break
        before = text[at - 1]
        here = text[at]
        if before == "\n" or (before in _SENTENCE_ENDS and here.isspace()) or before in "。！？":
            return at
        if space is None and (here.isspace() or before.isspace()):
            space = at
    return space
