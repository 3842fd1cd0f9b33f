"""What cannot work is refused before any process is started."""

import dataclasses
import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("verl")

from memagent_lib.data import Example, save
from memagent_lib.models import ModelError
from memagent_lib.prompts import TEMPLATE_FOLDER, BudgetError
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run import checks, launcher, training_plan, training_run
from memagent_lib.rl.run.launcher import launch
from memagent_lib.rl.run.training_plan import PlanError, dry_run
from memagent_lib.rl.run.training_run import RunError, attach
from memagent_lib.rl.run_folder import RunFolder, TrainingState, TrainingStatus
from memagent_lib.rl.verl.verl_keys import ACTOR, MODEL, ROLLOUT
from memagent_lib.settings import SettingsError


@pytest.fixture
def config(tmp_path, tokenizer, monkeypatch) -> Recipe:
    from transformers import Qwen2Config

    def started(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(launcher, "subprocess", SimpleNamespace(Popen=started, DEVNULL=None))
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


TABLES = ("model", "data", "reading")


def but(config: Recipe, table: str, **values) -> Recipe:
    if table == "verl":
        return dataclasses.replace(config, verl={**config.verl, **values})
    return dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **values)})


def starts(*arguments, **options) -> None:
    """Launch a run, up to where its process would be started."""
    with pytest.raises(AssertionError, match="a process was started"):
        launch(*arguments, **options)


