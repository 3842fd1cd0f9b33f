"""Wait for what other processes do: for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_for(found: Callable[[], object], most_s: float = 120) -> None:
    deadline = time.monotonic() + most_s
    while not found():
        assert time.monotonic() < deadline, f"waited {most_s:g} s in vain"
        time.sleep(0.05)


def command_of(process: psutil.Process) -> str:
    """Return a process's command line, or an empty text if the process has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def has_ended(process: psutil.Process) -> bool:
    """Return whether nothing of a process runs any more.

    A process that was killed together with its parent is a zombie until the process that inherits it collects its
    status, and the first process of a container may never do that.
    """
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
