"""verl's worker of agent loops, changed to send rows to the transfer queue without the columns that nothing reads.

verl sends every row with all columns of the data, even the document.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

COLUMNS = ("uid", "session_id", "global_steps", "data_source", "reward_model")  # the columns that verl reads later


class RolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker, changed in what it sends."""

    async def _agent_loop_postprocess(self, outputs: list[AgentLoopOutput], validate: bool, **row: Any) -> None:
        columns = {name: row[name] for name in COLUMNS if name in row}
        await super()._agent_loop_postprocess(outputs, validate, **columns)


async def manager_of(config: Any, trainer: Any) -> AgentLoopManagerTQ:
    """Return verl's manager of agent loops, with :class:`RolloutWorker` as its worker."""
    manager = AgentLoopManagerTQ(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    manager.agent_loop_workers_class = ray.remote(RolloutWorker)
    await manager._init_agent_loop_workers()
    return manager
