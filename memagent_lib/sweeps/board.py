"""Display a sweep: a line per event, the sweep as a whole below the lines, and a table of all points."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from memagent_lib.status_line import status_line
from memagent_lib.sweeps.specification import PointState, SweepPoint

_COLOURS = {PointState.FINISHED: "green", PointState.RUNNING: "cyan", PointState.FAILED: "bold red"}


class SweepBoard:
    """Prints a line for every change of a point's state; below are the whole sweep and the points that run."""

    def __init__(self, stages: Sequence[Sequence[SweepPoint]]):
        self._states = {point: PointState.WAITING for points in stages for point in points}
        self._stack = ExitStack()

    def __enter__(self) -> SweepBoard:
        self._whole = self._stack.enter_context(status_line("sweep", len(self._states), "points"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def count(self) -> str:
        """The number of finished points and the total, such as ``3/12``."""
        return f"{sum(state is PointState.FINISHED for state in self._states.values())}/{len(self._states)}"

    def set(self, point: SweepPoint, state: PointState, how: str) -> None:
        """Set the new state of a point, and print a line with the point's name and the text ``how``."""
        self._states[point] = state
        over = sum(s in (PointState.FINISHED, PointState.FAILED) for s in self._states.values())
        running = [p.name for p, s in self._states.items() if s is PointState.RUNNING]
        self._whole.advance(over - self._whole.n, note=f"running: {', '.join(running) or 'none'}")
        self.say(f"[{self.count}] {point.name} {how}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def stopping(self, running: int) -> None:
        what = "the running notebook to clean up"
        if running > 1:
            what = f"{running} running notebooks to clean up"
        self.say(f"stopping: waiting for {what}; Ctrl-C again ends all at once")


_COLUMNS_WITHOUT_TERMINAL = 320
"""The table's width outside a terminal, large enough that each point is one line and grep finds it."""


def show_states(rows: Iterable[Mapping[str, Any]], title: str) -> None:
    """Print a table of points. Each row has ``stage``, ``point``, ``status``, ``seconds`` and ``error``."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("stage", "point", "status", "time", "error"):
        table.add_column(heading, justify="right" if heading == "time" else "left", overflow="fold")
    for row in rows:
        state = PointState(row["status"])
        status = f"[{_COLOURS.get(state, 'dim')}]{state.lower()}"
        took = "" if row["seconds"] is None else duration(row["seconds"])
        table.add_row(row["stage"], escape(row["point"]), status, took, escape(row["error"] or ""))
    width = None if sys.stdout.isatty() else _COLUMNS_WITHOUT_TERMINAL
    Console(width=width).print(table)


def duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds, such as ``0:02:05``."""
    return str(timedelta(seconds=round(seconds)))
