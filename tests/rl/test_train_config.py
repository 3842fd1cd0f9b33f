"""Recipes: what is wrong is refused at once, and the message names what would be right."""

import json
import re

import pytest
from omegaconf import OmegaConf

from memagent_lib.data import Example, save
from memagent_lib.paths import root
from memagent_lib.prompts import Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_keys import ACTOR, DEFAULTS, KINDS, MINI_BATCH, OWNED, OWNED_TABLES, RENAMED, ROLLOUT
from memagent_lib.rl.verl.verl_settings import AGENT_FILE, compose, verl_settings, write_agent_file
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
actor_rollout_ref.actor.optim.lr = 1
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
    assert isinstance(config.verl[LR], float)
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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.sed=3", ["train has no key sed", "keep_checkpoints", "seed"]),
        ("trains.seed=3", ["has no key trains", "data, model, reading"]),
        ("verl.trainer.total_training_steps=0", ["verl.trainer.total_training_steps must be at least 1, got 0"]),
        ("verl.trainer.total_training_steps=three", ["must be a whole number, got 'three'"]),
        ("verl.trainer.save_freq=-1", ["verl.trainer.save_freq must be at least 1, got -1"]),
        (f"verl.{ROLLOUT}.max_model_len=8k", ["max_model_len must be a whole number, got '8k'"]),
        (f"verl.{ROLLOUT}.n=1", [f"verl.{ROLLOUT}.n must be at least 2, got 1"]),
        (f"verl.{ROLLOUT}.temperature=0", [f"verl.{ROLLOUT}.temperature must be above 0"]),
        (f"verl.{ROLLOUT}.temperature=nan", ["temperature must be above 0, got nan"]),
        ("train.keep_checkpoints=0", ["keep_checkpoints must be at least 1"]),
        ("model.device=gpu", ["no device 'gpu'", "auto, cpu, cuda"]),
        ("reading.template=shorts", ["no template 'shorts'", "short"]),
        ("reading.reader=overwrit", ["no reader 'overwrit'", "overwrite"]),
        ("verl.algorithm.norm_adv_by_std_in_grpo=std", ["norm_adv_by_std_in_grpo must be true or false, got 'std'"]),
        ("train.credit=last", ["train.credit must be 'shared', 'final' or 'split', got 'last'"]),
        (f"verl.{ACTOR}.optim.min_lr_ratio=0", [f"verl.{ACTOR}.optim.min_lr_ratio must be above 0"]),
        (f"verl.{LR}=nan", [f"verl.{LR} must be at least 0, got nan"]),
        (f"verl.{LR}=inf", [f"verl.{LR} must be at least 0, got inf"]),
        (f"verl.{LR}=high", [f"verl.{LR} must be a number, got 'high'"]),
        (f"verl.{ACTOR}.optim.weight_decay=-1", ["weight_decay must be at least 0, got -1"]),
        (f"verl.{ACTOR}.entropy_coeff=-1", ["entropy_coeff must be at least 0, got -1"]),
        ("train.seed=-1", ["seed must be at least 0, got -1"]),
        ("train.seed=4294967296", ["seed must be below 2 ** 32, NumPy's limit, got 4294967296"]),
        ("train.failed_share=2", ["failed_share must be at most 1"]),
        (f"verl.{MINI_BATCH}=48", [f"verl.{MINI_BATCH} must divide data.train_batch_size = 128, got 48"]),
        (f"verl.{MINI_BATCH}=4096", ["must divide data.train_batch_size = 128, got 4096"]),
        (f"verl.{MINI_BATCH}=0", ["ppo_mini_batch_size must be at least 1, got 0"]),
        ("data.train=''", ["train must be a path", "got an empty path"]),
        ("data.eval=''", ["eval must be a path"]),
        ("verl.data.val_max_samples=0", ["val_max_samples must be at least 1, or -1 for all, got 0"]),
        (
            "cluster.address=somewhere",
            ['address must be "local", "auto" or an address such as 10.0.0.1:6379', "somewhere"],
        ),
        ("data.train=[]", ["train must be a path"]),
        ("steps=3", ["table.key=value"]),
        *(
            (f"verl.{name}=my.py", [f"verl.{name} must be left out", "memagent data --rule FILE.py:NAME"])
            for name in (
                "reward.custom_reward_function.path",
                "+reward.reward_manager.name",
                "custom_reward_function.path",
                "reward_model.reward_manager",
            )
        ),
        ("verl.data.shuffle=false", ["verl.data.shuffle must be left out, got False: [data] decides which examples"]),
        ("verl.+trainer.total_epochs=1", ["must be left out, got 1: verl.trainer.total_training_steps ends a run"]),
        ("verl.trainer.default_local_dir=x", ["must be left out, got 'x': checkpoints are in the run's folder"]),
        ("verl.algorithm.adv_estimator=rloo", ["must be 'grpo', got 'rloo': advantages are those of train.credit"]),
        ("verl.algorithm.use_kl_in_reward=true", ["must be False, got True: ", f"set verl.{ACTOR}.use_kl_loss"]),
        (f"verl.{ACTOR}.grad_clip=0.5", [f"must be left out, got 0.5: verl reads verl.{ACTOR}.optim.clip_grad"]),
        ("verl.data.gen_batch_size=256", ["verl.data.gen_batch_size must be left out, got 256: a step draws"]),
        ("verl.data.max_response_length=2048", ["must be left out, got 2048: the budgets in [reading] decide"]),
        (f"verl.{ROLLOUT}.name=sglang", ["must be 'vllm', got 'sglang': rollouts are sampled with"]),
        (f"verl.{ROLLOUT}.calculate_log_probs=false", ["must be True, got False: every step compares"]),
        (f"verl.{ACTOR}.strategy=megatron", ["must be 'fsdp2', got 'megatron'"]),
        ("verl.actor_rollout_ref.model.lora.rank=8", ["set verl.actor_rollout_ref.model.lora_rank"]),
        (f"verl.{ACTOR}.ppo_epochs=0", ["ppo_epochs must be at least 1, got 0"]),
        (f"verl.{ROLLOUT}.gpu_memory_utilization=90", ["must be above 0 and at most 1, a share of the memory, got 90"]),
        (f"verl.{ROLLOUT}.gpu_memory_utilization=half", ["a share of the memory, got 'half'"]),
        (f"verl.{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", [f"needs verl.{ACTOR}.loss_scale_factor"]),
        (
            f"verl.{ACTOR}.checkpoint.save_contents=['hf_model']",
            ["must contain model, optimizer, extra, got ['hf_model'"],
        ),
        ("verl.trainer.nnodes=2", ['nnodes is 2 and cluster.address is "local"', 'set it to "auto" or HOST:PORT']),
        ("verl.trainer.resume_mode=disable", ["must be 'auto', got 'disable': --resume decides whether"]),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(recipe, override, words):
    with pytest.raises(SettingsError) as refused:
        Recipe.load(recipe, [override])
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(("name", "now"), RENAMED.items())
def test_an_old_key_is_refused_with_verls_name(recipe, name, now):
    with pytest.raises(SettingsError, match=f"{re.escape(name)} has verl's own name now; write {re.escape(now)}"):
        Recipe.load(recipe, [f"{name}=1"])


