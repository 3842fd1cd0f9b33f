"""Every recipe that ships loads, composes and is planned, for its own device, on a machine without one."""

import re
import subprocess
import tomllib
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from memagent_lib.data import Example, save
from memagent_lib.rl import Recipe, RunFolder, flatten
from memagent_lib.settings import SettingsError

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "experiments").glob("recipes/*.toml"), *(ROOT / "experiments").glob("*/recipes/*.toml")])
# Shapes of the public models: hidden, intermediate, layers, heads, key-value heads, vocabulary.
SHAPES = {
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", 1536, 8960, 28, 12, 2, 151936),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "Qwen/Qwen2.5-14B-Instruct": ("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "Qwen/Qwen3-0.6B": ("qwen3", 1024, 3072, 28, 16, 8, 151936),
}
ACTOR = "actor_rollout_ref.actor"
PACKED = "actor_rollout_ref.model.use_remove_padding"
TIED = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct")


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_loads_and_opens_with_what_it_shows_and_needs(path):
    recipe = Recipe.load(path)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# What it shows:")
    assert any(line.startswith("# What it needs:") for line in lines[:6])
    opening = path.read_text().partition("[model]")[0]
    assert "# Planned: " in opening
    assert "memagent data --from" in opening or "memagent sweep experiments/" in opening
    assert 20 <= len(lines) <= 60
    assert Recipe.from_tables(recipe.to_tables()) == recipe
    if recipe.model.device == "cuda":
        assert any("--dry-run" in line for line in lines[:10])
        assert "make install EXTRA=gpu" in opening
        assert "never run" in opening


@pytest.fixture(scope="module")
def models(tmp_path_factory, tokenizer) -> dict[str, Path]:
    """A folder for each public model: its shape, and a small tokenizer in place of its own."""
    from transformers import AutoConfig

    folder, made = tmp_path_factory.mktemp("models"), {}
    for name, (kind, hidden, inner, layers, heads, kv_heads, vocabulary) in SHAPES.items():
        made[name] = folder / name.replace("/", "--")
        config = AutoConfig.for_model(
            kind,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=vocabulary,
            head_dim=128,
            max_position_embeddings=32768,
            tie_word_embeddings=name in TIED,
        )
        config.save_pretrained(made[name])
        tokenizer.hf.save_pretrained(made[name])
    return made


def planned(path: Path, models: dict[str, Path], tmp_path: Path, *settings: str):
    from memagent_lib.rl import dry_run

    recipe = Recipe.load(path)
    pocket = Path(__file__).parents[2] / recipe.model.path
    if recipe.model.path.startswith("runs/"):  # a run's own model, of the warm start's shape
        pocket = Path(__file__).parents[2] / "experiments/pocket/warm_start"
    model = models.get(recipe.model.path, pocket)
    return dry_run(Recipe.load(path, [f"model.path={model}", *settings]), tmp_path / "run")


@pytest.fixture
def a_large_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(20e12, 0, 10e12))


