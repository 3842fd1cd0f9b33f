"""The settings of verl that a recipe sets: their defaults, and the names and values that are refused.

The names are those of verl's configuration (``verl/trainer/config/ppo_trainer.yaml``), but verl is not loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
STEPS = "trainer.total_training_steps"
PROMPTS = "data.train_batch_size"
ROLLOUTS = f"{ROLLOUT}.n"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
MICRO_BATCH = f"{ACTOR}.ppo_max_token_len_per_gpu"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
OWN_LOSS = "memagent"
REUSE_LOGPROBS = "algorithm.rollout_correction.bypass_mode"
LOSS_MEAN = f"{ACTOR}.loss_agg_mode"
LOSS_SCALE = f"{ACTOR}.loss_scale_factor"
CORRECTIONS = ("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_rs")
NULL = "null"
LOGGER = "trainer.logger"
SAVE_FREQ = "trainer.save_freq"
TEST_FREQ = "trainer.test_freq"
NODES = "trainer.nnodes"
WORKERS = "trainer.n_gpus_per_node"
FINAL_LR = f"{ACTOR}.optim.min_lr_ratio"
KL_LOSS = f"{ACTOR}.use_kl_loss"
MAX_MODEL_LEN = f"{ROLLOUT}.max_model_len"
LORA_RANK = f"{MODEL}.lora_rank"
LORA_ALPHA = f"{MODEL}.lora_alpha"
ADAPTER = f"{MODEL}.lora_adapter_path"  # an adapter to train on, in place of a new one
PACKED = f"{MODEL}.use_remove_padding"
CHECKPOINTING = f"{MODEL}.enable_gradient_checkpointing"
EXTERNAL_LIB = f"{MODEL}.external_lib"
SAVED = f"{ACTOR}.checkpoint.save_contents"
RESUMED = ("model", "optimizer", "extra")
"""The parts of a checkpoint (``SAVED``) from which a run continues."""
GPU_SHARE = f"{ROLLOUT}.gpu_memory_utilization"
CHAT_TEMPLATE = "data.apply_chat_template_kwargs"  # a table of arguments, empty in verl's own configuration

# The published objective (arXiv 2507.02259) on one device; verl's own defaults train PPO with GAE on eight.
DEFAULTS: dict[str, Any] = {
    PROMPTS: 128,
    "data.val_max_samples": -1,
    ROLLOUTS: 16,
    f"{ROLLOUT}.temperature": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": False,
    REUSE_LOGPROBS: False,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    KL_LOSS: True,
    f"{ACTOR}.kl_loss_coef": 1e-3,
    f"{ACTOR}.entropy_coeff": 0.0,
    LOSS_MEAN: "token-mean",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_warmup_steps": 0,
    f"{ACTOR}.optim.lr_scheduler_type": "cosine",
    FINAL_LR: 1.0,
    f"{ACTOR}.optim.weight_decay": 0.01,
    NODES: 1,
    WORKERS: 1,
    TEST_FREQ: -1,
}

EPOCHS = f"{ACTOR}.ppo_epochs"
AT_LEAST_ONE = (STEPS, PROMPTS, MINI_BATCH, EPOCHS, SAVE_FREQ, NODES, WORKERS, LORA_ALPHA)
AT_LEAST_ZERO = (
    f"{ACTOR}.clip_ratio_low",
    f"{ACTOR}.clip_ratio_high",
    f"{ACTOR}.kl_loss_coef",
    f"{ACTOR}.entropy_coeff",
    f"{ACTOR}.optim.lr",
    f"{ACTOR}.optim.lr_warmup_steps",
    f"{ACTOR}.optim.weight_decay",
    LORA_RANK,
)
KINDS = {name: type(default) for name, default in DEFAULTS.items()}
KINDS |= dict.fromkeys((STEPS, MINI_BATCH, EPOCHS, SAVE_FREQ, LORA_RANK, LORA_ALPHA, MAX_MODEL_LEN), int)
KINDS[ADAPTER] = str
KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class Owned(NamedTuple):
    """A setting of verl that this library decides: the reason, and the only ``value`` that a recipe may give it."""

    reason: str
    value: Any = None


_DRAWING = Owned("[data] decides which examples a step trains on")
_LENGTHS = Owned("the budgets in [reading] decide how long prompts and replies are")
_CHECKPOINTS = Owned("train.keep_checkpoints decides which checkpoints stay")
OWNED = {
    **dict.fromkeys(("data.shuffle", "data.train_files", "data.train_max_samples"), _DRAWING),
    "data.filter_overlong_prompts": _DRAWING,
    "data.gen_batch_size": Owned(f"a step draws {PROMPTS} prompts, and train.dynamic_sampling replaces single ones"),
    **dict.fromkeys(("data.max_prompt_length", "data.max_response_length"), _LENGTHS),
    "algorithm.adv_estimator": Owned("advantages are those of train.credit, within groups as in GRPO", "grpo"),
    "algorithm.use_kl_in_reward": Owned(
        f"advantages come from the rewards as they are; set verl.{KL_LOSS} for a penalty in the loss", False
    ),
    "critic.enable": Owned("the objective has no critic", False),
    f"{ACTOR}.shuffle": Owned("the rows of a batch are shuffled wherever it makes several optimizer steps"),
    f"{ACTOR}.strategy": Owned("the engine of a run extends verl's FSDP2", "fsdp2"),
    f"{MODEL}.lora.rank": Owned(f"only verl's Megatron engine reads it; set verl.{LORA_RANK}"),
    f"{ROLLOUT}.name": Owned("rollouts are sampled with the parameters of vLLM", "vllm"),
    f"{ROLLOUT}.calculate_log_probs": Owned("every step compares the sampler's probabilities with the actor's", True),
    f"{ACTOR}.grad_clip": Owned(f"verl reads verl.{ACTOR}.optim.clip_grad instead"),
    "trainer.default_local_dir": Owned("checkpoints are in the run's folder, where --resume and the export find them"),
    "trainer.del_local_ckpt_after_load": _CHECKPOINTS,
    "trainer.max_actor_ckpt_to_keep": _CHECKPOINTS,
    "trainer.resume_mode": Owned("--resume decides whether a run continues from its last checkpoint", "auto"),
    "trainer.total_epochs": Owned(f"verl.{STEPS} ends a run"),
    "trainer.v1.trainer_mode": Owned("the trainer of a run extends verl's synchronous one", "sync"),
    "trainer.val_only": Owned("a run trains; `memagent evaluate` scores a policy without training it", False),
}

_SCORING = Owned("the agent loop scores by each example's rule; name a judge with `memagent data --rule FILE.py:NAME`")
OWNED_TABLES = dict.fromkeys(("reward", "custom_reward_function", "reward_model", "sandbox_fusion"), _SCORING)
"""Tables of verl of which every setting is decided here."""

# Keys of recipes before 2026-11-26, and the settings that replace them now.
RENAMED = {
    "model.workers": f"verl.{WORKERS}",
    "model.nodes": f"verl.{NODES}",
    "data.eval_examples": "verl.data.val_max_samples",
    "train.steps": f"verl.{STEPS}",
    "train.prompts_per_step": f"verl.{PROMPTS}",
    "train.rollouts": f"verl.{ROLLOUTS}",
    "train.mini_batches": f"verl.{MINI_BATCH} (prompts in one optimizer step)",
    "train.lr": f"verl.{ACTOR}.optim.lr",
    "train.warmup_steps": f"verl.{ACTOR}.optim.lr_warmup_steps",
    "train.final_lr": f"verl.{FINAL_LR}",
    "train.weight_decay": f"verl.{ACTOR}.optim.weight_decay",
    "train.temperature": f"verl.{ROLLOUT}.temperature",
    "train.advantage": "verl.algorithm.norm_adv_by_std_in_grpo (true for deviation)",
    "train.clip_low": f"verl.{ACTOR}.clip_ratio_low",
    "train.clip_high": f"verl.{ACTOR}.clip_ratio_high",
    "train.kl_loss": f"verl.{ACTOR}.kl_loss_coef (and use_kl_loss = false for none)",
    "train.entropy_bonus": f"verl.{ACTOR}.entropy_coeff",
    "train.reuse_logprobs": f"verl.{REUSE_LOGPROBS}",
    "train.importance_cap": "verl.algorithm.rollout_correction.rollout_is_threshold (and rollout_is)",
    "train.share_prefixes": f"verl.{PACKED} = false",
    "train.eval_every": f"verl.{TEST_FREQ}",
    "train.eval_first": "verl.trainer.val_before_train",
    "train.save_every": f"verl.{SAVE_FREQ}",
}


def completed(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``chosen``, completed with :data:`DEFAULTS`.

    Raises ``ValueError``, which names the setting, if a value is missing, of the wrong type, or unusable for training,
    or if the setting is one of :data:`OWNED` or of :data:`OWNED_TABLES`.
    """
    _check_owned(chosen)
    # With a plus sign, a setting that is read here would stand beside the one without, and verl would take either.
    values = DEFAULTS | {_plain(name): value for name, value in chosen.items()}
    if STEPS not in values:
        raise ValueError(f"verl.{STEPS} is missing; set it to the number of steps that the run makes")
    for name, kind in KINDS.items():
        if kind is float and type(values[name]) is int:  # TOML's 1 for 1.0
            values[name] = float(values[name])
        if name in values and type(values[name]) is not kind:  # not isinstance: True is an int
            raise ValueError(f"verl.{name} must be {KIND_NAMES[kind]}, got {values[name]!r}")
    _check_numbers(values)
    _check_batches(values)
    _check_loss(values)
    _check_saved(values)
    return values


