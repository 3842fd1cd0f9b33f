"""What the trainer makes of a step's rows: which are trained on, with which advantages, and what stops the run."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

# Two rollouts of each prompt. Of p0 one is right and has two turns; those of p1 scored alike.
KEYS = ["s7p0_0_0", "s7p0_0_1", "s7p0_1_0", "s7p1_0_0", "s7p1_1_0"]
REWARDS = {"s7p0_0_1": 1.0, "s7p0_1_0": 0.0, "s7p1_0_0": 0.5, "s7p1_1_0": 0.5}
LENGTHS = {"s7p0_0_0": 3, "s7p0_0_1": 1, "s7p0_1_0": 2, "s7p1_0_0": 1, "s7p1_1_0": 4}
TURNS = {"s7p0_0_1": 2, "s7p0_1_0": 1, "s7p1_0_0": 1, "s7p1_1_0": 1}
FACTS = {"acc": 0.5, "capture": None}


class Queue:
    """The rows as the transfer queue returns them; it records what is cleared and put."""

    def __init__(self):
        self.rows, self.cleared, self.put = {name: self.row(name) for name in KEYS}, [], {}

    def row(self, name: str) -> dict:
        scores = torch.zeros(LENGTHS[name])
        scores[-1] = REWARDS.get(name, 0.0)
        extra = {"turn_rewards": {"evidence": None}, "position": f"turn {name[-1]}"}
        extra |= {"reward_extra_info": FACTS | {"reward": REWARDS.get(name, 0.0)}}
        ones = torch.ones(LENGTHS[name])
        numbers = {"old_log_probs": -ones, "ref_log_prob": -ones, "advantages": 0 * ones, "response_mask": ones}
        others = {"extra_fields": extra, "num_turns": TURNS.get(name), "data_source": "toy"}
        return numbers | others | {"rm_scores": scores}

    def kv_batch_get(self, keys, partition_id, select_fields):
        columns = {name: [self.rows[key][name] for key in keys] for name in select_fields}
        tensors = {name: torch.is_tensor(values[0]) for name, values in columns.items()}
        nested = lambda values: torch.nested.as_nested_tensor(values, layout=torch.jagged)  # noqa: E731
        return {name: nested(values) if tensors[name] else values for name, values in columns.items()}

    def kv_clear(self, keys, partition_id):
        self.cleared += keys

    def kv_batch_put(self, keys, partition_id, fields):
        rows = zip(keys, fields["advantages"].unbind(), strict=True)
        self.put = {key: row.tolist() for key, row in rows}
        return self.put


@pytest.fixture
def queue(monkeypatch) -> Queue:
    from memagent_lib.rl import trainer

    queue = Queue()
    monkeypatch.setattr(trainer, "tq", queue)
    return queue


@pytest.fixture
def trainer(queue, monkeypatch, tmp_path):
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from memagent_lib.rl.trainer import MemAgentTrainer

    monkeypatch.setattr(PPOTrainerSync, "_balance_batch", lambda self, batch, metrics: batch)
    monkeypatch.setattr(PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)
    made = object.__new__(MemAgentTrainer)
    train = SimpleNamespace(skip_equal_groups=False, dynamic_sampling=False, credit="shared")
    made.recipe = SimpleNamespace(train=train, reward_weights={}, rollout_weight=1.0, mini_batches=1)
    actor = SimpleNamespace(use_kl_loss=True)
    from memagent_lib.rl import RunFolder

    made.folder = RunFolder(tmp_path)
    made.config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(actor=actor),
        algorithm=SimpleNamespace(norm_adv_by_std_in_grpo=False, rollout_correction=SimpleNamespace(bypass_mode=True)),
    )
    made.global_steps = 7
    return made


def batch():
    from transfer_queue import KVBatchMeta

    return KVBatchMeta(keys=list(reversed(KEYS)), tags=[{} for _ in KEYS], partition_id="train")


def balanced(trainer, metrics: dict | None = None) -> list[str]:
    return trainer._balance_batch(batch(), {} if metrics is None else metrics).keys


def advantages(trainer, queue) -> dict[str, list[float]]:
    trainer._compute_advantage(batch(), {})
    return queue.put


def test_rows_are_ordered_and_only_equal_groups_are_skipped(trainer, queue):
    metrics = {}
    assert balanced(trainer, metrics) == KEYS
    assert (metrics["rows/produced"], metrics["rows/carried"], metrics["rows/skipped"]) == (5, 5, 0)
    trainer.recipe.train.skip_equal_groups = True
    assert balanced(trainer, metrics) == KEYS[:3]
    assert (metrics["rows/carried"], metrics["rows/skipped"], sorted(queue.cleared)) == (5, 2, KEYS[3:])
    queue.rows["s7p0_1_0"] = queue.rows["s7p0_1_0"] | {"rm_scores": torch.tensor([0.0, 1.0])}
    assert balanced(trainer, metrics) == KEYS  # a step of nothing cannot be taken


def test_a_row_that_was_lost_stops_the_run(trainer, queue):
    from memagent_lib.rl.agent_loop import RolloutError

    queue.rows["s7p0_0_1"]["num_turns"] = 3
    with pytest.raises(RolloutError, match="4 rollouts produced 6 rows and 5 arrived"):
        balanced(trainer)


def test_evidence_is_added_to_the_advantages_of_the_answer(trainer, queue):
    found = advantages(trainer, queue)
    assert found["s7p0_0_0"] == [0.5] * 3
    assert found["s7p0_1_0"] == [-0.5] * 2
    assert found["s7p1_1_0"] == [0.0] * 4
    trainer.recipe.reward_weights = {"evidence": 0.2}
    queue.rows["s7p0_0_0"]["extra_fields"]["turn_rewards"]["evidence"] = 1.0  # noted the evidence
    queue.rows["s7p0_1_0"]["extra_fields"]["turn_rewards"]["evidence"] = 0.0
    found = advantages(trainer, queue)
    assert found["s7p0_0_0"] == pytest.approx([0.5 + 0.2 * 0.5] * 3)
    assert found["s7p0_1_0"] == pytest.approx([-0.5 - 0.2 * 0.5] * 2)
    assert found["s7p0_0_1"] == [0.5]
    credit = trainer.folder.credited(7)
    assert sorted(credit) == ["s7p0_0", "s7p0_1"], "of the first prompt alone"
    assert credit["s7p0_0"].advantages == pytest.approx([0.6, 0.5])
    assert credit["s7p0_0"].tokens == [LENGTHS["s7p0_0_0"], LENGTHS["s7p0_0_1"]]


def test_a_batch_of_cut_replies_alone_teaches_nothing(trainer, queue, monkeypatch):
    from verl.trainer.ppo.v1 import PPOTrainerSync

    def refuse(self, batch, metrics):
        raise ValueError("response_mask must contain at least one valid token (1).")

    monkeypatch.setattr(PPOTrainerSync, "_compute_advantage", refuse)
    with pytest.raises(ValueError, match="at least one valid token"):
        advantages(trainer, queue)
    for row in queue.rows.values():
        row["response_mask"] = 0 * row["response_mask"]
    assert advantages(trainer, queue) == {name: [0.0] * LENGTHS[name] for name in KEYS}


def test_a_reward_that_is_not_finite_stops_the_run(trainer, queue):
    from memagent_lib.rl.trainer import NotFinite

    queue.rows["s7p1_1_0"]["extra_fields"]["reward_extra_info"]["reward"] = math.nan
    with pytest.raises(NotFinite, match=r"step 7: .*s7p1_1_0"):
        balanced(trainer)


def updating(trainer, measured: dict) -> None:
    """Let the trainer's workers answer an update with these metrics."""
    actor = trainer.config.actor_rollout_ref.actor
    actor.calculate_entropy, actor.entropy_coeff, actor.ppo_epochs, actor.data_loader_seed = False, 0.0, 1, 0
    trainer.config.actor_rollout_ref.rollout = SimpleNamespace(temperature=1.0)
    trainer.actor_rollout_wg = SimpleNamespace(update_actor=lambda rows: {"metrics": measured})


def test_a_gradient_that_is_not_finite_stops_the_run(trainer):
    from memagent_lib.rl.trainer import NotFinite

    updating(trainer, {"grad_norm": [0.5, math.nan]})
    with pytest.raises(NotFinite, match="step 7"):
        trainer._update_actor(batch(), {})
