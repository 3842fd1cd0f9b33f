"""Several engines as one backend: what each gets of a cluster, and that the loss of a node changes no row."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pocket import TRAINED, pocket_task
from ports import free_port

from memagent_lib.agent import open_agent, run_sync
from memagent_lib.backends import BackendError, BackendUnavailable, open_backend, share_of
from memagent_lib.backends.engine_pool import EnginePool, Home, Member
from memagent_lib.data import Example, make
from memagent_lib.evaluation import Result, evaluate, to_frame
from memagent_lib.prompts import Request
from memagent_lib.system import ClusterError, started
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Reply


def test_engines_share_the_cores_of_their_nodes_equally() -> None:
    assert share_of([{"CPU": 8.0}], 1) == {"num_cpus": 8}
    assert share_of([{"CPU": 8.0}], 3) == {"num_cpus": 2}
    assert share_of([{"CPU": 5.0}, {"CPU": 3.0}], 3) == {"num_cpus": 2}
    assert share_of([{"CPU": 4.0}, {}], 4) == {"num_cpus": 1}


def test_an_engine_gets_a_gpu_where_there_are_any() -> None:
    assert share_of([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}], 3) == {"num_gpus": 1}


def test_more_engines_than_cores_or_gpus_are_refused() -> None:
    with pytest.raises(ClusterError, match="3 engines need 3 cores, and Ray has 2 on its 2 nodes; lower engines"):
        share_of([{"CPU": 1.0}, {"CPU": 1.0}], 3)
    with pytest.raises(ClusterError, match="2 engines need 2 GPUs, and Ray has 1 on its 1 node; lower engines"):
        share_of([{"CPU": 16.0, "GPU": 1.0}], 2)


def test_engines_without_a_use_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match=r"engines 2: a server .* has engines of its own; choose vllm or transformers"):
        open_agent("small", "openai", base_url="http://127.0.0.1:1/v1", engines=2)
    with pytest.raises(ValueError, match="the cluster 'head:6379' needs a number of engines"):
        open_agent(TRAINED, "transformers", cluster="head:6379")
    with pytest.raises(ValueError, match="engines must be at least 1, or 0 for one in this process; got -1"):
        open_agent(TRAINED, "transformers", engines=-1)


def test_an_address_without_a_cluster_is_refused() -> None:
    pytest.importorskip("ray")
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"no Ray cluster answers at {away}"):
        open_backend("transformers", str(TRAINED), engines=1, cluster=away)


class _Actor:
    """What Ray returns for an engine: its method has ``remote``. This one replies after a while, or refuses at once."""

    def __init__(self, refusal: str = "") -> None:
        self.complete = self
        self.turns = 0
        self.refusal = refusal

    async def remote(self, request: Request) -> Reply:
        self.turns += 1
        if self.refusal:
            from ray.exceptions import RayTaskError

            raise RayTaskError("complete", "a traceback", BackendError(self.refusal))
        await asyncio.sleep(0.01)
        return Reply("seven")


def _pool_of(*actors: _Actor) -> EnginePool:
    pool = EnginePool.__new__(EnginePool)  # the engines of a real one are processes
    pool.engines = len(actors)
    pool.window = 100
    pool.ended = []
    pool._alive = [Member(actor, Home(f"node{number}", 1, "", True)) for number, actor in enumerate(actors)]
    return pool


def test_a_broken_engine_costs_no_turn_of_a_pool(monkeypatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.kill", lambda actor: None)  # no Ray runs here
    broken, sound = _Actor("device-side assert"), _Actor()
    pool = _pool_of(broken, sound)

    async def twenty() -> list[Reply]:
        return await asyncio.gather(*(pool.complete(Request((1,), "one", 1)) for _ in range(20)))

    assert [reply.text for reply in run_sync(twenty())] == ["seven"] * 20
    (ended,) = pool.ended
    assert ended.startswith("the engine on node0 (process 1) ended: it refused 3 turns that others answered, the last")
    run_sync(twenty())
    assert sound.turns == 40 and broken.turns <= 20


def test_a_turn_that_every_engine_refuses_has_failed() -> None:
    pytest.importorskip("ray")
    pool = _pool_of(_Actor("too hot"), _Actor("too hot"))
    for _ in range(5):
        with pytest.raises(BackendError, match="too hot"):
            run_sync(pool.complete(Request((1,), "one", 1)))
    assert pool.ended == []


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(make(pocket_task("needle"), 6, 1, Tokenizer.load(TRAINED), chunks=8))


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 1 << 27}
    both = started(lambda: Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False}))
    yield both
    ray.shutdown()
    both.shutdown()


def _rows(results: list[Result]) -> list[dict]:
    """The rows of results without what a clock measured, and without ``NaN``, which equals nothing."""
    frame = to_frame(results).drop(columns="seconds").astype(object)
    return frame.where(frame.notna(), None).to_dict("records")


@pytest.mark.slow
def test_a_lost_node_changes_no_row_of_an_evaluation(cluster, examples, tmp_path: Path) -> None:
    quiet = open_agent(TRAINED, "transformers", threads=1)
    expected = _rows(evaluate(quiet, examples, concurrency=4, progress=False))
    quiet.close()
    second = started(lambda: cluster.add_node(num_cpus=1, object_store_memory=1 << 27))
    agent = open_agent(TRAINED, "transformers", engines=2, cluster=cluster.address)
    finished = []

    def lose_a_node(result: Result) -> None:
        finished.append(result)
        if len(finished) == 1:
            cluster.remove_node(second, allow_graceful=False)

    found = evaluate(agent, examples, concurrency=4, folder=tmp_path, progress=lose_a_node)
    agent.close()
    assert _rows(found) == expected
    assert [result.error for result in found] == [None] * len(examples)
    (ended,) = agent.backend.ended
    assert ended.endswith("ended: its process or its machine ended")
    # Without engines now: every turn of both is in the one journal.
    assert _rows(evaluate(agent, examples, folder=tmp_path, progress=False)) == expected


@pytest.mark.slow
def test_a_model_that_a_node_lacks_names_the_node(cluster, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=rf"the engine on .* has no model at {tmp_path}/away; put it into a"):
        open_backend("transformers", str(tmp_path / "away"), engines=1, cluster=cluster.address)
    with pytest.raises(BackendUnavailable, match=r"the engine on .* did not open .*tokenizer"):
        open_backend("transformers", str(tmp_path), engines=1, cluster=cluster.address)
