"""What a measurement gives: rows of facts, and ratios with their targets.

Ratios are paired by round, so a machine that slows down for a while slows both sides of a pair.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from memagent_lib.files import cores


@dataclass(frozen=True, slots=True)
class Ratio:
    """One claim: a ratio in each round, and what it should be. The verdict is on the median."""

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
        """Whether the target is reached; ``None`` where there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        bounds = [
            f"{sign} {bound:g}{self.unit}"
            for sign, bound in (("≥", self.at_least), ("≤", self.at_most))
            if bound is not None
        ]
        return " and ".join(bounds)

    def row(self) -> dict[str, str]:
        spread = f" [{min(self.rounds):.2f}, {max(self.rounds):.2f}]" if len(self.rounds) > 1 else ""
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        measured = f"{self.value:.2f}{self.unit}{spread}"
        return {
            "measure": self.measure,
            "what": self.what,
            "measured": measured,
            "n": str(len(self.rounds)),
            "target": self.target,
            "": verdict,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished measurement. ``note`` is one line on what a reader of the table has to know."""

    ratios: list[Ratio]
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


def paired(
    rows: Sequence[Mapping[str, Any]], what: str, base: str, ours: str, column: str, **only: Any
) -> tuple[float, ...]:
    """How many times more of ``column`` the rows called ``base`` have than those called ``ours``, round by round."""
    kept = [row for row in rows if all(row[key] == value for key, value in only.items())]
    sides = [{row["round"]: row[column] for row in kept if row[what] == name} for name in (base, ours)]
    return tuple(sides[0][round_] / sides[1][round_] for round_ in sorted(sides[0]))


def table(ratios: Iterable[Ratio]) -> str:
    """The ratios as a table for a terminal."""
    import pandas as pd

    return pd.DataFrame([ratio.row() for ratio in ratios]).to_string(index=False)


def write_json(path: str | Path, settings: Any, measured: Mapping[str, Measured]) -> Path:
    """Everything that was measured, with what it was measured on."""
    record = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": cores(),
            "load": os.getloadavg()[0],
        },
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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
