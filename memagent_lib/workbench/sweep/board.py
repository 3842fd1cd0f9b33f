"""What a person sees of a sweep: a bar per stage in a terminal, a line per event elsewhere, a table afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from memagent_lib.workbench.sweep.specification import PointState, SweepPoint

_DAY_S = 86400.0  # points take minutes: the speed is that of the whole stage, not of its last seconds
_COLOURS = {PointState.FINISHED: "green", PointState.RUNNING: "cyan", PointState.FAILED: "bold red"}


class SweepBoard:
    """Shows every change of a point's state."""

    def __init__(self, stages: Sequence[Sequence[SweepPoint]], quiet: bool = False):
        self._states = {point: PointState.WAITING for points in stages for point in points}
        self._live = not quiet and sys.stdout.isatty()
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        running = TextColumn("{task.fields[running]}", markup=False)
        bars = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(
            TextColumn("{task.description}"), *bars, running, console=self._console, disable=not self._live,
            speed_estimate_period=_DAY_S, refresh_per_second=2,
        )  # fmt: skip
        add = self._progress.add_task
        self._bars = {p[0].stage: add(p[0].stage, start=False, total=len(p), running="") for p in stages}

    def __enter__(self) -> SweepBoard:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def count(self) -> str:
        """How many points are finished, as in ``3/12``."""
        return f"{sum(state is PointState.FINISHED for state in self._states.values())}/{len(self._states)}"

    def set(self, point: SweepPoint, state: PointState, how: str) -> None:
        """A point's new state. ``how`` completes a sentence that begins with its name."""
        self._states[point] = state
        stage = {p: s for p, s in self._states.items() if p.stage == point.stage}
        running = ", ".join(p.label for p, s in stage.items() if s is PointState.RUNNING)
        done = sum(s in (PointState.FINISHED, PointState.FAILED) for s in stage.values())
        self._progress.start_task(self._bars[point.stage])
        self._progress.update(self._bars[point.stage], completed=done, running=running)
        if not self._live or state is PointState.FAILED:
            self.say(f"[{self.count}] {point.name} {how}")

    def say(self, line: str) -> None:
        self._console.print(escape(line))

    def stopping(self, running: int) -> None:
        what = f"{running} running notebooks are" if running > 1 else "the running notebook is"
        self.say(f"stopping: {what} given time to clean up; Ctrl-C again ends all at once")


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
    Console().print(table)


def duration(seconds: float) -> str:
    """``0:02:05``."""
    return str(timedelta(seconds=round(seconds)))
