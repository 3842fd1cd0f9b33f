"""Several engines as one backend: what each gets of a cluster, and that the loss of a node changes no row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pocket import TRAINED, pocket_task
from ports import free_port
from waiting import has_ended, wait_for

from memagent_lib.agent import open_agent
from memagent_lib.backends import open_backend
from memagent_lib.data import make
from memagent_lib.evaluation import Result, evaluate, to_frame
from memagent_lib.prompts import Request
from memagent_lib.system import ClusterError, started
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Reply


def test_engines_without_a_use_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="engines 2"):
        open_agent("small", "openai", base_url="http://127.0.0.1:1/v1", engines=2)
    with pytest.raises(ValueError, match="cluster 'head:6379'"):
        open_agent(TRAINED, "transformers", cluster="head:6379")
    with pytest.raises(ValueError, match="engines"):
        open_agent(TRAINED, "transformers", engines=-1)


def test_an_address_without_a_cluster_is_refused() -> None:
    pytest.importorskip("ray")
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=away):
        open_backend("transformers", str(TRAINED), engines=1, cluster=away)


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
def test_a_lost_node_changes_no_row_of_an_evaluation(cluster, tmp_path: Path, monkeypatch, caplog) -> None:
    examples = list(make(pocket_task("needle"), 6, 1, Tokenizer.load(TRAINED), chunks=8))
    quiet = open_agent(TRAINED, "transformers", threads=1)
    expected = _rows(evaluate(quiet, examples, concurrency=4, progress=False))
    quiet.close()
    second = started(lambda: cluster.add_node(num_cpus=1, object_store_memory=1 << 27))
    agent = open_agent(TRAINED, "transformers", engines=2, cluster=cluster.address)
    complete = agent.backend.complete
    replies = []

    async def lose_a_node(request: Request) -> Reply:
        reply = await complete(request)
        replies.append(reply)
        if len(replies) == 10:
            lost = psutil.Process(second.all_processes["raylet"][0].process.pid).children()
            cluster.remove_node(second, allow_graceful=False)
            wait_for(lambda: all(map(has_ended, lost)))  # the engine can outlive its node by all that is left to read
        return reply

    monkeypatch.setattr(agent.backend, "complete", lose_a_node)
    found = evaluate(agent, examples, concurrency=4, folder=tmp_path, progress=False)
    agent.close()
    assert _rows(found) == expected
    assert [result.error for result in found] == [None] * len(examples)
    assert [record.getMessage() for record in caplog.records if "an engine ended" in record.getMessage()]
    # Without engines now: every turn of both is in the one journal.
    assert _rows(evaluate(agent, examples, folder=tmp_path, progress=False)) == expected


@pytest.mark.slow
def test_an_engines_error_is_its_own_and_engines_without_room_are_refused(cluster) -> None:
    with pytest.raises(ClusterError, match="engines 9"):
        open_backend("transformers", str(TRAINED), engines=9, cluster=cluster.address)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_backend("transformers", "./nowhere", engines=1, cluster=cluster.address)