def hours_are_those_of_the_plan(path, plan):
    """What a recipe's first lines promise is what its dry run says, on the machine that it names."""
    from memagent_lib.rl.run.training_plan import GPUS

    text = " ".join(line.lstrip("# ") for line in path.read_text().partition("[model]")[0].splitlines())
    words = r"Planned: at most ([\d.]+) h a step on (?:an )?(.+?)(?: \(([\d.]+) on A100\))?, (\d+) h for (\d+) steps"
    step, gpu, a100, total, steps = re.search(words, text).groups()
    hours = {name.split(" 24 ")[0].split(" 80 ")[0]: plan.hours(shape) for name, shape in GPUS.items()}
    assert float(step) == pytest.approx(hours[gpu], abs=0.005)
    assert a100 is None or float(a100) == pytest.approx(hours["A100"], abs=0.005)
    assert (int(total), int(steps)) == (round(hours[gpu] * plan.recipe.steps), plan.recipe.steps)
    assert "Data:" in text
    assert "Differences from the published settings" in text


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipes_dry_run_passes_verls_validation_and_fits(path, models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    plan = planned(path, models, tmp_path)
    plan.check()
    recipe = plan.recipe
    verl = plan.verl
    rollout = verl.actor_rollout_ref.rollout
    actor = verl.actor_rollout_ref.actor
    assert {name: OmegaConf.select(verl, name.removeprefix("+")) for name in recipe.verl} == recipe.verl
    assert set(flatten(tomllib.loads(path.read_text())["verl"])) <= set(recipe.verl)
    assert verl.trainer.v1.memagent.dynamic_sampling == recipe.train.dynamic_sampling
    assert not verl.algorithm.filter_groups.enable  # ours follows from the seed
    assert (actor.clip_ratio_c, actor.kl_loss_type, actor.loss_agg_mode) == (3.0, "low_var_kl", "token-mean")
    assert actor.use_kl_loss == (path.stem in ("7b_8gpu", "paper_7b", "paper_14b"))
    assert rollout.max_model_len >= plan.recipe.reading.chunk_tokens + 2 * plan.recipe.reading.memory_tokens
    assert ("hf_model" in actor.checkpoint.save_contents) == (plan.device == "cpu")
    report = "\n".join(plan.lines())
    assert f"{recipe.prompts} prompts x {recipe.rollouts} rollouts" in report
    assert rollout.tensor_model_parallel_size == (2 if path.stem == "paper_14b" else 1)
    if plan.device == "cuda":
        assert verl.actor_rollout_ref.model.override_config.attn_implementation in ("sdpa", "flash_attention_2")
        assert "fits; " in report
        hours_are_those_of_the_plan(path, plan)
    assert not (tmp_path / "run").exists()


def test_the_plans_arithmetic_is_that_worked_out_by_hand(models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    plan = planned(next(p for p in RECIPES if p.stem == "paper_7b"), models, tmp_path)
    assert plan.shape.parameters == 7_615_616_512  # Qwen2.5-7B
    assert next(plan.lines()).startswith("model       7.62B parameters on ")
    small = replace(plan, shape=SimpleNamespace(parameters=824_320))
    assert next(small.lines()).startswith("model       0.8M parameters on ")
    assert plan.work.rollouts == 128 * 16
    assert plan.work.turns == 8
    assert plan.work.reply_tokens == 2048 * 8 * 1024
    tokens = plan.work.trained_tokens
    per_token = 2 * 7_615_616_512 + 2 * 28 * 3584 * plan.work.longest_row
    assert plan.flops["update"] == pytest.approx(4 * tokens * per_token)
    assert plan.flops["reference"] == plan.flops["old log-probabilities"] == pytest.approx(tokens * per_token)
    assert plan.training_bytes()["weights"] == pytest.approx(4 * 7_615_616_512 / 8)  # in shards of 8
    assert plan.training_bytes()["optimizer"] == pytest.approx(8 * 7_615_616_512 / 8)  # back for the update,
    assert plan.resident_bytes() == 0  # away while vLLM samples
    answer_row = plan.work.prompt_tokens / plan.work.rollouts - 7 * (plan.work.longest_row - 1024) + 1024
    replies = 2 * 8336 * 1024 / answer_row  # of a micro-batch of answers, which have the shortest prompts
    assert plan.training_bytes()["logits"] == pytest.approx(replies * 152_064 * 10)
    assert (plan.checkpoint_bytes(), plan.export_bytes()) == (12 * 7_615_616_512, 4 * 7_615_616_512)


def test_shared_prefixes_take_sdpa_and_memory_for_all_logits(models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    path = next(p for p in RECIPES if p.stem == "7b_8gpu")
    packed, trees = (planned(path, models, tmp_path, f"verl.{PACKED}={on}") for on in ("true", "false"))
    model = trees.verl.actor_rollout_ref.model
    assert (packed.verl.actor_rollout_ref.model.use_remove_padding, model.use_remove_padding) == (True, False)
    assert model.override_config.attn_implementation == "sdpa"
    tokens = trees.verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert packed.training_bytes()["logits"] < trees.training_bytes()["logits"] == tokens * 152_064 * 10
    trees.check()


def test_a_plan_counts_the_turns_of_its_own_reader(models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    path = next(p for p in RECIPES if p.stem == "paper_7b")
    work = {name: planned(path, models, tmp_path, f"reading.reader={name}").work for name in ("overwrite", "map_merge")}
    assert (work["overwrite"].turns, work["map_merge"].turns) == (7 + 1, 7 + 6 + 1)
    assert work["map_merge"].reply_tokens == 2048 * 14 * 1024


def test_a_run_that_no_gpu_holds_is_refused_with_the_numbers(models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    from memagent_lib.rl import PlanError

    path = next(p for p in RECIPES if p.stem == "7b_8gpu")
    held = r"no GPU holds \d+ GB of training, or \d+ GB of sampling beside 0 that stay; add workers"
    with pytest.raises(PlanError, match=held):
        planned(
            path, models, tmp_path, "verl.trainer.n_gpus_per_node=1", f"verl.{ACTOR}.ppo_max_token_len_per_gpu=200000"
        ).check()


@pytest.mark.parametrize(
    ("model", "workers", "away", "always"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", 1, False, False),  # 16 bytes a parameter: 25 GB of the 80 that are assumed
        ("Qwen/Qwen2.5-7B-Instruct", 3, True, False),  # 41 GB each
        ("Qwen/Qwen2.5-7B-Instruct", 1, True, True),  # 122 GB
    ],
)
def test_what_leaves_a_gpu_too_little_is_offloaded(models, tmp_path, a_large_disk, model, workers, away, always):
    pytest.importorskip("verl")
    path = next(p for p in RECIPES if p.stem == "qwen2.5_1.5b_80gb")
    plan = planned(path, models, tmp_path, f"model.path={models[model]}", f"verl.trainer.n_gpus_per_node={workers}")
    where = plan.verl.actor_rollout_ref.actor.fsdp_config
    assert (where.param_offload, where.optimizer_offload, where.offload_policy) == (away, away, always)
    assert (plan.resident_bytes() == 0) == away
    assert (plan.training_bytes()["optimizer"] == 0) == always
    plan.check()


def test_the_dry_run_names_examples_that_cannot_be_used(models, tmp_path, a_large_disk):
    pytest.importorskip("verl")
    from memagent_lib.rl import PlanError

    answers = (("4821",), ("otter boat mill " * 99,))
    facts = {"task": "t", "question": "q?", "document": "doc", "rule": "boxed"}
    save([Example(id=str(i), answers=a, **facts) for i, a in enumerate(answers)], file := tmp_path / "x.parquet")
    path, data = next(p for p in RECIPES if p.stem == "pocket_demo"), f"data.train=['{file}']"
    plan = planned(path, models, tmp_path, data)
    assert [line for line in plan.lines() if line.startswith("data")] == [f"data        {plan.unusable[0]}"]
    with pytest.raises(PlanError, match=r"1 of 2 examples of .*x.parquet cannot be used: '1': its judge 'boxed' gives"):
        plan.check()
    refusal = r"2 examples can be trained on and a step takes data\.train_batch_size = 32"
    with pytest.raises(SettingsError, match=refusal):
        planned(path, models, tmp_path, data, "data.bad_examples=leave_out").check()
    planned(path, models, tmp_path, data, "data.bad_examples=leave_out", "verl.data.train_batch_size=2").check()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.path=./nowhere", r"no model at .*nowhere: the folder must hold config.json"),
        ("reading.chunk_tokens=9000", r"chunk 9,000.*allows 4,096; lower chunk_tokens to at most \d+"),
    ],
)
def test_the_dry_run_refuses_what_the_run_itself_would_refuse(models, tmp_path, setting, words):
    pytest.importorskip("verl")
    with pytest.raises(ValueError, match=words):
        planned(next(p for p in RECIPES if p.stem == "pocket_demo"), models, tmp_path, setting)


def test_a_disk_too_small_for_the_checkpoints_is_refused(models, tmp_path, monkeypatch):
    pytest.importorskip("verl")
    from memagent_lib.rl import PlanError

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1e12, 0, 100e9))
    path = next(p for p in RECIPES if p.stem == "7b_8gpu")
    with pytest.raises(
        PlanError, match=r"too small by 296 GB: 4 checkpoints of 91 GB, 30 GB of the policy at the end, and 100"
    ):
        planned(path, models, tmp_path).check()


def test_a_setting_that_verl_does_not_know_is_refused():
    pytest.importorskip("verl")
    from memagent_lib.rl.verl.verl_settings import compose

    with pytest.raises(SettingsError, match=r"no setting 'trainer.nnode'.*'\+trainer.nnode'"):
        compose({"trainer.nnode": 2})
    assert compose({"+trainer.nnode": 2}).trainer.nnode == 2


def test_a_local_run_has_a_ray_of_its_own_on_loopback(models, tmp_path):
    pytest.importorskip("verl")
    from memagent_lib.rl.run.ray_cluster import cluster_environment, init_arguments
    from memagent_lib.rl.verl.verl_settings import compose

    recipe, verl = Recipe.load(next(p for p in RECIPES if p.stem == "pocket_demo")), compose({})
    one, other = (init_arguments(recipe, RunFolder(tmp_path / name), "cpu", verl) for name in ("one", "other"))
    assert (one["address"], one["num_gpus"]) == ("local", 1)
    only_here = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
    assert cluster_environment(recipe) == only_here
    assert one["namespace"] != other["namespace"]


def test_joining_a_cluster_sizes_no_node_and_sends_variables(models, tmp_path):
    pytest.importorskip("verl")
    from memagent_lib.rl.run.ray_cluster import cluster_environment, init_arguments, require_devices
    from memagent_lib.rl.run.training_run import RunError
    from memagent_lib.rl.verl.verl_settings import compose

    recipe = Recipe.load(next(p for p in RECIPES if p.stem == "paper_7b"))
    given = init_arguments(recipe, RunFolder(tmp_path), "cuda", compose({}))
    assert given["address"] == "auto"
    assert cluster_environment(recipe) == {}
    assert not {"num_gpus", "num_cpus", "object_store_memory"} & set(given)
    assert given["runtime_env"]["env_vars"]["VERL_FILE_LOGGER_PATH"] == str(RunFolder(tmp_path).verl_metrics)
    with pytest.raises(RunError, match=r"has 8 GPUs and the run needs 4 nodes x 8 = 32"):
        require_devices(recipe, {"GPU": 8.0})
    require_devices(recipe, {"GPU": 32.0})


def test_the_cluster_files_are_well_formed_and_name_the_sizes() -> None:
    import yaml

    folder = ROOT / "experiments" / "recipes" / "cluster"
    subprocess.run(["bash", "-n", str(folder / "slurm.sh")], check=True)
    job = yaml.safe_load((folder / "kuberay.yaml").read_text())
    groups = job["spec"]["rayClusterSpec"]
    nodes = 1 + groups["workerGroupSpecs"][0]["replicas"]
    asked = Recipe.load(folder.parent / "paper_7b.toml")
    assert (nodes, 8) == (asked.nodes, asked.workers)
    for text in ((folder / "slurm.sh").read_text(), job["spec"]["entrypoint"]):
        assert "memagent train" in text
        assert "--resume" in text
        assert "cluster.address=" in text
