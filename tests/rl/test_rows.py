"""From rollouts to optimizer steps: invariants 5 to 8 of the design, on tensors small enough to check by hand."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")


def data_of(rewards, lengths):
    """verl's batch for rows of ``lengths`` reply tokens, each with its rollout's reward on the last token."""
    from tensordict import TensorDict
    from verl import DataProto

    width = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    scores = torch.zeros(len(lengths), width)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        scores[row, length - 1] = reward
    fields = {"response_mask": mask, "token_level_rewards": scores, "token_level_scores": scores}
    return DataProto(batch=TensorDict(fields, batch_size=len(lengths)))


def advantages(keys, rewards, lengths):
    import numpy as np
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    data = data_of(rewards, lengths)
    data.non_tensor_batch["uid"] = np.array([key.split("_")[0] for key in keys], dtype=object)
    done = compute_advantage_for_multi_trajectories(data, keys, adv_estimator="grpo", norm_adv_by_std_in_grpo=False)
    return done.batch["advantages"]


def test_the_advantage_is_score_minus_mean_once_per_rollout_for_every_token_of_every_turn():
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_1_1", "b_0_0", "b_1_0"]
    rewards = [1, 1, 1, 0, 0, 1, 1]
    lengths = [2, 3, 1, 2, 2, 1, 3]
    given = advantages(keys, rewards, lengths)
    for row, (want, length) in enumerate(zip([0.5, 0.5, 0.5, -0.5, -0.5, 0.0, 0.0], lengths, strict=True)):
        assert given[row].tolist() == [want] * length + [0.0] * (3 - length)


def test_a_rollout_of_many_turns_does_not_pull_the_baseline():
    keys = [f"a_0_{i}" for i in range(9)] + ["a_1_0"]
    given = advantages(keys, [1] * 9 + [0], [1] * 10)
    assert given.flatten().tolist() == [0.5] * 9 + [-0.5]


def test_padding_rows_have_no_reward_no_advantage_and_no_weight():
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template

    source = {
        "prompts": torch.tensor([5, 6, 7]),
        "responses": torch.tensor([8, 9]),
        "position_ids": torch.arange(5),
        "response_mask": torch.ones(2),
        "rm_scores": torch.tensor([0.0, 1.0]),
    }
    row, tag = construct_minimal_padding_template(source, {"seq_len": 5}, eos_token_id=2)
    assert tag["is_padding"]
    assert row["loss_mask"].sum() == 0
    assert row["response_mask"].sum() == 0
    assert row["rm_scores"].sum() == 0


@pytest.mark.parametrize("rows", [5, 40, 41, 333])
@pytest.mark.parametrize(("ranks", "mini_batches"), [(1, 1), (1, 4), (2, 3)])
def test_the_number_of_optimizer_steps_does_not_depend_on_the_number_of_rows(rows, ranks, mini_batches):
    from memagent_lib.rl.trainer import batch_multiple

    multiple = batch_multiple(ranks, mini_batches)
    padded = math.ceil(rows / multiple) * multiple
    per_rank = padded // ranks
    assert padded - rows < multiple
    assert per_rank % mini_batches == 0  # what verl's train_mini_batch asserts
    assert per_rank // (per_rank // mini_batches) == mini_batches


def test_the_last_turn_of_each_rollout_is_found_wherever_it_stands():
    from memagent_lib.rl.trainer import last_of_session

    keys = ["u-1_0_10", "u-1_0_2", "u-2_0_0", "u-1_1_0", "u-1_0_9"]
    assert last_of_session(keys) == [True, False, True, True, False]


def test_unknown_facts_do_not_count():
    from memagent_lib.rl.trainer import average_facts

    assert average_facts([{"acc": 1.0, "capture": -1.0}, {"acc": 0.0, "capture": 0.5}]) == {
        "rollout/acc": 0.5,
        "rollout/capture": 0.5,
    }
    assert average_facts([{"retention": -1.0}]) == {}


def test_the_loss_is_divided_by_the_tokens_of_all_ranks_together():
    """Two ranks with unequal tokens, gradients averaged as FSDP averages them, equal one rank with everything."""
    from verl.trainer.ppo.core_algos import agg_loss

    loss = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0], [5.0, 6.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    alone = agg_loss(loss, mask, "token-mean", dp_size=1, batch_num_tokens=6)
    ranks = [
        agg_loss(loss[rows], mask[rows], "token-mean", dp_size=2, batch_num_tokens=6)
        for rows in (slice(0, 1), slice(1, 3))
    ]
    assert alone.item() == pytest.approx(21 / 6)
    assert sum(ranks).item() / 2 == pytest.approx(alone.item())


def test_the_correlation_from_moments_is_pearsons_whatever_the_micro_batches():
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


def test_our_loss_has_the_gradient_of_verls_own():
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    from memagent_lib.rl.loss import memagent_loss

    config = FSDPActorConfig(strategy="fsdp2", ppo_mini_batch_size=4, use_dynamic_bsz=True, rollout_n=2)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=7, global_batch_size=3, loss_scale_factor=None)
    old, mask = -torch.rand(3, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    gain = torch.tensor([[0.5], [-0.5], [0.25]]) * mask
    gradients = []
    for loss in (compute_policy_loss_vanilla, memagent_loss):
        new = (old + 0.3).clone().requires_grad_()
        loss(
            old_log_prob=old,
            log_prob=new,
            advantages=gain,
            response_mask=mask,
            loss_agg_mode="token-mean",
            config=config,
        )[0].backward()
        gradients.append(new.grad)
    assert torch.equal(*gradients)
