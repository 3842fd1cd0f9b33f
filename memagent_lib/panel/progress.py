"""The progress of a training run, read from its files: status, metrics by step, saved rollouts, reason of a failure."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from memagent_lib.evaluation import Result, read_results
from memagent_lib.paths import read_lines_from
from memagent_lib.rl import RunFolder, Sign, TrainingState, TrainingStatus, rollout_files, signs

SECONDS = "perf/time_per_step"
TURNS = "rows/produced"
MOST_ROLLOUTS = 24
_LOG_BYTES = 64 << 10
_LOG_LINES = 40
# The lines of a traceback that name a file, a line and a function.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class RunProblem(NamedTuple):
    """Why a run failed: the error, the line of code that raised it ("" if unknown), and the end of the log."""

    error: str
    source: str
    log: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run at one moment.

    ``points`` has the (step, value) pairs of every metric; ``last_step_at`` is in seconds since the epoch.
    """

    folder: Path
    status: TrainingStatus
    stopping: bool = False
    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    rollouts: tuple[Result, ...] = ()
    last_step_at: float | None = None
    problem: RunProblem | None = None
    signs: Sequence[Sign] = ()

    @property
    def seconds_per_step(self) -> float | None:
        """The median duration of the last ten steps."""
        recent = [value for _, value in self.points.get(SECONDS, ())[-10:]]
        return statistics.median(recent) if recent else None

    @property
    def turns_left(self) -> int:
        """The estimated number of remaining turns, based on the last ten steps; 0 before the first step."""
        recent = [value for _, value in self.points.get(TURNS, ())[-10:]]
        if not recent:
            return 0
        return round(statistics.mean(recent) * (self.status.steps - self.status.step))

    def silent_s(self, now: float | None = None) -> float | None:
        """Return the seconds since the last step of an active run if they are unusually many, else None."""
        usual = self.seconds_per_step
        if self.status.state is not TrainingState.RUNNING or usual is None or self.last_step_at is None:
            return None
        silence = (now or time.time()) - self.last_step_at
        is_long = silence > max(60.0, 5 * usual)  # a checkpoint or a validation may take a few steps' time
        return silence if is_long else None


class Follower:
    """Follows a run's folder. It reads only what is new, so :meth:`look` can be called every second of a long run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._forget()
        self._traces: dict[Path, tuple[int, list[Result]]] = {}

    def _forget(self) -> None:
        self._inode = 0
        self._offset = 0
        self._last_step_at: float | None = None
        self._points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._signs: list[Sign] = []

    def look(self) -> Progress:
        """Read what is new and return the run's progress. Raises ``FileNotFoundError`` if there is no run."""
        status = self.folder.status()
        self._read_metrics()
        failed = status.state in (TrainingState.FAILED, TrainingState.DIED)
        return Progress(
            folder=self.folder.path,
            status=status,
            stopping=not status.state.over and self.folder.stop_request.exists(),
            points={name: tuple(points) for name, points in self._points.items()},
            rollouts=self._rollouts(),
            last_step_at=self._last_step_at,
            problem=_problem(self.folder, status) if failed else None,
            signs=self._signs,
        )

    def _read_metrics(self) -> None:
        file = self.folder.metrics
        inode = file.stat().st_ino if file.is_file() else 0
        if inode != self._inode:  # a resumed run replaces the file by one without the steps that it repeats
            self._forget()
            self._inode = inode
        rows, self._offset = read_lines_from(file, self._offset)
        for row in rows:
            self._last_step_at = row["time"]
            for name, value in row["metrics"].items():
                if math.isfinite(value):  # a chart cannot draw nan and infinity
                    self._points[name].append((row["step"], value))
        if rows:
            self._signs = signs(self._points)

    def _rollouts(self) -> tuple[Result, ...]:
        """Return the newest rollouts: the latest step first and, within a step, wrong ones before right ones."""
        newest: list[Result] = []
        for file in reversed(rollout_files(self.folder.traces)):
            newest += reversed(self._of(file))
            if len(newest) >= MOST_ROLLOUTS:
                break
        return tuple(sorted(newest[:MOST_ROLLOUTS], key=lambda r: (-r.example.metadata["step"], r.correct)))

    def _of(self, file: Path) -> list[Result]:
        size = file.stat().st_size
        # Rollouts are only appended, so a file of the same size has not changed.
        if self._traces.get(file, (-1, []))[0] != size:
            self._traces[file] = (size, read_results(file))
        return self._traces[file][1]


def _problem(folder: RunFolder, status: TrainingStatus) -> RunProblem:
    log = _end_of(folder.log)
    frames = _FRAME.findall(log)
    source = ""
    if frames and status.state is TrainingState.FAILED:  # a killed run's last traceback is of something else
        source = "{}, line {}, in {}".format(*frames[-1])
    killed = "killed without an error; on a machine short of memory the kernel does that"
    return RunProblem(status.error or killed, source, "\n".join(log.splitlines()[-_LOG_LINES:]))


def _end_of(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        # Only the end: the log of a long run is far too long to display.
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return _ANSI.sub("", file.read().decode("utf-8", "replace"))
