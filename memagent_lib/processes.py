"""How a process ends, and whether another one still lives: what a true status rests on. Knows no run."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_SAME_START_S = 60.0  # a start time is derived from a clock that may be set meanwhile


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM)."""


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into :class:`Terminated` meanwhile, so that what is open gets closed. Only the main thread can."""
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
    """Names this process among all that were and will be, here and elsewhere: ``host process-namespace pid start``."""
    return f"{_place()} {os.getpid()} {psutil.Process().create_time():.0f}"


def is_gone(process: str) -> bool:
    """Whether a process named by :func:`this_process` has ended. ``False`` for one of another machine: nobody here can know."""
    where, pid, start = process.rsplit(" ", 2)
    if where != _place():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(start)) > _SAME_START_S
    except psutil.NoSuchProcess:
        return True


def _place() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "-"
    return f"{socket.gethostname()} {namespace}"
