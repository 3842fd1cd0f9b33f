"""The progress of a training run, read from its files: status, metrics by step, saved rollouts, the end of its log."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memagent_lib.evaluation import Result, read_results
from memagent_lib.rl import RunFolder, TrainingState, TrainingStatus, rollout_files

MOST_ROLLOUTS = 24
_LOG_BYTES = 64 << 10
_LOG_LINES = 40
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run at one moment. ``points`` has the (step, value) pairs of every metric."""

    folder: Path
    status: TrainingStatus
    stopping: bool = False
    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    rollouts: tuple[Result, ...] = ()
    log: str = ""
    """The end of the log of a run that failed."""


class Follower:
    """Follows a run's folder. It reads files only when they have changed, so a live view can look every second."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._read: dict[str, tuple[object, Any]] = {}

    def look(self) -> Progress:
        """Return the run's progress. Raises ``FileNotFoundError`` if there is no run."""
        status = self.folder.status()
        return Progress(
            folder=self.folder.path,
            status=status,
            stopping=not status.state.over and self.folder.stop_request.exists(),
            points=self._once("points", [self.folder.metrics], self._points),
            rollouts=self._once("rollouts", rollout_files(self.folder.traces), self._rollouts),
            log=_end_of(self.folder.log) if status.state in (TrainingState.FAILED, TrainingState.DIED) else "",
        )

    def _once(self, name: str, files: Sequence[Path], read: Any) -> Any:
        """Return what ``read()`` returned when these files were as they are now."""
        stats = [file.stat() for file in files if file.is_file()]
        state = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
        if self._read.get(name, (None, None))[0] != state:
            self._read[name] = (state, read())
        return self._read[name][1]

    def _points(self) -> dict[str, list[tuple[int, float]]]:
        points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for row in self.folder.rows():
            for name, value in row["metrics"].items():
                if math.isfinite(value):  # a chart cannot draw nan and infinity
                    points[name].append((row["step"], value))
        return dict(points)

    def _rollouts(self) -> tuple[Result, ...]:
        """Return the newest rollouts: the latest step first and, within a step, wrong ones before right ones."""
        newest: list[Result] = []
        for file in reversed(rollout_files(self.folder.traces)):
            newest += reversed(read_results(file))
            if len(newest) >= MOST_ROLLOUTS:
                break
        return tuple(sorted(newest[:MOST_ROLLOUTS], key=lambda r: (-r.example.metadata["step"], r.correct)))


def _end_of(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        # Only the end: the log of a long run is far too long to display.
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(_ANSI.sub("", text).splitlines()[-_LOG_LINES:])
