"""What the supervisor makes of a run's files, without training: MLflow entry, models, traces, a store that is away."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from memagent_lib.data import Example, save
from memagent_lib.evaluation import Result
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.supervisor import Supervisor, ledger_entry
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus, save_rollout
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn
from memagent_lib.tracking import Experiment, load_curve, load_results, load_runs
from memagent_lib.tracking.traces import search_traces

QUESTION = "What is the code of the owl?"


def weights(step: int) -> bytes:
    """A policy's file, another one for every step."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save as as_bytes

    return as_bytes({"w": torch.tensor([float(step)])})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one, which takes MLflow seconds to make."""
    Experiment.open(folder := tmp_path_factory.mktemp("store"))
    return folder / "mlflow.db"


@pytest.fixture
def supervisor(store: Path, tmp_path: Path) -> Supervisor:
    """Of a run of two steps, each with a checkpoint, that has one line of metrics per step still to be passed on."""
    shutil.copy(store, tmp_path / "mlflow.db")
    folder = RunFolder(tmp_path / "train")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "model.safetensors").write_bytes(weights(0))
    document = "The code of the owl is 4711. "
    example = Example(id="a", task="needle", question=QUESTION, document=document, answers=("4711",), rule="match_part")
    save([example], tmp_path / "train.parquet")
    save([replace(example, id="b")], tmp_path / "test.parquet")
    read = Turn(Prompt(Kind.READ, QUESTION, "", Chunk(0, document, 0, len(document), 9)), Reply("The code is 4711."))
    trace = Trace(QUESTION, (read, Turn(Prompt(Kind.ANSWER, QUESTION, "The code is 4711."), Reply("\\boxed{4711}"))))
    folder.traces.mkdir(parents=True)
    result = Result(example, "overwrite", 0.5, trace, score("match_part", trace.answer, example.answers))
    save_rollout(folder.traces, result, 1, greedy=False)
    config = Recipe.from_tables(
        {
            "model": {"path": str(tmp_path / "start")},
            "data": {"train": [str(tmp_path / "train.parquet")], "eval": [str(tmp_path / "test.parquet")]},
            "reading": {},
            "verl": {"trainer.total_training_steps": 2, "trainer.save_freq": 1},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
    )
    made = Supervisor(folder, config, "cpu")
    made.write(TrainingStatus(state=TrainingState.RUNNING, steps=2))
    return made


def pass_on(supervisor: Supervisor, entry, step: int, offset: int = 0) -> int:
    """verl finishes a step: a checkpoint that is whole, and a line of metrics."""
    folder = supervisor.folder
    made = folder.checkpoints / f"global_step_{step}" / "actor" / "huggingface"
    made.mkdir(parents=True)
    (made / "model.safetensors").write_bytes(weights(step))
    (made / "config.json").write_text("{}")
    with folder.verl_metrics.open("a") as file:
        file.write(json.dumps({"step": step, "data": {"critic/score/mean": step / 4}}) + "\n")
    return supervisor.pass_on(offset, entry)


def test_a_training_run_is_one_mlflow_run(supervisor: Supervisor, tmp_path: Path) -> None:
    entry = ledger_entry(supervisor.config, supervisor.folder)
    pass_on(supervisor, entry, 2, pass_on(supervisor, entry, 1))
    supervisor.export()
    assert supervisor.complete(entry, TrainingState.FINISHED, "") == ""

    runs = load_runs(entry.experiment)
    assert runs["status"].tolist() == ["FINISHED"]
    assert {"data.train.parquet", "data.test.parquet"} <= set(runs.columns)
    assert load_curve(entry, ["critic/score/mean"])[["step", "value"]].to_numpy().tolist() == [[1, 0.25], [2, 0.5]]
    models = {m.name: m for m in entry.experiment.client.search_logged_models([entry.experiment.experiment_id])}
    assert set(models) == {"start", "train step 1", "train"}
    assert [(m.key, m.step, m.value) for m in models["train step 1"].metrics] == [("critic/score/mean", 1, 0.25)]
    assert [(m.key, m.step, m.value) for m in models["train"].metrics] == [("critic/score/mean", 2, 0.5)]
    assert models["train"].tags["folder"] == str(supervisor.folder.model)
    (result,) = load_results(entry)
    assert (result.example.id, result.score.value, result.example.document) == (
        "a",
        1.0,
        "The code of the owl is 4711. ",
    )
    assert search_traces(entry.experiment, "tags.kind = 'training' AND tags.step = '1'")["example"].tolist() == ["a"]


def test_a_training_logs_to_the_run_it_names_with_its_curve(
    supervisor: Supervisor,
) -> None:
    ledger = Experiment.open(supervisor.config.tracking.uri)
    points = [ledger.start("train lr=1", {"settings": ["train.lr=1"]}, {"sweep_id": "s"}) for _ in range(2)]
    for step, point in enumerate(points, 1):
        named = replace(supervisor.config.tracking, run_id=point.id)
        supervisor.config = replace(supervisor.config, tracking=named)
        entry = ledger_entry(supervisor.config, supervisor.folder)
        offset = supervisor.folder.verl_metrics.stat().st_size if step > 1 else 0
        pass_on(supervisor, entry, step, offset)
        supervisor.complete(entry, TrainingState.STOPPED, "")
    runs = load_runs(ledger)
    assert set(runs["run_id"]) == {point.id for point in points}
    assert set(runs["tags.sweep_id"]) == {"s"} and set(runs["params.verl.trainer.total_training_steps"]) == {"2"}
    assert set(runs["params.settings"]) == {'["train.lr=1"]'} and set(runs["status"]) == {"KILLED"}
    curves = [load_curve(point, ["critic/score/mean"])[["step", "value"]].to_numpy().tolist() for point in points]
    assert curves == [[[1, 0.25]], [[1, 0.25], [2, 0.5]]]


@pytest.mark.parametrize("named", [False, True])
def test_a_training_without_its_deleted_run_gets_a_new_one(supervisor: Supervisor, named: bool) -> None:
    ledger = Experiment.open(supervisor.config.tracking.uri)
    if named:
        tracking = replace(supervisor.config.tracking, run_id=ledger.start("point").id)
        supervisor.config = replace(supervisor.config, tracking=tracking)
    first = ledger_entry(supervisor.config, supervisor.folder)
    pass_on(supervisor, first, 1)
    ledger.client.delete_run(first.id)
    second = ledger_entry(supervisor.config, supervisor.folder)
    assert load_curve(second, ["critic/score/mean"])["value"].tolist() == [0.25]
    assert ledger_entry(supervisor.config, supervisor.folder) == second


def test_a_store_that_is_away_gets_the_metrics_later(supervisor: Supervisor, capfd) -> None:
    entry = ledger_entry(supervisor.config, supervisor.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # to the database, a full disk
    try:
        offset = pass_on(supervisor, entry, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "step 1 is not in MLflow yet: the MLflow store" in capfd.readouterr().out
    assert (supervisor.status.step, [row["step"] for row in supervisor.folder.rows()]) == (1, [1])
    pass_on(supervisor, entry, 2, offset)
    supervisor.complete(entry, TrainingState.STOPPED, "")
    assert load_curve(entry, ["critic/score/mean"])["value"].tolist() == [0.25, 0.5]


def test_a_run_finishes_and_reports_what_mlflow_lacks(
    supervisor: Supervisor,
) -> None:
    entry = ledger_entry(supervisor.config, supervisor.folder)
    pass_on(supervisor, entry, 1)
    (supervisor.folder.traces / "step_000002.jsonl").mkdir()  # no file that can be read
    error = supervisor.complete(entry, TrainingState.FINISHED, "")
    assert error.startswith(f"MLflow lacks a part of this run, all of which is in {supervisor.folder.path}: ")
    assert "step_000002.jsonl" in error
    assert entry.status == "FINISHED"


HANGS = """
import faulthandler, signal, subprocess, sys, time

