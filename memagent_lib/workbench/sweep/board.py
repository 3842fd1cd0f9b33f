"""What a person sees while a sweep runs: one row per stage with time left in a terminal, one line per finished point elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a point stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    KEPT = "kept from before"
    FAILED = "failed"


@dataclass
class _Entry:
    stage: str
    expected_s: float | None
    state: State = State.WAITING
    started: float = 0.0
    seconds: float | None = None
    error: str | None = None


class Board:
    """The state of every point, drawn as it changes. ``points``: stage, name, and how long it took before, if ever."""

    def __init__(self, title: str, points: Sequence[tuple[str, str, float | None]], workers: int, quiet: bool = False):
        self._title, self._workers, self._quiet = title, workers, quiet
        self._entries = {name: _Entry(stage, expected) for stage, name, expected in points}
        self._live: Any = None
        self._started = time.monotonic()

    @property
    def total(self) -> int:
        return len(self._entries)

    @property
    def done(self) -> int:
        return sum(e.state in (State.FINISHED, State.KEPT) for e in self._entries.values())

    def __enter__(self) -> Board:
        if not self._quiet and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._table(), refresh_per_second=2, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._table())
            self._live.stop()

    def set(self, name: str, state: State, seconds: float | None = None, error: str | None = None) -> None:
        entry = self._entries[name]
        entry.state, entry.seconds, entry.error = state, seconds, error
        if state is State.RUNNING:
            entry.started = time.monotonic()
        self.tick()
        if state is State.FAILED:
            self.say(f"{name} failed: {error}")
        elif not self._live and state in (State.FINISHED, State.KEPT):
            took = f" in {duration(seconds)}" if seconds is not None else ""
            self.say(f"[{self.done}/{self.total}] {name} {state}{took}")

    def tick(self) -> None:
        if self._live:
            self._live.update(self._table())

    def say(self, line: str) -> None:
        if self._live:
            from rich.markup import escape

            self._live.console.print(escape(line))
        elif not self._quiet:
            print(line, flush=True)

    def stopping(self, running: int) -> None:
        what = f"{running} running notebooks are" if running > 1 else "the running notebook is"
        self.say(f"stopping: {what} given time to put things in order; Ctrl-C again ends all at once")

    def left_s(self, stage: str | None = None) -> float | None:
        """Seconds left, from how long points took before or others of their stage took now; ``None`` where nothing is known."""
        left = 0.0
        for entry in self._entries.values():
            if entry.state not in (State.WAITING, State.RUNNING) or (stage and entry.stage != stage):
                continue
            if (expected := self._expected_s(entry)) is None:
                return None
            spent = time.monotonic() - entry.started if entry.state is State.RUNNING else 0.0
            left += max(expected - spent, 0.0)
        return left / self._workers

    def _expected_s(self, entry: _Entry) -> float | None:
        took = [e.seconds for e in self._entries.values() if e.stage == entry.stage and e.seconds is not None]
        return sum(took) / len(took) if took else entry.expected_s

    def _table(self) -> Any:
        from rich.table import Table

        left = self.left_s()
        caption = f"{self.done} of {self.total} points, {duration(time.monotonic() - self._started)}"
        if self.done < self.total:
            caption += f", {duration(left)} left" if left is not None else ", time left not known yet"
        table = Table(title=f"sweep {self._title}", caption=caption, caption_justify="left", title_justify="left")
        for name, side in (
            ("stage", "left"),
            ("finished", "right"),
            ("failed", "right"),
            ("running", "left"),
            ("time left", "right"),
        ):
            table.add_column(name, justify=side)
        for stage in dict.fromkeys(e.stage for e in self._entries.values()):
            table.add_row(*self._row(stage))
        return table

    def _row(self, stage: str) -> tuple[str, ...]:
        entries = {name: e for name, e in self._entries.items() if e.stage == stage}
        done = sum(e.state in (State.FINISHED, State.KEPT) for e in entries.values())
        failed = sum(e.state is State.FAILED for e in entries.values())
        now = [
            (n.removeprefix(stage).strip(), time.monotonic() - e.started)
            for n, e in entries.items()
            if e.state is State.RUNNING
        ]
        running = "\n".join(f"{name} {duration(spent)}".strip() for name, spent in now)
        left = self.left_s(stage) if done + failed < len(entries) else 0.0
        return (
            stage,
            f"{done} / {len(entries)}",
            str(failed) if failed else "",
            running,
            "" if left is None or left < 1 else duration(left),
        )


def duration(seconds: float) -> str:
    """``9 s``, ``2 min 05 s``, ``3 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
