"""verl's worker of agent loops, changed to send all rows of a prompt's rollouts to the transfer queue in one message.

verl sends every rollout by itself with all columns of the data, even the document, which takes a quarter of the
worker's time. The worker depends on the queue and the columns of a row, but on no reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ray
import torch
import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from memagent_lib.rl.agent_loop import leave_traces_to_others

COLUMNS = ("uid", "session_id", "global_steps", "data_source", "reward_model")  # the columns that verl reads later
WORKER = "agent_loop_worker_"
"""How the names that verl gives to its workers begin; their numbers follow."""


def saves_traces(actor: str) -> bool:
    """Return whether the worker in an actor of this name saves traces: of those that verl numbers, only the first.

    Every worker would save the first rollouts of a step.
    """
    return not actor.startswith(WORKER) or actor.startswith(f"{WORKER}0_")


class RolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker, changed to collect a prompt's rows until the last of its rollouts has ended."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.groups: dict[str, _Group] = {}
        if not saves_traces(ray.get_runtime_context().get_actor_name() or ""):
            leave_traces_to_others()

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        """Run all rollouts of a prompt as verl does. If one of them fails, nothing is sent for that prompt."""
        rollout = self.config.actor_rollout_ref.rollout
        uid = prompt["uid"]
        usual = rollout.val_kwargs.n if trajectory["validate"] else rollout.n
        self.groups[uid] = _Group(int(prompt.get("__rollout_n__", usual)))
        try:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        finally:
            del self.groups[uid]

    async def _agent_loop_postprocess(self, outputs: list[AgentLoopOutput], validate: bool, **row: Any) -> None:
        """Add one rollout's rows to its group, and send the group when it is complete."""
        group = self.groups[row["uid"]]
        last = outputs[-1]
        columns = {name: row[name] for name in COLUMNS if name in row}
        # As in verl: only the last turn was scored, and every row of the rollout gets its score.
        for turn, output in enumerate(outputs):
            output.reward_score = last.reward_score
            output.extra_fields["reward_extra_info"] = last.extra_fields["reward_extra_info"]
            group.add(f"{row['uid']}_{row['session_id']}_{turn}", self._fields(output) | columns)
        group.missing -= 1
        if group.missing:
            return
        await tq.async_kv_batch_put(
            keys=group.keys,
            fields=list_of_dict_to_tensordict(group.fields),
            tags=group.tags,
            partition_id="val" if validate else "train",
        )

    def _fields(self, output: AgentLoopOutput) -> dict[str, Any]:
        """Return one turn as the row that verl's trainer and workers read."""
        prompts = torch.tensor(output.prompt_ids)
        responses = torch.tensor(output.response_ids)
        mask = torch.tensor(output.response_mask)
        ids = torch.cat([prompts, responses])
        scores = torch.zeros(len(mask))
        scores[-1] = output.reward_score
        positions = torch.arange(len(ids))
        if self.processor is not None:  # a model that also sees has positions of its own
            positions = self._compute_position_ids(ids[None], torch.ones_like(ids)[None], {}).squeeze(0)
        fields = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": ids,
            "position_ids": positions,
            "response_mask": mask,
            "loss_mask": mask,
            "rm_scores": scores,
            "num_turns": output.num_turns,
            "extra_fields": output.extra_fields,
            "multi_modal_inputs": {},
        }
        if output.response_logprobs is not None:
            fields["rollout_log_probs"] = torch.tensor(output.response_logprobs, dtype=torch.float32)
        return fields


@dataclass
class _Group:
    """The rows of one prompt's rollouts; ``missing`` is the number of rollouts that have not ended yet."""

    missing: int
    keys: list[str] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)

    def add(self, key: str, fields: dict[str, Any]) -> None:
        prompt = len(fields["prompts"])
        reply = len(fields["responses"])
        tag = {
            "status": "success",
            "global_steps": fields["global_steps"],
            "prompt_len": prompt,
            "response_len": reply,
            "seq_len": prompt + reply,
            "min_global_steps": fields["extra_fields"].get("min_global_steps"),
            "max_global_steps": fields["extra_fields"].get("max_global_steps"),
        }
        self.keys.append(key)
        self.fields.append(fields)
        self.tags.append(tag)


class RolloutManager(AgentLoopManagerTQ):
    """verl's manager of agent loops, with :class:`RolloutWorker` as its worker."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.agent_loop_workers_class = ray.remote(RolloutWorker)
