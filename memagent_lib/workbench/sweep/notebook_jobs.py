"""Notebooks run by papermill, each in a process of its own, several side by side. Knows no sweep and no MLflow.

A process per notebook, because a kernel that is killed for memory must not take its neighbours along. A worker that is asked to
stop, or whose parent is gone, interrupts the running cell as Ctrl-C does, lets it put things in order, and ends its kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

STOP_GRACE_S = 100.0  # a cell that stops a training run waits for a checkpoint
_TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "dict": dict}


class NotebookError(ValueError):
    """A notebook that cannot be run as asked. Raised before anything starts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One line ``name: type = default  # help`` of a notebook's parameters cell."""

    name: str
    type: str
    default: str
    help: str


@dataclass(frozen=True, slots=True)
class Job:
    """One notebook to run: with which parameters, from which folder, and where the executed copy and the log go."""

    name: str
    notebook: Path
    output: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def log(self) -> Path:
        return self.output.with_suffix(".log")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: ``error`` is ``None``, or what went wrong in a line or a few."""

    job: Job
    seconds: float
    error: str | None = None


def parameters_of(notebook: Path) -> dict[str, Parameter]:
    """A notebook's parameters by name; :class:`NotebookError` where the notebook or its parameters cell is missing."""
    from papermill import inspect_notebook

    if not notebook.is_file():
        raise NotebookError(f"no notebook {notebook}")
    try:
        book = json.loads(notebook.read_text(encoding="utf-8"))
        cells = book["cells"]
    except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as failure:
        raise NotebookError(f"{notebook} is not a notebook: {failure}") from failure
    tagged = sum("parameters" in cell.get("metadata", {}).get("tags", ()) for cell in cells)
    if tagged != 1:
        fix = "give one cell that tag (JupyterLab: the cog at the right, Common Tools)"
        raise NotebookError(f"{notebook} has {tagged or 'no'} cell{'s' * (tagged > 1)} tagged 'parameters'; {fix}")
    if not book.get("metadata", {}).get("kernelspec", {}).get("name"):
        raise NotebookError(
            f"{notebook} does not say which kernel runs it; open it in JupyterLab, choose one and save it"
        )
    found = inspect_notebook(str(notebook))
    return {name: Parameter(name, p["inferred_type_name"], p["default"], p["help"]) for name, p in found.items()}


def check(notebook: Path, known: dict[str, Parameter], given: dict[str, Any]) -> None:
    """Raise :class:`NotebookError` for a parameter that the notebook does not have, or a value of another type than it says."""
    if unknown := sorted(set(given) - set(known)):
        raise NotebookError(f"{notebook.name} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    for name, value in given.items():
        wanted = _TYPES.get(known[name].type.partition("[")[0])
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
            raise NotebookError(f"{notebook.name}: {name} must be {known[name].type}, got {value!r}")


def run_jobs(
    jobs: Iterable[Job],
    workers: int,
    on_start: Callable[[Job], Job],
    on_end: Callable[[Outcome], None],
    on_tick: Callable[[], None] = lambda: None,
    on_stop: Callable[[int], None] = lambda _: None,
) -> None:
    """Run jobs in order, ``workers`` at a time. The callbacks run in this thread; ``on_start`` returns the job to run, ``on_stop`` is
    told how many are still running.

    Whatever is raised here, Ctrl-C included, first stops the running jobs and their kernels; a second Ctrl-C ends them at once.
    """
    pool = _Pool(workers)
    waiting, running = list(jobs)[::-1], 0
    try:
        while waiting or running:
            while waiting and running < workers:
                pool.submit(on_start(waiting.pop()))
                running += 1
            on_tick()
            try:
                outcome = pool.ended.get(timeout=0.5)
            except queue.Empty:
                continue
            running -= 1
            on_end(outcome)
    finally:
        pool.stop(on_stop)


class _Pool:
    """Threads that each watch one process."""

    def __init__(self, workers: int):
        self.ended: queue.Queue[Outcome] = queue.Queue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="notebook")
        self._processes: set[subprocess.Popen] = set()
        self._lock, self._stopping = threading.Lock(), False

    def submit(self, job: Job) -> None:
        self._threads.submit(self._run, job)

    def _run(self, job: Job) -> None:
        started = time.monotonic()
        try:
            error = self._watch(job)
        except Exception as failure:  # a thread must report, or the loop above waits for ever
            error = f"{type(failure).__name__}: {failure}"
        self.ended.put(Outcome(job, time.monotonic() - started, error))

    def _watch(self, job: Job) -> str | None:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "memagent_lib.workbench.sweep.notebook_jobs"]
        with open(job.log, "w", encoding="utf-8") as log:
            with self._lock:
                if self._stopping:
                    return "stopped before it began"
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                    cwd=job.cwd,
                    start_new_session=True,
                )
                self._processes.add(process)
            process.stdin.write(json.dumps(_to_record(job)) + "\n")
            process.stdin.flush()  # and stays open: its end tells the worker that we are gone
            code = process.wait()
            process.stdin.close()
        with self._lock:
            self._processes.discard(process)
        return _error(job, code)

    def stop(self, on_stop: Callable[[int], None]) -> None:
        with self._lock:
            self._stopping = True
            left = list(self._processes)
        deadline = time.monotonic() + STOP_GRACE_S
        try:
            for process in left:
                process.terminate()
            if left:
                on_stop(len(left))
            for process in left:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in left:
                _end_family(process)
            self._threads.shutdown()


