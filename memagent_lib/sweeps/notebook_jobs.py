"""Notebooks run by papermill, each in a process of its own, several side by side. Knows no sweep and no MLflow.

A process per notebook, because a kernel that is killed for memory must not take its neighbours along. A worker that
is asked to stop, or whose parent is gone, interrupts the running cell as Ctrl-C does, lets it clean up, and ends its
kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from memagent_lib.processes import SESSION

KERNEL_STARTS = 3
_BEFORE_ANY_CELL = "Kernel died before replying"  # as jupyter_client says it
STOP_GRACE_S = 100.0  # a cell that stops a training run waits for a checkpoint


@dataclass(frozen=True, slots=True)
class NotebookJob:
    """One notebook to run: with which parameters, from which folder, and where the executed copy and the log go."""

    notebook: Path
    output: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def log(self) -> Path:
        return self.output.with_suffix(".log")

    @property
    def error_file(self) -> Path:
        """What went wrong, written by the worker and taken away by whoever reads it."""
        return self.output.with_suffix(".error")


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: ``error`` is ``None``, or what went wrong in a line or a few."""

    job: NotebookJob
    seconds: float
    error: str | None = None


def run_jobs(
    jobs: Iterable[NotebookJob],
    workers: int,
    on_start: Callable[[NotebookJob], NotebookJob],
    on_end: Callable[[JobOutcome], None],
    on_stop: Callable[[int], None] = lambda _: None,
) -> None:
    """Run jobs in order, ``workers`` at a time.

    ``on_start`` returns the job to run, ``on_stop`` is told how many still run. Whatever is raised here, Ctrl-C
    included, first stops the running jobs and their kernels; a second Ctrl-C ends them at once.
    """
    waiting, running = deque(jobs), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = on_start(waiting.popleft())
                running[_start(job)] = job, time.monotonic()
            ended, _ = psutil.wait_procs(list(running), timeout=0.5)
            for process in ended:
                process.stdin.close()
                job, started = running.pop(process)
                on_end(JobOutcome(job, time.monotonic() - started, _error(job, process.returncode)))
    finally:
        _stop(list(running), on_stop)


def _start(job: NotebookJob) -> psutil.Popen:
    job.output.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "w", encoding="utf-8") as log:
        process = psutil.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            cwd=job.cwd,
            env={name: value for name, value in os.environ.items() if name != SESSION},
            start_new_session=True,
        )
    with suppress(BrokenPipeError):  # it died at once, which its status says
        process.stdin.write(json.dumps(asdict(job), default=str) + "\n")
        process.stdin.flush()  # and stays open: its end tells the worker that we are gone
    return process


def _stop(processes: Collection[psutil.Popen], on_stop: Callable[[int], None]) -> None:
    try:
        for process in processes:
            process.terminate()
        if processes:
            on_stop(len(processes))
        psutil.wait_procs(processes, timeout=STOP_GRACE_S)
    finally:
        for process in processes:
            process.stdin.close()
            with suppress(psutil.NoSuchProcess):
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()


def _error(job: NotebookJob, status: int) -> str | None:
    if status == 0:
        return None
    if job.error_file.exists():
        said = job.error_file.read_text(encoding="utf-8")
        job.error_file.unlink()
        return said
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    why = "; out of memory is the usual reason" if status == -signal.SIGKILL else ""
    return f"the process that ran {job.notebook.name} {how}{why}; its log is {job.log}"


def _work(job: NotebookJob, stop: _Stop) -> str | None:
    """In the worker: run the notebook, and say what went wrong."""
    from papermill import PapermillExecutionError

    try:
        for tries_left in reversed(range(KERNEL_STARTS)):
            try:
                _execute(job, stop)
                return None
            except RuntimeError as failure:  # the kernel's ports are chosen before it takes them: others may be faster
                if _BEFORE_ANY_CELL not in str(failure) or not tries_left:
                    raise
                print(f"{failure}; starting it again, {tries_left} tries left", flush=True)
    except PapermillExecutionError as failure:
        if stop.asked:
            return "stopped"
        return f"{failure.ename}: {failure.evalue} (cell {failure.exec_count} of {job.output.name})"
    except (RuntimeError, OSError) as failure:  # DeadKernelError, a kernel that did not start, a full disk
        return f"{type(failure).__name__}: {failure}"
    except KeyboardInterrupt:
        return "stopped"


def _execute(job: NotebookJob, stop: _Stop) -> None:
    from papermill import execute_notebook

    with _kernel_start_lock(job.output.parent) as release:
        execute_notebook(
            job.notebook,
            job.output,
            job.parameters,
            cwd=job.cwd,
            progress_bar=False,
            start_timeout=180,
            on_notebook_start=lambda **_: release(),
            on_cell_start=lambda **_: stop.before_cell(),
        )


@contextmanager
def _kernel_start_lock(folder: Path) -> Iterator[Callable[[], None]]:
    """One kernel starts at a time: kernels that start together can pick the same port."""
    with open(folder / ".kernel-start", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)


class _Stop:
    """SIGTERM becomes an interrupt of the running cell, once, so that its clean-up is left in peace."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, *_: object) -> None:
        again, self.asked = self.asked, True
        kernels = psutil.Process().children()
        if not kernels:
            raise KeyboardInterrupt
        for kernel in () if again else kernels:
            kernel.send_signal(signal.SIGINT)

    def before_cell(self) -> None:
        if self.asked:  # the cell before went on in spite of the interrupt, or there was none running
            raise KeyboardInterrupt


def _stop_when_alone() -> None:
    """The parent holds the other end of our standard input for as long as it lives."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """A worker: a job on standard input, an exit status out, and an error file beside the output when it failed."""
    signal.signal(signal.SIGTERM, stop := _Stop())
    given = json.loads(sys.stdin.readline())
    paths = {name: Path(given.pop(name)) for name in ("notebook", "output", "cwd")}
    job = NotebookJob(**paths, **given)
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    try:
        error = _work(job, stop)
    except KeyboardInterrupt:
        error = "stopped"
    if error is not None:
        job.error_file.write_text(error, encoding="utf-8")
    return int(error is not None)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the watching thread still reads standard input, and would hold up the interpreter's end
