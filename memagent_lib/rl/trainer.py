"""verl's synchronous trainer, made right for rollouts of many conversations.

What differs from :class:`PPOTrainerSync`: the optimizer takes a fixed number of steps per batch of prompts, however
many turns the documents needed; advantages are :mod:`memagent_lib.rl.advantages`; rows have names and an order that
follow from the seed; a number that is none stops the run; a checkpoint is whole or absent. And what must hold is
counted every step: rows produced, carried and trained, optimizer steps, agreement of rollouts and actor.

The loss normaliser is verl's: tokens of the mini-batch, summed over ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from memagent_lib.data import count
from memagent_lib.rl.advantages import (
    Credit,
    RowName,
    last_turns,
    prompts_without_spread,
    row_advantages,
    step_advantages,
)
from memagent_lib.rl.agent_loop import MAY_BE_UNKNOWN, STEP, UNKNOWN, RolloutError, last_failure
from memagent_lib.rl.curriculum import Curriculum, numbered, shares_of
from memagent_lib.rl.loss import PREFIX, agreement, moments, rows_trained
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.checkpoints import delete_old, note_score, whole_checkpoint

TRAINER = "memagent"
SHOWN = 5
MOST_ROUNDS = 10  # of fresh prompts in a step; data of which nothing has spread would be drawn for ever


class StopRequested(Exception):
    """The run was asked to stop, and did, with a checkpoint of its last step."""


class NotFinite(ArithmeticError):
    """A reward or gradient that is no number; nothing learnt after it could be trusted."""


@register_trainer(TRAINER)
class MemAgentTrainer(PPOTrainerSync):
    """Settings of ours travel in ``trainer.v1.memagent`` (:mod:`memagent_lib.rl.verl.verl_settings`)."""

    def __init__(self, config: Any):
        self.settings = config.trainer.v1.memagent
        self._drawn: tuple[int, dict[str, str]] = (0, {})
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        """verl's buffer, looked into every ``poll_s`` seconds: its own two are long beside a small policy."""
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self.settings.poll_s
        buffer.sample = partial(self._sample, buffer.sample)
        return buffer

    def _sample(self, sample: Any, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """verl's, less the prompts whose rollouts failed; where ``dynamic_sampling`` is on, until the batch is full.

        There they, and prompts whose rollouts scored alike, are replaced by as many fresh ones, round by round. A round
        ends when all of it is done, so that what is drawn next follows from the seed; verl's own filter asks for more
        while rollouts run, and takes those that are first. After :data:`MOST_ROUNDS` the batch stays small.
        """
        take = partial(sample, global_steps=global_steps, partition_id=partition_id)
        batch, metrics = take(batch_size=batch_size)
        if partition_id != "train":
            return batch, metrics
        failed = set(self.replay_buffer.failure_keys[partition_id])
        batch, lost, replaced = self._without(batch, failed) if failed else batch, len(failed), 0
        self._require_few(lost)
        for _ in range(MOST_ROUNDS if self.settings.dynamic_sampling else 0):
            equal = self._prompts_without_spread(batch)
            if not (missing := len(equal) + len(failed)):
                break
            self._add_prompts_to_generate(missing)
            more, _ = take(batch_size=missing)
            failed = set(self.replay_buffer.failure_keys[partition_id])
            batch, more = self._without(batch, equal), self._without(more, failed)
            lost, replaced = lost + len(failed), replaced + missing
            self._require_few(lost)
            batch = replace(batch, keys=batch.keys + more.keys, tags=batch.tags + more.tags)  # its length is kept
        return batch, metrics | {"rollout/failed": lost, "rollout/replaced": replaced}

    def _require_few(self, failed: int) -> None:
        """Stop where more of a step's prompts failed than ``failed_share`` of them, rounded up, or all of them."""
        prompts, share = self.config.data.train_batch_size, self.settings.failed_share
        if failed > (most := min(math.ceil(share * prompts), prompts - 1)):
            raise RolloutError(
                f"rollouts of {failed} prompts failed in step {self.global_steps}, and train.failed_share = {share} "
                f"allows {most} of {prompts}; the last one:\n{last_failure(self.folder.traces)}"
            )

    def on_step_begin(self) -> None:
        """Between two steps everything is at rest: the place to stop when asked to."""
        self.folder.beat()
        if Path(self.settings.stop_file).exists():
            self.global_steps -= 1  # the step that is done
            if self.global_steps and not (self.folder.checkpoints / f"global_step_{self.global_steps}").is_dir():
                self._save_checkpoint()
            raise StopRequested(f"asked to stop after step {self.global_steps}")

    def _init_dataloader(self) -> None:
        """verl's; training draws from the same rows by :class:`Curriculum`, of which there is nothing to save."""
        super()._init_dataloader()
        stages, tasks = self.settings.stages, self.train_dataset.dataframe["data_source"][:]
        rows = numbered({file: count(file) for file in self.config.data.train_files}, tasks)
        shares = [(stage.steps, shares_of([rows[file] for file in stage.files], self.settings.mix)) for stage in stages]
        self.curriculum = Curriculum(tuple(shares), self.config.data.train_batch_size, self.settings.seed)

    def _fetch_one_gen_batch(self) -> TensorDict:
        """The step's next prompts, named by step and number: seeds and the order of rows follow from the names."""
        drawn = self._examples
        count = self.config.data.gen_batch_size or self.config.data.train_batch_size
        numbers = range(len(drawn), len(drawn) + count)
        rows = [self.train_dataset[self.curriculum.row(self.global_steps, number)] for number in numbers]
        names = [f"s{self.global_steps:06d}p{number:05d}" for number in numbers]
        ids = (row["extra_info"]["id"] for row in rows)
        self._drawn = (self.global_steps, drawn | dict(zip(names, ids, strict=True)))
        return tu.get_tensordict(collate_fn(rows) | {"uid": np.array(names, dtype=object)})

    @property
    def _examples(self) -> dict[str, str]:
        """The examples of the prompts that this step has drawn, by the prompts' names."""
        step, drawn = self._drawn
        return drawn if step == self.global_steps else {}

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except RuntimeError:  # what verl raises when nothing of a batch came back says nothing of why
            self._require_few(len(self.replay_buffer.failure_keys["train"]))
            raise

    def _validate(self) -> dict[str, float]:
        """verl's; a score over fewer examples would not compare, so none may fail. The step's checkpoint gets it."""
        metrics = super()._validate()
        if failed := self.replay_buffer.failure_keys["val"]:
            why = last_failure(self.folder.traces)
            raise RolloutError(
                f"{len(failed)} validation readings failed after step {self.global_steps}; the last one:\n{why}"
            )
        scores = [value for name, value in metrics.items() if name.startswith("val-core/") and "/mean@" in name]
        if scores:
            note_score(self.folder, self.global_steps, float(np.mean(scores)))
        return metrics

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.settings.trace_folder).parent)

    def _save_checkpoint(self) -> None:
        """verl's, written aside, read back and renamed; only then older ones go."""
        trainer = self.config.trainer
        with whole_checkpoint(self.folder, self.global_steps) as unfinished:
            trainer.default_local_dir = str(unfinished)
            try:
                super()._save_checkpoint()
            finally:
                trainer.default_local_dir = str(self.folder.checkpoints)
        delete_old(self.folder, self.settings.keep_checkpoints)
        self.folder.beat()

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Every rank has the same number of rows in every mini-batch."""
        return dp_size * self.settings.mini_batches

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **settings: Any) -> KVBatchMeta:
        """Order, thin out and pad the rows; check that every row that was produced is here, and no other."""
        batch.reorder(sorted(range(len(batch)), key=lambda position: RowName.of(batch.keys[position])))
        metrics.update(self._rollout_metrics(batch))
        metrics["rows/carried"] = len(batch)
        if self.settings.skip_equal_groups or self.settings.dynamic_sampling:
            equal = self._prompts_without_spread(batch)
            everything = len(equal) == len({RowName.of(key).prompt for key in batch.keys})
            batch = batch if everything else self._without(batch, equal)  # verl cannot take a step of nothing
        kept = len(batch)
        batch = super()._balance_batch(batch, metrics=metrics, **settings)
        padding = sum(bool(tag.get("is_padding")) for tag in batch.tags)
        assert len(batch) - padding == kept, f"{kept} rows became {len(batch)} with {padding} of padding"
        metrics.update({"rows/skipped": metrics["rows/carried"] - kept, "rows/padding": padding})
        return batch

    def _rollout_metrics(self, batch: KVBatchMeta) -> dict[str, float]:
        last = list(last_turns(batch.keys).values())
        data = tq.kv_batch_get(
            keys=[batch.keys[position] for position in last],
            partition_id=batch.partition_id,
            select_fields=["num_turns", "extra_fields", "data_source"],
        )
        produced = int(sum(map(int, data["num_turns"])))
        if produced != len(batch):
            raise RolloutError(f"{len(last)} rollouts produced {produced} rows and {len(batch)} arrived")
        facts = [fields["reward_extra_info"] for fields in data["extra_fields"]]
        wrong = [batch.keys[at] for at, fact in zip(last, facts, strict=True) if not math.isfinite(fact["reward"])]
        if wrong:
            raise NotFinite(f"step {self.global_steps}: the reward of {self._named(wrong)} is no number")
        scores = by_task(facts, list(data["data_source"]))
        return {"rows/produced": produced, "rollout/count": len(last), **average_facts(facts), **scores}

    def _prompts_without_spread(self, batch: KVBatchMeta) -> set[str]:
        return prompts_without_spread(batch.keys, self._rewards(batch), self._steps(batch))

    def _without(self, batch: KVBatchMeta, prompts: set[str]) -> KVBatchMeta:
        """The batch less the rows of some prompts, which are forgotten."""
        kept = [at for at, key in enumerate(batch.keys) if RowName.of(key).prompt not in prompts]
        dropped = set(batch.keys) - {batch.keys[at] for at in kept}
        if dropped:
            tq.kv_clear(keys=sorted(dropped), partition_id=batch.partition_id)
        keys, tags = [batch.keys[at] for at in kept], [batch.tags[at] for at in kept]
        return replace(batch, keys=keys, tags=tags)

    def _rewards(self, batch: KVBatchMeta) -> list[float]:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
        return [row.sum().item() for row in data["rm_scores"].unbind()]

    def _steps(self, batch: KVBatchMeta) -> list[float | None]:
        """What each turn noted and kept of the evidence; nothing where that does not count."""
        if not self.settings.evidence_reward:
            return [None] * len(batch)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        return [fields[STEP] for fields in data["extra_fields"]]

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's, for what it corrects and records on the way; then the advantages are ours."""
        batch = super()._compute_advantage(batch, metrics)
        values = row_advantages(
            batch.keys,
            self._rewards(batch),
            by_deviation=self.config.algorithm.norm_adv_by_std_in_grpo,
            credit=Credit(self.settings.credit),
        )
        steps = step_advantages(batch.keys, self._steps(batch))
        values = [value + self.settings.evidence_reward * step for value, step in zip(values, steps, strict=True)]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        rows = [value * mask.float() for value, mask in zip(values, data["response_mask"].unbind(), strict=True)]
        advantages = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": advantages, "returns": advantages}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

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
            dataloader_kwargs={"shuffle": count > 1},  # balancing sorts by length: a mini-batch must not be one length
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        self.folder.beat()
        output = self.actor_rollout_wg.update_actor(batch)
        self.folder.beat()
        measured = rename_dict(output["metrics"], "actor/")
        norms = measured["actor/grad_norm"]
        if not all(map(math.isfinite, norms)):
            raise NotFinite(f"step {self.global_steps}: the gradient's norm is {norms}; {self._cause(batch)}")
        metrics["optimizer/steps"] = len(norms)
        metrics["perf/mfu/actor"] = float(np.mean(measured.pop("actor/mfu")))
        self._log_moments(measured, metrics)
        metrics.update(reduce_metrics(measured))
        return batch

    def _cause(self, batch: KVBatchMeta) -> str:
        """Which rows came to the update with something that is no number."""
        given = ["old_log_probs", "advantages"]
        given += ["ref_log_prob"] if self.config.actor_rollout_ref.actor.use_kl_loss else []
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=given)
        for name in given:
            rows = zip(batch.keys, data[name].unbind(), strict=True)
            if wrong := [key for key, row in rows if not row.isfinite().all()]:
                return f"no numbers are {name} of {self._named(wrong)}"
        return f"all that was given to it are numbers, so it comes from the policy, on {self._named(batch.keys)}"

    def _named(self, keys: list[str]) -> str:
        """The first of some rows, with their examples, and how many there are."""
        ids = ((key, self._examples.get(RowName.of(key).prompt, "padding")) for key in keys[:SHOWN])
        return f"{', '.join(f'{key} (example {id})' for key, id in ids)} ({len(keys)} rows)"

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's pass over the old policy, where it is not saved; there rollouts and actor can be compared too."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.config.algorithm.rollout_correction.bypass_mode:
            fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            actor, rollouts, mask = (data[name].values() for name in fields)
            metrics.update(_agreement_metrics(moments(rollouts, actor, mask)))
        return batch

    def _log_moments(self, measured: dict[str, list[float]], metrics: dict[str, Any]) -> None:
        """What the workers trained; and the comparison from the loss, where nothing was updated before it."""
        prefix = f"actor/{PREFIX}"
        found = {name: measured.pop(name) for name in list(measured) if name.startswith(prefix)}
        names = [name.removeprefix("actor/") for name in found]
        mini_batches = [dict(zip(names, values, strict=True)) for values in zip(*found.values(), strict=True)]
        metrics["rows/trained"] = sum(map(rows_trained, mini_batches))
        if self.config.algorithm.rollout_correction.bypass_mode:
            metrics.update(_agreement_metrics(mini_batches[0]))

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *rest: Any, **named: Any) -> None:
        """verl's, whose reward averages over rows and so weights long documents more, over rollouts instead."""
        super()._compute_metrics(batch, metrics, *rest, **named)
        metrics["critic/score/mean"], metrics["critic/rewards/mean"] = metrics["rollout/acc"], metrics["rollout/reward"]


def _agreement_metrics(found: dict[str, float]) -> dict[str, float]:
    correlation, difference = agreement(found)
    return {"rollout/actor_correlation": correlation, "rollout/actor_difference": difference}


def by_task(infos: list[dict[str, float]], tasks: list[str]) -> dict[str, float]:
    """Mean score of each task's rollouts as ``rollout/acc/<task>``: a mean over tasks hides which of them is learnt."""
    scores = defaultdict(list)
    for info, task in zip(infos, tasks, strict=True):
        scores[task].append(info["acc"])
    return {f"rollout/acc/{task}": float(np.mean(found)) for task, found in sorted(scores.items())}


def average_facts(infos: list[dict[str, float]]) -> dict[str, float]:
    """Means over rollouts as ``rollout/<name>``; a rollout of which a fact is unknown does not count for it."""
    means = {}
    for name in infos[0]:
        known = [value for info in infos if (value := info[name]) != UNKNOWN or name not in MAY_BE_UNKNOWN]
        if known:
            means[f"rollout/{name}"] = float(np.mean(known))
    return means
