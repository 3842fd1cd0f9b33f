"""What the supervisor makes of a run's files, without training: MLflow entry, models, traces, a store that is away."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from metric_history import history

from memagent_lib.data import Example, save
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.supervisor import Supervisor, mlflow_run
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus
from memagent_lib.tracking import Experiment, TrackingError, load_runs


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
    example = Example(id="a", task="needle", question="q?", document="d", answers=("4711",), rule="match_part")
    save([example], tmp_path / "train.parquet")
    save([replace(example, id="b")], tmp_path / "test.parquet")
    folder.path.mkdir()
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
    entry = mlflow_run(supervisor.recipe, supervisor.folder)
    pass_on(supervisor, entry, 2, pass_on(supervisor, entry, 1))
    supervisor.folder.model.mkdir()
    (supervisor.folder.model / "model.safetensors").write_bytes(weights(2))
    assert supervisor.complete(entry, TrainingState.FINISHED, "") == ""

    runs = load_runs(entry.experiment)
    assert runs["status"].tolist() == ["FINISHED"]
    assert {"data.train.parquet", "data.test.parquet"} <= set(runs.columns)
    assert history(entry, "critic/score/mean") == [(1, 0.25), (2, 0.5)]
    assert runs["tags.model"].iloc[0] == str(supervisor.folder.model)


def test_a_training_logs_to_the_run_it_names_with_its_curve(
    supervisor: Supervisor,
) -> None:
    ledger = Experiment.open(supervisor.recipe.tracking.uri)
    points = [ledger.start("train lr=1", {"settings": ["train.lr=1"]}, {"sweep_id": "s"}) for _ in range(2)]
    for step, point in enumerate(points, 1):
        named = replace(supervisor.recipe.tracking, run_id=point.id)
        supervisor.recipe = replace(supervisor.recipe, tracking=named)
        entry = mlflow_run(supervisor.recipe, supervisor.folder)
        offset = supervisor.folder.verl_metrics.stat().st_size if step > 1 else 0
        pass_on(supervisor, entry, step, offset)
        supervisor.complete(entry, TrainingState.STOPPED, "")
    runs = load_runs(ledger)
    assert set(runs["run_id"]) == {point.id for point in points}
    assert set(runs["tags.sweep_id"]) == {"s"} and set(runs["params.verl.trainer.total_training_steps"]) == {"2"}
    assert set(runs["params.settings"]) == {'["train.lr=1"]'} and set(runs["status"]) == {"KILLED"}
    curves = [history(point, "critic/score/mean") for point in points]
    assert curves == [[(1, 0.25)], [(1, 0.25), (2, 0.5)]]


def test_a_store_that_is_away_gets_the_metrics_later(supervisor: Supervisor, capfd) -> None:
    entry = mlflow_run(supervisor.recipe, supervisor.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # to the database, a full disk
    try:
        offset = pass_on(supervisor, entry, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "step 1 is not in MLflow yet" in capfd.readouterr().out
    assert (supervisor.status.step, [row["step"] for row in supervisor.folder.rows()]) == (1, [1])
    pass_on(supervisor, entry, 2, offset)
    supervisor.complete(entry, TrainingState.STOPPED, "")
    assert history(entry, "critic/score/mean") == [(1, 0.25), (2, 0.5)]


def test_a_run_reports_what_mlflow_lacks(supervisor: Supervisor) -> None:
    entry = mlflow_run(supervisor.recipe, supervisor.folder)
    entry.experiment.client.delete_run(entry.id)
    supervisor.unlogged.append((1, {"loss": 1.0}))
    assert "MLflow lacks a part" in supervisor.complete(entry, TrainingState.STOPPED, "")


def test_a_run_whose_mlflow_run_is_gone_gets_a_new_one_with_its_curve(supervisor: Supervisor) -> None:
    entry = mlflow_run(supervisor.recipe, supervisor.folder)
    pass_on(supervisor, entry, 1)
    entry.experiment.client.delete_run(entry.id)
    again = mlflow_run(supervisor.recipe, supervisor.folder)
    assert again.id != entry.id and history(again, "critic/score/mean") == [(1, 0.25)]
    named = replace(supervisor.recipe.tracking, run_id=entry.id)
    with pytest.raises(TrackingError, match="was deleted"):
        mlflow_run(replace(supervisor.recipe, tracking=named), supervisor.folder)


def test_a_stop_whose_checkpoint_failed_is_a_failure(supervisor: Supervisor) -> None:
    trainer = subprocess.Popen(["false"])
    trainer.wait()
    supervisor.on_signal(signal.SIGTERM, None)
    supervisor.folder.error.write_text("CheckpointError: no space left")
    assert supervisor.end(trainer) == (TrainingState.FAILED, "CheckpointError: no space left")


def test_a_stop_before_the_first_step_is_at_once_and_no_failure(supervisor) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    supervisor.on_signal(signal.SIGTERM, None)
    assert supervisor.folder.stop_request.exists()
    supervisor.follow(trainer, mlflow_run(supervisor.recipe, supervisor.folder))
    assert trainer.returncode == -signal.SIGKILL
    assert supervisor.end(trainer) == (TrainingState.STOPPED, "")


def test_a_run_without_an_end_is_failed_by_what_its_trainer_wrote(supervisor) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"])
    trainer.wait()
    state, error = supervisor.end(trainer)
    assert (state, "code 3" in error) == (TrainingState.FAILED, True)
    supervisor.folder.error.write_text("ValueError: no")
    assert supervisor.end(trainer) == (TrainingState.FAILED, "ValueError: no")
