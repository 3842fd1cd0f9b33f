"""One step of training: draw prompts, order and pad their rows, compute advantages, update.

It differs from verl's synchronous trainer in five ways:

- The optimizer takes a fixed number of steps per batch of prompts, whatever the number of turns.
- Advantages are those of :mod:`memagent_lib.rl.advantages`.
- Rows have names, and an order that depends on the seed alone.
- It stops on request, and writes only complete checkpoints.
- Every step measures invariants: rows produced, carried and trained, optimizer steps, and the agreement of sampler and
  actor. A reward or gradient that is not finite stops the run.

The loss is normalised as in verl, by the tokens of the mini-batch summed over ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from memagent_lib.data import count
from memagent_lib.rl.advantages import (
    RowName,
    credited,
    is_traced,
    prompt_name,
    prompts_with_turn_spread,
    prompts_without_spread,
    row_advantages,
    rows_by_rollout,
    turn_advantages,
)
from memagent_lib.rl.agent_loop import POSITION, TURN_REWARDS, RolloutError
from memagent_lib.rl.config import Recipe, Stage
from memagent_lib.rl.curriculum import Curriculum, numbered, shares_of
from memagent_lib.rl.loss import PREFIX, agreement, moments, rows_trained, sampled_entropy
from memagent_lib.rl.run_folder import RunFolder, delete_old, whole_checkpoint

TRAINER = "memagent"
POLL_S = 0.2  # how often the trainer looks whether the rollouts have finished
MOST_ROUNDS = 10  # of fresh prompts in a step; data without any spread would otherwise be drawn for ever


class StopRequested(SystemExit):
    """The run has stopped on request, with a checkpoint of its last step."""


class NotFinite(ArithmeticError):
    """A reward or gradient is NaN or infinite. The run stops, because no later result could be trusted."""


@register_trainer(TRAINER)
class MemAgentTrainer(PPOTrainerSync):
    """Multi-conversation GRPO on top of verl's synchronous trainer.

    ``trainer.v1.memagent.folder`` of verl's configuration names the run's folder, which has the recipe.
    """

    drawn = (0, 0)
    """The current step, and how many prompts it has drawn."""

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.config.trainer.v1.memagent.folder))

    @cached_property
    def recipe(self) -> Recipe:
        return self.folder.recipe()[0]

    # Prompts: which examples a step trains on.

    def _init_dataloader(self) -> None:
        """Load the data as verl does. Training then draws its rows with a :class:`Curriculum`, which has no state.

        The buffer of rollouts is polled more often than verl does, because its two seconds are long for a small policy.
        """
        super()._init_dataloader()
        self.steps_per_epoch = max(1, self.steps_per_epoch)  # 0, by which verl divides, for fewer examples than prompts
        self.replay_buffer.poll_interval = POLL_S
        self.replay_buffer.sample = partial(self.sample, self.replay_buffer.sample)
        tasks = self.train_dataset.dataframe["data_source"][:]
        rows = numbered({file: count(file) for file in self.config.data.train_files}, tasks)
        data = self.recipe.data
        listed = data.stages or (Stage(files=data.train),)  # without a curriculum, the whole run is one stage
        stages = ((stage.steps, shares_of([rows[file] for file in stage.files], data.mix)) for stage in listed)
        self.curriculum = Curriculum(tuple(stages), self.recipe.prompts, self.recipe.train.seed)

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Draw the step's next prompts, and name them by step and number, which then fix seeds and row order."""
        step, drawn = self.drawn
        first = drawn if step == self.global_steps else 0
        prompts = self.config.data.gen_batch_size or self.recipe.prompts
        self.drawn = (self.global_steps, first + prompts)
        numbers = range(first, first + prompts)
        rows = [self.train_dataset[self.curriculum.row(self.global_steps, number)] for number in numbers]
        names = [prompt_name(self.global_steps, number) for number in numbers]
        return tu.get_tensordict(collate_fn(rows) | {"uid": np.array(names, dtype=object)})

    # Rollouts: wait for them, and replace those that teach nothing.

    def sample(self, sample: Any, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Return a batch; with ``dynamic_sampling``, replace prompts without spread by fresh ones.

        That takes at most :data:`MOST_ROUNDS` rounds; after the last, the batch stays as it is. A round waits for all
        of its rollouts, so that the next draw depends on the seed alone. verl's own filter draws while rollouts run,
        and takes the rollouts that finish first. A batch of validation is returned as it is.
        """
        take = partial(self._whole, sample, global_steps=global_steps, partition_id=partition_id)
        batch, metrics = take(batch_size=batch_size)
        replaced = 0
        replaces = self.recipe.train.dynamic_sampling and partition_id == "train"
        for _ in range(MOST_ROUNDS if replaces else 0):
            equal = self._prompts_without_spread(batch)
            if not equal:
                break
            self._add_prompts_to_generate(len(equal))
            more, _ = take(batch_size=len(equal))
            replaced += len(equal)
            batch = self._without(batch, equal)
            # Not `batch + more`: a KVBatchMeta remembers its length, and the sum would have the wrong one.
            batch = replace(batch, keys=batch.keys + more.keys, tags=batch.tags + more.tags)
        return batch, metrics | {"rollout/replaced": replaced}

    def _whole(self, sample: Any, partition_id: str, **named: Any) -> Any:
        """Return verl's batch; raise :class:`RolloutError` if a reading failed, where verl would train on the rest."""
        try:
            return sample(partition_id=partition_id, **named)
        finally:  # verl's own error, for a batch without any result, does not name a reason
            failed = len(self.replay_buffer.failure_keys[partition_id])
            if failed:
                note = self.folder.error  # of an agent loop, on the last example that failed
                why = note.read_text(encoding="utf-8") if note.is_file() else "see the log"
                raise RolloutError(f"the readings of {failed} prompts failed in step {self.global_steps}: {why}")

    def _prompts_without_spread(self, batch: KVBatchMeta) -> set[str]:
        equal = prompts_without_spread(batch.keys, self._rewards(batch))
        positions, turns = self._turn_rewards(batch)
        for rewards in turns.values():
            equal -= prompts_with_turn_spread(batch.keys, rewards, positions)
        return equal

    def _without(self, batch: KVBatchMeta, prompts: set[str]) -> KVBatchMeta:
        """Return the batch less the rows of some prompts, which are removed from the queue."""
        staying = [at for at, key in enumerate(batch.keys) if RowName.of(key).prompt not in prompts]
        keys = [batch.keys[at] for at in staying]
        tags = [batch.tags[at] for at in staying]
        removed = set(batch.keys) - set(keys)
        if removed:
            tq.kv_clear(keys=sorted(removed), partition_id=batch.partition_id)
        return replace(batch, keys=keys, tags=tags)

    # Rows: the same number for every optimizer step and rank, none lost.

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Give every rank the same number of rows in every mini-batch."""
        return dp_size * self.recipe.mini_batches

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **settings: Any) -> KVBatchMeta:
        """Sort the rows, leave out groups without spread if the recipe does, and pad; check that no row is lost."""
        batch.reorder(sorted(range(len(batch)), key=lambda position: RowName.of(batch.keys[position])))
        metrics.update(self._rollout_metrics(batch))
        metrics["rows/carried"] = len(batch)
        equal = self._prompts_without_spread(batch)
        prompts = len({RowName.of(key).prompt for key in batch.keys})
        metrics["rollout/equal_groups"] = len(equal) / max(1, prompts)
        skips = self.recipe.train.skip_equal_groups or self.recipe.train.dynamic_sampling
        if skips and len(equal) < prompts:  # verl cannot take an empty step
            batch = self._without(batch, equal)
        rows = len(batch)
        batch = super()._balance_batch(batch, metrics=metrics, **settings)  # verl pads, and spreads rows over ranks
        padding = sum(bool(tag.get("is_padding")) for tag in batch.tags)
        assert len(batch) - padding == rows, f"{rows} rows became {len(batch)} with {padding} of padding"
        metrics["rows/skipped"] = metrics["rows/carried"] - rows
        metrics["rows/padding"] = padding
        return batch

    def _rollout_metrics(self, batch: KVBatchMeta) -> dict[str, float]:
        last = [rows[-1] for rows in rows_by_rollout(batch.keys).values()]
        data = tq.kv_batch_get(
            keys=[batch.keys[position] for position in last],
            partition_id=batch.partition_id,
            select_fields=["num_turns", "extra_fields", "data_source"],
        )
        produced = int(sum(map(int, data["num_turns"])))
        if produced != len(batch):
            raise RolloutError(f"{len(last)} rollouts produced {produced} rows and {len(batch)} arrived")
        measured = [fields["reward_extra_info"] for fields in data["extra_fields"]]
        wrong = [batch.keys[at] for at, of in zip(last, measured, strict=True) if not math.isfinite(of["reward"])]
        if wrong:
            raise NotFinite(f"step {self.global_steps}: the reward of {len(wrong)} rollouts is not finite: {wrong[:5]}")
        totals = {"rows/produced": produced, "rollout/count": len(last)}
        return totals | average_metrics(measured) | by_task(measured, list(data["data_source"]))

    def _rewards(self, batch: KVBatchMeta) -> list[float]:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
        return [row.sum().item() for row in data["rm_scores"].unbind()]  # all but a row's last token have 0

    def _turn_rewards(self, batch: KVBatchMeta) -> tuple[list[str], dict[str, list[float | None]]]:
        """Return what each row's turn works on, and the rewards of single turns by name.

        A reward of whole readings has ``None`` for every turn.
        """
        names = self.recipe.reward_weights
        if not names:
            return [], {}
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        rows = data["extra_fields"]
        rewards = {name: [fields[TURN_REWARDS].get(name) for fields in rows] for name in names}
        return [fields[POSITION] for fields in rows], rewards

    # Advantages and update.

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Let verl apply its corrections and record its metrics, then replace its advantages with ours.

        Before that, compare the sampler's log-probabilities with the actor's, if the actor has computed any.

        A batch without a token to train on has nothing to correct, and verl refuses it: all replies may have been cut.
        """
        if not self.config.algorithm.rollout_correction.bypass_mode:
            fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            actor, sampler, mask = (data[name].values() for name in fields)
            metrics.update(_agreement_metrics(moments(sampler, actor, mask)))
        if any(mask.any() for mask in self._masks(batch)):
            batch = super()._compute_advantage(batch, metrics)
        rewards = self._rewards(batch)
        of_answers = row_advantages(
            batch.keys,
            rewards,
            by_deviation=self.config.algorithm.norm_adv_by_std_in_grpo,
            credit=self.recipe.train.credit,
        )
        values = [self.recipe.rollout_weight * value for value in of_answers]
        positions, turns = self._turn_rewards(batch)
        for name, of_name in turns.items():
            weight = self.recipe.reward_weights[name]
            of_turns = turn_advantages(batch.keys, of_name, positions)
            values = [value + weight * own for value, own in zip(values, of_turns, strict=True)]
        masks = self._masks(batch)
        columns = [batch.keys, rewards, values, [int(mask.sum()) for mask in masks]]
        prompts = [RowName.of(key).prompt for key in batch.keys]
        traced = [at for at, tag in enumerate(batch.tags) if is_traced(prompts[at]) and not tag.get("is_padding")]
        self.folder.write_credit(self.global_steps, credited(*([column[at] for at in traced] for column in columns)))
        rows = [value * mask.float() for value, mask in zip(values, masks, strict=True)]
        advantages = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": advantages, "returns": advantages}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _masks(self, batch: KVBatchMeta) -> tuple[torch.Tensor, ...]:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        return data["response_mask"].unbind()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Take ``mini_batches`` optimizer steps, whatever the number of rows."""
        actor = self.config.actor_rollout_ref.actor
        steps = self.recipe.mini_batches
        batch.extra_info.update(
            calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
            distillation_use_topk=False,
            distillation_only=False,
            num_mini_batch=steps,
            global_batch_size=len(batch) // steps,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": steps > 1},  # balancing sorts by length: a mini-batch must not be one length
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        output = self.actor_rollout_wg.update_actor(batch)
        measured = rename_dict(output["metrics"], "actor/")
        norms = measured["actor/grad_norm"]
        if not all(map(math.isfinite, norms)):
            raise NotFinite(f"step {self.global_steps}: the gradient's norm is {norms}")
        metrics["optimizer/steps"] = len(norms)
        metrics["perf/mfu/actor"] = float(np.mean(measured.pop("actor/mfu")))
        self._log_moments(measured, metrics)
        metrics.update(reduce_metrics(measured))
        return batch

    # The run: stop, validation and checkpoints.

    def on_step_begin(self) -> None:
        """If a stop was requested, save a checkpoint and raise :class:`StopRequested`.

        This is done between two steps, while nothing else is running.
        """
        if not self.folder.stop_request.exists():
            return
        self.global_steps -= 1  # verl has already counted the step that now does not begin
        if self.global_steps and not (self.folder.checkpoints / f"global_step_{self.global_steps}").is_dir():
            self._save_checkpoint()
        raise StopRequested(f"stopped on request after step {self.global_steps}")

    def _save_checkpoint(self) -> None:
        """Let verl write the checkpoint to a temporary folder, check and rename it, and then delete older ones."""
        trainer = self.config.trainer
        with whole_checkpoint(self.folder, self.global_steps) as unfinished:
            trainer.default_local_dir = str(unfinished)
            try:
                super()._save_checkpoint()
            finally:
                trainer.default_local_dir = str(self.folder.checkpoints)
        delete_old(self.folder, self.recipe.train.keep_checkpoints)

    # Measurements: do sampler and actor agree, and was every row trained on?

    def _log_moments(self, measured: dict[str, list[float]], metrics: dict[str, Any]) -> None:
        """Count the rows trained; compare sampler and actor here if the update makes the only forward pass.

        Nothing is measured if the recipe chooses one of verl's losses, because only our own returns the sums.
        """
        prefix = f"actor/{PREFIX}"
        found = {name.removeprefix("actor/"): measured.pop(name) for name in list(measured) if name.startswith(prefix)}
        if not found:
            return
        mini_batches = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
        metrics["rows/trained"] = sum(map(rows_trained, mini_batches))
        if self.config.algorithm.rollout_correction.bypass_mode:
            metrics.update(_agreement_metrics(mini_batches[0]))

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *rest: Any, **named: Any) -> None:
        """Average the reward over rollouts. verl averages over rows, which weights long documents more."""
        super()._compute_metrics(batch, metrics, *rest, **named)
        metrics["critic/score/mean"] = metrics["rollout/acc"]
        metrics["critic/rewards/mean"] = metrics["rollout/reward"]


def _agreement_metrics(sums: dict[str, float]) -> dict[str, float]:
    correlation, difference = agreement(sums)
    return {
        "rollout/actor_correlation": correlation,
        "rollout/actor_difference": difference,
        "rollout/entropy": sampled_entropy(sums),
    }


def by_task(measured: list[dict[str, float | None]], tasks: list[str]) -> dict[str, float]:
    """Return the mean score of each task as ``rollout/acc/<task>``. ``measured`` has the metrics of each rollout."""
    return pd.DataFrame(measured)["acc"].groupby(tasks).mean().add_prefix("rollout/acc/").to_dict()


def average_metrics(measured: list[dict[str, float | None]]) -> dict[str, float]:
    """Return the mean of each metric as ``rollout/<name>``, over the rollouts in which its value is known."""
    return pd.DataFrame(measured).astype(float).mean().dropna().add_prefix("rollout/").to_dict()
