"""Start, watch and stop training runs. A run is a detached process: it survives the terminal or notebook that started it.

Everything that can be known to be wrong is checked before anything heavy starts. Loads neither torch nor verl, but for the
tokenizer that counts the window.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from memagent_lib.files import write_atomically
from memagent_lib.prompts import Encoder, Template
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.folder import RunFolder, TrainingState, TrainingStatus
from memagent_lib.settings import SettingsError
from memagent_lib.text import Tokenizer, looks_like_path

POLL_S = 0.5
STOP_WAIT_S = 120.0
LOCK_WAIT_S = 10.0
OVERHEAD_BYTES = 1 << 30  # logs, traces, Ray's session files
STATE_COPIES = 5  # fp32 weights, two AdamW moments, the exported folder; one more for the write in progress


class RunError(RuntimeError):
    """A run that cannot be started, watched or stopped; the message says why and what to do."""


@dataclass(frozen=True)
class TrainingRun:
    """A training run on disk."""

    folder: RunFolder

    def status(self) -> TrainingStatus:
        return self.folder.status()

    def follow(self, poll_s: float = POLL_S) -> Iterator[TrainingStatus]:
        """Each new status until the run is over, the present one first."""
        last = None
        while last is None or not last.state.over:
            status = self.status()
            if last is None or dataclasses.replace(status, updated=0.0) != dataclasses.replace(last, updated=0.0):
                yield status
                last = status
            if not status.state.over:
                time.sleep(poll_s)

    def wait(self) -> TrainingStatus:
        """Block until the run is over; :class:`RunError` unless it finished."""
        *_, status = self.follow()
        if status.state is not TrainingState.FINISHED:
            raise RunError(
                f"the run {self.folder.path} {status.state}: {status.error or 'see ' + str(self.folder.log)}"
            )
        return status

    def stop(self, wait_s: float = STOP_WAIT_S) -> TrainingStatus:
        """End the run after the step it is in, with a checkpoint; a step that takes over a minute is cut short.

        The lock says that the supervisor lives, so its pid cannot have been given to another process.
        """
        deadline, asked = time.monotonic() + wait_s, False
        while not (status := self.status()).state.over:
            if time.monotonic() > deadline:
                raise RunError(
                    f"the run {self.folder.path} has not stopped within {wait_s:.0f} s; its process is {status.pid or 'not known'}"
                )
            if status.pid and not asked:  # in its first second a run has not said who it is
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(status.pid).send_signal(signal.SIGTERM)
                asked = True
            time.sleep(POLL_S)
        return status

    def stop_at_exit(self) -> None:
        """Stop the run when this process ends: an interrupt may come before anyone watches the run."""

        def stop() -> None:
            with suppress(FileNotFoundError):  # someone removed the folder
                self.stop()

        atexit.register(stop)

    def metrics(self) -> Any:
        """All metrics of all steps as a frame, one row per step."""
        import pandas as pd

        rows = self.folder.rows()
        return pd.DataFrame([{"step": row["step"], "time": row["time"], **row["metrics"]} for row in rows])


def attach(run_folder: str | Path) -> TrainingRun:
    """The run in a folder, for :meth:`TrainingRun.follow`, :meth:`TrainingRun.status` and :meth:`TrainingRun.stop`."""
    run = TrainingRun(RunFolder(Path(run_folder).absolute()))
    run.status()
    return run


def launch(config: Recipe, run_folder: str | Path, resume: bool = False, stop_at_exit: bool = False) -> TrainingRun:
    """Check everything, then start a detached run. With ``resume`` an earlier run in the folder is gone on with; with
    ``stop_at_exit`` it does not outlive this process, wherever that is interrupted. A run that is refused is never stopped.

    Raises :class:`SettingsError`, :class:`BudgetError` or :class:`RunError` before any process is started.
    """
    folder = RunFolder(Path(run_folder).absolute())
    config = resolved(config, folder)
    device = chosen_device(config.model.device)
    check(config, folder, resume)
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _prepare(config, folder, device, resume)
        if stop_at_exit:
            TrainingRun(folder).stop_at_exit()
        _start(folder, lock)
    finally:
        os.close(lock)  # the supervisor holds its own copy
    return TrainingRun(folder)


def resolved(config: Recipe, folder: RunFolder) -> Recipe:
    """Paths made absolute and the tracking store named, so that the run means the same from any working directory."""
    data = dataclasses.replace(config.data, train=_absolute(config.data.train), eval=_absolute(config.data.eval))
    model, tracking, reading = config.model, config.tracking, config.reading
    if looks_like_path(model.path):
        model = dataclasses.replace(model, path=str(Path(model.path).expanduser().absolute()))
    if not tracking.uri:
        tracking = dataclasses.replace(tracking, uri=f"sqlite:///{folder.path.parent / 'mlflow.db'}")
    if reading.template.endswith(".toml"):
        reading = dataclasses.replace(reading, template=str(Path(reading.template).absolute()))
    return dataclasses.replace(config, data=data, model=model, tracking=tracking, reading=reading)


def chosen_device(device: str) -> str:
    """``auto`` made definite: CUDA where a GPU answers and torch was built for it."""
    import importlib.util

    if device != "auto":
        return device
    if importlib.util.find_spec("torch") is None:
        raise RunError(
            "training needs torch, verl and vLLM: pip install 'memagent-lib[cpu]', or [gpu] on a CUDA machine"
        )
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check(config: Recipe, folder: RunFolder, resume: bool) -> None:
    """All that can be refused at once: leftovers, missing files, a window that is too small, a full disk."""
    _check_leftovers(folder, resume)
    for path in (*config.data.train, *config.data.eval):
        if not Path(path).is_file():
            raise SettingsError(f"no examples at {path}; make some with: memagent data TASK --out {path}")
    _check_window(config)
    _check_disk(config, folder)


def _check_leftovers(folder: RunFolder, resume: bool) -> None:
    if not folder.config.is_file() or resume:
        return
    status = folder.status()
    if not status.state.over:
        raise _active(folder)
    last = folder.latest_checkpoint()
    at = f"with a checkpoint of step {last.step}" if last else "without a checkpoint"
    raise RunError(
        f"{folder.path} holds a run that {status.state} {at}; resume it (--resume), or choose another folder"
    )


def _lock(folder: RunFolder) -> int:
    """Take the run. One that has just ended holds it for a moment longer."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return folder.lock()
        except BlockingIOError:
            if time.monotonic() > deadline or not (folder.config.is_file() and folder.status().state.over):
                raise _active(folder) from None
        time.sleep(POLL_S)


