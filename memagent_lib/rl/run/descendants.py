"""Processes that leave nothing behind: found by descent and start time, never by name.

Linux only, through ``prctl``: a supervisor adopts every orphan below it, so whatever a killed trainer had started (Ray's
servers, vLLM's engine) can still be found and ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 5.0


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which must be its parent, is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def end_descendants(grace_s: float = GRACE_S) -> int:
    """Ask every descendant to end, then kill those that have not; how many there were."""
    children = psutil.Process().children(recursive=True)
    _signal(children, signal.SIGTERM)
    _, alive = psutil.wait_procs(children, timeout=grace_s)
    while alive := [*alive, *psutil.Process().children(recursive=True)]:
        _signal(alive, signal.SIGKILL)
        _, alive = psutil.wait_procs(alive, timeout=grace_s)
        _reap()
        if all(p.status() == psutil.STATUS_ZOMBIE for p in alive if p.is_running()):
            break
    _reap()
    return len(children)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)  # psutil compares start times first: a reused pid is left alone
        except psutil.NoSuchProcess:
            continue


def _reap() -> None:
    """Collect adopted children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
