"""Print the stacks of a hung run's processes, so that they end up in its log.

Processes on other machines are not covered.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a process writes its stacks to stderr, once it has registered it with ``faulthandler``."""
LOOK_S = 20.0


def log_stacks(pid: int) -> None:
    """Print the stacks of a process that has registered :data:`STACK_SIGNAL`, and of its Python descendants.

    The descendants' stacks are read by py-spy, which comes with Ray; if the system forbids it, the reason is printed.
    """
    with suppress(psutil.Error):
        trainer = psutil.Process(pid)
        print(f"=== stacks of the training process {pid}", flush=True)
        trainer.send_signal(STACK_SIGNAL)
        time.sleep(1)  # for the process to print its stacks before those of the others
        for process in trainer.children(recursive=True):
            with suppress(psutil.Error):
                _log_stack(process)


def _log_stack(process: psutil.Process) -> None:
    if "python" not in Path(process.exe()).name:
        return
    print(f"=== stacks of {process.pid}: {' '.join(process.cmdline())[:200]}", flush=True)
    command = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if not command:
        print("py-spy is not installed: pip install py-spy", flush=True)
        return
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [command, "dump", "--nonblocking", "--pid", str(process.pid)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stdout.fileno(),
            stderr=subprocess.STDOUT,
            timeout=LOOK_S,
            check=False,
        )