def _end_family(process: subprocess.Popen) -> None:
    """Kill what is left of a worker and its kernel."""
    with suppress(psutil.NoSuchProcess):
        worker = psutil.Process(process.pid)
        for each in (*worker.children(recursive=True), worker):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _to_record(job: Job) -> dict[str, Any]:
    return {"notebook": str(job.notebook), "output": str(job.output), "parameters": job.parameters, "cwd": str(job.cwd)}


def _error(job: Job, code: int) -> str | None:
    if code == 0:
        return None
    report = job.output.with_suffix(".error")
    said = report.read_text(encoding="utf-8") if report.exists() else ""
    report.unlink(missing_ok=True)
    if said:
        return said
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    why = "; out of memory is the usual reason" if code == -signal.SIGKILL else ""
    return f"the process that ran {job.notebook.name} {how}{why}; its log is {job.log}"


def work(record: dict[str, Any], stop: _Stop) -> str | None:
    """In the worker: run one notebook, and say what went wrong."""
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook

    output = Path(record["output"])
    with _turn_to_start(output.parent) as kernel_is_up:
        try:
            execute_notebook(
                record["notebook"],
                str(output),
                record["parameters"],
                cwd=record["cwd"],
                progress_bar=False,
                start_timeout=180,
                on_notebook_start=lambda **_: kernel_is_up(),
                on_cell_start=lambda **_: stop.before_cell(),
            )
        except PapermillExecutionError as failure:
            if stop.asked:
                return "stopped"
            return f"{failure.ename}: {failure.evalue} (cell {failure.exec_count} of {output.name})"
        except (RuntimeError, OSError) as failure:  # DeadKernelError, a kernel that did not start, a full disk
            return f"{type(failure).__name__}: {failure}"
    return None


@contextmanager
def _turn_to_start(folder: Path) -> Any:
    """One kernel starts at a time: kernels that start together can pick the same port."""
    with open(folder / ".kernel-start", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(turn, fcntl.LOCK_UN)


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
    """A worker: a job on standard input, an exit status out, and an ``.error`` file beside the output when it failed."""
    signal.signal(signal.SIGTERM, stop := _Stop())
    record = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    try:
        error = work(record, stop)
    except KeyboardInterrupt:
        error = "stopped"
    if error is None:
        return 0
    Path(record["output"]).with_suffix(".error").write_text(error, encoding="utf-8")
    return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the watching thread still reads standard input, and would hold up the interpreter's end
