"""Watch, wait for and stop a training run that another process carries out."""

from __future__ import annotations

import atexit
import dataclasses
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from memagent_lib.errors import UserError
from memagent_lib.paths import absolute
from memagent_lib.rl.run_folder import (
    SAVE_SECONDS,
    SECONDS,
    VALIDATION_SECONDS,
    RunFolder,
    TrainingState,
    TrainingStatus,
    values_of,
)

POLL_S = 0.5
STOP_WAIT_S = 120.0  # beyond what the run itself has announced


class RunError(UserError, RuntimeError):
    """A run cannot be started, watched or stopped. The message names the reason and the fix."""


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
            if last is None or dataclasses.replace(status, updated=0.0) != dataclasses.replace(last, updated=0.0):
                yield status
                last = status
            if not status.state.over:
                time.sleep(poll_s)

    def wait(self) -> TrainingStatus:
        """Block until the run is over and return its last status; raise :class:`RunError` unless it finished."""
        *_, status = self.follow()
        if status.state is not TrainingState.FINISHED:
            why = status.error or f"see {self.folder.log}"
            if status.state is TrainingState.STOPPED and not status.error:
                why = "it continues from its last checkpoint when it is resumed (--resume)"
            raise RunError(f"the run {self.folder.path} {status.state}: {why}")
        return status

    def stop(self, wait_s: float = STOP_WAIT_S, now: bool = False, until_resumed: bool = False) -> TrainingStatus:
        """Stop the run after its current step and a checkpoint, or at once with ``now``; return the run's last status.

        With ``until_resumed``, which is for a person's request, running a notebook or a sweep again does not continue
        the run. Without it, as for an interrupted notebook, it does.

        Blocks until the run is over. Prints how long the step, a validation and a checkpoint usually take, and when the
        run is ended in any case, which the status has as ``stop_by``. Raises :class:`RunError` if the run is still
        active ``wait_s`` seconds after that time.
        """
        began = time.time()
        number = signal.SIGQUIT if now else signal.SIGTERM
        signalled = False
        announced = now
        status = self.status()
        if until_resumed and not status.state.over:
            self.folder.request_stop(until_resumed=True)
        while not status.state.over:
            if time.time() > max(began, status.stop_by) + wait_s:
                process = status.pid or "not known"
                raise RunError(f"{self.folder.path} has not stopped within {wait_s:.0f} s; its process is {process}")
            # In its first second a run has no pid in its status. The lock behind the status proves that the supervisor
            # lives, so the pid cannot belong to another process by now.
            if status.pid and not signalled:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(status.pid).send_signal(number)
                signalled = True
            left = status.stop_by - time.time()
            if left > 0 and not announced:
                print(f"stopping after {self._rest_of_step()}; it is ended in any case in {left:.0f} s", flush=True)
                announced = True
            time.sleep(POLL_S)
            status = self.status()
        return status

    def _rest_of_step(self) -> str:
        """Return what a stop waits for, with the usual duration of each part that was measured."""
        measured = [row["metrics"] for row in self.folder.rows()]
        parts = []
        for metric, name in (
            (SECONDS, "this step"),
            (VALIDATION_SECONDS, "validation if it is due"),
            (SAVE_SECONDS, "a checkpoint"),
        ):
            seconds = values_of(measured, metric)[-10:]
            if seconds:
                parts.append(f"{name} (usually {statistics.median(seconds):.0f} s)")
            elif metric != VALIDATION_SECONDS:  # a run may have no validation
                parts.append(name)
        return f"{', '.join(parts[:-1])} and {parts[-1]}"

    def stop_at_exit(self) -> None:
        """Stop the run when this process exits, because an interrupt may come before anything waits for the run."""

        def stop() -> None:
            with suppress(FileNotFoundError):  # someone removed the folder
                self.stop()

        atexit.register(stop)


def attach(run_folder: str | Path) -> TrainingRun:
    """Return the run in a folder, to follow or to stop. Raises ``FileNotFoundError`` if the folder has no run."""
    run = TrainingRun(RunFolder(absolute(run_folder)))
    run.status()  # raises if there is no run
    return run
