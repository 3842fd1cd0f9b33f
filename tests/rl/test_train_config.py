"""Recipes: what is wrong is refused at once, and the message names what would be right."""

import json

import pytest
from omegaconf import OmegaConf

from memagent_lib.data import Example, save
from memagent_lib.paths import root
from memagent_lib.prompts import Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_keys import ACTOR, DEFAULTS, MINI_BATCH, OWNED, ROLLOUT
from memagent_lib.rl.verl.verl_settings import compose, verl_settings
from memagent_lib.settings import SettingsError, flatten
from memagent_lib.trace import Kind

LR = f"{ACTOR}.optim.lr"
RECIPE = """
[model]
path = "policy"
[data]
train = "train.parquet"
eval = ["a.parquet", "b.parquet"]
[reading]
template = "short"
chunk_tokens = 160
[verl]
trainer.total_training_steps = 3
actor_rollout_ref.actor.optim.lr = 1.0
[verl.actor_rollout_ref.rollout]
max_num_seqs = 8
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_is_read_with_its_types(recipe):
    config = Recipe.load(recipe)
    assert config.data.eval == ("a.parquet", "b.parquet")
    assert config.data.train == ("train.parquet",)
    assert config.verl[LR] == 1.0
    assert config.steps == 3
    assert config.verl[f"{ROLLOUT}.max_num_seqs"] == 8


def test_published_values_fill_in_what_a_recipe_leaves_out(recipe):
    config = Recipe.load(recipe)
    assert (config.prompts, config.rollouts, config.mini_batches, config.nodes, config.workers) == (128, 16, 1, 1, 1)
    assert config.verl == DEFAULTS | {"trainer.total_training_steps": 3, LR: 1.0, f"{ROLLOUT}.max_num_seqs": 8}


def test_a_recipe_survives_being_written_down(recipe):
    config = Recipe.load(recipe, ["train.seed=7", "tracking.experiment=mine"])
    assert Recipe.from_tables(json.loads(json.dumps(config.to_tables()))) == config


def test_overrides_win_and_may_be_bare_words(recipe):
    overrides = ["train.seed=9", "model.path=/some/where", "verl.trainer.balance_batch=false", f"verl.{LR}=1e-4"]
    config = Recipe.load(recipe, overrides)
    assert (config.train.seed, config.model.path) == (9, "/some/where")
    assert (config.verl["trainer.balance_batch"], config.verl[LR]) == (False, 1e-4)
    assert config.verl[f"{ROLLOUT}.max_num_seqs"] == 8
    nested = Recipe.load(recipe, ["verl.actor_rollout_ref.actor={optim.lr=1e-4, clip_ratio_high=0.28}"])
    assert (nested.verl[LR], nested.verl[f"{ACTOR}.clip_ratio_high"]) == (1e-4, 0.28)


REFUSED = {
    "train.sed=3": "train has no key sed",
    "reading.reader=overwrit": "no reader 'overwrit'",
    "train.keep_checkpoints=0": "keep_checkpoints",
    "data.train=''": "train",
    "data.stages=[{files='a',steps=1}]": "train",
    "verl.trainer.total_training_steps=0": "total_training_steps",
    f"verl.{ROLLOUT}.n=1": "rollout.n",
    "verl.trainer.save_freq=-1": "trainer.save_freq must be a whole number of at least 1",
    f"verl.{MINI_BATCH}=48": "ppo_mini_batch_size must divide",
    f"verl.{ROLLOUT}.temperature=0.0": "rollout.temperature must be a number above 0",
    "verl.trainer.nnodes=2": "cluster.address",
    "verl.algorithm.adv_estimator=rloo": "algorithm.adv_estimator",
    "verl.algorithm.use_kl_in_reward=true": "algorithm.use_kl_in_reward",
    "verl.data.train_max_samples=8": "data.train_max_samples",
    "verl.reward.custom_reward_function.path=my.py": "reward.custom_reward_function.path",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_wrong_setting_is_refused_by_its_name(recipe, override):
    with pytest.raises(SettingsError, match=REFUSED[override].replace("=", ".")):
        Recipe.load(recipe, [override])


def test_every_name_that_is_set_or_refused_here_is_one_of_verls():
    pytest.importorskip("verl")
    known = set(flatten(OmegaConf.to_container(compose({}), resolve=False)))
    assert set(DEFAULTS) <= known
    assert [name for name in OWNED if not any(each.startswith(name) for each in known)] == []


def test_reused_log_probs_need_one_optimizer_step(recipe):
    reuse = "verl.algorithm.rollout_correction.bypass_mode=true"
    assert Recipe.load(recipe, [reuse]).mini_batches == 1
    with pytest.raises(SettingsError, match="bypass_mode"):
        Recipe.load(recipe, [reuse, f"verl.{MINI_BATCH}=64"])


def test_a_name_that_verl_does_not_know_is_added_only_on_request():
    pytest.importorskip("verl")
    with pytest.raises(SettingsError, match=r"trainer\.nnode"):
        compose({"trainer.nnode": 2})
    assert compose({"+trainer.nnode": 2}).trainer.nnode == 2
    assert compose({"trainer.save_freq": "null"}).trainer.save_freq is None


@pytest.fixture
def policy(tmp_path, tokenizer) -> str:
    """The setting of a model: a folder with all of a small one but its weights."""
    from transformers import Qwen2Config

    folder = tmp_path / "policy"
    tokenizer.hf.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    Qwen2Config(vocab_size=len(tokenizer.hf), num_key_value_heads=1, **sizes).save_pretrained(folder)
    return f"model.path={folder}"


@pytest.mark.parametrize("reader", ["overwrite", "gated", "recall", "retrieving", "multislot", "map_merge"])
def test_verl_has_room_for_the_readers_longest_prompt(recipe, tmp_path, tokenizer, policy, reader):
    config = Recipe.load(recipe, [f"reading.reader={reader}", policy])
    chosen = verl_settings(config, RunFolder(tmp_path / "run"), "cuda")
    encoder = Encoder(tokenizer, Template.load("short"), config.reading.budget)
    memories = reader_named(reader).prompts
    longest = max(encoder.prompt_limit(kind, count) for kind, count in memories.items())
    assert chosen["data.max_prompt_length"] == longest
    assert chosen["actor_rollout_ref.rollout.max_model_len"] == encoder.window_of(memories)
    assert reader in ("overwrite", "map_merge") or longest > encoder.prompt_limit(Kind.READ)


def rates(recipe, tmp_path, *settings: str) -> list[float]:
    """The learning rate of each of five steps, from verl's own schedule as the recipe sets it."""
    torch = pytest.importorskip("torch")
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    steps = ["verl.trainer.total_training_steps=5", f"verl.{LR}=0.8"]
    chosen = verl_settings(Recipe.load(recipe, [*steps, *settings]), RunFolder(tmp_path / "run"), "cuda")
    optim = {name.rpartition(".")[2]: value for name, value in chosen.items() if ".actor.optim." in name}
    assert optim["lr_scheduler_type"] == "cosine"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=optim["lr"])
    schedule = get_cosine_schedule_with_warmup(
        optimizer, optim["lr_warmup_steps"], 5, optim["min_lr_ratio"], zero_indexed_step=optim["zero_indexed_step"]
    )
    found = []
    for _ in range(5):
        found += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    return found


