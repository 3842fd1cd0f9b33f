"""What a person sees of a sweep: a line per event and, in a terminal, a bar below them; a table afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from memagent_lib.sweeps.specification import PointState, SweepPoint

_COLOURS = {PointState.FINISHED: "green", PointState.RUNNING: "cyan", PointState.FAILED: "bold red"}


class SweepBoard:
    """Shows every change of a point's state."""

    def __init__(self, stages: Sequence[Sequence[SweepPoint]], quiet: bool = False):
        self._states = {point: PointState.WAITING for points in stages for point in points}
        self._quiet = quiet
        self._bar = tqdm(total=len(self._states), unit="point", leave=False, disable=True if quiet else None)

    def __enter__(self) -> SweepBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def count(self) -> str:
        """How many points are finished, as in ``3/12``."""
        return f"{sum(state is PointState.FINISHED for state in self._states.values())}/{len(self._states)}"

    def set(self, point: SweepPoint, state: PointState, how: str) -> None:
        """A point's new state. ``how`` completes a sentence that begins with its name."""
        self._states[point] = state
        over = sum(s in (PointState.FINISHED, PointState.FAILED) for s in self._states.values())
        self._bar.update(over - self._bar.n)
        self.say(f"[{self.count}] {point.name} {how}")

    def say(self, line: str) -> None:
        if not self._quiet:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def stopping(self, running: int) -> None:
        what = f"{running} running notebooks are" if running > 1 else "the running notebook is"
        self.say(f"stopping: {what} given time to clean up; Ctrl-C again ends all at once")


_OF_A_PIPE = 320
"""Columns where no terminal says how many: each point on a line, for grep."""


def show_states(rows: Iterable[Mapping[str, Any]], title: str) -> None:
    """Print points as a table, from their ``stage``, ``point``, ``status``, ``seconds`` and ``error``."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("stage", "point", "status", "time", "error"):
        table.add_column(heading, justify="right" if heading == "time" else "left", overflow="fold")
    for row in rows:
        state, seconds = PointState(row["status"]), row["seconds"]
        status = f"[{_COLOURS.get(state, 'dim')}]{state.lower()}"
        took = "" if seconds is None else duration(seconds)
        table.add_row(row["stage"], escape(row["point"]), status, took, escape(row["error"] or ""))
    Console(width=None if sys.stdout.isatty() else _OF_A_PIPE).print(table)


def duration(seconds: float) -> str:
    """``0:02:05``."""
    return str(timedelta(seconds=round(seconds)))
