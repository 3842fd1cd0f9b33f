"""Lengths of documents: state a length, count the tokens of a text, and find the longest text within a length."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from memagent_lib.text import Tokenizer, chunk_stream, chunks

BLOCK_CHARS = 1 << 20
"""Long text is tokenised in blocks of about this many characters, which bounds memory."""
_ANCHOR = "so."  # ends in a full stop, as units of filler do, because a text's tokens depend on what precedes it
_KNOWN_UNITS = 200_000  # bounds the cache, because units of endless filler may never repeat
_ROUNDS = 24
# In the tokenizers of today's models a word begins with its space, so no token spans a cut before a space.
_SPACE = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The length of a document: in ``tokens``, in ``chunks`` of ``chunk_tokens``, or in ``documents`` of a pool."""

    tokens: int | None = None
    chunks: int | None = None
    documents: int | None = None
    chunk_tokens: int = 5000

    def __post_init__(self) -> None:
        units = {"length_tokens": self.tokens, "chunks": self.chunks, "documents": self.documents}
        stated = {name: value for name, value in units.items() if value is not None}
        if len(stated) != 1:
            found = " and ".join(stated) or "none of them"
            raise ValueError(f"set exactly one of length_tokens, chunks and documents; got {found}")
        for name, value in {**stated, "chunk_tokens": self.chunk_tokens}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def limit(self) -> int:
        """The largest number of tokens that the document can have. Raises ``ValueError`` for a length in documents."""
        if self.documents is not None:
            raise ValueError("this task has no pool of documents; set length_tokens or chunks instead")
        if self.tokens is not None:
            return self.tokens
        return self.chunks * self.chunk_tokens

    @property
    def whole_chunks(self) -> int:
        """The number of chunks. Raises ``ValueError`` for a length in another unit."""
        if self.chunks is None:
            raise ValueError(
                "this task fills whole chunks; set chunks (and chunk_tokens) instead of a length in "
                f"{'tokens' if self.tokens is not None else 'documents'}"
            )
        return self.chunks

    @property
    def label(self) -> str:
        """The length in a short form for ids: ``9000t``, ``4x5000`` or ``50d``."""
        if self.documents is not None:
            return f"{self.documents}d"
        if self.tokens is not None:
            return f"{self.tokens}t"
        return f"{self.chunks}x{self.chunk_tokens}"


def end_of_chunks(text: str, length: Length, tokenizer: Tokenizer) -> int:
    """Return the character position where the last chunk of ``length`` ends, or the end of a shorter text."""
    *_, last = islice(chunk_stream([text], tokenizer, length.chunk_tokens), length.chunks)
    return last.end


class Meter:
    """Counts the tokens of a text, or of a unit that is appended to a text. Counts of units are cached."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._anchor_tokens = tokenizer.count(_ANCHOR)
        self._costs: dict[str, int] = {}

    def cost(self, text: str, separator: str = " ") -> int:
        """Return the number of tokens that ``separator + text`` adds to a document that ends in a full stop."""
        # The separator belongs to the unit, because tokenizers merge a space with the word after it.
        unit = separator + text
        known = self._costs.get(unit)
        if known is None:
            known = self.tokenizer.count(_ANCHOR + unit) - self._anchor_tokens
            if len(self._costs) < _KNOWN_UNITS:
                self._costs[unit] = known
        return known

    def count(self, text: str) -> int:
        """Return the number of tokens of a text. Long texts are counted in blocks cut before a space."""
        total = 0
        start = 0
        while start < len(text):
            cut = _SPACE.search(text, start + BLOCK_CHARS)
            end = cut.start() if cut else len(text)
            total += self.tokenizer.count(text[start:end])
            start = end
        return total


def longest(
    build: Callable[[int], str],
    measure: Callable[[int], int],
    guess: int,
    length: Length,
    meter: Meter,
    fixed_tokens: int = 0,
) -> tuple[int, int]:
    """Find nearly the largest ``n`` whose text ``build(n)`` is within ``length``; return ``n`` and its token count.

    ``measure(n)`` counts or estimates the tokens of ``build(n)``; it is ``fixed_tokens`` at 0 and grows about linearly.
    The search begins at ``guess``. A length in tokens is met to within half a percent or one unit; for a length in
    chunks, ``n`` is lowered until the text fits into them. Raises ``ValueError`` if even ``build(0)`` is too long.
    """
    n, tokens = _within(measure, guess, length.limit, fixed_tokens)
    if length.chunks is None:
        return n, tokens
    # Statements move as the text gets shorter, which moves the ends of chunks too: one correction may not be enough.
    while True:
        text = build(n)
        pieces = chunks(text, meter.tokenizer, length.chunk_tokens)
        if len(pieces) <= length.chunks:
            return n, sum(piece.tokens for piece in pieces)
        if not n:
            raise ValueError(
                f"the task's statements need {len(pieces):,} chunks of {length.chunk_tokens:,} tokens and "
                f"{length.chunks:,} were requested; request more or longer chunks"
            )
        shorter = int(n * pieces[length.chunks - 1].end / len(text))
        n = max(0, min(n - 1, shorter))


def _within(measure: Callable[[int], int], guess: int, limit: int, fixed_tokens: int) -> tuple[int, int]:
    """Find nearly the largest ``n`` that measures at most ``limit``; return ``n`` and its measure.

    Each step assumes units of average size; bounds found on the way narrow the search.
    """
    low = -1
    high = None
    best = 0
    n = guess
    for _ in range(_ROUNDS):
        tokens = measure(n)
        # Units differ in size, so a step by their average may overshoot: an ``n`` that is too long becomes the bound.
        unit = max(1.0, (tokens - fixed_tokens) / max(1, n))
        step = math.floor((limit - tokens) / unit)
        if tokens <= limit:
            low = n
            best = tokens
            if limit - tokens <= max(unit, limit // 200):  # within one unit or half a percent
                break
        else:
            high = n
        if high is not None and high - low <= 1:
            break
        below_high = n + step if high is None else min(n + step, high - 1)
        n = max(low + 1, below_high)
    if low < 0:
        # Examples of one task differ by some per cent, and the next one may need more than this one.
        enough = math.ceil(1.25 * tokens / 100) * 100
        raise ValueError(
            f"the task's statements alone need {tokens:,} tokens and {limit:,} were requested; "
            f"request at least {enough:,}, because other examples may need more"
        )
    return low, best
