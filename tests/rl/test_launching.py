"""What cannot work is refused before any process is started."""

import dataclasses
import fcntl
import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("verl")

from memagent_lib.data import Example, save
from memagent_lib.errors import MissingFile
from memagent_lib.models import ModelError
from memagent_lib.prompts import TEMPLATE_FOLDER, BudgetError
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run import training_run
from memagent_lib.rl.run.checks import dry_run, resolved
from memagent_lib.rl.run.training_run import launch
from memagent_lib.rl.run_folder import RunError, RunFolder, TrainingState, TrainingStatus
from memagent_lib.rl.verl.verl_keys import ACTOR, MODEL
from memagent_lib.rl.verl.verl_settings import load_composed
from memagent_lib.settings import SettingsError


@pytest.fixture
def config(tmp_path, tokenizer, monkeypatch) -> Recipe:
    from transformers import Qwen2Config

    def started(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(training_run, "subprocess", SimpleNamespace(Popen=started, DEVNULL=None))
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    Qwen2Config(max_position_embeddings=256, vocab_size=600, **small).save_pretrained(tmp_path / "policy")
    tokenizer.hf.save_pretrained(tmp_path / "policy")
    example = Example(id="1", task="t", question="q?", document="d", answers=("x",), rule="match_part")
    save([example], tmp_path / "x.parquet")
    data = {"train": str(tmp_path / "x.parquet"), "eval": str(tmp_path / "x.parquet")}
    reading = {"template": "short", "chunk_tokens": 64, "memory_tokens": 16, "answer_tokens": 8, "question_tokens": 16}
    model = {"path": str(tmp_path / "policy"), "device": "cpu"}
    return Recipe.from_tables(
        {
            "model": model,
            "data": data,
            "reading": reading,
            "verl": {"trainer.total_training_steps": 2, "data.train_batch_size": 1},
        }
    )


def but(config: Recipe, table: str, **values) -> Recipe:
    if table == "verl":
        return dataclasses.replace(config, verl={**config.verl, **values})
    return dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **values)})


def starts(*arguments, **options) -> None:
    """Launch a run, up to where its process would be started."""
    with pytest.raises(AssertionError, match="a process was started"):
        launch(*arguments, **options)


@pytest.mark.parametrize(
    ("table", "values", "error", "named"),
    [
        ("model", {"path": "/nowhere"}, MissingFile, "no model folder '/nowhere'"),
        ("data", {"train": ("/y.parquet",)}, SettingsError, r"no examples at /y\.parquet"),
        ("reading", {"chunk_tokens": 240}, BudgetError, "chunk_tokens"),
        ("verl", {"actor_rollout_ref.rollout.max_model_len": 80}, BudgetError, "max_model_len"),
        ("verl", {f"{MODEL}.lora_adapter_path": "/nowhere"}, ModelError, "no adapter in /nowhere"),
        (
            "model",
            {"average_with": "/nowhere"},
            SettingsError,
            r"model\.average_with must be a folder with the weights",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_folder_is_made(config, tmp_path, table, values, error, named):
    with pytest.raises(error, match=named):
        launch(but(config, table, **values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("found", ["model", "checkpoints/global_step_3", "config.json"])
def test_what_no_known_run_has_made_is_not_replaced(config, tmp_path, found):
    (tmp_path / "run" / found).mkdir(parents=True)
    for start in (launch, lambda *arguments: list(dry_run(*arguments))):
        with pytest.raises(RunError, match="choose another folder"):
            start(config, tmp_path / "run")


def test_a_judge_that_accepts_no_right_answer_is_refused(config, tmp_path):
    answer = "otter boat mill " * 9  # more than answer_tokens
    example = Example(id="1", task="t", question="q?", document="d", answers=(answer,), rule="match_part")
    save([example, replace(example, id="2", answers=("x",))], tmp_path / "y.parquet")
    with pytest.raises(SettingsError, match=r"1 of 2 examples .*'1': its judge"):
        launch(but(config, "data", train=(str(tmp_path / "y.parquet"),)), tmp_path / "run")


def adapter_in(folder, rank=8):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 16}))
    save_file({}, folder / "adapter_model.safetensors")
    return {f"{MODEL}.lora_adapter_path": str(folder), f"{MODEL}.lora_rank": 8, f"{MODEL}.lora_alpha": 16}


def test_an_adapter_to_train_on_must_be_the_models(config, tmp_path):
    with pytest.raises(SettingsError, match="lora_rank must be 4"):
        launch(but(config, "verl", **adapter_in(tmp_path / "small", rank=4)), tmp_path / "run")
    settings = adapter_in(tmp_path / "theirs")
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "policy" / "model.safetensors")
    (tmp_path / "theirs" / "base.json").write_text(json.dumps({"model": "another", "sha256": "0" * 16}))
    with pytest.raises(ModelError, match="theirs"):
        launch(but(config, "verl", **settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refused_run_does_not_stop_the_active_one_at_exit(config, tmp_path, monkeypatch):
    at_exit = []
    monkeypatch.setattr(training_run.atexit, "register", at_exit.append)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("{}")
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=1))
    lock = folder.lock()
    with pytest.raises(RunError, match="attach to it"):
        launch(config, folder.path, stop_at_exit=True)
    os.close(lock)
    asked = folder.lock(fcntl.LOCK_SH)  # by a panel, which asks every second whether the run lives
    assert folder.status().state is TrainingState.DIED
    os.close(asked)
    assert at_exit == []
    starts(config, tmp_path / "own", stop_at_exit=True)
    assert len(at_exit) == 1


def test_paths_of_a_run_are_absolute(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = resolved(but(config, "data", train=("x.parquet",)), RunFolder(tmp_path / "runs" / "one"))
    assert moved.data.train == (str(tmp_path / "x.parquet"),)
    assert moved.tracking.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"


def with_checkpoint(config: Recipe, path) -> RunFolder:
    """A folder with a run that was begun with this recipe and killed after its checkpoint of step 1."""
    folder = RunFolder(path)
    (folder.checkpoints / "global_step_1").mkdir(parents=True)
    folder.write_recipe(resolved(config, folder), "cpu")
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=1))
    return folder


