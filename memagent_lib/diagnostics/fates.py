"""What happened to the fact: each turn of a trace as one of a few named states, and the turns worth looking at.

Knows results; knows no HTML and no widget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import NamedTuple

from memagent_lib.evaluation.evaluator import Result
from memagent_lib.evaluation.trace_files import holds
from memagent_lib.trace import Kind, Turn


class Fate(StrEnum):
    """How the needed fact stands after a turn."""

    AHEAD = "not read yet"
    HELD = "in memory"
    MISSED = "read but never noted"
    LOST = "noted and lost"


class Piece(NamedTuple):
    """A run of words and what became of it: ``same``, ``new`` or ``gone``."""

    text: str
    change: str


@dataclass(frozen=True, slots=True)
class Step:
    """One turn with what is known about it."""

    index: int
    turn: Turn
    fate: Fate
    evidence: tuple[tuple[int, int], ...]
    """The needed facts in the turn's chunk, as character places in the chunk's text."""


def steps(result: Result) -> list[Step]:
    """Every turn of a result's trace with the fate of the fact after it."""
    made, noted = [], False
    due = max((span.end for span in result.example.evidence), default=0)
    for index, turn in enumerate(result.trace.turns):
        held = holds(turn.reply.text, result.example.answers)
        noted = noted or held
        chunk = turn.prompt.chunk
        read = turn.prompt.kind is not Kind.READ or chunk is None or chunk.end >= due
        fate = Fate.HELD if held else Fate.LOST if noted else Fate.MISSED if read else Fate.AHEAD
        made.append(Step(index, turn, fate, _evidence(turn, result)))
    return made


def notable(story: Sequence[Step], most: int = 8) -> list[Step]:
    """The turns to show when not all can be: with evidence, where the fate changes, cut ones, the last read, the answer."""
    keep: dict[int, None] = {}
    for step in story:
        before = story[step.index - 1].fate if step.index else Fate.AHEAD
        if step.evidence or step.fate is not before:
            keep[step.index] = None
    last = [s.index for s in story[-2:]]
    rest = [i for i in (0, *(s.index for s in story if s.turn.reply.cut)) if i not in keep and i not in last]
    room = max(0, most - len(last))
    chosen = sorted({*list(keep)[:room], *rest[: max(0, room - len(keep))], *last})
    return [story[i] for i in chosen]


def changes(before: str, after: str) -> list[Piece]:
    """A memory and the one that replaced it, word by word."""
    old, new = _words(before), _words(after)
    pieces: list[Piece] = []
    for what, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            pieces.append(Piece("".join(old[a:b]), "same"))
            continue
        pieces += [Piece("".join(words), change) for words, change in ((old[a:b], "gone"), (new[c:d], "new")) if words]
    return pieces


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _evidence(turn: Turn, result: Result) -> tuple[tuple[int, int], ...]:
    chunk = turn.prompt.chunk
    if chunk is None or result.example.document[chunk.start : chunk.end] != chunk.text:
        return ()
    inside = (
        (max(s.start, chunk.start) - chunk.start, min(s.end, chunk.end) - chunk.start) for s in result.example.evidence
    )
    return tuple((start, end) for start, end in inside if start < end)
