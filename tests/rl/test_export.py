"""A policy is put together from what the ranks of a run saved: really sharded, by two processes, in groups and not."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

RANK = """
import json, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

home, rank = sys.argv[1], int(sys.argv[2])
store = torch.distributed.FileStore(f"{home}/store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
for folder, shape in json.loads(sys.argv[3]):
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=("ddp", "fsdp")[2 - len(shape):])
    model = fully_shard(AutoModelForCausalLM.from_pretrained(f"{folder}/policy"), mesh=mesh)
    torch.save(model.state_dict(), f"{folder}/actor/model_world_size_2_rank_{rank}.pt")
    torch.distributed.barrier()
"""
MESHES = {"shards of both": (2,), "two groups of one": (2, 1)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """A folder for each mesh and kind of policy, in which two processes have saved their shards."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    home = tmp_path_factory.mktemp("ranks")
    sizes = {"hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 1, "num_attention_heads": 3}
    cases = []
    for mesh, shape in MESHES.items():
        for tied in (True, False):
            folder = home / f"{mesh}, {tied}"
            config = Qwen2Config(vocab_size=601, num_key_value_heads=1, head_dim=4, tie_word_embeddings=tied, **sizes)
            Qwen2ForCausalLM(config).save_pretrained(folder / "policy")
            tokenizer.hf.save_pretrained(folder / "policy")
            config.save_pretrained(folder / "actor" / "huggingface")  # what verl leaves of the model: no weights
            cases.append((str(folder), shape))
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(home), str(rank), json.dumps(cases)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=400)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    return home


def export(checkpoint: Path, original: Path, target: Path, **model) -> None:
    from memagent_lib.rl import Recipe
    from memagent_lib.rl.run.export import save_policy
    from memagent_lib.rl.run_folder import Checkpoint

    tables = {"model": {"path": str(original), **model}, "data": {"train": ["x"], "eval": ["x"]}, "reading": {}}
    recipe = Recipe.from_tables(tables | {"verl": {"trainer.total_training_steps": 9}})
    save_policy(Checkpoint(8, checkpoint), recipe, target)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mesh", MESHES)
def test_an_export_joins_the_shards_that_the_ranks_saved(saved: Path, mesh: str, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved / f"{mesh}, {tied}"
    export(folder, folder / "policy", folder / "model")
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy").state_dict()
    exported = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    assert exported.keys() == policy.keys()
    for name, weight in policy.items():
        assert torch.equal(exported[name], weight), name
    modes = {oct((folder / "model" / name).stat().st_mode) for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1, "weights are as readable as other new files"
    assert (folder / "model" / "tokenizer.json").read_bytes() == (folder / "policy" / "tokenizer.json").read_bytes()
    export(folder, folder / "policy", folder / "mean", average_with=str(folder / "policy"), average_share=0.5)
    averaged = AutoModelForCausalLM.from_pretrained(folder / "mean").state_dict()
    assert all(torch.equal(averaged[name], weight) for name, weight in policy.items()), "tied weights are averaged too"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_is_averaged_names_its_type_and_is_never_deleted_in_its_place(
    tmp_path: Path, monkeypatch, dtype: str
) -> None:
    from safetensors.torch import load_file, save_file

    from memagent_lib.rl.run import export as module

    trained = tmp_path / "actor" / "huggingface"
    for folder in (trained, tmp_path / "other"):
        folder.mkdir(parents=True)
    (trained / "config.json").write_text('{"dtype": "float16", "hidden_size": 8}')
    save_file({"w": torch.ones(2)}, tmp_path / "other" / "model.safetensors")
    deleted = []
    rmtree = module.shutil.rmtree
    monkeypatch.setattr(module.shutil, "rmtree", lambda path, **how: (deleted.append(path.name), rmtree(path, **how)))
    for value in (0.0, 1.0):
        save_file({"w": torch.full((2,), value, dtype=getattr(torch, dtype))}, trained / "model.safetensors")
        average = {"average_with": str(tmp_path / "other"), "average_share": 0.25}
        export(tmp_path, trained, tmp_path / "model", **average)
        assert load_file(tmp_path / "model" / "model.safetensors")["w"].tolist() == [0.25 + 0.75 * value] * 2
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == {"dtype": dtype, "hidden_size": 8}
    assert "model" not in deleted


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    from memagent_lib.rl.run.export import whole_weights

    class Harmful:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"weight": Harmful()}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        whole_weights(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def stopped(saved: Path, tmp_path: Path) -> Path:
    """The folder of a run that was stopped after step 8, with checkpoints of steps 4 and 8."""
    from memagent_lib.rl import Recipe, RunFolder

    case = saved / f"{next(iter(MESHES))}, True"
    folder = RunFolder(tmp_path / "run")
    tables = {"model": {"path": str(case / "policy")}, "data": {"train": ["x"], "eval": ["x"]}}
    tables |= {"reading": {"memory_tokens": 7}, "verl": {"trainer.total_training_steps": 9}}
    recipe = Recipe.from_tables(tables)
    for step in (4, 8):
        shutil.copytree(case / "actor", folder.checkpoints / f"global_step_{step}" / "actor")
    folder.config.write_text(json.dumps({"config": recipe.to_tables(), "device": "cpu"}))
    return folder.path


def test_a_stopped_run_is_exported_by_one_command(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from memagent_lib.cli.main import main

    assert main(["export", str(stopped)]) == 0
    model = stopped / "step_8" / "model"
    assert capsys.readouterr().out.strip().endswith("step_8/model")
    assert json.loads((model / "memagent.json").read_text())["budget"]["memory_tokens"] == 7
    assert main(["export", str(stopped), "--step", "4", "--out", str(stopped / "four")]) == 0
    assert (stopped / "four" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
