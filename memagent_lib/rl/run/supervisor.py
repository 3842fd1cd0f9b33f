"""The detached process that owns a training run, its MLflow run and its final status.

:func:`memagent_lib.rl.run.training_run.launch` starts it as ``python -m memagent_lib.rl.run.supervisor RUN_FOLDER``. It
starts the process that trains, turns verl's metrics into status and MLflow metrics, and ends all of its descendants. Of
the run's processes, only this one writes to MLflow, so training never waits for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from memagent_lib import system
from memagent_lib.paths import read_lines_from, write_atomically
from memagent_lib.provenance import model_hash
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.export import save_policy
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus
from memagent_lib.rl.verl.verl_settings import environment
from memagent_lib.settings import flatten
from memagent_lib.tracking import Experiment, Run, RunStatus, TrackingError

POLL_S = 0.25
REWARD = "critic/score/mean"
GONE = "RESOURCE_DOES_NOT_EXIST"
MLFLOW_END = {
    TrainingState.FINISHED: RunStatus.FINISHED,
    TrainingState.STOPPED: RunStatus.KILLED,
    TrainingState.FAILED: RunStatus.FAILED,
}


def mlflow_run(recipe: Recipe, folder: RunFolder) -> Run:
    """Return the MLflow run of this training: that of the previous attempt, else the one in the recipe, else a new one.

    A run that joins only now gets the metrics of the steps that are done.
    """
    tracking = recipe.tracking
    ledger = Experiment.open(tracking.uri, tracking.experiment)
    note = folder.mlflow_note
    previous = note.read_text(encoding="utf-8") if note.is_file() else ""
    joined = tracking.run_id or previous
    try:
        run = ledger.join(joined) if joined else None
    except TrackingError as failure:
        if tracking.run_id or getattr(failure.__cause__, "error_code", GONE) != GONE:
            raise
        run = None  # that of the previous attempt was deleted, or is in another store
    # MLflow refuses a plus sign in a name.
    params = {name.replace("+", ""): value for name, value in flatten(recipe.to_tables()).items()}
    if run is None:
        named = f"train {'/'.join(folder.path.parts[-2:])}"  # the folder of most runs is called "train"
        run = ledger.start(tracking.run_name or named, params)
    else:
        run.resume()
        if joined == previous:
            return run
        run.params(params)
    write_atomically(note, run.id)
    for row in folder.rows():
        run.metrics(row["metrics"], row["step"])
    run.data(*recipe.data.files, use="training")
    run.data(*recipe.data.eval, use="evaluation")
    starts = filter(None, (recipe.model.path, recipe.model.average_with))
    run.tags({"start_weights": ", ".join(map(model_hash, starts))})
    return run


@dataclass
class Supervisor:
    """Starts, follows and ends one training run, and records its status and metrics."""

    folder: RunFolder
    recipe: Recipe
    device: str
    unlogged: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def run(self) -> TrainingState:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        system.adopt_orphans()  # so that processes whose parent dies can be ended with the others
        self.write(replace(self.folder.status(), pid=os.getpid()))
        trainer = self.start()
        entry = None
        try:
            entry = mlflow_run(self.recipe, self.folder)
            self.write(replace(self.status, mlflow_run=entry.id))
            with entry.measured():
                self.follow(trainer, entry)
            state, error = self.end(trainer)
        except Exception as failure:  # whatever it was, the status must record it and no process may remain
            state = TrainingState.FAILED
            error = f"{type(failure).__name__}: {failure}"
        system.end_descendants()
        if entry:
            error = self.complete(entry, state, error)
        self.write(replace(self.status, state=state, error=error))
        return state

    def complete(self, entry: Run, state: TrainingState, error: str) -> str:
        """Log what is left and close the MLflow run; return the training's error, or else that of the store."""
        try:
            if state is TrainingState.FINISHED:
                entry.model(self.folder.model, self.folder.path.name, self.status.step)
            self.log_waiting(entry)
            entry.end(MLFLOW_END[state], error)
        except Exception as failure:  # the training is done, whatever a store does
            error = error or f"MLflow lacks a part of this run, all of which is in {self.folder.path}: {failure}"
            print(error, flush=True)
        return error

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Request a stop after the current step and its checkpoint."""
        self.folder.stop_request.touch()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process that trains; it dies with this one."""
        own = environment(self.device, self.recipe, self.folder)
        program = "memagent_lib.rl.run.training_process"
        command = [sys.executable, "-m", program, str(self.folder.path), str(os.getpid())]
        return subprocess.Popen(command, env=os.environ | own, stdin=subprocess.DEVNULL)

    def follow(self, trainer: subprocess.Popen[bytes], entry: Run) -> None:
        """Pass verl's metrics on until the trainer ends. Kill a trainer that is to stop before its first step."""
        offset = 0
        over = False
        while not over:
            over = trainer.poll() is not None  # read before the rows, so that the last rows are passed on too
            offset = self.pass_on(offset, entry)
            # Before verl logs, no step has begun, and nothing is lost.
            if self.folder.stop_request.exists() and not self.folder.verl_metrics.exists():
                trainer.kill()
                trainer.wait()
                return
            time.sleep(0 if over else POLL_S)

    def pass_on(self, offset: int, entry: Run) -> int:
        """Record the steps that verl has logged from ``offset`` on; return where the next one begins."""
        rows, offset = read_lines_from(self.folder.verl_metrics, offset)
        for row in rows:
            # NaN is left out: it is the only number that differs from itself.
            numbers = {k: float(v) for k, v in row["data"].items() if isinstance(v, int | float) and v == v}
            self.record(row["step"], numbers)
        try:
            self.log_waiting(entry)
        except Exception as failure:  # training goes on while the store is away, and the metrics wait
            print(f"step {self.unlogged[0][0]} is not in MLflow yet: {failure}", flush=True)
        return offset

    def log_waiting(self, entry: Run) -> None:
        """Log the steps that MLflow lacks."""
        while self.unlogged:
            step, numbers = self.unlogged[0]
            entry.metrics(numbers, step)
            del self.unlogged[0]

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """Add a step's metrics to the run's folder, and write the status after it."""
        with self.folder.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "time": time.time(), "metrics": metrics}) + "\n")
        self.unlogged.append((step, metrics))
        reward = metrics.get(REWARD, self.status.reward)
        self.write(replace(self.status, state=TrainingState.RUNNING, step=step, reward=reward))

    def end(self, trainer: subprocess.Popen[bytes]) -> tuple[TrainingState, str]:
        """Export the policy of a run that has finished; return how the run has ended, and why if it has failed."""
        if trainer.returncode == 0 and self.status.step >= self.recipe.steps:
            last = self.folder.latest_checkpoint()
            assert last is not None, "a run that finished has a checkpoint"
            save_policy(last, self.recipe, self.folder.model)
            return TrainingState.FINISHED, ""
        if self.folder.error.is_file():
            return TrainingState.FAILED, self.folder.error.read_text(encoding="utf-8")
        if self.folder.stop_request.exists():
            return TrainingState.STOPPED, ""
        return TrainingState.FAILED, f"the training process ended with code {trainer.returncode}; see {self.folder.log}"

    def write(self, status: TrainingStatus) -> None:
        self.status = status
        self.folder.write_status(status)


if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    sys.exit(Supervisor(folder, *folder.recipe()).run() is not TrainingState.FINISHED)
