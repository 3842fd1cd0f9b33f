"""Every recipe that ships loads, composes and is checked, for its own device, on a machine without one."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from memagent_lib.rl import Recipe, RunFolder

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "experiments").glob("recipes/*.toml"), *(ROOT / "experiments").glob("*/recipes/*.toml")])


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer) -> Path:
    """The folder of a model with a long window, a chat template that can switch thinking off, and no weights."""
    from transformers import Qwen2Config

    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    Qwen2Config(vocab_size=600, max_position_embeddings=32768, **sizes).save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    with (folder / "chat_template.jinja").open("a") as template:
        template.write("{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}")
    return folder


@pytest.fixture
def dry(model, tmp_path) -> Callable[..., list[str]]:
    """A function that makes a recipe's dry run, with a small model in place of a public one."""
    pytest.importorskip("verl")
    from memagent_lib.rl import dry_run

    def run(recipe: Path | str, *settings: str) -> list[str]:
        path = recipe if isinstance(recipe, Path) else next(path for path in RECIPES if path.stem == recipe)
        chosen = Recipe.load(path).model
        folder = ROOT / chosen.path
        if not folder.is_dir():
            folder = ROOT / "experiments/pocket/warm_start" if chosen.device == "cpu" else model
        settings = (f"model.path={folder}", *settings)
        with chdir(tmp_path):  # where none of a recipe's data lies, whatever was made in this clone
            return list(dry_run(Recipe.load(path, settings), tmp_path / "run"))

    return run


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_composes_and_verl_accepts_it(dry, path):
    recipe = Recipe.load(path)
    lines = dry(path)
    assert lines[0].endswith(f"on {recipe.nodes * recipe.workers} x {recipe.model.device}")
    assert lines[1].startswith("window   ")
    assert lines[2].startswith(f"a step   {recipe.prompts * recipe.rollouts:,} readings, {recipe.mini_batches} ")
    assert len(lines) == 3 + len([*recipe.data.files, *recipe.data.eval]) and lines[-1].startswith("missing  ")


def test_a_local_ray_listens_on_loopback_and_a_cluster_gets_the_variables(tmp_path):
    pytest.importorskip("verl")
    from memagent_lib.rl.run.training_process import init_arguments
    from memagent_lib.rl.verl.verl_settings import compose, environment

    local = Recipe.load(next(p for p in RECIPES if p.stem == "pocket_demo"))
    arguments = init_arguments(local, RunFolder(tmp_path), "cpu", compose({}))
    assert (arguments["address"], arguments["num_gpus"]) == ("local", 1)
    variables = environment("cpu", local, RunFolder(tmp_path))
    assert variables["GLOO_SOCKET_IFNAME"] == "lo"
    imports = "import logging, model_hosting_container_standards.sagemaker"  # as vLLM's server does
    command = [sys.executable, "-c", f"{imports}; logging.getLogger('memagent_lib').warning('seen')"]
    ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    assert ran.stderr == "seen\n"
    joined = Recipe.load(next(p for p in RECIPES if p.stem == "paper_7b"))
    arguments = init_arguments(joined, RunFolder(tmp_path), "cuda", compose({}))
    assert arguments["address"] == "auto"
    assert not {"num_gpus", "num_cpus", "object_store_memory"} & set(arguments)
    variables = arguments["runtime_env"]["env_vars"]
    assert variables["VERL_FILE_LOGGER_PATH"] == str(RunFolder(tmp_path).verl_metrics)
    assert "GLOO_SOCKET_IFNAME" not in variables


def test_the_cluster_files_are_well_formed_and_name_the_sizes() -> None:
    import yaml

    folder = ROOT / "experiments" / "recipes" / "cluster"
    subprocess.run(["bash", "-n", str(folder / "slurm.sh")], check=True)
    job = yaml.safe_load((folder / "kuberay.yaml").read_text())
    nodes = 1 + job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
    assert nodes == Recipe.load(folder.parent / "paper_7b.toml").nodes
    for text in ((folder / "slurm.sh").read_text(), job["spec"]["entrypoint"]):
        assert "memagent train" in text and "--resume" in text and "cluster.address=" in text
