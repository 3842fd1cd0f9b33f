"""Recipes: what is wrong is refused at once, and the message names what would be right."""

import json

import pytest

from memagent_lib.prompts import Encoder, Template
from memagent_lib.readers import READERS
from memagent_lib.rl.config import Recipe, flatten
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_settings import verl_settings
from memagent_lib.settings import SettingsError
from memagent_lib.trace import Kind

RECIPE = """
[model]
path = "policy"
[data]
train = "train.parquet"
eval = ["a.parquet", "b.parquet"]
[reading]
template = "short"
chunk_tokens = 160
[train]
steps = 3
lr = 1
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
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    assert config.verl == {"actor_rollout_ref.rollout.max_num_seqs": 8}


def test_a_recipe_survives_being_written_down(recipe):
    config = Recipe.load(recipe, ["train.seed=7", "tracking.experiment=mine"])
    assert Recipe.from_tables(json.loads(json.dumps(config.to_tables()))) == config


def test_overrides_win_and_may_be_bare_words(recipe):
    config = Recipe.load(
        recipe,
        ["train.steps=9", "model.path=/some/where", "verl.trainer.balance_batch=false", "train.reuse_logprobs=true"],
    )
    assert (config.train.steps, config.model.path, config.train.reuse_logprobs) == (9, "/some/where", True)
    assert config.verl == {"actor_rollout_ref.rollout.max_num_seqs": 8, "trainer.balance_batch": False}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.step=3", ["train has no key step", "steps", "rollouts"]),
        ("trains.steps=3", ["has no key trains", "data, model, reading"]),
        ("train.steps=0", ["steps must be at least 1, got 0"]),
        ("train.steps=three", ["train.steps must be a valid integer, got 'three'"]),
        ("train.rollouts=1", ["rollouts must be at least 2, got 1"]),
        ("train.temperature=0", ["temperature must be above 0"]),
        ("train.keep_checkpoints=0", ["keep_checkpoints must be at least 1"]),
        ("model.device=gpu", ["no device 'gpu'", "auto, cpu, cuda"]),
        ("reading.template=shorts", ["no template 'shorts'", "short"]),
        ("reading.reader=overwrit", ["no reader 'overwrit'", "overwrite"]),
        ("train.advantage=std", ["train.advantage must be 'mean' or 'deviation', got 'std'"]),
        ("train.credit=last", ["train.credit must be 'shared', 'final' or 'split', got 'last'"]),
        ("train.final_lr=0", ["final_lr must be above 0"]),
        ("train.lr=nan", ["lr must be at least 0, got nan"]),
        ("train.lr=inf", ["lr must be at least 0, got inf"]),
        ("train.temperature=nan", ["temperature must be above 0, got nan"]),
        ("train.weight_decay=-1", ["weight_decay must be at least 0, got -1"]),
        ("train.entropy_bonus=-1", ["entropy_bonus must be at least 0, got -1"]),
        ("train.seed=-1", ["seed must be at least 0, got -1"]),
        ("train.failed_share=2", ["failed_share must be at most 1"]),
        ("train.mini_batches=4096", ["mini_batches must be at most prompts_per_step x rollouts = 2048, got 4096"]),
        ("data.train=''", ["train must be a path", "got an empty one"]),
        ("data.eval=''", ["eval must be a path"]),
        ("data.eval_examples=0", ["eval_examples must be at least 1, or -1 for all, got 0"]),
        (
            "cluster.address=somewhere",
            ['address must be "local", "auto" or an address such as 10.0.0.1:6379', "somewhere"],
        ),
        ("data.train=[]", ["train must be a path"]),
        ("steps=3", ["table.key=value"]),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(recipe, override, words):
    with pytest.raises(SettingsError) as refused:
        Recipe.load(recipe, [override])
    for word in words:
        assert word in str(refused.value)


def test_reused_logprobs_need_a_single_optimizer_step(recipe):
    with pytest.raises(SettingsError, match="mini_batches = 1"):
        Recipe.load(recipe, ["train.reuse_logprobs=true", "train.mini_batches=2"])


def test_a_missing_table_and_a_missing_file_are_named(tmp_path, recipe):
    with pytest.raises(SettingsError, match="no recipe at"):
        Recipe.load(tmp_path / "nothing.toml")
    recipe.write_text(RECIPE.replace("[model]", "[model2]"))
    with pytest.raises(SettingsError, match="no key model2"):
        Recipe.load(recipe)
    recipe.write_text(RECIPE.replace('path = "policy"', ""))
    with pytest.raises(SettingsError, match=r"model needs path"):
        Recipe.load(recipe)


def test_nested_and_dotted_names_mean_the_same():
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e.f": 3}) == {"a.b": 1, "a.c.d": 2, "e.f": 3}


def save_policy(folder, tokenizer) -> None:
    """All of a small model but its weights."""
    from transformers import Qwen2Config

    tokenizer.hf.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    Qwen2Config(vocab_size=len(tokenizer.hf), num_key_value_heads=1, **sizes).save_pretrained(folder)


@pytest.mark.parametrize("reader", ["overwrite", "gated", "recall", "multislot", "map_merge"])
def test_verl_is_given_room_for_the_longest_prompt_of_the_reader_that_is_trained(recipe, tmp_path, tokenizer, reader):
    save_policy(tmp_path / "policy", tokenizer)
    config = Recipe.load(recipe, [f"reading.reader={reader}", f"model.path={tmp_path / 'policy'}"])
    chosen = verl_settings(config, RunFolder(tmp_path / "run"), "cuda")
    encoder, shown = Encoder(tokenizer, Template.load("short"), config.reading.budget), READERS[reader].prompts
    longest = max(encoder.prompt_limit(kind, memories) for kind, memories in shown.items())
    assert chosen["data.max_prompt_length"] == longest
    assert chosen["actor_rollout_ref.rollout.max_model_len"] == encoder.window_of(shown)
    assert reader in ("overwrite", "map_merge") or longest > encoder.prompt_limit(Kind.READ)


def rates(recipe, tmp_path, tokenizer, *settings: str) -> list[float]:
    """The learning rate of each of five steps, from verl's own schedule with what the recipe tells verl."""
    torch = pytest.importorskip("torch")
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    save_policy(tmp_path / "policy", tokenizer)
    chosen = verl_settings(
        Recipe.load(recipe, [f"model.path={tmp_path / 'policy'}", "train.steps=5", "train.lr=0.8", *settings]),
        RunFolder(tmp_path / "run"),
        "cuda",
    )
    told = {name.rpartition(".")[2]: value for name, value in chosen.items() if ".actor.optim." in name}
    assert told["lr_scheduler_type"] == "cosine"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=told["lr"])
    schedule = get_cosine_schedule_with_warmup(
        optimizer, told["lr_warmup_steps"], 5, told["min_lr_ratio"], zero_indexed_step=told["zero_indexed_step"]
    )
    found = []
    for _ in range(5):
        found += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    return found


