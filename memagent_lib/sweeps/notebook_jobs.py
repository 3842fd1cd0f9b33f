"""Run notebooks with papermill, each in its own process, several at a time.

Because each notebook has its own process, a kernel killed for lack of memory does not end the others. A worker that
gets SIGTERM, or whose parent has ended, interrupts the running cell as Ctrl-C does, lets the cell clean up, and ends
the kernel. Nothing here depends on sweeps or MLflow.
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

from memagent_lib.system import OWN_KERNEL, SESSION

KERNEL_STARTS = 3
"""The most times that a kernel is started if it dies before its first cell."""
_BEFORE_ANY_CELL = "Kernel died before replying"  # jupyter_client's words
STOP_GRACE_S = 100.0  # a cell that stops a training run waits for a checkpoint


@dataclass(frozen=True, slots=True)
class NotebookJob:
    """A notebook to run: its parameters, its working folder, and the path of its executed copy."""

    notebook: Path
    output: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def log(self) -> Path:
        return self.output.with_suffix(".log")

    @property
    def error_file(self) -> Path:
        """The file with the error message. The worker writes it, and the parent removes it after reading."""
        return self.output.with_suffix(".error")


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a job. ``error`` is a message, which may have several lines, or None after success."""

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
    """Run jobs in order, up to ``workers`` at a time.

    ``on_start`` receives each job and returns the job to run, which may differ. ``on_end`` receives each outcome. An
    exception, such as Ctrl-C, first stops the running jobs and their kernels, whose number ``on_stop`` receives. A
    second Ctrl-C kills them at once.
    """
    waiting = deque(jobs)
    running: dict[psutil.Popen, tuple[NotebookJob, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = on_start(waiting.popleft())
                running[_start(job)] = job, time.monotonic()
            # A timeout, so that a signal is handled soon even if no job ends.
            ended, _ = psutil.wait_procs(list(running), timeout=0.5)
            for process in ended:
                process.stdin.close()
                job, started = running.pop(process)
                on_end(JobOutcome(job, time.monotonic() - started, _error(job, process.returncode)))
    finally:
        _stop(list(running), on_stop)


def _start(job: NotebookJob) -> psutil.Popen:
    job.output.parent.mkdir(parents=True, exist_ok=True)
    job.error_file.unlink(missing_ok=True)  # of a call that was killed before it read the message
    with open(job.log, "w", encoding="utf-8") as log:
        process = psutil.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            cwd=job.cwd,
            # A notebook that runs a sweep is open in Jupyter; its points are not.
            env={name: value for name, value in os.environ.items() if name != SESSION} | OWN_KERNEL,
            start_new_session=True,  # Ctrl-C in the terminal goes to us only, and we stop the workers
        )
    with suppress(BrokenPipeError):  # it died at once; its exit status is reported later
        process.stdin.write(json.dumps(asdict(job), default=str) + "\n")
        process.stdin.flush()  # and stays open: the worker stops when this end closes
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
                # A kernel is a child of its worker, and would outlive it.
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()


def _error(job: NotebookJob, status: int) -> str | None:
    """Return why a worker failed (its own message, or what its exit status means), or None if it did not."""
    if status == 0:
        return None
    if job.error_file.exists():
        message = job.error_file.read_text(encoding="utf-8")
        job.error_file.unlink()
        return message
    how = f"ended with status {status}"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    if status == -signal.SIGKILL:
        how += "; out of memory is the usual reason"
    return f"the process that ran {job.notebook.name} {how}; its log is {job.log}"


def _work(job: NotebookJob, stop: _Stop) -> str | None:
    """Run the job's notebook in this process, the worker; return an error message, or None after success."""
    from papermill import PapermillExecutionError

    try:
        for tries_left in reversed(range(KERNEL_STARTS)):
            try:
                _execute(job, stop)
                return None
            except RuntimeError as failure:
                # A kernel's ports are chosen before it binds them, so another process can take one in between.
                if _BEFORE_ANY_CELL not in str(failure) or not tries_left:
                    raise
                print(f"{failure}; starting it again, {tries_left} tries left", flush=True)
    except PapermillExecutionError as failure:
        if stop.requested:
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
            start_timeout=180,  # several kernels may start on few cores
            on_notebook_start=lambda **_: release(),
            on_cell_start=lambda **_: stop.before_cell(),
        )


@contextmanager
def _kernel_start_lock(folder: Path) -> Iterator[Callable[[], None]]:
    """Let only one kernel start at a time, because kernels that start together can pick the same port."""
    with open(folder / ".kernel-start", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)


class _Stop:
    """A handler that turns the first SIGTERM into an interrupt of the running cell, and lets its clean-up finish."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, *_: object) -> None:
        first = not self.requested
        self.requested = True
        kernels = psutil.Process().children()
        if not kernels:
            raise KeyboardInterrupt
        if first:
            for kernel in kernels:
                kernel.send_signal(signal.SIGINT)

    def before_cell(self) -> None:
        if self.requested:  # the previous cell caught the interrupt, or none was running
            raise KeyboardInterrupt


def _stop_when_alone() -> None:
    """Stop this process when standard input ends, because the parent keeps its other end open as long as it lives."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the job that standard input describes in JSON; return the exit status. An error goes to the error file."""
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop)
    record = json.loads(sys.stdin.readline())
    paths = {name: Path(record.pop(name)) for name in ("notebook", "output", "cwd")}
    job = NotebookJob(**paths, **record)
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
    os._exit(status)  # the thread that reads standard input would block the interpreter's own exit
