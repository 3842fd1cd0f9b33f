"""What a training run's files say at one moment: status, metrics by step, kept rollouts, why it failed."""

from __future__ import annotations

import json
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
from memagent_lib.rl import RunFolder, TrainingState, TrainingStatus

SECONDS, TURNS = "perf/time_per_step", "rows/produced"
KEPT_ROLLOUTS = 24
_LOG_BYTES = 64 << 10
_LOG_LINES = 40
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class RunProblem(NamedTuple):
    """Why a run ended: the error, the place in the code where it arose (empty if unknown), the end of the log."""

    error: str
    place: str
    log: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment; ``points`` are every metric's (step, value) pairs, ``last_step_at`` a clock's time."""

    folder: Path
    status: TrainingStatus
    stopping: bool = False
    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    rollouts: tuple[Result, ...] = ()
    last_step_at: float | None = None
    problem: RunProblem | None = None

    @property
    def seconds_per_step(self) -> float | None:
        """The median of the last ten steps."""
        recent = [value for _, value in self.points.get(SECONDS, ())[-10:]]
        return statistics.median(recent) if recent else None

    @property
    def turns_left(self) -> int:
        """About how many turns are to come, if steps go on as the last ten; 0 where nothing is known."""
        recent = [value for _, value in self.points.get(TURNS, ())[-10:]]
        return round(statistics.mean(recent) * (self.status.steps - self.status.step)) if recent else 0

    def silent_s(self, now: float | None = None) -> float | None:
        """How long a running run has done no step, where that is far beyond the time that steps take."""
        usual = self.seconds_per_step
        if self.status.state is not TrainingState.RUNNING or usual is None or self.last_step_at is None:
            return None
        silence = (now or time.time()) - self.last_step_at
        return silence if silence > max(60.0, 5 * usual) else None


class Follower:
    """Reads what is new in a run's folder since the last look; cheap enough for every second of a long run."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._forget()
        self._traces: dict[Path, tuple[int, list[Result]]] = {}

    def _forget(self) -> None:
        self._file, self._offset, self._last = 0, 0, None
        self._points: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def look(self) -> Progress:
        """The run as it stands. ``FileNotFoundError`` where there is none."""
        status = self.folder.status()
        self._read_metrics()
        over_badly = status.state in (TrainingState.FAILED, TrainingState.DIED)
        return Progress(
            folder=self.folder.path,
            status=status,
            stopping=not status.state.over and self.folder.stop_request.exists(),
            points={name: tuple(points) for name, points in self._points.items()},
            rollouts=self._rollouts(),
            last_step_at=self._last,
            problem=_problem(self.folder, status) if over_badly else None,
        )

    def _read_metrics(self) -> None:
        file = self.folder.metrics
        number = file.stat().st_ino if file.is_file() else 0
        if number != self._file:  # a resumed run replaces the file by one without the steps that it does again
            self._forget()
            self._file = number
        rows, self._offset = read_lines_from(file, self._offset)
        for row in rows:
            self._last = row["time"]
            for name, value in row["metrics"].items():
                if math.isfinite(value):
                    self._points[name].append((row["step"], value))

    def _rollouts(self) -> tuple[Result, ...]:
        """The newest rollouts: by step, the last one first, and in each step wrong ones before right ones."""
        newest: list[Result] = []
        for file in sorted(self.folder.traces.glob("step_*.jsonl"), reverse=True):
            newest += reversed(self._of(file))
            if len(newest) >= KEPT_ROLLOUTS:
                break
        return tuple(sorted(newest[:KEPT_ROLLOUTS], key=lambda kept: (-kept.example.metadata["step"], kept.correct)))

    def _of(self, file: Path) -> list[Result]:
        size = file.stat().st_size
        if self._traces.get(file, (-1, []))[0] != size:
            self._traces[file] = (size, read_results(file))
        return self._traces[file][1]


def _problem(folder: RunFolder, status: TrainingStatus) -> RunProblem:
    log = _end_of(folder.log)
    frames = _FRAME.findall(log)
    place = "{}, line {}, in {}".format(*frames[-1]) if frames and status.state is TrainingState.FAILED else ""
    killed = "killed before it could say how it ended; on a machine short of memory the kernel does that"
    return RunProblem(status.error or killed, place, "\n".join(log.splitlines()[-_LOG_LINES:]))


def _end_of(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return _ANSI.sub("", file.read().decode("utf-8", "replace"))


def kept_config(folder: RunFolder) -> dict:
    """The tables of the configuration that the run was started with."""
    return json.loads(folder.config.read_text(encoding="utf-8"))["config"]