def test_no_prompt_is_split_on_a_cpu(recipe, tmp_path, tokenizer):
    """A step of vLLM's CPU engine that holds part of a seeded prompt fails, and everything in it."""
    save_policy(tmp_path / "policy", tokenizer)
    config = Recipe.load(recipe, [f"model.path={tmp_path / 'policy'}"])
    chosen = verl_settings(config, RunFolder(tmp_path / "run"), "cpu")
    assert chosen["actor_rollout_ref.rollout.enable_chunked_prefill"] is False


def test_no_step_of_a_warm_up_has_a_rate_of_zero_and_the_rate_then_stays(recipe, tmp_path, tokenizer):
    given = rates(recipe, tmp_path, tokenizer, "train.warmup_steps=2")
    assert given == pytest.approx([0.4, 0.8, 0.8, 0.8, 0.8])
    assert rates(recipe, tmp_path, tokenizer) == pytest.approx([0.8] * 5)


def test_a_final_rate_is_reached_at_the_last_step(recipe, tmp_path, tokenizer):
    given = rates(recipe, tmp_path, tokenizer, "train.final_lr=0.1")
    # 0.8 (0.1 + 0.9 (1 + cos(pi x)) / 2) for x = 1/5 .. 1
    assert given == pytest.approx([0.73125, 0.55125, 0.32875, 0.14875, 0.08], abs=1e-4)
