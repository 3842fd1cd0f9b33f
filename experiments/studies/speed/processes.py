"""Sample the processor time of a training run's processes while it runs.

Processor time depends far less than wall time on what else the machine does. Processes of ours, verl, vLLM and Ray are
recognised by their command lines.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from experiments.studies.speed import supervised
from memagent_lib.paths import read_lines_from, root

POLL_S = 0.2
ROLES = {  # the first key that occurs in a process's command line decides
    "EngineCore": "engine",
    "vLLMHttpServer": "server",
    "RolloutServer": "rollouts",
    "RolloutWorker": "agent loop",
    "AgentLoopWorker": "agent loop",
    "WorkerDict": "actor",
    "ActorRolloutRef": "actor",
    "SimpleStorage": "transfer queue",
    "TransferQueue": "transfer queue",
    "TaskRunner": "trainer",
    "training_process": "trainer",
    "LoadBalancer": "load balancer",
    "rl.run.supervisor": "supervisor",
    "memagent_lib.cli": "command",
    "ray": "ray",
}


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the peak resident memory of this process so far, in MB."""
    me = psutil.Process()
    peaks = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            peaks.append(me.memory_info().rss / 1e6)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: max(peaks)
    finally:
        done.set()
        thread.join()


@dataclass
class Watched:
    """One run: its rows of metrics, and for each row the time of arrival and the processor seconds by role until then.

    Times are in seconds from the start.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    spent: list[Counter[str]] = field(default_factory=list)
    seconds: float = 0.0
    total: Counter[str] = field(default_factory=Counter)
    processes: int = 0


def watch(
    command: Sequence[str], environment: Mapping[str, str], folder: str | Path, metrics: Path, log: Path
) -> Watched:
    """Run a command in ``folder`` to its end, then end the processes that it leaves behind, and no others.

    Raises ``RuntimeError``, which has the end of the log, if the command fails.
    """
    seen = Watched()
    offset = 0
    over = False
    started = time.monotonic()
    # Ctrl-C does not reach a command in its own session, but the end of its standard input does.
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", supervised.__name__, str(folder), *command],
            cwd=root(),
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        ) as supervisor,
    ):
        look = _looker(seen, psutil.Process(supervisor.pid))
        while not over:
            over = bool(select.select([supervisor.stdout], [], [], POLL_S)[0])  # look once more after the end
            look()
            rows, offset = read_lines_from(metrics, offset)
            for row in rows:
                seen.rows.append(row["data"] | {"step": row["step"]})
                seen.times.append(time.monotonic() - started)
                seen.spent.append(Counter(seen.total))
        seen.seconds = time.monotonic() - started
        status = int(supervisor.stdout.readline() or 1)  # empty when the command could not be started
    if status:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {status}:\n{log.read_text()[-3000:]}")
    return seen


_Key = tuple[int, float]  # process id and time of creation, because an id can be used again


def _looker(seen: Watched, supervisor: psutil.Process) -> Callable[[], None]:
    roles: dict[_Key, str] = {}
    spent: dict[_Key, float] = {}

    def look() -> None:
        for process in supervisor.children(recursive=True):
            with suppress(psutil.Error):
                key = process.pid, process.create_time()
                used = process.cpu_times()
                found = _role_of(process, supervisor)
                # Written after both lookups, which fail if the process ends, so that both tables have the same keys.
                spent[key] = used.user + used.system
                # Ray renames its workers while they run, so a role that was found once is not replaced by "ray".
                roles[key] = found if found not in ("ray", "other") else roles.get(key, found)
        seen.processes = max(seen.processes, len(spent))
        seen.total.clear()
        for key, seconds in spent.items():
            seen.total[roles[key]] += seconds

    return look


def _role_of(process: psutil.Process, supervisor: psutil.Process) -> str:
    """Return the role of a process, or that of the nearest process above it that has one, as torch's compiler needs."""
    found = role(" ".join(process.cmdline()))
    while found == "other" and process.ppid() not in (supervisor.pid, 1):
        process = psutil.Process(process.ppid())
        found = role(" ".join(process.cmdline()))
    return found


def role(command_line: str) -> str:
    return next((name for word, name in ROLES.items() if word in command_line), "other")


def spent_between(seen: Watched, first: int, last: int) -> dict[str, float]:
    """Return the processor seconds by role between the arrival of row ``first`` and that of row ``last``."""
    return {name: seen.spent[last][name] - seen.spent[first][name] for name in seen.spent[last]}
