"""A run that is killed with ``kill -9`` in the middle of a step and resumed makes the rollouts and the losses of one
that was never touched: really trained, really killed, with dynamic sampling and an epoch that ends after the kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

from pocket import pocket_task

from memagent_lib.data import make, save
from memagent_lib.evaluation import read_results
from memagent_lib.paths import root
from memagent_lib.rl import TrainingRun, TrainingState, attach
from memagent_lib.text import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
STEPS, KILLED_IN = 4, 3
POLICY = root() / "experiments" / "pocket" / "warm_start"
RECIPE = f"""
[model]
path = "{POLICY}"
device = "cpu"
[data]
train = "train.parquet"
eval = "eval.parquet"
[reading]
template = "short"
chunk_tokens = 96
memory_tokens = 48
answer_tokens = 48
question_tokens = 32
[train]
dynamic_sampling = true
[verl]
trainer.total_training_steps = {STEPS}
trainer.test_freq = {STEPS}
trainer.val_before_train = false
trainer.save_freq = 1
data.train_batch_size = 4
actor_rollout_ref.rollout.n = 4
actor_rollout_ref.actor.ppo_mini_batch_size = 2
actor_rollout_ref.actor.optim.lr = 3e-4
actor_rollout_ref.actor.optim.lr_warmup_steps = 3
"""
SAME = (
    "rollout/acc",
    "rollout/prompt_tokens",
    "rollout/reply_tokens",
    "rollout/cut_memories",
    "rows/trained",
    "rollout/replaced",
)
CLOSE = ("actor/pg_loss", "actor/kl_loss", "actor/grad_norm", "actor/lr", "rollout/actor_difference")
TOLERANCE = 1e-4  # relative, of losses in fp32: which prompts shared a batch in vLLM moves their last digits


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("exact")
    tokenizer = Tokenizer.load(POLICY)
    save(make(pocket_task("needle"), 12, 1, tokenizer, chunks=2), home / "train.parquet")  # three steps an epoch
    save(make(pocket_task("needle"), 4, 2, tokenizer, chunks=2), home / "eval.parquet")
    (home / "recipe.toml").write_text(RECIPE)
    yield home
    for left in home.glob("*/status.json"):
        attach(left.parent).stop()  # nothing where the run is over


def train(home: Path, name: str, *flags: str) -> TrainingRun:
    """``memagent train``, as a person types it; returns while the run goes on."""
    command = [sys.executable, "-m", "memagent_lib.cli", "train", "recipe.toml", "--out", name, "--detach", *flags]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return attach(home / name)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (root(), os.environ.get("PYTHONPATH", ""))))}


def of_the_run(run: TrainingRun) -> list[psutil.Process]:
    """The supervisor and all below it."""
    supervisor = psutil.Process(run.status().pid)
    return [supervisor, *supervisor.children(recursive=True)]


@pytest.fixture(scope="module")
def untouched(home: Path) -> TrainingRun:
    run = train(home, "untouched")
    run.wait()
    return run


@pytest.fixture(scope="module")
def killed(home: Path) -> tuple[TrainingRun, list[psutil.Process]]:
    """Killed in the middle of a step: its first rollout is there, its metrics are not."""
    run = train(home, "killed")
    begun = run.folder.traces / f"step_{KILLED_IN:06d}.jsonl"
    while not begun.is_file():
        assert not run.status().state.over, run.status()
        time.sleep(0.05)
    processes = of_the_run(run)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    assert run.folder.rows()[-1]["step"] == KILLED_IN - 1
    return run, processes


def test_a_run_whose_processes_were_all_killed_has_died(killed) -> None:
    run, processes = killed
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert run.status().state is TrainingState.DIED
    mine = str(run.folder.path)
    assert not [p for p in psutil.process_iter(["cmdline"]) if any(mine in word for word in p.info["cmdline"] or ())]


@pytest.fixture(scope="module")
def resumed(home: Path, untouched: TrainingRun, killed) -> TrainingRun:
    run = train(home, "killed", "--resume")
    run.wait()
    return run


def column(run: TrainingRun, name: str) -> list[float]:
    return [row["metrics"][name] for row in run.folder.rows()]


def test_it_resumes_and_finishes_every_step_once(resumed: TrainingRun) -> None:
    assert resumed.status().state is TrainingState.FINISHED
    assert [row["step"] for row in resumed.folder.rows()] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("name", SAME)
def test_its_rollouts_are_those_of_a_run_that_was_not_killed(untouched, resumed, name: str) -> None:
    assert column(resumed, name) == column(untouched, name)


@pytest.mark.parametrize("name", CLOSE)
def test_its_losses_are_those_of_a_run_that_was_not_killed(untouched, resumed, name: str) -> None:
    assert column(resumed, name) == pytest.approx(column(untouched, name), rel=TOLERANCE, abs=1e-7)


def texts(run: TrainingRun) -> dict[tuple[int, str], list[str]]:
    return {
        (result.example.metadata["step"], result.example.id): [turn.reply.text for turn in result.trace.turns]
        for result in read_results(run.folder.traces)
    }


def test_it_wrote_the_same_memories_and_answers(untouched, resumed) -> None:
    one, other = texts(untouched), texts(resumed)
    both = one.keys() & other.keys()
    assert {step for step, _ in both} >= set(range(1, STEPS + 1))
    assert {name: one[name] for name in both} == {name: other[name] for name in both}
