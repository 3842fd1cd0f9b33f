"""Statements in text: parts are joined, and every statement's position and span in the result is known.

Statements either stand between units of filler (:func:`insert`) or take the position of some (:func:`replace_units`);
:func:`fill_chunks` cuts either at the end of the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from memagent_lib.data.examples import Span
from memagent_lib.data.layout.lengths import Length, end_of_chunks
from memagent_lib.text import Tokenizer

DOCUMENT_SEPARATOR = "\n\n"


class Statement(NamedTuple):
    """A text that a document must contain, its depth (0 the beginning, 1 the end), and which characters are evidence.

    In a pool of documents the text is a whole document.
    """

    text: str
    depth: float
    evidence: tuple[Span, ...] = ()

    @classmethod
    def needed(cls, text: str, depth: float) -> Statement:
        """Return a statement that is evidence as a whole."""
        return cls(text, depth, (Span(0, len(text)),))


class Layout(NamedTuple):
    """A document's text, with each statement's span in it and its position among the parts that were joined."""

    text: str
    spans: list[Span]
    positions: list[int]


def heading(number: int) -> str:
    """Return what stands above the ``number``-th document, counted from 1, in the form of RULER and MemAgent."""
    return f"Document {number}:\n"


def numbered_documents(documents: Sequence[str]) -> str:
    """Join documents into one text, each below its heading."""
    return DOCUMENT_SEPARATOR.join(heading(i) + document for i, document in enumerate(documents, 1))


def join(parts: Sequence[str], positions: Sequence[int], separator: str, numbered: bool = False) -> Layout:
    """Join parts into a text and report where the parts at ``positions`` are, behind their headings if ``numbered``."""
    headings = [heading(number) if numbered else "" for number in range(1, len(parts) + 1)]
    starts = []
    end = 0
    for above, part in zip(headings, parts, strict=True):
        start = end + len(above)
        starts.append(start)
        end = start + len(part) + len(separator)
    text = separator.join(above + part for above, part in zip(headings, parts, strict=True))
    spans = [Span(starts[i], starts[i] + len(parts[i])) for i in positions]
    return Layout(text, spans, list(positions))


def insert(
    fillers: Sequence[str],
    statements: Sequence[Statement],
    separator: str,
    numbered: bool = False,
    among: int | None = None,
) -> Layout:
    """Lay statements out between units of filler, each at its depth; statements of equal depth stay in order.

    Depths count over the first ``among`` units, or over all of them.
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


def free_positions(depths: Sequence[float], count: int, used: set[int], ordered: bool = False) -> list[int]:
    """Choose a position among ``count`` units for each depth, none of them in ``used``, which they are added to.

    A position that is taken moves to the next free one; ``ordered`` positions rise.
    """
    found: list[int] = []
    for depth in depths:
        position = int(depth * count)
        if ordered and found:
            position = max(position, found[-1] + 1)
        # The next free one, not a new draw: a crowded document still needs no more randomness than an empty one.
        while position in used:
            position += 1
        used.add(position)
        found.append(position)
    return found


def replace_units(
    units: Sequence[str], statements: Mapping[int, str], positions: Sequence[int], separator: str
) -> Layout:
    """Lay ``statements`` out in place of the units at their positions, and report where those at ``positions`` are."""
    parts = list(units)
    for position, text in statements.items():
        parts[position] = text
    return join(parts, positions, separator)


def fill_chunks(
    lay_out: Callable[[int], Layout], count: int, length: Length, tokenizer: Tokenizer, least: int = 0
) -> Layout:
    """Cut a text where its last chunk ends, with every statement whole.

    ``lay_out(n)`` puts the statements among the first ``n`` units of a text that is longer than its chunks. ``n`` falls
    from ``count`` until all statements end before the cut; ``ValueError`` where they do not at ``least`` either.
    """
    for n in range(count, min(count, least) - 1, -1):  # at least once: a short statement may fit where no unit does
        found = lay_out(n)
        text = found.text[: end_of_chunks(found.text, length, tokenizer)].rstrip()
        if all(span.end <= len(text) for span in found.spans):
            return found._replace(text=text)
    raise ValueError(f"{length.label} is too short for {len(found.spans)} statements; request more or longer chunks")
