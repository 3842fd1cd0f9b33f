"""Start a training run in a detached process, which survives the terminal or notebook that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from memagent_lib.paths import absolute, write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import require_free
from memagent_lib.rl.run.checks import active, checked, require_training, resolved
from memagent_lib.rl.run.training_plan import TrainingPlan
from memagent_lib.rl.run.training_run import POLL_S, RunError, TrainingRun
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus
from memagent_lib.rl.verl.checkpoints import remove_unfinished
from memagent_lib.rl.verl.verl_settings import encoder_of, leave_out_slow_imports
from memagent_lib.system import free_bytes

LOCK_WAIT_S = 10.0


def launch(recipe: Recipe, run_folder: str | Path, resume: bool = False, stop_at_exit: bool = False) -> TrainingRun:
    """Check everything, start a detached run, and return it.

    ``resume`` continues the run in the folder from its last checkpoint; a run that is already complete is returned
    unchanged. With ``stop_at_exit`` the run is stopped when this process ends. Raises :class:`SettingsError`,
    :class:`BudgetError`, :class:`PlanError` or :class:`RunError` before any process is started or stopped.
    """
    require_training()
    folder = RunFolder(absolute(run_folder))
    recipe = resolved(recipe, folder)
    device = chosen_device(recipe.model.device)
    trained = checked(recipe, folder, resume)
    # Checked first, because a complete run must also have been made by this recipe.
    if resume and _complete(recipe, folder):
        return TrainingRun(folder)
    gpu_memory = _gpu_memory(recipe, device)
    plan = TrainingPlan.of(recipe, folder, device, encoder_of(recipe))
    plan.check_room(gpu_memory)
    if device == "cpu":
        require_free(plan.cpu_bytes(), plan.cpu_fit, free_bytes())
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _prepare(recipe, trained, folder, device, resume)
        if stop_at_exit:
            TrainingRun(folder).stop_at_exit()
        _start(folder, lock)
    finally:
        os.close(lock)  # the supervisor has inherited its own copy
    return TrainingRun(folder)


def chosen_device(device: str) -> str:
    """Return the device to train on. ``auto`` is ``cuda`` if torch was built for CUDA and finds a GPU, else ``cpu``."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _gpu_memory(recipe: Recipe, device: str) -> float | None:
    """Return the size of this machine's GPUs in bytes, or ``None`` if the run is on a cluster or a CPU.

    Raises :class:`RunError` if the run is for GPUs of this machine, and it has too few.
    """
    if device == "cpu" or recipe.cluster.address != "local":
        return None
    import torch

    found = torch.cuda.device_count()
    if found < recipe.workers:
        raise RunError(
            f"the run needs {recipe.workers} GPUs (verl.trainer.n_gpus_per_node) and torch finds {found} on this "
            'machine; lower it, join a cluster (cluster.address), or set model.device = "cpu"'
        )
    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _complete(recipe: Recipe, folder: RunFolder) -> bool:
    """Return whether nothing is left to do: all steps are done and the policy is exported."""
    if not folder.is_run:
        return False
    status = folder.status()
    return status.state is TrainingState.FINISHED and status.step >= recipe.steps


def _lock(folder: RunFolder) -> int:
    """Lock the run. If the previous attempt has just ended, wait for it to release the lock."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return folder.lock()
        except BlockingIOError:
            if time.monotonic() > deadline or not (folder.is_run and folder.status().state.over):
                raise active(folder) from None
        time.sleep(POLL_S)


def _prepare(recipe: Recipe, trained: Recipe, folder: RunFolder, device: str, resume: bool) -> None:
    last = folder.latest_checkpoint() if resume else None
    # Without a checkpoint nothing can be continued, so a resumed run begins again at step 1.
    folder.forget_after(last.step if last else 0)
    remove_unfinished(folder)
    if last:
        write_atomically(folder.checkpoint_note, str(last.step))
    for leftover in (folder.stop_request, folder.error, folder.verl_metrics, folder.heartbeat):
        leftover.unlink(missing_ok=True)
    if not last and not recipe.tracking.run_id:
        folder.mlflow_note.unlink(missing_ok=True)  # the recipe may be another one, and MLflow changes no parameter
    folder.write_recipe(recipe, device, trained)
    leave_out_slow_imports(folder)
    step = last.step if last else 0
    folder.write_status(TrainingStatus(state=TrainingState.STARTING, step=step, steps=recipe.steps))


def _start(folder: RunFolder, lock: int) -> None:
    """Start the supervisor. It inherits the lock's descriptor, so the run is locked as long as the supervisor lives."""
    command = [sys.executable, "-m", "memagent_lib.rl.run.supervisor", str(folder.path)]
    with folder.log.open("ab") as log:
        detached = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[lock]
        )
    detached.returncode = 0  # nothing here waits for the process, and without a code Python warns about that
