"""The processor and memory of this machine, as far as this process may use them. This module loads no engine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
HALF_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""What Linux calls the instructions of x86 and ARM processors that multiply matrices of a type."""


def cores() -> int:
    """Return how many cores this process may use, or the number of all cores if that is unknown (on macOS).

    A part of a core counts as one.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota())))


def multiplies(dtype: str) -> bool:
    """Return whether the processor multiplies matrices of a type in hardware.

    Every processor does for float32. Another type may be emulated: on a processor with AVX2, a product of bfloat16
    matrices took 100 times as long as of float32. Where ``/proc/cpuinfo`` is missing, as on macOS, the types of
    :data:`HALF_FLAGS` count as emulated.
    """
    if dtype not in HALF_FLAGS:
        return True
    lines = _text(CPU_INFO).splitlines()
    flags = next((line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features"))), "")
    return not HALF_FLAGS[dtype].isdisjoint(flags.split())


def machine_bytes() -> float:
    """Return the memory of this machine, or less if a control group of this process has a limit."""
    import psutil

    return min((psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())))


def free_bytes() -> float:
    """Return the memory that is available on this machine, or what is left to this process's control groups if less."""
    import psutil

    left = (limit - used for limit, used in _memory_limits())
    return max(0, min((psutil.virtual_memory().available, *left)))


def _quota() -> float:
    """Return how many cores' time this process may use: the limit of ``docker run --cpus`` and of Kubernetes."""
    cores_of_groups = [math.inf]
    for group in _groups("cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():  # without a limit: "max", or -1
            cores_of_groups.append(int(quota) / int(period))
    return min(cores_of_groups)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use in bytes of each control group that limits this process's memory."""
    for group in _groups("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            most = _text(group / limit)
            if most.isdecimal():
                # Pages of files that nobody has used of late are given back before a process is ended.
                counts = dict(line.split() for line in _text(group / "memory.stat").splitlines())
                yield int(most), int(_text(group / used) or 0) - int(counts.get(cache, 0))


def _groups(controller: str) -> Iterator[Path]:
    """Yield this process's control groups from the innermost on; a scheduler such as Slurm sets limits further out.

    In a container, Linux may give the path that the container has outside. Its own group is then the outermost.
    """
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CONTROL_GROUPS / controller if controllers else CONTROL_GROUPS
            inner = root / path.lstrip("/")
            yield from (group for group in (inner, *inner.parents) if group.is_relative_to(root))


def _text(file: Path) -> str:
    """Return the text of a small file, or "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
