"""The bench of training: its arithmetic by hand, and once, very small, both loops on the real stack."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from waiting import has_ended, wait_for

from experiments.studies.speed.processes import Watched, memory_by_role, role, spent_between, watch
from experiments.studies.speed.train import TrainBench, bench_recipe, bench_train, run_ends, step_ratios, step_rows
from experiments.studies.speed.verl_command import hydra_value
from memagent_lib.data import load
from memagent_lib.paths import root

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
LEAVES_ONE = f"""
import subprocess, sys
print(subprocess.Popen({SLEEPS!r}, start_new_session=True).pid, flush=True)
sys.exit(int(sys.argv[1]))
"""


def watched(step: float) -> Watched:
    """Steps of ``step`` seconds; every process spends two processor seconds on each."""
    rows = [{"timing_s/step": step, "timing_s/gen": step / 2, "step": n} for n in (1, 2, 3)]
    spent = [Counter(actor=10 + 2 * n, engine=2 * n) for n in (1, 2, 3)]
    total = Counter(actor=20, engine=7)
    return Watched(rows, [30 + step * n for n in range(3)], spent, 40 + 3 * step, total, [{"actor": 100.0}], 4)


def test_the_first_step_is_left_out_and_start_and_end_are_apart():
    seen = watched(4.0)
    rows = step_rows("memagent", 0, seen)
    assert [row["cpu"] for row in rows] == [{"actor": 2, "engine": 2}] * 2
    assert spent_between(seen, 0, 2) == {"actor": 4, "engine": 4}
    ends = run_ends("memagent", 0, seen)
    assert (ends["start_s"], ends["end_s"], ends["cpu_s"]) == (26.0, 14.0, 27 - 12)


def test_verls_step_over_ours_is_paired_step_by_step():
    rows = step_rows("memagent", 0, watched(4.0)) + step_rows("verl", 0, watched(10.0))
    ratios = {ratio.what: ratio for ratio in step_ratios(rows)}
    assert ratios["verl over memagent, wall"].rounds == (2.5, 2.5)
    assert ratios["verl over memagent, wall"].met
    assert ratios["verl over memagent, processor"].met is False


def test_processes_are_known_by_their_command_lines():
    assert role("ray::WorkerDict.actor_rollout_update_actor") == "actor"
    assert role("/bin/python -m memagent_lib.rl.run.training_process /tmp/x") == "trainer"
    assert role("/ray/core/src/ray/raylet/raylet --x") == "ray"
    assert role("sleep 5") == "other"


def test_memory_counts_for_the_role_that_a_process_ends_with():
    """Ray starts workers without a role and names them later; a process that no look at roles has seen is another."""
    worker, store, unseen = (7, 1.0), (8, 1.0), (9, 1.0)
    roles = {worker: "actor", store: "ray"}
    assert memory_by_role({worker: 300.0, store: 100.0}, roles) == {"actor": 300.0, "ray": 100.0}
    assert memory_by_role({store: 100.0, unseen: 20.0}, roles) == {"ray": 100.0, "other": 20.0}


@pytest.mark.parametrize("status", [0, 3])
def test_only_what_a_watched_command_leaves_behind_is_ended(tmp_path: Path, status: int):
    command, log = [sys.executable, "-c", LEAVES_ONE, str(status)], tmp_path / "log"
    with subprocess.Popen(SLEEPS) as other:
        try:
            if status:
                with pytest.raises(RuntimeError, match=r"ended with 3:\n\d+\n$"):
                    watch(command, {}, tmp_path, tmp_path / "metrics.jsonl", log)
            else:
                watch(command, {}, tmp_path, tmp_path / "metrics.jsonl", log)
            assert not psutil.pid_exists(int(log.read_text()))
            assert other.poll() is None
        finally:
            other.kill()


def test_a_command_that_cannot_start_is_an_error_with_its_reason(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"no-such-command ended with 1:(?s:.)*FileNotFoundError"):
        watch(["no-such-command"], {}, tmp_path, tmp_path / "metrics.jsonl", tmp_path / "log")


def test_a_watched_command_ends_when_the_bench_is_killed(tmp_path: Path):
    code = f"""
from pathlib import Path
from experiments.studies.speed.processes import watch
folder = Path({str(tmp_path)!r})
watch([*{SLEEPS[:2]!r}, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"], {{}}, folder, folder / "m",
      folder / "log")
"""
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", code]) as bench:
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
        command = psutil.Process(int(log.read_text()))
        bench.kill()
    wait_for(lambda: has_ended(command))


def test_values_are_written_as_hydra_reads_them():
    assert hydra_value({"a": ["x", 1], "b": None, "c": True}) == "{a:['x',1],b:null,c:True}"


def test_one_step_would_measure_the_warm_up():
    with pytest.raises(ValueError, match="steps must be at least 2"):
        TrainBench(steps=1)


def test_another_model_trains_by_the_recipe_of_prose(model_folder, tmp_path):
    recipe = bench_recipe(TrainBench(prompts=2, rollouts=2, chunks=2, steps=2, model=model_folder), tmp_path)
    assert recipe.model.path == model_folder
    assert (recipe.data.train, recipe.data.stages) == ((str(tmp_path / "train.parquet"),), ())
    tasks = [example.task for example in load(recipe.data.train[0])]
    assert tasks == ["prose_needle"] * 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("base", ["", pytest.param(str(root()), marks=pytest.mark.long)])
def test_every_loop_trains_for_real(base):
    pytest.importorskip("verl")
    pytest.importorskip("vllm")
    settings = TrainBench(prompts=2, rollouts=2, chunks=1, steps=2, base=base)
    found = bench_train(settings, report=lambda line: None)
    rows = {row["side"]: row for row in found["step"].rows}
    assert set(rows) == {"memagent", "verl"} | ({"base"} if base else set())
    assert all(row["response_length/mean"] > 0 and row["cpu"]["actor"] > 0 for row in rows.values())
    assert rows["memagent"]["rows/trained"] == 2 * 2 * 2
    assert [row["turns"] for row in found["rollout"].rows] == [8]
