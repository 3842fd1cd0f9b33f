"""From rewards to advantages, worked out by hand: invariant 6 of the design, and each variant of it."""

import pytest

from memagent_lib.rl.advantages import (
    Credit,
    credited,
    length_penalty,
    prompts_with_turn_spread,
    prompts_without_spread,
    row_advantages,
    rows_by_rollout,
    turn_advantages,
)

# Prompt a: a rollout of three turns that is right, one of two turns that is wrong. Prompt b: two rollouts, both right.
KEYS = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_1_1", "b_0_0", "b_1_0"]
REWARDS = [1, 1, 1, 0, 0, 1, 1]


def test_every_turn_has_its_rollouts_reward_minus_the_mean():
    assert row_advantages(KEYS, REWARDS) == [0.5, 0.5, 0.5, -0.5, -0.5, 0.0, 0.0]


def test_a_rollout_of_many_turns_does_not_pull_the_baseline():
    keys = [f"a_0_{turn}" for turn in range(9)] + ["a_1_0"]
    assert row_advantages(keys, [1] * 9 + [0]) == [0.5] * 9 + [-0.5]


def test_only_the_reward_of_the_last_turn_counts():
    assert row_advantages(["a_0_10", "a_1_0", "a_0_9"], [1, 0, 7]) == [0.5, -0.5, 0.5]


def test_by_deviation_divides_by_that_of_the_sample():
    keys, rewards = ["a_0_0", "a_1_0", "a_2_0"], [1.0, 0.0, 0.0]  # mean 1/3, variance (4/9 + 1/9 + 1/9) / 2 = 1/3
    assert row_advantages(keys, rewards, by_deviation=True) == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4)


def test_credit_for_the_final_turn_leaves_the_memory_untrained():
    advantages = row_advantages(KEYS, REWARDS, credit=Credit.FINAL)
    assert advantages == [0.0, 0.0, 0.5, 0.0, -0.5, 0.0, 0.0]


def test_split_credit_gives_every_rollout_the_same_weight():
    advantages = row_advantages(KEYS, REWARDS, credit=Credit.SPLIT)
    assert advantages == pytest.approx([0.5 / 3] * 3 + [-0.25] * 2 + [0.0, 0.0])


def test_a_rollout_is_credited_by_reply_beside_its_group():
    keys, rewards = KEYS[::-1], REWARDS[::-1]
    found = credited(keys, rewards, row_advantages(keys, rewards), [7, 0, 6, 5, 4, 3, 2])
    assert found["a_0"] == (1, [0.5, 0.5, 0.5], [2, 3, 4], [1, 0])
    assert found["b_0"] == (1, [0.0], [0], [1, 1])
    assert len(found) == 4


def test_a_single_rollout_has_no_advantage():
    assert row_advantages(["a_0_0"], [1.0], by_deviation=True) == [0.0]


def test_prompts_whose_rollouts_all_scored_alike_are_found():
    assert prompts_without_spread(KEYS, REWARDS) == {"b"}
    assert prompts_without_spread(["a_0_0", "a_1_0"], [0.0, 1.0]) == set()


# One fact, in the first of three chunks. Rollout 0 retains it, 1 notes it and loses it in the second, 2 never notes it.
STEP_KEYS = [f"a_{rollout}_{turn}" for rollout in range(3) for turn in range(3)]
POSITIONS = ["0", "1", "2"] * 3
STEPS = [1.0, 1.0, 1.0, 1.0, 0.0, None, 0.0, None, None]


def test_a_turns_evidence_is_compared_with_the_same_turn():
    first, second = [1 - 2 / 3, 1 - 2 / 3, -2 / 3], [0.5, -0.5, 0.0]  # of the second turn, 2 had nothing to keep
    wanted = [first[0], second[0], 0.0, first[1], second[1], 0.0, first[2], second[2], 0.0]
    assert turn_advantages(STEP_KEYS, STEPS, POSITIONS) == pytest.approx(wanted)
    assert turn_advantages(["a_0_0", "b_0_0"], [1.0, 0.0], ["0", "0"]) == [0.0, 0.0], "another prompt is no comparison"


def test_turns_are_compared_by_position_where_readings_differ():
    keys = ["a_0_0", "a_0_1", "a_1_0", "a_1_1", "a_1_2"]  # rollout 0 ends a chunk early
    positions = ["chunk 0", "answer", "chunk 0", "chunk 1", "answer"]
    steps = [1.0, 1.0, 0.5, 0.25, 0.0]
    assert turn_advantages(keys, steps, positions) == [0.25, 0.5, -0.25, 0.0, -0.5]
    assert prompts_with_turn_spread(keys, steps, positions) == {"a"}
    assert prompts_with_turn_spread(keys, [1.0, 0.5, 1.0, 0.25, 0.5], positions) == set()


def test_equal_scores_have_spread_where_memories_differ():
    assert prompts_without_spread(STEP_KEYS, [0.0] * 9) == {"a"}
    assert prompts_with_turn_spread(STEP_KEYS, STEPS, POSITIONS) == {"a"}
    assert prompts_with_turn_spread(STEP_KEYS, [1.0, 0.0, None] * 3, POSITIONS) == set()


def test_turns_are_ordered_by_their_number():
    keys = ["u-1_0_10", "u-1_0_2", "u-2_0_0", "u-1_1_0", "u-1_0_9"]
    assert rows_by_rollout(keys) == {("u-1", "0"): [1, 4, 0], ("u-2", "0"): [2], ("u-1", "1"): [3]}


def test_the_length_penalty_falls_within_the_buffer():
    assert [length_penalty(n, limit=100, buffer=0.25) for n in (10, 75, 80, 100)] == pytest.approx([0, 0, -0.2, -1])


def test_our_advantages_are_those_of_verl():
    torch = pytest.importorskip("torch")
    pytest.importorskip("verl")
    import numpy as np
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    keys = [*KEYS, "c_0_0", "c_1_0", "c_1_1", "c_2_0"]
    rewards, lengths = [*REWARDS, 0.25, 1.0, 1.0, 0.5], [2, 3, 1, 2, 2, 1, 3, 1, 2, 4, 2]
    mask = torch.tensor([[1] * n + [0] * (max(lengths) - n) for n in lengths])
    scores = torch.zeros(len(keys), max(lengths))
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        scores[row, length - 1] = reward
    for by_deviation in (False, True):
        fields = {"response_mask": mask, "token_level_rewards": scores}
        data = DataProto(batch=TensorDict(fields, batch_size=len(keys)))
        data.non_tensor_batch["uid"] = np.array([key.split("_")[0] for key in keys], dtype=object)
        done = compute_advantage_for_multi_trajectories(
            data, keys, adv_estimator="grpo", norm_adv_by_std_in_grpo=by_deviation
        )
        ours = torch.tensor(row_advantages(keys, rewards, by_deviation=by_deviation))[:, None] * mask
        torch.testing.assert_close(done.batch["advantages"], ours)
