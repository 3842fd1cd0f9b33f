"""Start a training run in a detached process, and watch, wait for and stop it from any process of the machine."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memagent_lib.paths import absolute, write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.checks import check, chosen_device, require_training, resolved
from memagent_lib.rl.run_folder import RunError, RunFolder, TrainingState, TrainingStatus, remove_unfinished
from memagent_lib.rl.verl.verl_settings import leave_out_slow_imports, save_composed

POLL_S = 0.5
LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class TrainingRun:
    """A training run, identified by its folder. Any process on the machine may watch or stop it."""

    folder: RunFolder

    def status(self) -> TrainingStatus:
        return self.folder.status()

    def follow(self, poll_s: float = POLL_S) -> Iterator[TrainingStatus]:
        """Yield the current status, and then every new one until the run is over."""
        last = None
        while last is None or not last.state.over:
            status = self.status()
            if status != last:
                yield status
                last = status
            if not status.state.over:
                time.sleep(poll_s)

    def wait(self) -> TrainingStatus:
        """Block until the run is over and return its last status; raise :class:`RunError` unless it finished."""
        *_, status = self.follow()
        if status.state is not TrainingState.FINISHED:
            raise RunError(f"the run {self.folder.path} {status.state}: {status.error or f'see {self.folder.log}'}")
        return status

    def stop(self, until_resumed: bool = False) -> TrainingStatus:
        """Stop the run after its current step and a checkpoint, wait for that, and return the run's last status.

        With ``until_resumed``, which is for a person's request, running a notebook or a sweep again does not continue
        the run. Without it, as for an interrupted notebook, it does.
        """
        status = self.status()
        if not status.state.over:
            write_atomically(self.folder.stop_request, "until resumed\n" if until_resumed else "")
            *_, status = self.follow()
        return status

    def resume(self) -> TrainingRun:
        """Continue the run from its last checkpoint, with the settings that it was started with."""
        return launch(self.folder.recipe()[0], self.folder.path, resume=True)

    def stop_at_exit(self) -> None:
        """Stop the run when this process exits, because an interrupt may come before anything waits for the run."""

        def stop() -> None:
            with suppress(FileNotFoundError):  # someone removed the folder
                self.stop()

        atexit.register(stop)


def attach(run_folder: str | Path) -> TrainingRun:
    """Return the run in a folder. Raises :class:`MissingFile` if the folder has no run."""
    run = TrainingRun(RunFolder(absolute(run_folder)))
    run.status()  # raises if there is no run
    return run


def launch(recipe: Recipe, run_folder: str | Path, resume: bool = False, stop_at_exit: bool = False) -> TrainingRun:
    """Check everything, start a detached run, and return it.

    ``resume`` continues the run in the folder from its last checkpoint; a run that is already complete is returned
    unchanged. With ``stop_at_exit`` the run is stopped when this process ends. Raises :class:`SettingsError`,
    :class:`BudgetError` or :class:`RunError` before any process is started.
    """
    require_training()
    folder = RunFolder(absolute(run_folder))
    run = TrainingRun(folder)
    recipe = resolved(recipe, folder)
    device = chosen_device(recipe.model.device)
    verl = check(recipe, folder, device, resume)
    if resume and folder.is_run:
        status = folder.status()
        if status.state is TrainingState.FINISHED and status.step >= recipe.steps:
            return run
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _prepare(recipe, folder, device, resume)
        verl.trainer.val_before_train &= not folder.rows()  # a resumed run has measured its weights, or was not to
        save_composed(verl, folder)
        if stop_at_exit:
            run.stop_at_exit()
        # The supervisor inherits the lock's descriptor, so the run is locked as long as it lives.
        command = [sys.executable, "-m", "memagent_lib.rl.run.supervisor", str(folder.path)]
        with folder.log.open("ab") as log:
            detached = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[lock]
            )
        detached.returncode = 0  # nothing here waits for the process, and without a code Python warns about that
    finally:
        os.close(lock)
    return run


def _lock(folder: RunFolder) -> int:
    """Lock the run. If the previous attempt has just ended, wait for it to release the lock."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return folder.lock()
        except BlockingIOError:
            if time.monotonic() > deadline or not (folder.is_run and folder.status().state.over):
                raise RunError(f"a run is active in {folder.path}; attach to it, or choose another folder") from None
        time.sleep(POLL_S)


def _prepare(recipe: Recipe, folder: RunFolder, device: str, resume: bool) -> None:
    last = folder.resumable_checkpoint() if resume else None
    step = last.step if last else 0
    # Without a checkpoint nothing can be continued, so a resumed run begins again at step 1.
    folder.forget_after(last.step if last else -1)
    remove_unfinished(folder)
    if last:
        write_atomically(folder.checkpoint_note, str(step))
    for leftover in (folder.stop_request, folder.error, folder.verl_metrics):
        leftover.unlink(missing_ok=True)
    if not last:
        folder.mlflow_note.unlink(missing_ok=True)  # the recipe may be another one, and MLflow changes no parameter
    folder.write_recipe(recipe, device)
    write_atomically(folder.waits_for, "the training process")
    leave_out_slow_imports(folder)
    folder.write_status(TrainingStatus(state=TrainingState.STARTING, step=step, steps=recipe.steps))
