"""The device that verl sees on a bare CPU. The module imports verl, so only ``platform.install`` loads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase

from memagent_lib.system import free_bytes, machine_bytes


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: on a CPU there is no cache to empty and no device to choose."""


def _zero(*args: Any, **kwargs: Any) -> int:
    """Return 0, because a CPU has no device memory to report."""
    return 0


def _memory(*args: Any, **kwargs: Any) -> tuple[int, int]:
    """Return the free and the total main memory in bytes."""
    return int(free_bytes()), int(machine_bytes())


def device_module() -> ModuleType:
    """Return a replacement for the module ``torch.cuda``, with only the names that verl uses."""
    module = ModuleType("memagent_cpu_device")
    for name in ("Stream", "current_stream", "is_available", "stream", "synchronize"):
        setattr(module, name, getattr(torch.cpu, name))
    stand_ins = {
        "device_count": lambda: 1,
        "empty_cache": _nothing,
        "get_device_name": lambda *args: "CPU",
        "get_rng_state": torch.get_rng_state,
        "max_memory_allocated": _zero,
        "max_memory_reserved": _zero,
        "mem_get_info": _memory,
        "memory_allocated": _zero,
        "memory_reserved": _zero,
        "set_device": _nothing,
        "set_rng_state": torch.set_rng_state,
    }
    for name, function in stand_ins.items():
        setattr(module, name, function)
    return module


class CpuPlatform(PlatformBase):
    """A platform for verl on CPUs: each process is a device, gloo connects processes, shared memory carries weights."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts Ray's GPU and NPU resources only; the launcher offers one "GPU" per worker

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
