"""The processor and memory of this machine, as far as this process may use them. This module loads no engine."""

from __future__ import annotations

import os
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
HALF_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""What Linux calls the instructions of x86 and ARM processors that multiply matrices of a type."""


def cores() -> int:
    """Return how many cores this process may use, or the number of all cores if that is unknown (on macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def multiplies(dtype: str) -> bool:
    """Return whether the processor multiplies matrices of a type in hardware.

    Every processor does for float32. Another type may be emulated: on a processor with AVX2, a product of bfloat16
    matrices took 100 times as long as of float32. Where ``/proc/cpuinfo`` is missing, as on macOS, the types of
    :data:`HALF_FLAGS` count as emulated.
    """
    if dtype not in HALF_FLAGS:
        return True
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features"))), "")
    return not HALF_FLAGS[dtype].isdisjoint(flags.split())


def machine_bytes() -> float:
    """Return the memory of this machine, or of the container that this process is in."""
    import psutil

    return min(psutil.virtual_memory().total, _container_limit())


def free_bytes() -> float:
    """Return the memory that is available on this machine, but at most the limit of this process's container."""
    import psutil

    return min(psutil.virtual_memory().available, _container_limit())


def _container_limit() -> float:
    try:
        return float(CONTAINER_LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no container, or "max"
        return float("inf")
