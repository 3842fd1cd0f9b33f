"""What a training run leaves on disk, and how others read it meanwhile: status, progress, checkpoints, the exported
model.

Everything is written atomically or by appending whole lines, so a reader never sees half a fact. Starts nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.evaluation import Result, read_results
from memagent_lib.files import read_lines, write_atomically
from memagent_lib.journal import append_record
from memagent_lib.rl.config import Recipe


class TrainingState(StrEnum):
    """How a run stands. ``died`` means that it was killed before it could say how it ended."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"

    @property
    def over(self) -> bool:
        return self not in (TrainingState.STARTING, TrainingState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """A run at one moment. ``reward`` is the mean score of the last step's rollouts."""

    state: TrainingState
    step: int = 0
    steps: int = 0
    reward: float | None = None
    seconds_left: float | None = None
    error: str = ""
    pid: int = 0
    mlflow_run: str = ""
    updated: float = 0.0

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> TrainingStatus:
        return cls(**(record | {"state": TrainingState(record["state"])}))


class Checkpoint(NamedTuple):
    step: int
    folder: Path


@dataclass(frozen=True)
class RunFolder:
    """Paths and records of one run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def key(self) -> str:
        """Tells this run's sockets, actors and namespace from those of every other."""
        return hashlib.sha256(str(self.path).encode()).hexdigest()[:12]

    @property
    def left_out(self) -> Path:
        """Modules that the run's processes do without (:func:`memagent_lib.rl.verl_config.environment`)."""
        return self.path / "left_out"

    def write_recipe(self, recipe: Recipe, device: str) -> None:
        write_atomically(self.config, json.dumps({"config": recipe.to_tables(), "device": device}, indent=2))

    def recipe(self) -> tuple[Recipe, str]:
        """What the run was started with, and the device that was chosen for it."""
        record = json.loads(self.config.read_text(encoding="utf-8"))
        return Recipe.from_tables(record["config"]), record["device"]

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One line per step, ``{"step", "time", "metrics"}``: all that verl logged."""
        return self.path / "metrics.jsonl"

    @property
    def verl_metrics(self) -> Path:
        """Where verl itself writes; emptied whenever verl starts."""
        return self.path / "metrics.part.jsonl"

    @property
    def stop_request(self) -> Path:
        return self.path / "stop"

    @property
    def error(self) -> Path:
        return self.path / "error.txt"

    @property
    def model(self) -> Path:
        """The trained policy as a Hugging Face folder, once the run has finished."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    def write_status(self, status: TrainingStatus) -> None:
        write_atomically(self.path / "status.json", json.dumps(status.to_record() | {"updated": time.time()}))

    def status(self) -> TrainingStatus:
        """The last status written; ``died`` where it says running and no process holds the run."""
        status = self._written_status()
        if status.state.over or self.locked():
            return status
        status = self._written_status()  # it may have ended in between
        return status if status.state.over else replace(status, state=TrainingState.DIED)

    def _written_status(self) -> TrainingStatus:
        file = self.path / "status.json"
        if not file.is_file():
            raise FileNotFoundError(f"no training run at {self.path}")
        return TrainingStatus.from_record(json.loads(file.read_text(encoding="utf-8")))

    def lock(self) -> int:
        """Take the run for this process and all that inherit the descriptor returned, or raise ``BlockingIOError``."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        return handle

    def locked(self) -> bool:
        try:
            os.close(self.lock())
        except BlockingIOError:
            return True
        return False

    def rows(self) -> list[dict[str, Any]]:
        """The lines of :attr:`metrics`; an unfinished last line is left out."""
        return read_lines(self.metrics)

    @property
    def checkpoint_note(self) -> Path:
        """Where verl notes the step of a checkpoint once it is whole."""
        return self.checkpoints / "latest_checkpointed_iteration.txt"

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that was written to its end. verl, killed while noting one, leaves an empty note."""
        if not self.checkpoint_note.is_file():
            return None
        noted = self.checkpoint_note.read_text(encoding="utf-8").strip()
        whole = [Checkpoint(int(path.name.rpartition("_")[2]), path) for path in self.checkpoints.glob("global_step_*")]
        return max((c for c in whole if noted in ("", str(c.step)) and (c.folder / "data.pt").is_file()), default=None)

    def keep_metrics_until(self, step: int) -> None:
        """Forget the steps after ``step``: a resumed run does them again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))


def keep_rollout(traces: Path, result: Result, step: int, greedy: bool) -> None:
    """Append a rollout's record to the file of its step. Chunks keep their text: documents are not stored beside."""
    facts = {**result.example.metadata, "step": step, "greedy": greedy}
    kept = replace(result, example=replace(result.example, metadata=facts))
    append_record(traces / f"step_{step:06d}.jsonl", f"{greedy} {result.key}", kept.to_record())


def kept_rollouts(traces: Path) -> list[Result]:
    """The rollouts that training kept, by step; ``step`` and ``greedy`` are in their examples' metadata."""
    return [result for file in sorted(traces.glob("step_*.jsonl")) for result in read_results(file)]