def waits_in_the_trainer(child):
    print("ready", flush=True)
    child.wait()

faulthandler.register(signal.SIGUSR1)
worker = "import time\\ndef waits_in_a_worker():\\n    print(1, flush=True)\\n    time.sleep(600)\\nwaits_in_a_worker()"
child = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE)
child.stdout.readline()
waits_in_the_trainer(child)
"""


def test_a_hanging_run_ends_with_the_stacks_of_its_processes(supervisor, capfd) -> None:
    entry = ledger_entry(supervisor.config, supervisor.folder)
    supervisor.config = replace(supervisor.config, train=replace(supervisor.config.train, hang_minutes=0.05))
    trainer = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True)
    children = psutil.Process(trainer.pid).children
    try:
        assert trainer.stdout.readline() == "ready\n"
        supervisor.folder.beat()
        below = children()
        supervisor.follow(trainer, entry)
    finally:
        for process in (*below, trainer):
            process.kill()
        trainer.wait()
        trainer.stdout.close()
    state, error = supervisor.end(trainer)
    assert state is TrainingState.FAILED
    assert error.startswith("nothing was finished in 0.05 minutes (train.hang_minutes) after step 0; the stacks of its")
    output = "".join(capfd.readouterr())
    assert "waits_in_the_trainer" in output
    assert "waits_in_a_worker" in output


def test_a_hang_is_found_where_the_file_servers_clock_is_ahead(supervisor) -> None:
    supervisor.config = replace(supervisor.config, train=replace(supervisor.config.train, hang_minutes=0.01))
    supervisor.folder.beat()
    os.utime(supervisor.folder.heartbeat, (time.time() + 3600,) * 2)
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(8)"])
    supervisor.follow(trainer, ledger_entry(supervisor.config, supervisor.folder))
    assert supervisor.hung


KILLED = """
import os, sys
from pathlib import Path
from memagent_lib.rl.run import supervisor
from memagent_lib.rl.run_folder import RunFolder

