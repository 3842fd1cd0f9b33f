"""verl's worker on a CPU: the engine for this device, and the sender of weights to the rollout servers.

Without packing, verl computes every row in full, with logits of every prompt token, and takes logarithms in a Python
loop; :class:`~memagent_lib.rl.verl.reply_engine.ReplyEngine` avoids both. verl's workers import this module as
``actor_rollout_ref.model.external_lib``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # verl offers no other way to name a rollout class
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout import ServerAdapter

from memagent_lib.rl.verl.cpu_platform import return_freed_memory, run_key, server_name
from memagent_lib.rl.verl.reply_engine import ReplyEngine


class CpuSender(ServerAdapter):
    """verl's weight sender, changed to send to each rollout server of its worker, which has a ``CpuWeights``."""

    async def update_weights(self, weights: Iterable[Any], global_steps: int | None = None, **settings: Any) -> None:
        """Collect the tensors, because verl yields them only once, and send all of them to each server."""
        tensors = [(name, tensor.detach().clone()) async for name, tensor in ensure_async_iterator(weights)]
        rank = int(os.environ["RANK"])
        servers = self.config.agent.num_workers // int(os.environ["WORLD_SIZE"])
        for number in range(rank * servers, (rank + 1) * servers):
            self.server_handle = ray.get_actor(server_name(number))
            # verl's name, with the run's key instead of Ray's job number; the server has it from VERL_RAY_JOB_ID.
            self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{run_key()}-replica-{number}-rank-0.sock"
            await super().update_weights(iter(tensors), global_steps=global_steps, **settings)
        tensors.clear()
        # These copies, and those with merged adapters, would else stay until the next step: 0.7 GB with SmolLM2.
        return_freed_memory()


EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(ReplyEngine)
_ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.{CpuSender.__name__}"
