"""What this machine has: cores, memory, installed packages, other processes, and Ray.

Knows no engine, no command and no run. Nothing here imports torch, and Ray only inside the functions that start it.
"""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from memagent_lib.errors import MissingPackage, UserError
from memagent_lib.paths import PACKAGE, clone

T = TypeVar("T")
CPU_INFO = Path("/proc/cpuinfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")  # version 2; in a container it is the container's own
HALF_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""What Linux calls the instructions of x86 and ARM processors that multiply matrices of a type."""
SESSION = "JPY_SESSION_NAME"
"""An environment variable that Jupyter's server sets for the kernels of its sessions; papermill does not."""
OWN_KERNEL = {"JUPYTER_PREFER_ENV_PATH": "1"}
"""The environment with which a process starts kernels of the Python that runs it, not of one in the home folder."""
LOCAL = "local"
"""The address that stands for a private Ray on this machine."""
GRACE_S = 5.0
_ANSWER_WAIT_S = 10.0
_SAME_START_S = 60.0  # a start time is derived from a clock that may be set meanwhile
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_TMPDIR = 36  # in bytes; Ray's sockets have 69 more, and a socket's path has at most 107
_START_TRIES = 5  # a machine under load may not start a node in the half minute that Ray gives it


class Terminated(SystemExit):
    """This process received SIGTERM."""


class ClusterError(UserError, RuntimeError):
    """A Ray cluster does not answer, or has too little of what the work needs."""


class Finding(NamedTuple):
    """A line of ``memagent doctor``'s table: what was checked, what was found, and the fix if one is needed.

    ``blocks`` says that nothing runs before it is fixed.
    """

    what: str
    found: str
    fix: str = ""
    blocks: bool = False


def cores() -> int:
    """Return how many cores this process may use; a part of a core counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _text(CONTROL_GROUP / "cpu.max").partition(" ")  # docker run --cpus, Kubernetes
    if quota.isdecimal():
        allowed = min(allowed, math.ceil(int(quota) / int(period)))
    return max(1, allowed)


def multiplies(dtype: str) -> bool:
    """Return whether the processor multiplies matrices of a type in hardware, as every processor does for float32.

    Emulation is slow: with AVX2, a product of bfloat16 matrices took 100 times as long as of float32.
    """
    if dtype not in HALF_FLAGS:
        return True
    lines = _text(CPU_INFO).splitlines()
    flags = next((line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features"))), "")
    return not HALF_FLAGS[dtype].isdisjoint(flags.split())


def machine_bytes() -> float:
    """Return the memory of this machine, or the limit of its container if that is less."""
    return min(psutil.virtual_memory().total, _memory_limit())


def free_bytes() -> float:
    """Return the memory that is available on this machine, or what is left to its container if that is less."""
    available = psutil.virtual_memory().available
    if _memory_limit() == math.inf:
        return available
    # Pages of files that nobody has used of late are given back before a process is ended.
    counts = dict(line.split() for line in _text(CONTROL_GROUP / "memory.stat").splitlines())
    used = int(_text(CONTROL_GROUP / "memory.current")) - int(counts.get("inactive_file", 0))
    return max(0, min(available, _memory_limit() - used))


def _memory_limit() -> float:
    limit = _text(CONTROL_GROUP / "memory.max")
    return int(limit) if limit.isdecimal() else math.inf


def _text(file: Path) -> str:
    """Return the text of a small file, or "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def install_command() -> str:
    """Return the command that installs the engines on Linux, and where to run it."""
    if clone():
        return "`make install` in a clone of the repository"
    pins = shlex.quote(str(PACKAGE / "constraints" / "cpu.txt"))
    # Without --torch-backend, the public index has no torch for a CPU; uv knows the address of torch's own index.
    python = shlex.quote(sys.executable)
    return (
        f"`uv pip install --python {python} --torch-backend cpu --no-deps --requirement {pins}` "
        "(`pip install uv` brings uv; for CUDA: gpu.txt, no --torch-backend)"
    )