def test_every_seed_validates_on_the_same_examples(recipe, tmp_path, tokenizer, policy):
    from verl.utils.dataset.rl_dataset import RLHFDataset

    fields = {"question": "q?", "document": "d", "answers": ("x",), "rule": "exact"}
    path = save([Example(id=f"{n}", task="toy", **fields) for n in range(40)], tmp_path / "eval.parquet")

    def drawn(seed: int) -> list[str]:
        settings = [f"train.seed={seed}", policy, "verl.data.val_max_samples=5"]
        chosen = verl_settings(Recipe.load(recipe, settings), RunFolder(tmp_path / "run"), "cuda")
        data = compose(chosen).data
        dataset = RLHFDataset([str(path)], tokenizer.hf, data, max_samples=data.val_max_samples)
        return [row["id"] for row in dataset.dataframe["extra_info"]]

    assert drawn(0) == drawn(1)
    assert len(set(drawn(0))) == 5


def test_a_rate_warms_up_above_zero_and_stays_or_falls_to_its_last(recipe, tmp_path, policy):
    warmed = rates(recipe, tmp_path, policy, f"verl.{ACTOR}.optim.lr_warmup_steps=2")
    assert warmed == pytest.approx([0.4, 0.8, 0.8, 0.8, 0.8])
    falling = rates(recipe, tmp_path, policy, f"verl.{ACTOR}.optim.min_lr_ratio=0.1")
    # 0.8 (0.1 + 0.9 (1 + cos(pi x)) / 2) for x = 1/5 .. 1
    assert falling == pytest.approx([0.73125, 0.55125, 0.32875, 0.14875, 0.08], abs=1e-4)


def test_a_reference_policy_on_a_cpu_computes_as_the_actor(tmp_path) -> None:
    pytest.importorskip("verl")
    path = root() / "experiments/pocket/recipes/pocket_demo.toml"
    for chosen in ([], [f"verl.+{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"]):
        made = Recipe.load(path, chosen)
        made = Recipe.from_tables(made.to_tables() | {"model": {"path": str(root() / made.model.path)}})
        verl = compose(verl_settings(made, RunFolder(tmp_path), "cpu")).actor_rollout_ref
        precisions = [part.fsdp_config.mixed_precision.param_dtype for part in (verl.actor, verl.ref)]
        assert precisions == (["bf16"] * 2 if chosen else ["fp32"] * 2)