def test_every_new_name_of_an_old_key_is_one_of_verls():
    pytest.importorskip("verl")
    known = flatten(OmegaConf.to_container(compose({}), resolve=False))
    assert {now.removeprefix("verl.").split(" ")[0] for now in RENAMED.values()} <= set(known)
    assert set(KINDS) <= set(known)
    assert set(OWNED) <= set(known)
    assert all(any(name.startswith(f"{table}.") for name in known) for table in OWNED_TABLES)


def test_reused_log_probs_need_our_loss_and_one_optimizer_step(recipe):
    reuse = "verl.algorithm.rollout_correction.bypass_mode=true"
    assert Recipe.load(recipe, [reuse]).mini_batches == 1
    gspo = f"verl.{ACTOR}.policy_loss.loss_mode=gspo"
    assert Recipe.load(recipe, [gspo]).mini_batches == 1
    with pytest.raises(SettingsError, match=r"loss_mode must be 'memagent' with .*bypass_mode, got 'gspo'"):
        Recipe.load(recipe, [reuse, gspo])
    with pytest.raises(
        SettingsError, match=r"rollout_is must be left out with .*bypass_mode, got 'sequence': the loss"
    ):
        Recipe.load(recipe, [reuse, "verl.algorithm.rollout_correction.rollout_is=sequence"])
    with pytest.raises(SettingsError, match=r"bypass_mode needs .*ppo_mini_batch_size = data\.train_batch_size = 128"):
        Recipe.load(recipe, [reuse, f"verl.{MINI_BATCH}=64"])


