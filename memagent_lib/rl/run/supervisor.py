"""The process that owns a training run, its MLflow run and its final status, and outlives terminals and notebooks.

:mod:`memagent_lib.rl.run.launcher` starts it as ``python -m memagent_lib.rl.run.supervisor RUN_FOLDER``. It starts the
process that trains, turns verl's metrics into status and MLflow metrics, and ends all of its descendants. Of the run's
processes, only this one writes to MLflow, so training never waits for it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from memagent_lib import system
from memagent_lib.paths import display, read_lines_from, write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.health import WINDOW, Sign, points_of, signs
from memagent_lib.rl.run.export import save_policy
from memagent_lib.rl.run.ray_cluster import cluster_environment
from memagent_lib.rl.run.stacks import log_stacks
from memagent_lib.rl.run_folder import (
    SAVE_SECONDS,
    SECONDS,
    VALIDATION_SECONDS,
    RunFolder,
    TrainingState,
    TrainingStatus,
    load_rollouts,
    values_of,
)
from memagent_lib.rl.verl.verl_keys import TEST_FREQ
from memagent_lib.rl.verl.verl_settings import environment
from memagent_lib.settings import flatten
from memagent_lib.tracking import KIND_TAG, Experiment, Run, RunStatus, TrackingError, log_readings

POLL_S = 0.25
STOP_GRACE_S = 60.0
UNMEASURED_S = 300.0  # assumed for a checkpoint or a validation before the first one
REWARD = "critic/score/mean"
MLFLOW_END = {
    TrainingState.FINISHED: RunStatus.FINISHED,
    TrainingState.STOPPED: RunStatus.KILLED,
    TrainingState.FAILED: RunStatus.FAILED,
}


def ledger_entry(config: Recipe, folder: RunFolder) -> Run:
    """Return the MLflow run of this training: that of the previous attempt, else the one in the recipe, else a new one.

    In a later attempt, an MLflow run that was deleted or is in another store does not count. If training has already
    made some steps, an MLflow run that joins only now gets their metrics too.
    """
    ledger = Experiment.open(config.tracking.uri, config.tracking.experiment)
    note = folder.mlflow_note
    requested = config.tracking.run_id
    previous = ""
    if note.is_file():
        previous = note.read_text(encoding="utf-8").strip()
    if previous and not _can_log(ledger, requested):
        requested = ""
    if requested in ("", previous) and _can_log(ledger, previous):
        entry = ledger.join(previous)
        entry.resume()
        return entry
    # MLflow refuses a plus sign in a name.
    params = {name.replace("+", ""): value for name, value in flatten(config.to_tables()).items()}
    if requested:
        entry = ledger.join(requested)
        entry.resume()
        entry.params(params)
    else:
        named = f"train {'/'.join(folder.path.parts[-2:])}"  # the folder of most runs is called "train"
        entry = ledger.start(config.tracking.run_name or named, params)
    entry.tags({KIND_TAG: "train"})
    write_atomically(note, entry.id)
    for row in folder.rows():
        entry.metrics(row["metrics"], row["step"])
    entry.data(*config.data.files, use="training")
    entry.data(*config.data.eval, use="evaluation")
    for model in filter(None, (config.model.path, config.model.average_with)):
        entry.uses(model)
    return entry


def _can_log(ledger: Experiment, run_id: str) -> bool:
    """Return whether an MLflow run is named, is in this store, and was not deleted."""
    try:
        return bool(run_id and ledger.join(run_id))
    except TrackingError:
        return False


def close_entry(entry: Run, state: TrainingState, tags: dict[str, str]) -> None:
    """Set the last tags and end the MLflow run with the status that corresponds to ``state``."""
    entry.tags({f"memagent.{name}": value[:5000] for name, value in tags.items()})  # MLflow's limit for a tag
    entry.end(MLFLOW_END[state])


@dataclass
class Supervisor:
    """Starts, follows and ends one training run, and records its status and metrics."""

    folder: RunFolder
    config: Recipe
    device: str
    stop_requested_at: float | None = None
    stop_now: bool = False
    hung: bool = False
    beat: int = 0
    heard: float = 0.0
    signs: list[Sign] = field(default_factory=list)
    noted: str = ""
    models: dict[int, str] = field(default_factory=dict)
    unlogged: deque[tuple[int, dict[str, float]]] = field(default_factory=deque)

    def run(self) -> TrainingState:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self.on_signal)
        system.adopt_orphans()  # so that processes whose parent dies can be ended with the others
        self.write(replace(self.folder.status(), pid=os.getpid()))
        trainer = self._start()
        entry = None
        try:
            entry = ledger_entry(self.config, self.folder)
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
        left = 0.0 if state is TrainingState.FINISHED else None
        self.write(replace(self.status, state=state, error=error, seconds_left=left))
        return state

    def complete(self, entry: Run, state: TrainingState, error: str) -> str:
        """Log the remaining metrics and the readings, close the MLflow run, and return the training's error.

        A failure of the store becomes the error, unless training failed first. In both cases everything is in the run's
        folder.
        """
        tags = {TrainingState.FINISHED: {"model": str(self.folder.model)}, TrainingState.FAILED: {"error": error}}
        try:
            self._to_mlflow(entry, over=True)
            log_readings(entry, load_rollouts(self.folder.traces), kind="training")
        except Exception as failure:  # the training is done, whatever a store does
            error = error or f"MLflow lacks a part of this run, all of which is in {self.folder.path}: {failure}"
            print(error, flush=True)
        try:
            close_entry(entry, state, tags.get(state, {}))
        except Exception as failure:
            error = error or f"the run's entry in MLflow could not be closed: {failure}"
            print(error, flush=True)
        return error

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Request a stop: at once for ``SIGQUIT``, after the current step and its checkpoint for any other signal."""
        self.stop_now = self.stop_now or number == signal.SIGQUIT
        self.stop_requested_at = self.stop_requested_at or time.time()
        self.folder.request_stop()

    def _start(self) -> subprocess.Popen[bytes]:
        own = environment(self.device, self.config.workers, self.folder) | cluster_environment(self.config)
        command = [
            sys.executable,
            "-m",
            "memagent_lib.rl.run.training_process",
            str(self.folder.path),
            str(os.getpid()),  # the parent that it dies with
        ]
        return subprocess.Popen(command, env=os.environ | own, stdin=subprocess.DEVNULL)

    def follow(self, trainer: subprocess.Popen[bytes], entry: Run) -> None:
        """Pass verl's metrics on until the trainer ends. Kill a trainer that hangs or does not stop in time."""
        self.heard = time.monotonic()
        offset = 0
        over = False
        while not over:
            over = trainer.poll() is not None  # read before the rows, so that the last rows are passed on too
            offset = self.pass_on(offset, entry)
            if self.stop_requested_at and not self.status.stop_by:
                self.write(replace(self.status, stop_by=self.stop_requested_at + self.grace()))
            if self._must_end(over):
                trainer.kill()
            elif not over and self._silent_minutes() > self.config.train.hang_minutes:
                self.hung = True
                log_stacks(trainer.pid)
                trainer.kill()
            time.sleep(0 if over else POLL_S)

    def _must_end(self, over: bool) -> bool:
        """Return whether to kill the trainer: it is unhealthy, or a stop was requested at once or takes too long."""
        if self.signs and self.config.train.stop_unhealthy and not over:
            return True
        return self.stop_now or bool(self.status.stop_by and time.time() > self.status.stop_by)

    def grace(self) -> float:
        """Estimate how many seconds the current step, a validation and a checkpoint take; 0 before training has begun.

        Each part counts twice its longest, because an estimate that is too short would kill a healthy run.
        """
        if not self.folder.verl_metrics.exists():
            return 0.0
        measured = [row["metrics"] for row in self.folder.rows()]
        steps = values_of(measured[-10:], SECONDS)
        if not steps:
            return STOP_GRACE_S
        save = 2 * max(values_of(measured, SAVE_SECONDS), default=UNMEASURED_S)
        validation = 0.0
        if self.config.verl[TEST_FREQ] > 0:
            validation = 2 * max(values_of(measured, VALIDATION_SECONDS), default=UNMEASURED_S)
        return STOP_GRACE_S + 2 * max(steps) + validation + save

    def _silent_minutes(self) -> float:
        """Return the minutes since a turn or a part of a step was last finished, but not those of a machine's sleep.

        The heartbeat's time is not compared with a clock: on a network, it is that of the file server.
        """
        beat = self.folder.heartbeat.stat().st_mtime_ns if self.folder.heartbeat.is_file() else 0
        if beat != self.beat:
            self.beat = beat
            self.heard = time.monotonic()
        return (time.monotonic() - self.heard) / 60

    def pass_on(self, offset: int, entry: Run) -> int:
        rows, offset = read_lines_from(self.folder.verl_metrics, offset)
        for row in rows:
            # NaN is left out: it is the only number that differs from itself.
            numbers = {k: float(v) for k, v in row["data"].items() if isinstance(v, int | float) and v == v}
            self.progress(row["step"], numbers)
            crossed = {"health/crossed": float(len(self.signs))} if self.signs else {}
            self.unlogged.append((row["step"], numbers | crossed))
        self._to_mlflow(entry)
        return offset

    def _to_mlflow(self, entry: Run, over: bool = False) -> None:
        """Log the waiting steps. While the store is unavailable, training continues and the metrics wait.

        The last step waits for the end of the run, because its metrics belong to the exported policy.
        """
        while self.unlogged and (over or self.unlogged[0][0] < self.config.steps):
            step, numbers = self.unlogged[0]
            try:
                entry.metrics(numbers, step, self._model_of(entry, step))
            except Exception as failure:
                if over:
                    raise
                print(f"step {step} is not in MLflow yet: {failure}", flush=True)
                return
            self.unlogged.popleft()
        health = "; ".join(sign.seen for sign in self.signs)
        if health and health != self.noted:
            with suppress(Exception):  # a store that is away; a later step notes it
                entry.tags({"memagent.health": health})
                self.noted = health

    def _model_of(self, entry: Run, step: int) -> str | None:
        """Return the MLflow model made by a step: the exported policy, or a checkpoint that can be loaded."""
        if step in self.models:
            return self.models[step]
        last = self.folder.latest_checkpoint()
        if step == self.config.steps and self.folder.model.is_dir():
            self.models[step] = entry.model(self.folder.model, self.folder.path.name, step)
        elif last and last.step == step and any(last.huggingface.glob("*.safetensors")):
            self.models[step] = entry.model(last.huggingface, f"{self.folder.path.name} step {step}", step)
        return self.models.get(step)

    def progress(self, step: int, metrics: dict[str, float]) -> None:
        with self.folder.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "time": time.time(), "metrics": metrics}) + "\n")
        rows = self.folder.rows()
        steps = [row["metrics"] for row in rows]
        retried = round(sum(m["rollout/retried"] * m["rollout/count"] for m in steps if "rollout/retried" in m))
        left = self._seconds_left(step, steps)
        reward = metrics.get(REWARD, self.status.reward)
        self.signs = signs(points_of(rows))
        warnings = tuple(sign.text for sign in self.signs)
        now = {"step": step, "reward": reward, "retried": retried, "seconds_left": left, "warnings": warnings}
        self.write(replace(self.status, state=TrainingState.RUNNING, **now))

    def _seconds_left(self, step: int, measured: Sequence[Mapping[str, float]]) -> float | None:
        """Estimate the seconds that the steps after ``step`` and their validations take; None if no step is measured.

        A validation that none of ``measured``, the metrics of all steps, has measured is left out.
        """
        seconds = values_of(measured[-10:], SECONDS)
        if not seconds:
            return None
        left = statistics.median(seconds) * (self.status.steps - step)
        validations = values_of(measured, VALIDATION_SECONDS)[-10:]
        if validations:
            left += statistics.median(validations) * self._validations_after(step)
        return left

    def _validations_after(self, step: int) -> int:
        """Return how many steps after ``step`` verl validates: every ``trainer.test_freq`` steps, and the last one."""
        every = self.config.verl[TEST_FREQ]
        steps = self.status.steps
        if every < 1:
            return 0
        return steps // every - step // every + (step < steps and steps % every > 0)

    def end(self, trainer: subprocess.Popen[bytes]) -> tuple[TrainingState, str]:
        if trainer.returncode == 0 and self.status.step >= self.config.steps:
            self.export()
            return TrainingState.FINISHED, ""
        if self.signs and self.config.train.stop_unhealthy:
            return TrainingState.STOPPED, self._give_up(self.signs[0])
        if self.stop_requested_at:
            return TrainingState.STOPPED, ""
        if self.hung:
            minutes = f"{self.config.train.hang_minutes:g} minutes (train.hang_minutes)"
            stacks = f"the stacks of its processes are at the end of {self.folder.log}"
            return TrainingState.FAILED, f"nothing was finished in {minutes} after step {self.status.step}; {stacks}"
        return TrainingState.FAILED, self._why(trainer.returncode)

    def _give_up(self, sign: Sign) -> str:
        """Make the last checkpoint before a sign the one to resume from, and return why the run has ended."""
        # The mean of a window crossed the bound, so any of its steps may be the first unhealthy one.
        aside = self.folder.set_aside_from(sign.step - WINDOW + 1)
        self.folder.request_stop(until_resumed=True)  # the same settings would lead here again
        last = self.folder.latest_checkpoint()
        healthy = f"no checkpoint is from before those {WINDOW} steps"
        if last:
            command = f"memagent export {display(self.folder.path)}"
            healthy = (
                f"step {last.step} is the last checkpoint before those {WINDOW} steps; `{command}` makes a model of it"
            )
        if aside:
            healthy += f"; later ones are in {self.folder.checkpoints} as unhealthy_step_{aside[0]} and on"
        return f"train.stop_unhealthy: {sign.text}; {healthy}"

    def _why(self, code: int) -> str:
        if self.folder.error.is_file():
            return self.folder.error.read_text(encoding="utf-8")
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"the training process {how}; the log is {self.folder.log}"

    def export(self) -> None:
        """Export the last checkpoint as the trained policy."""
        last = self.folder.latest_checkpoint()
        assert last is not None, "a run that finished has a checkpoint"
        save_policy(last, self.config, self.folder.model)

    def write(self, status: TrainingStatus) -> None:
        self.status = status
        self.folder.write_status(status)


def watch_over(folder: RunFolder, config: Recipe, device: str) -> int:
    """Run the supervisor in a child process and return its exit code.

    If the child is killed, end every process that it had started and record the failure.
    """
    parent = os.getpid()
    system.adopt_orphans()
    child = os.fork()
    if not child:
        system.die_with_parent(parent)
        if Supervisor(folder, config, device).run() is TrainingState.FINISHED:
            return 0
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    system.end_descendants()
    status = folder.status()
    if not status.state.over:
        error = f"the supervisor ended with code {code}; the log is {folder.log}"
        if code < 0:
            error = f"the supervisor was killed by signal {-code}"
        try:
            close_entry(ledger_entry(config, folder), TrainingState.FAILED, {"error": error})
        finally:  # a store may be away
            folder.write_status(replace(status, state=TrainingState.FAILED, error=error))
    return code


if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    sys.exit(watch_over(folder, *folder.recipe()))