def away(*_):
    raise OSError("the store is away")

folder = RunFolder(Path(sys.argv[1]))
lock = folder.lock()
supervisor.Supervisor.run = lambda self: os.kill(os.getpid(), 9)
supervisor.ledger_entry = away
supervisor.watch_over(folder, None, "cpu")
"""


def test_a_killed_supervisor_is_recorded_without_a_store(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=1))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "the store is away" in done.stderr
    status = folder.status()
    assert (status.state, status.error) == (TrainingState.FAILED, "the supervisor was killed by signal 9")


def test_a_stop_waits_as_long_as_a_step_and_checkpoint_took(supervisor) -> None:
    assert supervisor.grace() == 0.0  # training has not begun
    supervisor.folder.verl_metrics.touch()
    assert supervisor.grace() == 60.0
    rows = [{"perf/time_per_step": 200.0}, {"perf/time_per_step": 1500.0, "timing_s/save_checkpoint": 900.0}]
    for step, row in enumerate(rows, 1):
        supervisor.progress(step, row)
    assert supervisor.grace() == 60.0 + 2 * 1500 + 2 * 900
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    supervisor.on_signal(signal.SIGTERM, None)
    supervisor.on_signal(signal.SIGTERM, None)
    assert not supervisor.stop_now
    supervisor.on_signal(signal.SIGQUIT, None)
    supervisor.follow(trainer, ledger_entry(supervisor.config, supervisor.folder))
    assert trainer.returncode == -signal.SIGKILL
    assert supervisor.end(trainer) == (TrainingState.STOPPED, "")
    assert supervisor.status.stop_by > time.time() + 1000


def test_validation_is_in_the_grace_and_the_time_left(supervisor) -> None:
    often = supervisor.config.verl | {"trainer.total_training_steps": 9, "trainer.test_freq": 4}
    supervisor.config = replace(supervisor.config, verl=often)
    supervisor.write(replace(supervisor.status, steps=9))
    supervisor.folder.verl_metrics.touch()
    supervisor.progress(1, {"perf/time_per_step": 20.0, "timing_s/save_checkpoint": 3.0})
    assert supervisor.grace() == 60.0 + 2 * 20 + 600 + 2 * 3  # no validation was measured yet
    assert supervisor.status.seconds_left == 8 * 20
    supervisor.progress(4, {"perf/time_per_step": 20.0, "timing_s/testing": 300.0})
    assert supervisor.grace() == 60.0 + 2 * 20 + 2 * 300 + 2 * 3
    assert supervisor.status.seconds_left == 5 * 20 + 2 * 300  # after steps 8 and 9
    supervisor.progress(8, {"perf/time_per_step": 20.0, "timing_s/testing": 300.0})
    assert supervisor.status.seconds_left == 20 + 300
    supervisor.progress(9, {"perf/time_per_step": 20.0, "timing_s/testing": 300.0})
    assert supervisor.status.seconds_left == 0


def test_a_crossed_bound_is_a_metric_and_a_tag_in_mlflow(supervisor: Supervisor) -> None:
    entry = ledger_entry(supervisor.config, supervisor.folder)
    for step, entropy in enumerate([1.0] * 7 + [0.01] * 6):
        supervisor.progress(step - 13, {"rollout/entropy": entropy})  # before the step that verl finishes
    pass_on(supervisor, entry, 1)
    logged = entry.experiment.client.get_run(entry.id).data
    assert logged.metrics["health/crossed"] == 1.0
    assert logged.tags["memagent.health"].startswith("entropy 0.01 is below 0.1")