def test_a_slip_in_a_name_of_verls_is_answered_with_the_name():
    pytest.importorskip("verl")
    with pytest.raises(SettingsError, match=rf"no setting 'actor.optim.lr'; did you mean .*{LR}"):
        compose({"actor.optim.lr": 1e-4})
    with pytest.raises(SettingsError, match=r"no setting 'trainer.nnode'.*'\+trainer.nnode'"):
        compose({"trainer.nnode": 2})
    assert compose({"+trainer.nnode": 2}).trainer.nnode == 2
    with pytest.raises(SettingsError, match=rf"no setting '{LR}s'; did you mean .*{LR}"):
        compose({f"{LR}s": 1e-4})


def test_a_text_in_place_of_one_of_verls_numbers_is_refused():
    pytest.importorskip("verl")
    with pytest.raises(
        SettingsError, match=rf"verl\.{ACTOR}\.ppo_max_token_len_per_gpu must be a whole number, got '8k'"
    ):
        compose({f"{ACTOR}.ppo_max_token_len_per_gpu": "8k"})
    with pytest.raises(SettingsError, match=r"trainer\.val_before_train must be true or false, got 'yes'"):
        compose({"trainer.val_before_train": "yes"})
    taken = compose({"trainer.save_freq": "null", f"{ACTOR}.ppo_max_token_len_per_gpu": "${data.train_batch_size}"})
    assert taken.trainer.save_freq is None
    assert taken.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == taken.data.train_batch_size


def test_a_missing_table_and_a_missing_file_are_named(tmp_path, recipe):
    with pytest.raises(SettingsError, match="no recipe at"):
        Recipe.load(tmp_path / "nothing.toml")
    recipe.write_text(RECIPE.replace("[model]", "[model2]"))
    with pytest.raises(SettingsError, match="no key model2"):
        Recipe.load(recipe)
    recipe.write_text(RECIPE.replace('path = "policy"', ""))
    with pytest.raises(SettingsError, match=r"model needs path"):
        Recipe.load(recipe)


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


def test_verl_always_logs_to_the_file_of_metrics(recipe, tmp_path, policy):
    for chosen, loggers in (
        ([], ["console", "file"]),
        (["verl.trainer.logger=wandb"], ["wandb", "file"]),
        (["verl.trainer.logger=['file','console']"], ["file", "console"]),
    ):
        config = Recipe.load(recipe, [policy, *chosen])
        assert verl_settings(config, RunFolder(tmp_path / "run"), "cpu")["trainer.logger"] == loggers


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


def test_no_prompt_is_split_on_a_cpu(recipe, tmp_path, policy):
    """A step of vLLM's CPU engine that holds part of a seeded prompt fails, and everything in it."""
    chosen = verl_settings(Recipe.load(recipe, [policy]), RunFolder(tmp_path / "run"), "cpu")
    assert chosen["actor_rollout_ref.rollout.enable_chunked_prefill"] is False


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


def test_a_warm_up_starts_above_zero_and_the_rate_then_stays(recipe, tmp_path, policy):
    warmed = rates(recipe, tmp_path, policy, f"verl.{ACTOR}.optim.lr_warmup_steps=2")
    assert warmed == pytest.approx([0.4, 0.8, 0.8, 0.8, 0.8])
    assert rates(recipe, tmp_path, policy) == pytest.approx([0.8] * 5)


def test_a_final_rate_is_reached_at_the_last_step(recipe, tmp_path, policy):
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


def test_a_plus_sign_makes_no_second_setting_of_a_known_one(recipe):
    config = Recipe.load(recipe, ["verl.+data.train_batch_size=64", f"verl.+{LR}=1", "verl.+custom.key=1"])
    assert (config.prompts, config.verl[LR], config.verl["+custom.key"]) == (64, 1.0, 1)
    assert not {"+data.train_batch_size", f"+{LR}"} & config.verl.keys()


def test_an_override_in_a_table_that_is_none_is_refused(recipe):
    recipe.write_text('model = "policy"\nverl = 5\n')
    for override, found in (("model.path=x", "'policy'"), ("verl.trainer.nnodes=1", "5")):
        with pytest.raises(
            SettingsError, match=f"must be a table for the override '{override}', and the recipe has {found}"
        ):
            Recipe.load(recipe, [override])


def test_a_runs_path_may_have_any_character(recipe, tmp_path, policy):
    folder = RunFolder(tmp_path / "eule \N{OWL} ü")
    write_agent_file(Recipe.load(recipe, [policy]), folder)
    (loop,) = OmegaConf.load(folder.path / AGENT_FILE)
    assert loop.trace_folder == str(folder.traces)
