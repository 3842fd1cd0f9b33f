"""A Ray cluster of two nodes on this machine, data parallel 2, really trained: a second run is refused, a worker is
killed, the run ends with the reason, and it is resumed to its end."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

from pocket import pocket_task
from waiting import command_of, has_ended, wait_for

from memagent_lib.data import make, save
from memagent_lib.paths import root
from memagent_lib.rl import Recipe, RunError, TrainingRun, TrainingState, launch
from memagent_lib.system import started
from memagent_lib.text import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]
STEPS = 99  # of the run that is killed: it must outlast the start of the one that is refused
POLICY = root() / "experiments" / "pocket" / "warm_start"
READING = {"template": "short", "chunk_tokens": 96, "memory_tokens": 48, "answer_tokens": 48, "question_tokens": 32}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 16, "num_gpus": 1, "object_store_memory": 1 << 28}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False}))
    started(lambda: cluster.add_node(**node))
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def recipe(address: str, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    home, tokenizer = tmp_path_factory.mktemp("two"), Tokenizer.load(POLICY)
    save(make(pocket_task("needle"), 12, 1, tokenizer, chunks=2), home / "x.parquet")
    verl = {
        "trainer.nnodes": 2,
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": 1,
        "data.train_batch_size": 4,
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.optim.lr": 1e-4,
    }
    return Recipe.from_tables(
        {
            "model": {"path": str(POLICY), "device": "cpu"},
            "data": {"train": str(home / "x.parquet"), "eval": str(home / "x.parquet")},
            "reading": READING,
            "verl": verl,
            "cluster": {"address": address},
            "tracking": {"uri": f"sqlite:///{home}/mlflow.db"},
        }
    )


def after_step(run: TrainingRun, step: int) -> None:
    for status in run.follow():
        assert not status.state.over, status
        if status.step >= step:
            return


def workers() -> list[psutil.Process]:
    """The processes that hold the policy, one on each node; the cluster's nodes are this process's children."""
    return [p for p in psutil.Process().children(recursive=True) if "WorkerDict" in command_of(p)]


@pytest.fixture(scope="module")
def interrupted(recipe: Recipe, tmp_path_factory) -> tuple[TrainingRun, list[psutil.Process], str]:
    """The run after a worker was killed, the nodes' workers before, and the error of a second run meanwhile."""
    run = launch(recipe, tmp_path_factory.mktemp("runs") / "first")
    after_step(run, 1)
    found = workers()
    with pytest.raises(RunError) as refused:
        launch(recipe, run.folder.path.with_name("second")).wait()
    found[0].send_signal(signal.SIGKILL)
    while not run.status().state.over:
        time.sleep(0.5)
    return run, found, str(refused.value)


def test_each_node_has_a_worker(interrupted) -> None:
    assert len(interrupted[1]) == 2


def test_a_second_run_on_the_cluster_is_refused_with_the_reason(interrupted, address: str) -> None:
    assert f"a run of verl is on the cluster at {address}" in interrupted[2]


def test_the_death_of_a_worker_ends_the_run_with_a_reason(interrupted) -> None:
    status = interrupted[0].status()
    assert status.state is TrainingState.FAILED
    assert "died" in status.error
    wait_for(lambda: all(map(has_ended, interrupted[1])))


def test_it_resumes_on_the_same_cluster_and_finishes(interrupted, recipe: Recipe) -> None:
    run, _, _ = interrupted
    done = run.status().step
    last = run.folder.latest_checkpoint().step + 2
    shorter = dataclasses.replace(recipe, verl={**recipe.verl, "trainer.total_training_steps": last})
    resumed = launch(shorter, run.folder.path, resume=True)
    assert resumed.wait().step == last
    rows = resumed.folder.rows()
    assert [row["step"] for row in rows] == list(range(1, last + 1))
    assert done >= 1
    for row in rows:
        assert row["metrics"]["rows/produced"] == row["metrics"]["rows/trained"] == 4 * 2 * 3
        assert row["metrics"]["rollout/actor_correlation"] > 0.999
    last = Path(resumed.folder.latest_checkpoint().folder) / "actor"
    assert len(list(last.glob("optim_world_size_2_rank_*.pt"))) == 2
