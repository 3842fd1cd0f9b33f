"""A reading as the inspector tells it: every turn with its fate, the turns worth looking at, and what changed word by word.

Knows results and their diagnosis; knows no HTML and no widget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from memagent_lib.diagnostics import Fate, evidence_in
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.trace import Turn


class WordChange(NamedTuple):
    """A run of words and what became of it: ``same``, ``new`` or ``gone``."""

    text: str
    change: str


@dataclass(frozen=True, slots=True)
class StoryTurn:
    """One turn with what is known about it. ``fate`` is ``None`` for a reader without memory."""

    index: int
    turn: Turn
    fate: Fate | None
    evidence: tuple[tuple[int, int], ...]
    """The needed facts in the turn's chunk, as character places in the chunk's text."""


def story(result: Result) -> list[StoryTurn]:
    """Every turn of a result's trace with the fate of the question's facts after it."""
    fates, spans = result.diagnosis.fates, result.example.evidence
    return [
        StoryTurn(i, turn, fate, evidence_in(turn, spans))
        for i, (turn, fate) in enumerate(zip(result.trace.turns, fates, strict=True))
    ]


def notable(turns: Sequence[StoryTurn], most: int = 8) -> list[StoryTurn]:
    """The turns to show when not all can be: with evidence, where the fate changes, cut ones, the last read, the answer."""
    keep: dict[int, None] = {}
    for turn in turns:
        before = turns[turn.index - 1].fate if turn.index else Fate.AHEAD
        if turn.evidence or turn.fate is not before:
            keep[turn.index] = None
    last = [s.index for s in turns[-2:]]
    rest = [i for i in (0, *(s.index for s in turns if s.turn.reply.cut)) if i not in keep and i not in last]
    room = max(0, most - len(last))
    chosen = sorted({*list(keep)[:room], *rest[: max(0, room - len(keep))], *last})
    return [turns[i] for i in chosen]


def changes(before: str, after: str) -> list[WordChange]:
    """A memory and the one that replaced it, word by word."""
    old, new = _words(before), _words(after)
    pieces: list[WordChange] = []
    for what, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            pieces.append(WordChange("".join(old[a:b]), "same"))
            continue
        both = (old[a:b], "gone"), (new[c:d], "new")
        pieces += [WordChange("".join(words), change) for words, change in both if words]
    return pieces


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)
