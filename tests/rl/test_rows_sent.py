"""The rows of a rollout reach the queue with what the trainer reads, and no more."""

from __future__ import annotations

import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

COLUMNS = {"data_source": "toy", "reward_model": {"ground_truth": "x"}, "document": "long", "extra_info": {"id": "a"}}


class Queue:
    """A transfer queue that records what it receives."""

    def __init__(self):
        self.rows = []

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        self.rows.append((keys, fields, tags, partition_id))


@pytest.fixture
def queue(monkeypatch) -> Queue:
    from verl.trainer.ppo.v1 import agent_loop_tq

    queue = Queue()
    monkeypatch.setattr(agent_loop_tq, "tq", queue)
    return queue


def outputs(rollout: int) -> list:
    """Two turns; replies of other lengths in every rollout."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    made = [
        AgentLoopOutput(
            prompt_ids=[1] * (4 + turn),
            response_ids=[2] * (1 + rollout + turn),
            response_mask=[1] * (1 + rollout + turn),
            response_logprobs=[-0.5] * (1 + rollout + turn),
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": 7, "max_global_steps": 7},
        )
        for turn in range(2)
    ]
    made[-1].reward_score = float(rollout)
    made[-1].extra_fields["reward_extra_info"] = {"acc": float(rollout)}
    return made


async def test_a_rollouts_rows_are_sent_without_the_document(queue):
    from memagent_lib.rl.agent_loop import RolloutWorker

    worker = object.__new__(RolloutWorker)
    worker.processor = worker.reward_loop_worker_handles = None
    worker.distillation_enabled = False
    row = {"uid": "s000007p00000", "session_id": 2, "global_steps": 7, **COLUMNS}
    await worker._agent_loop_postprocess(outputs(2), False, **row)
    ((keys, fields, tags, partition),) = queue.rows
    assert (partition, keys) == ("train", ["s000007p00000_2_0", "s000007p00000_2_1"])
    assert [(tag["response_len"], tag["seq_len"]) for tag in tags] == [(3, 7), (4, 9)]
    assert [row.tolist() for row in fields["rm_scores"].unbind()] == [[0, 0, 2], [0, 0, 0, 2]]
    assert fields["position_ids"].unbind()[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert not {"document", "extra_info"} & set(fields.keys())
    assert fields["data_source"][0] == "toy"