@pytest.mark.parametrize(
    ("table", "values", "named"),
    [
        ("verl", {f"{ACTOR}.optim.lr": 0.5}, f"verl.{ACTOR}.optim.lr was 1e-06 and is 0.5"),
        ("train", {"seed": 1, "credit": "split"}, "train.credit was shared and is split; train.seed was 0 and is 1"),
    ],
)
def test_a_run_is_not_resumed_as_another_one(config, tmp_path, table, values, named):
    folder = with_checkpoint(config, tmp_path / "run")
    with pytest.raises(RunError, match=named):
        launch(but(config, table, **values), folder.path, resume=True)
    assert folder.recipe()[0] == resolved(config, folder)


def test_a_run_is_not_resumed_with_other_inputs(config, tmp_path):
    example = Example(id="2", task="t", question="q?", document="d", answers=("x",), rule="match_part")
    save([example], tmp_path / "y.parquet")
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"one")
    words = tmp_path / "own.toml"
    shutil.copy(TEMPLATE_FOLDER / "short.toml", words)
    reader = tmp_path / "own.py"
    reader.write_text("from memagent_lib.readers import overwrite as own\n")
    config = but(config, "reading", template=str(words), reader=f"{reader}:own")
    config = but(config, "data", train=(str(tmp_path / "y.parquet"),))
    folder = with_checkpoint(config, tmp_path / "run")
    words.write_text(words.read_text() + "# a comment is no wording\n")
    starts(config, folder.path, resume=True)
    folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=1))
    words.write_text(words.read_text().replace("{question}", "{question} Be brief.", 1))
    reader.write_text("from memagent_lib.readers import map_merge as own\n")
    save([replace(example, id="3")], tmp_path / "y.parquet")
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"two")
    with pytest.raises(RunError) as refused:
        launch(config, folder.path, resume=True)
    for name in ("policy", "y.parquet", "template", "reader"):
        assert f"{name} is not what it was" in str(refused.value)


def test_saving_and_measuring_may_change_when_a_run_is_resumed(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    folder.metrics.write_text('{"step": 1, "metrics": {}}\n')
    changed = but(config, "train", keep_checkpoints=5)
    often = {"trainer.total_training_steps": 3, "trainer.save_freq": 1, "trainer.test_freq": 1}
    changed = but(changed, "verl", **often, **{"actor_rollout_ref.rollout.gpu_memory_utilization": 0.4})
    starts(changed, folder.path, resume=True)
    assert folder.checkpoint_note.read_text() == "1"
    assert load_composed(folder).trainer.val_before_train is False  # else step 1 would have two rows


def test_a_run_without_a_checkpoint_gets_another_mlflow_run(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    folder.mlflow_note.write_text("abc")
    starts(config, folder.path, resume=True)
    assert folder.mlflow_note.read_text() == "abc"
    shutil.rmtree(folder.checkpoints)
    folder.metrics.write_text('{"step": 0, "metrics": {}}\n')
    folder.write_status(TrainingStatus(state=TrainingState.FAILED))
    starts(but(config, "verl", **{f"{ACTOR}.optim.lr": 0.5, "trainer.test_freq": 1}), folder.path, resume=True)
    assert not folder.mlflow_note.exists()
    assert load_composed(folder).trainer.val_before_train is True
    assert folder.rows() == []


def test_a_run_that_has_made_all_its_steps_is_not_started_again(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    folder.write_status(TrainingStatus(state=TrainingState.FINISHED, step=2, steps=2))
    assert launch(config, folder.path, resume=True).status().state is TrainingState.FINISHED
    starts(but(config, "verl", **{"trainer.total_training_steps": 3}), folder.path, resume=True)