def out_of_range() -> dict[str, str]:
    """Map the requirement of each installed package that this version does not work with to what is installed."""
    from packaging.requirements import Requirement

    if not installed_version("memagent-lib"):
        return {}
    engines = {"extra": "gpu" if installed_version("vllm") else "cpu"}
    wrong = {}
    for line in metadata.requires("memagent-lib") or ():
        needed = Requirement(line)
        found = installed_version(needed.name)
        if not found or (needed.marker and not needed.marker.evaluate(engines)):
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong[f"{needed.name}{needed.specifier}"] = f"{needed.name} {found}"
    return wrong


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package, or ``None`` if it is not installed."""
    try:
        # Not metadata.version(): on a CPU verl's platform makes it answer for vllm, which is not installed.
        return metadata.distribution(distribution).version
    except metadata.PackageNotFoundError:
        return None


def require_packages(what: str, *modules: str, otherwise: str = "") -> None:
    """Raise :class:`MissingPackage` if ``what`` needs a module that is not installed. The modules are not imported.

    ``otherwise`` is appended to the message, to name another way.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        lacks = f"packages that are not installed ({', '.join(missing)})"
        raise MissingPackage(f"{what} needs {lacks}; run {install_command()}, on Linux{otherwise}")


def in_jupyter() -> bool:
    """Return whether this process is the kernel of a notebook opened by a person, not run by papermill."""
    return SESSION in os.environ


@contextmanager
def terminable(*signals: int) -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM and ``signals`` during the block, so that the code in it can clean up.

    Does nothing outside the main thread, where Python allows no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise Terminated(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, *signals)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    """Make this process the parent of every descendant whose own parent dies, such as the servers of a killed Ray."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends. ``parent`` must be its parent process."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def end_descendants() -> None:
    """Send SIGTERM to every descendant, then SIGKILL to those still running."""
    children = psutil.Process().children(recursive=True)
    _signal(children, signal.SIGTERM)
    _, alive = psutil.wait_procs(children, timeout=GRACE_S)
    while alive := [each for each in (*alive, *psutil.Process().children(recursive=True)) if _runs(each)]:
        _signal(alive, signal.SIGKILL)
        _, alive = psutil.wait_procs(alive, timeout=GRACE_S)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # adopted children that have ended
            pass


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)  # psutil compares start times first: a reused pid is left alone


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


def require_answer(address: str) -> None:
    """Raise :class:`ClusterError` if no cluster answers at ``address``, because Ray itself would wait forever."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        host, _, port = canonicalize_bootstrap_address(address).rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_WAIT_S).close()
    except (OSError, ValueError) as error:  # a name without a port is a ValueError
        raise ClusterError(f"no Ray cluster answers at {address} ({error}); {LOCAL!r} starts one here") from error


def leave_room_for_sockets() -> None:
    """Use /tmp for temporary files, here and in child processes, if ``TMPDIR`` is too long for the sockets in it."""
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TMPDIR:
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"


def start_ray(arguments: dict[str, Any]) -> Path:
    """Call ``ray.init`` for a private Ray on this machine; return the folder of its logs, which Ray leaves behind."""
    import ray

    leave_room_for_sockets()
    os.environ.pop("RAY_ADDRESS", None)  # it would win over "local" in the processes that Ray starts
    return Path(started(lambda: ray.init(**arguments)).address_info["session_dir"])


def started(start: Callable[[], T]) -> T:
    """Return what ``start`` returns, which starts a node of Ray. Call it again if the node was too slow to start."""
    import ray

    for tries_left in range(_START_TRIES - 1, 0, -1):
        try:
            return start()
        except Exception as error:  # Ray raises a bare one
            if "timed out during startup" not in str(error):
                raise
            print(f"Ray's node did not start within its 30 seconds; trying again, {tries_left} left", flush=True)
            ray.shutdown()
    return start()


def end_ray(session: Path | None) -> None:
    """Leave Ray, which ends if it is private, and remove the folder ``session`` of its logs and sockets."""
    import ray

    ray.shutdown()
    if session is None:
        return
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    with suppress(OSError):  # no link, or another's
        if latest.readlink() == session:  # Ray replaces no link that leads nowhere
            latest.unlink()
