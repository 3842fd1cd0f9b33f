"""From rollouts to optimizer steps: invariants 5, 7 and 8 of the design, on tensors small enough to check by hand."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")


@pytest.mark.parametrize("rows", [5, 40, 41, 333])
@pytest.mark.parametrize(("ranks", "mini_batches"), [(1, 1), (1, 4), (2, 3)])
def test_the_number_of_rows_does_not_change_optimizer_steps(rows, ranks, mini_batches):
    """The trainer's own padding, then verl's own cut into mini-batches, as ``train_mini_batch`` makes it on a rank."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from memagent_lib.rl.trainer import MemAgentTrainer

    trainer = object.__new__(MemAgentTrainer)
    trainer.recipe = SimpleNamespace(mini_batches=mini_batches)
    multiple = trainer._get_required_batch_multiple(ranks)
    padded = math.ceil(rows / multiple) * multiple
    assert padded - rows < multiple
    share = TensorDict({"row": torch.arange(padded // ranks)}, batch_size=padded // ranks)
    size = share.shape[0] // mini_batches
    batches = list(tu.make_iterator(share, size, epochs=1, seed=1, dataloader_kwargs={"shuffle": mini_batches > 1}))
    assert len(batches) == mini_batches
    assert sorted(torch.cat([batch["row"] for batch in batches]).tolist()) == list(range(padded // ranks))


def test_each_task_has_its_own_score():
    from memagent_lib.rl.trainer import by_task

    found = by_task([{"acc": 1.0}, {"acc": 0.0}, {"acc": 0.5}], ["one", "two", "one"])
    assert found == {"rollout/acc/one": 0.75, "rollout/acc/two": 0.0}


def test_unknown_values_do_not_count():
    from memagent_lib.rl.trainer import average_metrics

    assert average_metrics([{"acc": 1.0, "capture": None}, {"acc": 0.0, "capture": 0.5}]) == {
        "rollout/acc": 0.5,
        "rollout/capture": 0.5,
    }
    assert average_metrics([{"retention": None}]) == {}


def test_the_correlation_from_moments_is_pearsons():
    from memagent_lib.rl.loss import agreement, moments

    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(6, 5, generator=generator)
    new = old + 0.1 * torch.randn(6, 5, generator=generator)
    mask = torch.rand(6, 5, generator=generator) > 0.3
    parts = [moments(old[rows], new[rows], mask[rows]) for rows in (slice(0, 1), slice(1, 6))]
    means = {name: sum(part[name] for part in parts) / 2 for name in parts[0]}
    correlation, difference = agreement(means)
    both = torch.stack([old[mask], new[mask]])
    assert correlation == pytest.approx(torch.corrcoef(both)[0, 1].item(), abs=1e-5)
    assert difference == pytest.approx((old - new)[mask].abs().mean().item(), abs=1e-6)


def loss_of(rows, mask, batch_tokens, loss):
    """Loss and metrics of some rows of a mini-batch of ``batch_tokens`` tokens on one rank."""
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(strategy="fsdp2", ppo_mini_batch_size=4, use_dynamic_bsz=True, rollout_n=2)
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=batch_tokens, global_batch_size=3, loss_scale_factor=None
    )
    old, new, gain = rows
    inputs = {"old_log_prob": old, "log_prob": new, "advantages": gain * mask, "response_mask": mask}
    return loss(**inputs, loss_agg_mode="token-mean", config=config)


def test_clipping_and_importance_are_those_worked_out_by_hand():
    from verl.workers.config import FSDPActorConfig

    from memagent_lib.rl.loss import memagent_loss

    config = FSDPActorConfig(strategy="fsdp2", ppo_mini_batch_size=4, use_dynamic_bsz=True, rollout_n=2)
    config = replace(config, clip_ratio_low=0.2, clip_ratio_high=0.28)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=5, global_batch_size=1, loss_scale_factor=None)
    ratios, gains = torch.tensor([[1.5, 0.5, 1.5, 0.5, 5.0]]), torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0]])
    inputs = {"old_log_prob": torch.zeros(1, 5), "log_prob": ratios.log(), "advantages": gains}
    inputs |= {"response_mask": torch.ones(1, 5), "loss_agg_mode": "token-mean", "config": config}
    # 1.28, cut at 1 + clip_high; 0.5 and -1.5, which clipping does not flatter; -0.8, cut at 1 - clip_low; -3, dual.
    assert memagent_loss(**inputs)[0].item() == pytest.approx(-(1.28 + 0.5 - 1.5 - 0.8 - 3) / 5)
    weights = torch.tensor([[2.0, 1.0, 1.0, 0.5, 1.0]])
    weighted = memagent_loss(**inputs, rollout_is_weights=weights)[0].item()
    assert weighted == pytest.approx(-(2 * 1.28 + 0.5 - 1.5 - 0.5 * 0.8 - 3) / 5)


