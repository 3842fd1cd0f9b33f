"""Choose readings of two-hop questions to look at, by a rule fixed before anyone sees them.

A *lead* is the needed fact that comes first in the document, before anything has revealed that it will matter. This
module depends on results and their diagnosis, not on tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memagent_lib.data import Example
from memagent_lib.diagnostics import EvidenceHistory, Fate
from memagent_lib.evaluation.results import Result

if TYPE_CHECKING:
    import pandas as pd


def turns_waited(result: Result) -> int | None:
    """Return for how many turns the lead stayed in memory until the last needed fact was read.

    Returns ``None`` if the lead was out of memory in between, if one chunk contains both the lead and the last fact, or
    if either was never read.
    """
    lead, last = _lead_and_last(result)
    if lead.read is None or last.read is None or last.read <= lead.read:
        return None
    # The turn that reads the last fact is not part of the wait: it needs the lead only in its prompt.
    between = lead.fates[lead.read : last.read]
    if any(fate is not Fate.IN_MEMORY for fate in between):
        return None
    return last.read - lead.read


def failures(results: Iterable[Result]) -> list[Result]:
    """Return the readings whose answers are not entirely correct, in order. Failed readings are left out."""
    return [result for result in results if result.trace is not None and not result.correct]


def first_to_display(results: Sequence[Result]) -> tuple[str, Result]:
    """Return the right reading whose lead waited longest, else the first failure, else the first one; and why.

    Raises ``ValueError``, with the first error, if every reading has failed.
    """
    read = [result for result in results if result.trace is not None]
    if not read:
        raise ValueError(f"no document was read; the first error is: {results[0].error if results else 'no document'}")
    best = max(read, key=lambda result: (turns_waited(result) or 0) if result.correct else 0)
    if best.correct and turns_waited(best):
        return "the lead waited longest", best
    wrong = failures(results)
    if wrong:
        return "no lead survived: the first wrong answer", wrong[0]
    return "no lead had to wait: the first right answer", read[0]


def require_two_facts(examples: Iterable[Example]) -> None:
    """Raise ``ValueError`` if a question does not need two facts, as those of one hop. Call this before reading."""
    for example in examples:
        if len(example.evidence) < 2:
            raise ValueError(f"{example.id} needs {len(example.evidence)} facts; take a task of two hops")


def outcomes(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per reading: ``example``, ``right``, ``waited`` (turns), and the fates of two facts.

    ``lead_captured`` and ``lead_retained`` describe the lead; ``last_captured`` and ``last_retained`` describe the last
    needed fact. ``waited`` is missing where :func:`turns_waited` returns ``None``. Failed readings are left out.
    """
    import pandas as pd

    rows = []
    for result in (result for result in results if result.trace is not None):
        row = {"example": result.example.id, "right": result.correct, "waited": turns_waited(result)}
        for name, history in zip(_LeadAndLast._fields, _lead_and_last(result), strict=True):
            row |= {f"{name}_captured": history.captured, f"{name}_retained": history.retained}
        rows.append(row)
    return pd.DataFrame(rows).astype({"waited": "Int64"})


class _LeadAndLast(NamedTuple):
    lead: EvidenceHistory
    last: EvidenceHistory


def _lead_and_last(result: Result) -> _LeadAndLast:
    # By position in the document, which need not be the order of the hops.
    histories = sorted(result.diagnosis.histories, key=lambda history: history.span or (0, 0))
    return _LeadAndLast(histories[0], histories[-1])