def test_a_model_folder_that_is_not_there_is_named(config, tmp_path):
    with pytest.raises(SettingsError, match=r"no model at .*nowhere"):
        launch(but(config, "model", path=str(tmp_path / "nowhere")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_shape_is_no_one_to_average_with(config, tmp_path):
    for folder, width in (("policy", 3), ("wider", 4)):
        (tmp_path / folder).mkdir(exist_ok=True)
        save_file({"w": np.zeros((2, width), np.float32)}, tmp_path / folder / "model.safetensors")
    with pytest.raises(
        SettingsError, match=r"average_with must .*got .*wider for .*policy; w has \[2, 4\] and \[2, 3\]"
    ):
        launch(but(config, "model", average_with=str(tmp_path / "wider")), tmp_path / "run")
    with pytest.raises(SettingsError, match=r"got .*nowhere for .*policy; w has None and \[2, 3\]"):
        launch(but(config, "model", average_with=str(tmp_path / "nowhere")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_model_of_another_run_is_refused(config, tmp_path):
    (tmp_path / "run/model").mkdir(parents=True)
    for start in (launch, dry_run):
        with pytest.raises(RunError, match="a model of another run, which training would replace"):
            start(config, tmp_path / "run")


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("found", ["checkpoints", "config.json"])
def test_what_no_known_run_has_made_is_not_replaced(config, tmp_path, found, resume):
    folder = RunFolder(tmp_path / "run")
    if found == "checkpoints":
        (folder.checkpoints / "global_step_3").mkdir(parents=True)
        folder.checkpoint_note.write_text("3")  # from which verl would continue
    else:
        folder.path.mkdir()
        folder.config.write_text('{"model_type": "llama"}')
    with pytest.raises(RunError, match=rf"run has {found} and no status\.json, .* choose another folder, or remove"):
        launch(config, folder.path, resume=resume)


def test_a_dry_run_checks_what_a_launch_checks(config, tmp_path):
    with pytest.raises(ModelError, match="no adapter in"):
        dry_run(but(config, "verl", **{f"{MODEL}.lora_adapter_path": "nowhere"}), tmp_path / "run")
    with pytest.raises(SettingsError, match="average_with must"):
        dry_run(but(config, "model", average_with=str(tmp_path / "nowhere")), tmp_path / "run")


def adapter_in(folder, rank=8):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 16}))
    save_file({}, folder / "adapter_model.safetensors")
    return {f"{MODEL}.lora_adapter_path": str(folder), f"{MODEL}.lora_rank": 8, f"{MODEL}.lora_alpha": 16}


def test_an_adapter_to_train_on_must_be_the_models(config, tmp_path):
    with pytest.raises(ModelError, match=r"no adapter in .*nowhere; it needs adapter_config.json"):
        launch(but(config, "verl", **{f"{MODEL}.lora_adapter_path": str(tmp_path / "nowhere")}), tmp_path / "run")
    cut = adapter_in(tmp_path / "cut")
    (tmp_path / "cut" / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="damaged"):
        launch(but(config, "verl", **cut), tmp_path / "run")
    with pytest.raises(SettingsError, match=r"lora_rank must be 4, as in the adapter .*small, got 8"):
        launch(but(config, "verl", **adapter_in(tmp_path / "small", rank=4)), tmp_path / "run")
    settings = adapter_in(tmp_path / "theirs")
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "policy" / "model.safetensors")
    (tmp_path / "theirs" / "base.json").write_text(json.dumps({"model": "another", "sha256": "0" * 16}))
    with pytest.raises(ModelError, match=r"theirs was trained on another with weights 0{16}, and .*policy has weights"):
        launch(but(config, "verl", **settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_adapter_to_train_on_is_found_from_any_folder(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = adapter_in(tmp_path / "mine") | {f"{MODEL}.lora_adapter_path": "mine"}
    folder = RunFolder(tmp_path / "run")
    recipe = checks.resolved(but(config, "verl", **settings), folder)
    assert recipe.adapter == str(tmp_path / "mine")
    folder.path.mkdir()
    folder.write_recipe(recipe, "cpu")
    assert not folder.changed_inputs(recipe.reading)
    (tmp_path / "mine" / "adapter_model.safetensors").write_bytes(b"others")
    (changed,) = folder.changed_inputs(recipe.reading)
    assert "adapter_model.safetensors is not what it was" in changed


def test_missing_examples_are_named_with_their_command(config, tmp_path):
    with pytest.raises(SettingsError, match=r"no examples at .*y\.parquet; make some with: memagent data"):
        launch(but(config, "data", train=(str(tmp_path / "y.parquet"),)), tmp_path / "run")


def test_a_window_larger_than_the_models_is_refused(config, tmp_path):
    with pytest.raises(BudgetError, match=r"chunk 240.*allows 256; lower chunk_tokens to at most \d+"):
        launch(but(config, "reading", chunk_tokens=240), tmp_path / "run")


def test_a_window_set_too_small_in_verl_is_refused(config, tmp_path):
    small = but(config, "verl", **{"actor_rollout_ref.rollout.max_model_len": 80})
    with pytest.raises(BudgetError, match="max_model_len allows 80"):
        launch(small, tmp_path / "run")


def test_a_full_disk_is_refused(config, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1 << 20))
    with pytest.raises(PlanError, match=r"the disk is too small by 1\.1 GB: .* 1\.1 GB of logs .*, and 0\.0 GB free"):
        launch(config, tmp_path / "run")


def test_a_machine_too_small_for_the_plan_is_refused(config, tmp_path, monkeypatch):
    monkeypatch.setattr(training_plan, "machine_bytes", lambda: 2e9)
    with pytest.raises(PlanError, match=r"this machine has 2\.0 GB of memory and the run can need \d"):
        launch(config, tmp_path / "run")


def test_a_gpu_too_small_for_the_plan_is_refused_at_the_start(config, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=1e9))
    with pytest.raises(PlanError, match="a GPU of 1 GB does not hold"):
        launch(but(config, "model", device="cuda"), tmp_path / "run")


def test_a_machine_with_too_few_gpus_is_refused_at_the_start(config, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    on_gpus = but(config, "model", device="cuda")
    with pytest.raises(RunError, match=r"needs 8 GPUs \(verl.trainer.n_gpus_per_node\) and torch finds 4 on this"):
        launch(but(on_gpus, "verl", **{"trainer.n_gpus_per_node": 8}), tmp_path / "run")


def test_leftovers_are_not_written_over(config, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("{}")
    folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=1))
    with pytest.raises(RunError, match="holds a run that stopped without a checkpoint; resume it"):
        launch(config, folder.path)


def test_the_command_explains_a_refusal_in_one_line(config, tmp_path, capsys):
    from memagent_lib.cli import main

    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("{}")
    folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=1, steps=2))
    recipe = tmp_path / "recipe.toml"
    tables = config.to_tables()
    lines = [f"{name}.{key} = {json.dumps(tables[name][key])}" for name in TABLES for key in tables[name]]
    lines += ["verl.trainer.total_training_steps = 2", "verl.data.train_batch_size = 1"]
    recipe.write_text("\n".join(line for line in lines if not line.endswith("null")))
    assert main(["train", str(recipe), "--out", str(folder.path), "--tracking", str(tmp_path / "runs")]) == 2
    assert "holds a run that stopped without a checkpoint; resume it (--resume)" in capsys.readouterr().err
    assert main(["follow", str(folder.path)]) == 2
    assert "it continues from its last checkpoint when it is resumed (--resume)" in capsys.readouterr().err


