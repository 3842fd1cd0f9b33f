"""Results of a measurement: rows, and ratios with their targets.

Ratios are paired by round, so that a machine that is slow for a while affects both sides of a pair.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from memagent_lib.paths import write_atomically
from memagent_lib.system import cores

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One claim: a ratio per round, and the bound that the median of these ratios has to meet."""

    measure: str
    what: str
    rounds: tuple[float, ...]
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def met(self) -> bool | None:
        """Whether the bound is met, or None if there is no bound."""
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is None:
            return None
        return self.value <= self.at_most

    def row(self) -> dict[str, str]:
        spread = ""
        if len(self.rounds) > 1:
            spread = f" [{min(self.rounds):.2f}, {max(self.rounds):.2f}]"
        sign = "≤"
        bound = self.at_most
        if self.at_least is not None:
            sign = "≥"
            bound = self.at_least
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        measured = f"{self.value:.2f}{self.unit}{spread}"
        return {
            "measure": self.measure,
            "what": self.what,
            "measured": measured,
            "n": str(len(self.rounds)),
            "target": "" if bound is None else f"{sign} {bound:g}{self.unit}",
            "": verdict,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished measurement. ``note`` is one line that explains its table."""

    ratios: list[Ratio]
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


def alternating(sides: Mapping[str, T], round_: int) -> dict[str, T]:
    """Return the sides, in reverse order in every second round, so that no side benefits from its position."""
    return dict(sides if round_ % 2 == 0 else reversed(sides.items()))


def paired(
    rows: Sequence[Mapping[str, Any]], what: str, base: str, ours: str, column: str, **only: Any
) -> tuple[float, ...]:
    """Return, for each round, ``column`` of the row whose ``what`` is ``base``, divided by that of the ``ours`` row.

    ``only`` selects rows that have these values.
    """
    selected = [row for row in rows if all(row[key] == value for key, value in only.items())]
    sides = [{row["round"]: row[column] for row in selected if row[what] == name} for name in (base, ours)]
    return tuple(sides[0][round_] / sides[1][round_] for round_ in sorted(sides[0]))


def table(ratios: Iterable[Ratio]) -> str:
    """Format the ratios as a table for a terminal."""
    import pandas as pd

    return pd.DataFrame([ratio.row() for ratio in ratios]).to_string(index=False)


def write_json(path: str | Path, settings: Any, measured: Mapping[str, Measured]) -> Path:
    """Write all rows and ratios as JSON, with the machine and its load."""
    processor = platform.processor() or platform.machine()
    record = {
        "machine": {"processor": processor, "cores": cores(), "load": os.getloadavg()[0]},
        "settings": asdict(settings),
        "measures": {
            name: {
                "note": found.note,
                "ratios": [asdict(r) | {"value": r.value, "met": r.met} for r in found.ratios],
                "rows": found.rows,
            }
            for name, found in measured.items()
        },
    }
    return write_atomically(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
