"""Join statements and filler into a text, and report the position and the span of each statement in the text.

Statements are inserted between units of filler (:func:`insert`) or replace some of them (:func:`replace_units`).
:func:`fill_chunks` cuts the result at the end of its last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from memagent_lib.data.examples import Span
from memagent_lib.data.layout.lengths import Length, end_of_chunks
from memagent_lib.text import Tokenizer

DOCUMENT_SEPARATOR = "\n\n"


class Statement(NamedTuple):
    """A text that a document must contain, at ``depth`` (0 is the beginning, 1 the end).

    ``evidence`` lists the spans of ``text`` that are evidence. In a numbered plan, ``text`` is a whole document.
    """

    text: str
    depth: float
    evidence: tuple[Span, ...] = ()

    @classmethod
    def needed(cls, text: str, depth: float) -> Statement:
        """Return a statement whose whole text is evidence."""
        return cls(text, depth, (Span(0, len(text)),))


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


def free_positions(depths: Sequence[float], count: int, used: set[int], ordered: bool = False) -> list[int]:
    """Return a position among ``count`` units for each depth, and add the positions to ``used``.

    If a depth's position is already in ``used``, the next free position is taken, even if it is beyond the last unit.
    With ``ordered``, positions increase.
    """
    found: list[int] = []
    for depth in depths:
        position = int(depth * count)
        if ordered and found:
            position = max(position, found[-1] + 1)
        # Not a new draw, so that the random numbers that follow do not depend on how crowded the document is.
        while position in used:
            position += 1
        used.add(position)
        found.append(position)
    return found


def replace_units(
    units: Sequence[str], statements: Mapping[int, str], positions: Sequence[int], separator: str
) -> Layout:
    """Replace units with ``statements`` (texts by position), join all units, and report the spans at ``positions``."""
    parts = list(units)
    for position, text in statements.items():
        parts[position] = text
    return join(parts, positions, separator)


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