def test_a_refused_run_does_not_stop_the_active_one_at_exit(config, tmp_path, monkeypatch):
    at_exit = []
    monkeypatch.setattr(training_run.atexit, "register", at_exit.append)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config.write_text("{}")
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=1))
    lock = folder.lock()
    with pytest.raises(RunError, match="a run is active"):
        launch(config, folder.path, stop_at_exit=True)
    os.close(lock)
    assert at_exit == []
    starts(config, tmp_path / "own", stop_at_exit=True)
    assert len(at_exit) == 1


def test_a_folder_without_a_run_cannot_be_attached_to(tmp_path):
    with pytest.raises(FileNotFoundError, match="no training run at"):
        attach(tmp_path)


def test_paths_of_a_run_are_absolute(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = launcher.resolved(but(config, "data", train=("x.parquet",)), RunFolder(tmp_path / "runs" / "one"))
    assert moved.data.train == (str(tmp_path / "x.parquet"),)
    assert moved.tracking.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"


def with_checkpoint(config: Recipe, path) -> RunFolder:
    """A folder with a run that was begun with this recipe and killed after its checkpoint of step 1."""
    folder = RunFolder(path)
    (folder.checkpoints / "global_step_1").mkdir(parents=True)
    folder.write_recipe(launcher.resolved(config, folder), "cpu")
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=1))
    return folder


@pytest.mark.parametrize(
    ("table", "values", "named"),
    [
        ("verl", {f"{ACTOR}.optim.lr": 0.5}, f"verl.{ACTOR}.optim.lr was 1e-06 and is 0.5"),
        ("verl", {f"{ACTOR}.clip_ratio_high": 0.28}, f"verl.{ACTOR}.clip_ratio_high was 0.2 and is 0.28"),
        ("train", {"seed": 1, "credit": "split"}, "train.credit was shared and is split; train.seed was 0 and is 1"),
        ("verl", {"trainer.n_gpus_per_node": 2}, "verl.trainer.n_gpus_per_node was 1 and is 2"),
        ("verl", {f"{ROLLOUT}.top_p": 0.9}, f"verl.{ROLLOUT}.top_p was None and is 0.9"),
        ("verl", {f"{MODEL}.lora_alpha": 32}, f"verl.{MODEL}.lora_alpha was None and is 32"),
        ("verl", {f"{ACTOR}.ppo_epochs": 2}, f"verl.{ACTOR}.ppo_epochs was None and is 2"),
        ("reading", {"memory_tokens": 17}, "reading.memory_tokens was 16 and is 17"),
    ],
)
def test_a_run_is_not_resumed_as_another_one(config, tmp_path, table, values, named):
    folder = with_checkpoint(config, tmp_path / "run")
    with pytest.raises(
        RunError, match=f"the recipe differs: {named}. Undo that, or start another run in another folder"
    ):
        launch(but(config, table, **values), folder.path, resume=True)
    assert folder.recipe()[0] == launcher.resolved(config, folder)


def test_a_run_is_not_resumed_with_other_weights_or_algorithm(config, tmp_path):
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"one")
    folder = with_checkpoint(config, tmp_path / "run")
    other = but(config, "verl", **{"algorithm.rollout_correction.rollout_is_threshold": 3.0})
    with pytest.raises(RunError, match=r"rollout_correction\.rollout_is_threshold was None and is 3\.0"):
        launch(other, folder.path, resume=True)
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"two")
    with pytest.raises(RunError, match=r"the weights in .*policy are not those that the run was started with"):
        launch(config, folder.path, resume=True)


