"""The socket by which an actor hands its weights to the vLLM beside it, named after the run.

verl names it after Ray's job, which is the first one in every Ray of a run's own: two runs on one machine would take
each other's weights, or fail to bind. Knows nothing of the weights.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # verl offers no other way to name a rollout class
from verl.workers.rollout.vllm_rollout import ServerAdapter

RUN_KEY = "MEMAGENT_RUN_KEY"  # set by the launcher; vLLM's engine knows nothing else of the run it serves


def socket(replica: int | str, rank: int | str) -> str:
    return f"ipc://{tempfile.gettempdir()}/memagent-{os.environ[RUN_KEY]}-{replica}-{rank}.sock"


class CpuSender(ServerAdapter):
    """verl's sender on the run's own socket; :class:`~memagent_lib.rl.cpu.weights.CpuWeights` receives."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.zmq_handle = socket(self.replica_rank, self.rollout_rank)


def use() -> None:
    """Make :class:`CpuSender` what verl means by ``vllm`` in this process."""
    _ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.{CpuSender.__name__}"
