"""The sockets by which an actor hands its weights to the vLLM beside it, named after the run.

verl names it after Ray's job, which is the first one in every Ray of a run's own: two runs on one machine would take
each other's weights, or fail to bind. Knows nothing of the weights.
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

RUN_KEY = "MEMAGENT_RUN_KEY"  # set by the launcher; vLLM's engine knows nothing else of the run it serves


def socket(replica: int | str, rank: int | str) -> str:
    return f"ipc://{tempfile.gettempdir()}/memagent-{os.environ[RUN_KEY]}-{replica}-{rank}.sock"


class CpuSender(ServerAdapter):
    """verl's sender on the run's own sockets, to every rollout server of its worker in turn;
    :class:`~memagent_lib.rl.cpu.weights.CpuWeights` receives.
    """

    async def update_weights(self, weights: Iterable[Any], global_steps: int | None = None, **settings: Any) -> None:
        """verl hands the tensors over one by one: they are held, because each is sent several times."""
        held = [(name, tensor.detach().clone()) async for name, tensor in ensure_async_iterator(weights)]
        rank, servers = int(os.environ["RANK"]), self.config.agent.num_workers // int(os.environ["WORLD_SIZE"])
        for number in range(rank * servers, (rank + 1) * servers):
            self.server_handle, self.zmq_handle = ray.get_actor(server_name(number)), socket(number, 0)
            await super().update_weights(iter(held), global_steps=global_steps, **settings)


def server_name(number: int) -> str:
    """The Ray actor of a rollout server."""
    return f"memagent_rollouts_{number}"


def use() -> None:
    """Make :class:`CpuSender` what verl means by ``vllm`` in this process."""
    _ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.{CpuSender.__name__}"