class Sampling:
    """The trainer's sampling over prompts with known rewards, which come in this order; ``None`` is a failure."""

    def __init__(self, monkeypatch, dynamic: bool, error: Path = Path("none"), **rewards: tuple[int, int] | None):
        from memagent_lib.rl import trainer as module

        outer, names = self, iter(rewards)
        self.drawn, self.cleared, self.failures = [], [], {"train": set(), "val": set()}

        class Trainer(module.MemAgentTrainer):
            def _rewards(self, batch):
                return [float(rewards[key[:2]][int(key[3])]) for key in batch.keys]

            def _add_prompts_to_generate(self, num_prompts):
                outer.drawn.append(num_prompts)

        def sample(global_steps, partition_id, batch_size):
            from transfer_queue import KVBatchMeta

            new = [name for _, name in zip(range(batch_size), names, strict=False)]
            self.failures["train"] = {name for name in new if rewards[name] is None}
            if set(new) == self.failures["train"]:
                raise RuntimeError("Sync replay buffer selected terminal groups with no materializable trajectories.")
            # Of a failed prompt one of two rollouts came back.
            keys = [f"{name}_{rollout}_0" for name in new for rollout in ((0, 1) if rewards[name] else (0,))]
            return KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id=partition_id), {}

        monkeypatch.setattr(module.tq, "kv_clear", lambda keys, partition_id: self.cleared.extend(keys))
        self.trainer = object.__new__(Trainer)
        self.trainer.folder = SimpleNamespace(error=error)
        self.trainer.recipe = SimpleNamespace(train=SimpleNamespace(dynamic_sampling=dynamic), reward_weights={})
        self.trainer.replay_buffer, self.trainer.global_steps = SimpleNamespace(failure_keys=self.failures), 7
        self.sample = sample

    def batch(self):
        return self.trainer.sample(self.sample, global_steps=7, partition_id="train", batch_size=4)


def test_equal_prompts_are_replaced_by_rounds(monkeypatch):
    """Of four prompts one is equal; its fresh one is equal again, and the next is not."""
    rewards = {"p0": (0, 1), "p1": (1, 1), "p2": (1, 0), "p3": (0, 1), "p4": (1, 1), "p5": (0, 1)}
    sampling = Sampling(monkeypatch, dynamic=True, **rewards)
    batch, metrics = sampling.batch()
    assert sorted({key[:2] for key in batch.keys}) == ["p0", "p2", "p3", "p5"]
    assert (sampling.drawn, len(batch.tags), batch.size) == ([1, 1], 8, 8)
    assert metrics == {"rollout/replaced": 2}
    assert {key[:2] for key in sampling.cleared} == {"p1", "p4"}


@pytest.mark.parametrize("failed", [1, 4])
def test_a_reading_that_failed_stops_the_run_and_is_named(monkeypatch, failed, tmp_path):
    from memagent_lib.rl.agent_loop import RolloutError

    rewards = {f"p{number}": None if number < failed else (0, 1) for number in range(4)}
    error = tmp_path / "error.txt"  # where the agent loop writes it
    error.write_text("'a17': ReaderError: no turns")
    with pytest.raises(RolloutError, match=f"{failed} prompts failed in step 7.*a17.*no turns"):
        Sampling(monkeypatch, False, error, **rewards).batch()


def test_rows_trained_are_counted_across_micro_batches():
    from memagent_lib.rl.loss import memagent_loss, rows_trained

    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 1]])  # the third is padding
    old = -torch.rand(5, 3)
    parts = [
        loss_of((old[rows], old[rows], torch.ones(len(mask[rows]), 1)), mask[rows], 9, memagent_loss)[1]
        for rows in (slice(0, 3), slice(3, 5))
    ]
    means = {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]}  # all that verl hands on
    assert rows_trained(means) == 4
