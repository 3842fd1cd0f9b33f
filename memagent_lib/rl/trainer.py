"""verl's synchronous trainer, made right for rollouts of many conversations.

Three things differ from :class:`PPOTrainerSync`. The optimizer takes a fixed number of steps per batch of prompts, however
many turns the documents needed. A rollout that failed stops the run instead of thinning its group. And what must hold is
counted and logged every step: rows produced, carried and trained, optimizer steps, agreement of rollouts and actor.

Advantages come from verl (``compute_advantage_for_multi_trajectories``): once per rollout from the final score, the same
for all its turns. So does the loss normaliser: tokens of the mini-batch, summed over ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from memagent_lib.rl.agent_loop import FAILURE_FILE, RolloutError
from memagent_lib.rl.loss import PREFIX, agreement, moments

TRAINER = "memagent"


class Stopped(Exception):
    """The run was asked to stop, and did, with a checkpoint of its last step."""


@register_trainer(TRAINER)
class MemAgentTrainer(PPOTrainerSync):
    """Settings of ours travel in ``trainer.v1.memagent``: ``mini_batches``, ``poll_s``, ``trace_folder``, ``stop_file``."""

    def __init__(self, config: Any):
        self.settings = config.trainer.v1.memagent
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        """verl's buffer, looked into every ``poll_s`` seconds: its own two are long beside a small policy."""
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.settings.poll_s
        return buffer

    def on_step_begin(self) -> None:
        """Between two steps everything is at rest: the place to stop when asked to."""
        if Path(self.settings.stop_file).exists():
            self.global_steps -= 1  # the step that is done
            if self.global_steps and self.global_steps % self.config.trainer.save_freq:
                self._save_checkpoint()
            raise Stopped(f"asked to stop after step {self.global_steps}")

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except RuntimeError:  # what verl raises when nothing of a batch came back says nothing of why
            self._require_all_rollouts("train")
            raise

    def on_sample_end(self) -> None:
        self._require_all_rollouts("train")
        super().on_sample_end()

    def on_validate_end(self) -> None:
        self._require_all_rollouts("val")

    def _require_all_rollouts(self, partition: str) -> None:
        failed = self.replay_buffer.failure_keys[partition]
        if not failed:
            return
        report = Path(self.settings.trace_folder) / FAILURE_FILE
        why = report.read_text(encoding="utf-8") if report.exists() else "see the log above"
        raise RolloutError(
            f"rollouts of {len(failed)} prompts failed in step {self.global_steps}; the last one:\n{why}"
        )

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return batch_multiple(dp_size, self.settings.mini_batches)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **settings: Any) -> KVBatchMeta:
        """Pad and order the rows; check that every row that was produced is here, and no other."""
        metrics.update(self._rollout_metrics(batch))
        carried = len(batch)
        batch = super()._balance_batch(batch, metrics=metrics, **settings)
        padding = sum(bool(tag.get("is_padding")) for tag in batch.tags)
        assert len(batch) - padding == carried, f"{carried} rows became {len(batch)} with {padding} of padding"
        metrics.update({"rows/carried": carried, "rows/padding": padding})
        return batch

    def _rollout_metrics(self, batch: KVBatchMeta) -> dict[str, float]:
        finals = [key for key, is_last in zip(batch.keys, last_of_session(batch.keys), strict=True) if is_last]
        data = tq.kv_batch_get(
            keys=finals, partition_id=batch.partition_id, select_fields=["num_turns", "extra_fields"]
        )
        produced = int(sum(map(int, data["num_turns"])))
        if produced != len(batch):
            raise RolloutError(f"{len(finals)} rollouts produced {produced} rows and {len(batch)} arrived")
        infos = [fields["reward_extra_info"] for fields in data["extra_fields"]]
        return {"rows/produced": produced, "rollout/count": len(finals), **average_facts(infos)}

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """``mini_batches`` optimizer steps, whatever the number of rows."""
        actor, count = self.config.actor_rollout_ref.actor, self.settings.mini_batches
        batch.extra_info.update(
            calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
            distillation_use_topk=False,
            distillation_only=False,
            num_mini_batch=count,
            global_batch_size=len(batch) // count,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={
                "shuffle": count > 1
            },  # balancing sorts rows by length: a mini-batch must not be one length
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        output = self.actor_rollout_wg.update_actor(batch)
        measured = rename_dict(output["metrics"], "actor/")
        metrics["optimizer/steps"] = len(measured["actor/grad_norm"])
        measured["perf/mfu/actor"] = measured.pop("actor/mfu")
        metrics.update(reduce_metrics(measured))
        metrics["rows/trained"] = sum(not tag.get("is_padding") for tag in batch.tags)
        self._log_agreement(metrics)
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's pass over the old policy, when it is not saved; it is also where rollouts and actor can be compared."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.config.algorithm.rollout_correction.bypass_mode:
            fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            actor, rollouts, mask = (data[name].values() for name in fields)
            metrics.update(_agreement_metrics(moments(rollouts, actor, mask)))
        return batch

    def _log_agreement(self, metrics: dict[str, Any]) -> None:
        """The same comparison from the loss, where the old policy's pass is saved: nothing is updated in between."""
        found = {
            name.removeprefix("actor/"): metrics.pop(name)
            for name in list(metrics)
            if name.startswith(f"actor/{PREFIX}")
        }
        if self.config.algorithm.rollout_correction.bypass_mode:
            metrics.update(_agreement_metrics(found))


def _agreement_metrics(found: dict[str, float]) -> dict[str, float]:
    correlation, difference = agreement(found)
    return {"rollout/actor_correlation": correlation, "rollout/actor_difference": difference}


def batch_multiple(dp_size: int, mini_batches: int) -> int:
    """Rows are padded to a multiple of this, so that every rank has the same number in every mini-batch."""
    return dp_size * mini_batches


def last_of_session(keys: list[str]) -> list[bool]:
    """Which keys ``{uid}_{session}_{index}`` are the last turn of their rollout."""
    parts = [key.rsplit("_", 1) for key in keys]
    last: dict[str, int] = {}
    for session, index in parts:
        last[session] = max(last.get(session, 0), int(index))
    return [int(index) == last[session] for session, index in parts]


def average_facts(infos: list[dict[str, float]]) -> dict[str, float]:
    """Means over rollouts as ``rollout/<name>``; a rollout of which a fact is unknown (-1) does not count for it."""
    means = {}
    for name in infos[0]:
        known = [value for info in infos if (value := info[name]) >= 0]
        if known:
            means[f"rollout/{name}"] = float(np.mean(known))
    return means