def _plain(name: str) -> str:
    bare = name.removeprefix("+")
    return bare if bare in KINDS else name


def mini_batches(values: Mapping[str, Any]) -> int:
    """Return the number of optimizer steps per batch of prompts."""
    return values[PROMPTS] // values.get(MINI_BATCH, values[PROMPTS])


def _check_owned(chosen: Mapping[str, Any]) -> None:
    for name, value in chosen.items():
        owned = _owned(name.removeprefix("+"))
        if owned and (owned.value is None or value != owned.value):
            right = "left out" if owned.value is None else repr(owned.value)
            raise ValueError(f"verl.{name} must be {right}, got {value!r}: {owned.reason}")


def _owned(name: str) -> Owned | None:
    tables = (owned for table, owned in OWNED_TABLES.items() if name == table or name.startswith(f"{table}."))
    return OWNED.get(name) or next(tables, None)


def _check_numbers(values: Mapping[str, Any]) -> None:
    for least, names in ((1, AT_LEAST_ONE), (0, AT_LEAST_ZERO)):
        for name in names:
            if name in values and not least <= values[name] < math.inf:
                raise ValueError(f"verl.{name} must be at least {least}, got {values[name]}")
    if values[ROLLOUTS] < 2:
        reason = "a rollout is compared with the others of its group"
        raise ValueError(f"verl.{ROLLOUTS} must be at least 2, got {values[ROLLOUTS]}: {reason}")
    temperature = values[f"{ROLLOUT}.temperature"]
    if not 0 < temperature < math.inf:
        reason = "equal rollouts teach nothing"
        raise ValueError(f"verl.{ROLLOUT}.temperature must be above 0, got {temperature}: {reason}")
    if not 0 < values[FINAL_LR] <= 1:
        raise ValueError(f"verl.{FINAL_LR} must be above 0 and at most 1, got {values[FINAL_LR]}")
    share = values.get(GPU_SHARE, 1)
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise ValueError(f"verl.{GPU_SHARE} must be above 0 and at most 1, a share of the memory, got {share!r}")
    examples = values["data.val_max_samples"]
    if examples < 1 and examples != -1:
        raise ValueError(f"verl.data.val_max_samples must be at least 1, or -1 for all, got {examples}")


