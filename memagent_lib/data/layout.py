"""Lay out statements in a document of a requested length: count tokens, join text, and report positions and spans.

It uses tokenizers, but no task and no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple

from memagent_lib.data.examples import Span
from memagent_lib.text import Tokenizer, chunk_stream, chunks

DOCUMENT_SEPARATOR = "\n\n"
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
            raise ValueError(f"set exactly one of {', '.join(units)}; got {' and '.join(stated) or 'none of them'}")
        for name, value in {**stated, "chunk_tokens": self.chunk_tokens}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def limit(self) -> int:
        """The largest number of tokens that the document can have. Raises ``ValueError`` for a length in documents."""
        if self.documents is not None:
            raise ValueError("this task has no pool of documents; set length_tokens or chunks instead")
        return self.tokens if self.chunks is None else self.whole_chunks * self.chunk_tokens

    @property
    def whole_chunks(self) -> int:
        """The number of chunks. Raises ``ValueError`` for a length in another unit."""
        if self.chunks is None:
            raise ValueError("this task fills whole chunks; set chunks (and chunk_tokens) instead of another length")
        return self.chunks

    @property
    def label(self) -> str:
        """The length in a short form for ids: ``9000t``, ``4x5000`` or ``50d``."""
        if self.documents is not None:
            return f"{self.documents}d"
        return f"{self.chunks}x{self.chunk_tokens}" if self.tokens is None else f"{self.tokens}t"


def end_of_chunks(text: str, length: Length, tokenizer: Tokenizer) -> int:
    """Return the character position where the last chunk of ``length`` ends, or the end of a shorter text."""
    *_, last = islice(chunk_stream([text], tokenizer, length.chunk_tokens), length.chunks)
    return last.end


class Meter:
    """Counts the tokens of a text, or of a unit that is appended to a text. Counts of units are cached."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        anchor_tokens = tokenizer.count(_ANCHOR)
        self._cost = lru_cache(_KNOWN_UNITS)(lambda unit: tokenizer.count(_ANCHOR + unit) - anchor_tokens)

    def cost(self, text: str, separator: str = " ") -> int:
        """Return the number of tokens that ``separator + text`` adds to a document that ends in a full stop."""
        # The separator belongs to the unit, because tokenizers merge a space with the word after it.
        return self._cost(separator + text)

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
        raise ValueError(
            f"the task's statements alone need {tokens:,} tokens and {limit:,} were requested; request more, and a "
            "quarter more than that, because other examples may need more"
        )
    return low, best


class Statement(NamedTuple):
    """A text that a document must contain, at ``depth`` (0 is the beginning, 1 the end).

    ``evidence`` lists the spans of ``text`` that are evidence. In a numbered plan, ``text`` is a whole document.
    """

    text: str
    depth: float
    evidence: tuple[Span, ...] = ()

    @classmethod
    def needed(cls, text: str, depth: float, is_needed: bool = True) -> Statement:
        """Return a statement whose whole text is evidence, if ``is_needed``."""
        return cls(text, depth, (Span(0, len(text)),) if is_needed else ())


class Layout(NamedTuple):
    """A document's text, and for each statement its span in the text and its position among the joined parts."""

    text: str
    spans: list[Span]
    positions: list[int]


def heading(number: int) -> str:
    """Return the heading of document ``number`` (from 1), in the form that RULER and MemAgent use."""
    return f"Document {number}:\n"


def numbered_documents(documents: Sequence[str]) -> str:
    """Join documents into one text, each under its numbered heading."""
    return DOCUMENT_SEPARATOR.join(heading(i) + document for i, document in enumerate(documents, 1))


def join(parts: Sequence[str], positions: Sequence[int], separator: str, numbered: bool = False) -> Layout:
    """Join parts into a text, under headings if ``numbered``, and report the spans of the parts at ``positions``.

    A span does not include the heading.
    """
    texts = [heading(number) + part if numbered else part for number, part in enumerate(parts, 1)]
    ends = list(accumulate(len(text) + len(separator) for text in texts))
    spans = []
    for i in positions:
        end = ends[i] - len(separator)
        spans.append(Span(end - len(parts[i]), end))
    return Layout(separator.join(texts), spans, list(positions))


def insert(
    fillers: Sequence[str],
    statements: Sequence[Statement],
    separator: str,
    numbered: bool = False,
    among: int | None = None,
) -> Layout:
    """Insert each statement between units of filler, at its depth. Statements of equal depth keep their order.

    A depth is a share of the first ``among`` units of filler; by default, of all units.
    """
    count = len(fillers) if among is None else among
    parts: list[str] = []
    positions = [0] * len(statements)
    used = 0
    # The sort is stable: a task that states things in order may give them all one depth.
    for i in sorted(range(len(statements)), key=lambda i: statements[i].depth):
        before = round(statements[i].depth * count)
        parts += fillers[used:before]
        used = before
        positions[i] = len(parts)
        parts.append(statements[i].text)
    parts += fillers[used:]
    return join(parts, positions, separator, numbered)


def fill_chunks(
    lay_out: Callable[[int], Layout], count: int, length: Length, tokenizer: Tokenizer, least: int = 0
) -> Layout:
    """Return a document cut at the end of its last chunk, with every statement before the cut.

    ``lay_out(n)`` returns a text longer than ``length``, with the statements among its first ``n`` units. ``n`` is
    lowered from ``count`` to ``least`` until every statement ends before the cut. Raises ``ValueError`` if one never
    does.
    """
    for n in range(count, min(count, least) - 1, -1):  # at least once: a short statement may fit even if no unit does
        found = lay_out(n)
        text = found.text[: end_of_chunks(found.text, length, tokenizer)].rstrip()
        if all(span.end <= len(text) for span in found.spans):
            return found._replace(text=text)
    raise ValueError(f"{length.label} is too short for {len(found.spans)} statements; request more or longer chunks")
