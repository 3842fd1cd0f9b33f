"""End processes, leave none behind, and find out whether a process is still alive.

Processes are identified by descent and start time, never by name. :func:`adopt_orphans` and :func:`die_with_parent` use
Linux's ``prctl``. A supervisor becomes the parent of every orphan below it, so that the processes of a killed trainer
(Ray's servers, vLLM's engine) can still be found and ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

GRACE_S = 5.0
_SAME_START_S = 60.0  # a start time is derived from a clock that may be set meanwhile
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Terminated(SystemExit):
    """This process received SIGTERM."""


SESSION = "JPY_SESSION_NAME"
"""An environment variable that Jupyter's server sets for the kernels of its sessions; papermill does not."""


OWN_KERNEL = {"JUPYTER_PREFER_ENV_PATH": "1"}
"""The environment with which a process starts kernels of the Python that runs it.

Otherwise a kernel ``python3`` in the user's home folder, which may have another Python without this library, comes
first in an environment that belongs to another user or is conda's base (``jupyter_core.paths``).
"""


def in_jupyter() -> bool:
    """Return whether this process is the kernel of a notebook opened by a person, not run by papermill."""
    return SESSION in os.environ


@contextmanager
def terminable() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM during the block, so that the code in it can clean up.

    Does nothing outside the main thread, where Python allows no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise Terminated(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def this_process() -> str:
    """Return an identifier that no other process ever has: ``host process-namespace pid start``."""
    return f"{_host()} {os.getpid()} {psutil.Process().create_time():.0f}"


def is_gone(process: str) -> bool:
    """Return whether the process that :func:`this_process` identified has ended.

    Returns ``False`` for a process on another machine or in another process namespace (a container).
    """
    host, pid, start = process.rsplit(" ", 2)
    if host != _host():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(start)) > _SAME_START_S
    except psutil.NoSuchProcess:
        return True


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends. ``parent`` must be its parent process."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def end_descendants() -> int:
    """Send SIGTERM to every descendant, then SIGKILL to those still running. Return how many there were at first."""
    children = psutil.Process().children(recursive=True)
    _signal(children, signal.SIGTERM)
    _, alive = psutil.wait_procs(children, timeout=GRACE_S)
    while True:
        alive = [*alive, *psutil.Process().children(recursive=True)]  # with any that were started meanwhile
        if not alive:
            break
        _signal(alive, signal.SIGKILL)
        _, alive = psutil.wait_procs(alive, timeout=GRACE_S)
        _reap()
        if all(p.status() == psutil.STATUS_ZOMBIE for p in alive if p.is_running()):
            break
    _reap()
    return len(children)


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)  # psutil compares start times first: a reused pid is left alone
        except psutil.NoSuchProcess:
            continue


def _reap() -> None:
    """Reap adopted children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _host() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "-"
    return f"{socket.gethostname()} {namespace}"
