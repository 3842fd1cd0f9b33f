"""Send an actor's weights to the vLLM servers on its machine, through sockets named after the run.

verl names the sockets after Ray's job number, which is the same in every new Ray cluster, so two runs on one machine
would receive each other's weights or fail to bind. The weights themselves pass through unchanged.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Any

import ray
from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # verl offers no other way to name a rollout class
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout import ServerAdapter

from memagent_lib.rl.cpu.cpu_memory import return_freed_memory

RUN_KEY = "MEMAGENT_RUN_KEY"  # set by the launcher; nothing else tells vLLM's engine which run it serves


def socket(replica: int | str, rank: int | str) -> str:
    """Return the address at which ``rank`` of rollout server ``replica`` receives weights."""
    return f"ipc://{tempfile.gettempdir()}/memagent-{os.environ[RUN_KEY]}-{replica}-{rank}.sock"


class CpuSender(ServerAdapter):
    """verl's weight sender, changed to send to each rollout server of its worker; ``CpuWeights`` is the receiver."""

    async def update_weights(self, weights: Iterable[Any], global_steps: int | None = None, **settings: Any) -> None:
        """Collect the tensors, because verl yields them only once, and send all of them to each server."""
        tensors = [(name, tensor.detach().clone()) async for name, tensor in ensure_async_iterator(weights)]
        rank = int(os.environ["RANK"])
        servers = self.config.agent.num_workers // int(os.environ["WORLD_SIZE"])
        for number in range(rank * servers, (rank + 1) * servers):
            self.server_handle = ray.get_actor(server_name(number))
            self.zmq_handle = socket(number, 0)
            await super().update_weights(iter(tensors), global_steps=global_steps, **settings)
        tensors.clear()
        # These copies, and those with merged adapters, would else stay until the next step: 0.7 GB with SmolLM2.
        return_freed_memory()


def server_name(number: int) -> str:
    """Return the name of the Ray actor of rollout server ``number``."""
    return f"memagent_rollouts_{number}"


def use() -> None:
    """Make verl use :class:`CpuSender` for rollouts by ``vllm`` in this process."""
    _ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.{CpuSender.__name__}"