def _active(folder: RunFolder) -> RunError:
    return RunError(f"a run is active in {folder.path}; attach to it, stop it, or choose another folder")


def _check_window(config: Recipe) -> None:
    model = config.model.path
    if looks_like_path(model) and not (Path(model) / "config.json").is_file():
        raise SettingsError(f"no model at {model}: the folder must hold config.json, a tokenizer and weights")
    from transformers import AutoConfig

    allowed = AutoConfig.from_pretrained(model).max_position_embeddings
    encoder = Encoder(
        Tokenizer.load(model), Template.load(config.reading.template), config.reading.budget, config.reading.shows
    )
    encoder.require_window(allowed, f"the model {model}")
    given = config.verl.get("actor_rollout_ref.rollout.max_model_len")
    if given is not None:
        encoder.require_window(given, "verl's actor_rollout_ref.rollout.max_model_len")


def _check_disk(config: Recipe, folder: RunFolder) -> None:
    weights = sum(file.stat().st_size for file in Path(config.model.path).glob("*.safetensors"))
    needed = OVERHEAD_BYTES + STATE_COPIES * weights * (1 + config.train.keep_checkpoints)
    existing = next(p for p in (folder.path, *folder.path.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        sizes = f"{free / 1e9:.1f} GB free and the run may need {needed / 1e9:.1f} GB"
        raise RunError(f"the disk of {existing} has {sizes}; free some, or lower keep_checkpoints")


def _prepare(config: Recipe, folder: RunFolder, device: str, resume: bool) -> None:
    last = folder.latest_checkpoint() if resume else None
    folder.keep_metrics_until(last.step if last else 0)
    for checkpoint in folder.checkpoints.glob(
        "global_step_*"
    ):  # verl forgets, when it ends, which ones it was to delete
        if not last or checkpoint != last.folder:
            shutil.rmtree(checkpoint)
    if last:
        write_atomically(folder.checkpoint_note, str(last.step))
    for leftover in (folder.stop_request, folder.error, folder.verl_metrics):
        leftover.unlink(missing_ok=True)
    write_atomically(folder.config, json.dumps({"config": config.to_tables(), "device": device}, indent=2))
    folder.write_status(
        TrainingStatus(state=TrainingState.STARTING, step=last.step if last else 0, steps=config.train.steps)
    )


def _start(folder: RunFolder, lock: int) -> None:
    """The lock's descriptor is inherited, so the run is taken for as long as its supervisor lives."""
    command = [sys.executable, "-m", "memagent_lib.rl.run.supervisor", str(folder.path)]
    with folder.log.open("ab") as log:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[lock]
        )


def _absolute(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(Path(path).expanduser().absolute()) for path in paths)