def _check_batches(values: Mapping[str, Any]) -> None:
    prompts = values[PROMPTS]
    mini_batch = values.get(MINI_BATCH, prompts)
    if prompts % mini_batch:
        raise ValueError(f"verl.{MINI_BATCH} must divide {PROMPTS} = {prompts}, got {mini_batch}")
    if values[REUSE_LOGPROBS] and mini_batch != prompts:
        raise ValueError(
            f"verl.{REUSE_LOGPROBS} needs {MINI_BATCH} = {PROMPTS} = {prompts}, got {mini_batch}: "
            "with more optimizer steps a batch, the policy is no longer the one that sampled"
        )


def _check_loss(values: Mapping[str, Any]) -> None:
    loss = values.get(LOSS, OWN_LOSS)
    if values[REUSE_LOGPROBS] and loss != OWN_LOSS:
        raise ValueError(
            f"verl.{LOSS} must be {OWN_LOSS!r} with {REUSE_LOGPROBS}, got {loss!r}: without the old policy's forward "
            "pass, only that loss compares the actor with the sampler"
        )
    if values[LOSS_MEAN] == "seq-mean-token-sum-norm" and not values.get(LOSS_SCALE):
        raise ValueError(
            f"verl.{LOSS_MEAN} = {values[LOSS_MEAN]!r} needs verl.{LOSS_SCALE}, such as the longest reply in tokens: "
            "without it, verl divides each micro-batch by the longest reply that happens to be in it"
        )
    for name in CORRECTIONS:
        if values[REUSE_LOGPROBS] and values.get(name, NULL) != NULL:
            raise ValueError(
                f"verl.{name} must be left out with {REUSE_LOGPROBS}, got {values[name]!r}: the loss compares with the "
                "sampler's probabilities already, and verl then corrects nothing else"
            )


def _check_saved(values: Mapping[str, Any]) -> None:
    saved = values.get(SAVED, RESUMED)
    if not isinstance(saved, list | tuple) or not set(RESUMED) <= set(saved):
        raise ValueError(
            f"verl.{SAVED} must contain {', '.join(RESUMED)}, got {saved!r}: a resumed run continues from all of them"
        )