def test_a_run_is_not_resumed_with_other_examples(config, tmp_path):
    example = Example(id="2", task="t", question="q?", document="d", answers=("x",), rule="match_part")
    save([example], tmp_path / "y.parquet")
    config = but(config, "data", train=(str(tmp_path / "y.parquet"),))
    folder = with_checkpoint(config, tmp_path / "run")
    save([replace(example, id="3")], tmp_path / "y.parquet")
    with pytest.raises(RunError, match=r"differs: .*y\.parquet is not what it was when the run was started\. Undo"):
        launch(config, folder.path, resume=True)


def test_a_run_is_not_resumed_with_other_words_or_another_reader(config, tmp_path):
    words = tmp_path / "own.toml"
    shutil.copy(TEMPLATE_FOLDER / "short.toml", words)
    reader = tmp_path / "own.py"
    reader.write_text("from memagent_lib.readers import overwrite as own\n")
    config = but(config, "reading", template=str(words), reader=f"{reader}:own")
    folder = with_checkpoint(config, tmp_path / "run")
    words.write_text(words.read_text() + "# a comment is no wording\n")
    starts(config, folder.path, resume=True)
    folder.write_status(TrainingStatus(state=TrainingState.STOPPED, step=1))
    words.write_text(words.read_text().replace("{question}", "{question} Be brief.", 1))
    reader.write_text("from experiments.readers.gated import gated as own\n")
    differs = (
        rf"differs: {words} is not the template that .*; {reader}:own is not the reader that the run was started with"
    )
    with pytest.raises(RunError, match=differs):
        launch(config, folder.path, resume=True)
    recorded = json.loads(folder.config.read_text())
    del recorded["reading"]  # as an older version recorded a run
    folder.config.write_text(json.dumps(recorded))
    starts(config, folder.path, resume=True)


def test_saving_and_measuring_may_change_when_a_run_is_resumed(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    changed = but(config, "train", hang_minutes=5.0)
    often = {"trainer.total_training_steps": 3, "trainer.save_freq": 1, "trainer.test_freq": 1}
    changed = but(changed, "verl", **often, **{"actor_rollout_ref.rollout.gpu_memory_utilization": 0.4})
    starts(changed, folder.path, resume=True)
    assert folder.checkpoint_note.read_text() == "1"


def test_a_run_without_a_checkpoint_gets_another_mlflow_run(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    folder.mlflow_note.write_text("abc")
    starts(config, folder.path, resume=True)
    assert folder.mlflow_note.read_text() == "abc"
    shutil.rmtree(folder.checkpoints)
    folder.write_status(TrainingStatus(state=TrainingState.FAILED))
    named = but(config, "tracking", run_id="abc")
    starts(named, folder.path, resume=True)
    assert folder.mlflow_note.read_text() == "abc"
    folder.write_status(TrainingStatus(state=TrainingState.FAILED))
    starts(but(config, "verl", **{f"{ACTOR}.optim.lr": 0.5}), folder.path, resume=True)
    assert not folder.mlflow_note.exists()


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_checkpoint_of_another_user_is_named(config, tmp_path, monkeypatch, capsys, is_foreign):
    folder = with_checkpoint(config, tmp_path / "run")
    optimizer = folder.checkpoints / "global_step_1" / "optim.pt"
    optimizer.write_bytes(b"pickle")
    owner = optimizer.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + is_foreign)
    starts(config, folder.path, resume=True)
    named = f"global_step_1 belongs to another user (id {owner}); verl unpickles"
    assert (named in capsys.readouterr().out) == is_foreign


def test_with_a_falling_rate_more_steps_are_another_run(config, tmp_path):
    config = but(config, "verl", **{f"{ACTOR}.optim.min_lr_ratio": 0.1})
    folder = with_checkpoint(config, tmp_path / "run")
    with pytest.raises(RunError, match=r"trainer\.total_training_steps was 2 and is 3"):
        launch(but(config, "verl", **{"trainer.total_training_steps": 3}), folder.path, resume=True)


def test_a_run_that_has_made_all_its_steps_is_not_started_again(config, tmp_path):
    folder = with_checkpoint(config, tmp_path / "run")
    folder.write_status(TrainingStatus(state=TrainingState.FINISHED, step=2, steps=2))
    assert launch(config, folder.path, resume=True).status().state is TrainingState.FINISHED
    starts(but(config, "verl", **{"trainer.total_training_steps": 3}), folder.path, resume=True)
