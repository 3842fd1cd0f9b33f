"""Run notebooks with papermill in a pool of processes. Nothing here depends on sweeps or MLflow.

A kernel that is killed for lack of memory ends only its own notebook. If this process is interrupted or ends, however
it ends, the running cells are interrupted as Ctrl-C does, may clean up, and then their kernels end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil

from memagent_lib.system import OWN_KERNEL, SESSION

NOTE_EVERY_S = 30.0
STOP_GRACE_S = 100.0  # a cell that stops a training run waits for a checkpoint


@dataclass(frozen=True, slots=True)
class NotebookJob:
    """A notebook to run: its parameters, its working folder, and the path of its executed copy."""

    notebook: Path
    output: Path
    parameters: dict[str, Any]
    cwd: Path


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a job. ``error`` is a message, which may have several lines, or None after success."""

    job: NotebookJob
    seconds: float
    error: str | None = None


def run_jobs(jobs: Iterable[NotebookJob], workers: int, note: Callable[[], None]) -> Iterator[JobOutcome]:
    """Run jobs in order, up to ``workers`` at a time, and yield each outcome. A job is taken when a worker is free.

    ``note`` is called whenever no job has ended for :data:`NOTE_EVERY_S` seconds.

    An exception, such as Ctrl-C, first interrupts the running cells and waits for them; a second one kills them.
    """
    waiting = iter(jobs)
    running: set[Future[JobOutcome]] = set()
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    stopping = spawn.Event()
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, spawn, _prepare, (stopping,)) as pool:
        try:
            while True:
                while len(running) < workers and (job := next(waiting, None)):
                    running.add(pool.submit(run_notebook, job))
                if not running:
                    return
                done, running = wait(running, NOTE_EVERY_S, FIRST_COMPLETED)
                if not done:
                    note()
                yield from (future.result() for future in done)
        except BaseException:
            stopping.set()
            print(f"stopping within {STOP_GRACE_S:g} s, a training after its step; Ctrl-C again kills", flush=True)
            workers = [child for child in multiprocessing.active_children() if child not in others]
            try:
                for worker in workers:
                    _interrupt(worker.pid)
                wait(running, timeout=STOP_GRACE_S)
            finally:
                for worker in workers:
                    for kernel in _kernels(worker.pid):
                        kernel.kill()
                    worker.kill()
            raise


def run_notebook(job: NotebookJob) -> JobOutcome:
    """Run a job's notebook; what its kernel writes to its standard output goes to a log beside the executed copy."""
    from papermill import PapermillExecutionError, execute_notebook

    job.output.parent.mkdir(parents=True, exist_ok=True)
    with open(job.output.with_suffix(".log"), "w", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    started = time.monotonic()
    error = None
    cell = 0
    os.chdir(job.cwd)  # papermill writes the paths that it is given into the copy

    def begin(cell_index: int, **_: object) -> None:
        nonlocal cell
        cell = cell_index + 1
        if _stopping and _stopping.is_set():  # no further cell of a notebook that caught its interrupt
            raise RuntimeError("stopped")

    try:
        execute_notebook(
            os.path.relpath(job.notebook),
            os.path.relpath(job.output),
            job.parameters,
            progress_bar=False,
            start_timeout=180,  # several kernels may start on few cores
            on_cell_start=begin,
        )
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue} (cell {failure.exec_count} of {job.output.name})"
    except Exception as failure:  # a dead kernel or one that is not installed, a full disk
        error = f"{type(failure).__name__}: {failure} (cell {cell} of {job.output.name})"
    return JobOutcome(job, time.monotonic() - started, error)


def _prepare(stopping: Event) -> None:
    """Set up a worker: Ctrl-C in the terminal does not reach it, and it ends after its parent."""
    global _stopping
    _stopping = stopping
    os.setsid()
    os.environ.pop(SESSION, None)  # a notebook that runs a sweep is open in Jupyter; its points are not
    os.environ.update(OWN_KERNEL)
    threading.Thread(target=_end_after_parent, daemon=True).start()


_stopping: Event | None = None


def _end_after_parent() -> None:
    multiprocessing.parent_process().join()
    _stopping.set()
    _interrupt(os.getpid())
    psutil.wait_procs(_kernels(os.getpid()), timeout=STOP_GRACE_S)
    os._exit(1)


def _interrupt(worker: int) -> None:
    """Send the kernels of a worker what Ctrl-C sends."""
    for kernel in _kernels(worker):
        with suppress(psutil.NoSuchProcess):
            kernel.send_signal(signal.SIGINT)


def _kernels(worker: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(worker).children()
    return []
