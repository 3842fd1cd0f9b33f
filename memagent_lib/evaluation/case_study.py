"""Questions of two hops, read by a policy: which of its readings to look at, by a rule stated before they are seen.

A *lead* is the needed fact that is told first: nothing in the document says yet that it will matter. Knows results and
their diagnosis; knows no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memagent_lib.diagnostics import FactHistory, Fate
from memagent_lib.evaluation.results import Result

if TYPE_CHECKING:
    import pandas as pd


def turns_waited(result: Result) -> int | None:
    """How many turns the lead was in memory, without a break, before the last needed fact was read; ``None`` where it
    was not, or where both stand in one chunk.
    """
    lead, last = _first_and_last(result)
    if lead.read is None or last.read is None or last.read <= lead.read:
        return None
    kept = all(fate is Fate.HELD for fate in lead.fates[lead.read : last.read])
    return last.read - lead.read if kept else None


def longest_lead(results: Iterable[Result]) -> Result | None:
    """Of the right readings the one whose lead waited longest; ``None`` where no right one had to wait."""
    waits = [(waited, result) for result in results if result.correct and (waited := turns_waited(result))]
    return max(waits, key=lambda found: found[0], default=(0, None))[1]


def failures(results: Iterable[Result]) -> list[Result]:
    """The readings that went wrong, in the order of the examples."""
    return [result for result in results if result.trace is not None and not result.correct]


def outcomes(results: Sequence[Result]) -> pd.DataFrame:
    """A row per reading: ``example``, ``right``, ``waited`` (turns), and whether lead and last fact were captured and
    retained.
    """
    import pandas as pd

    rows = []
    for result in (r for r in results if r.trace is not None):
        facts = {"example": result.example.id, "right": result.correct, "waited": turns_waited(result)}
        for name, fact in zip(("lead", "last"), _first_and_last(result), strict=True):
            facts |= {f"{name}_captured": fact.captured, f"{name}_retained": fact.retained}
        rows.append(facts)
    return pd.DataFrame(rows).astype({"waited": "Int64"})


def _first_and_last(result: Result) -> tuple[FactHistory, FactHistory]:
    facts = sorted(result.diagnosis.facts, key=lambda fact: fact.span or (0, 0))
    if len(facts) < 2:
        raise ValueError(f"a question of two hops needs two facts, {result.example.id} records {len(facts)}")
    return facts[0], facts[-1]
