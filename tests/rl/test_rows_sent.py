"""Rows reach the queue once a prompt's rollouts have all ended: in one message, or not at all."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

ROLLOUTS = 3
COLUMNS = {"data_source": "toy", "reward_model": {"ground_truth": "x"}, "document": "long", "extra_info": {"id": "a"}}


class Queue:
    """A transfer queue that records what it receives."""

    def __init__(self):
        self.rows, self.status = [], []

    async def async_kv_put(self, key, partition_id, tag):
        self.status.append((key, tag["status"]))

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        self.rows.append((keys, fields, tags, partition_id))


@pytest.fixture
def queue(monkeypatch) -> Queue:
    from verl.trainer.ppo.v1 import agent_loop_tq

    from memagent_lib.rl.verl import rollout_worker

    queue = Queue()
    monkeypatch.setattr(rollout_worker, "tq", queue)
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


async def prompt_with(queue: Queue, failing: int | None = None):
    from memagent_lib.rl.verl.rollout_worker import RolloutWorker

    worker = object.__new__(RolloutWorker)
    rollout = SimpleNamespace(n=ROLLOUTS, val_kwargs=SimpleNamespace(n=1))
    worker.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    worker.processor, worker.groups = None, {}

    async def run(sampling_params, trajectory, *, session_id, trace, **row):
        if session_id == failing:
            raise RuntimeError("this rollout fails")
        await worker._agent_loop_postprocess(outputs(session_id), False, session_id=session_id, **row)

    worker._run_agent_loop = run
    row = {"uid": "s000007p00000", "global_steps": 7, "agent_name": "memagent", **COLUMNS}
    await worker._run_prompt(row, {}, {"validate": False})
    assert worker.groups == {}


async def test_a_prompts_rollouts_are_sent_in_one_message(queue):
    await prompt_with(queue)
    ((keys, fields, tags, partition),) = queue.rows
    assert (partition, queue.status[-1]) == ("train", ("s000007p00000", "finished"))
    assert keys == [f"s000007p00000_{rollout}_{turn}" for rollout in range(ROLLOUTS) for turn in range(2)]
    assert [tag["response_len"] for tag in tags] == [1, 2, 2, 3, 3, 4]
    assert [tag["seq_len"] for tag in tags] == [5, 7, 6, 8, 7, 9]
    assert [row.sum().item() for row in fields["rm_scores"].unbind()] == [0, 0, 1, 1, 2, 2]
    assert [row[-1].item() for row in fields["rm_scores"].unbind()] == [0, 0, 1, 1, 2, 2]
    assert [len(row) for row in fields["input_ids"].unbind()] == [5, 7, 6, 8, 7, 9]
    assert [row.tolist() for row in fields["position_ids"].unbind()][1] == [0, 1, 2, 3, 4, 5, 6]
    assert "document" not in fields
    assert "extra_info" not in fields
    assert fields["data_source"][0] == "toy"


async def test_a_prompt_with_a_failed_rollout_sends_no_row(queue):
    await prompt_with(queue, failing=1)
    assert queue.rows == []
    assert queue.status[-1] == ("s000007p00000", "failure")


def test_of_verls_numbered_workers_only_the_first_saves_traces() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopManager

    from memagent_lib.rl.verl.rollout_worker import WORKER, saves_traces

    named = inspect.getsource(AgentLoopManager._init_agent_loop_workers)
    assert f'name=f"{WORKER}{{i}}" + f"_{{uuid4().hex[:8]}}"' in named
    assert [n for n in range(12) if saves_traces(f"{WORKER}{n}_0badcafe")] == [0]
    assert saves_traces("a server that runs its own loops")
