"""The settings of verl that a recipe sets by default, those that it may not set, and what must agree between them.

The names are those of verl's configuration (``verl/trainer/config/ppo_trainer.yaml``), but verl is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
STEPS = "trainer.total_training_steps"
PROMPTS = "data.train_batch_size"
ROLLOUTS = f"{ROLLOUT}.n"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
MICRO_BATCH = f"{ACTOR}.ppo_max_token_len_per_gpu"
OWN_LOSS = "memagent"
REUSE_LOGPROBS = "algorithm.rollout_correction.bypass_mode"
TEST_FREQ = "trainer.test_freq"
SAVE_FREQ = "trainer.save_freq"  # at -1, verl does not save the last step either
NODES = "trainer.nnodes"
WORKERS = "trainer.n_gpus_per_node"
FINAL_LR = f"{ACTOR}.optim.min_lr_ratio"
KL_LOSS = f"{ACTOR}.use_kl_loss"
MAX_MODEL_LEN = f"{ROLLOUT}.max_model_len"
LORA_RANK = f"{MODEL}.lora_rank"
ADAPTER = f"{MODEL}.lora_adapter_path"  # an adapter to train on, instead of a new one
PACKED = f"{MODEL}.use_remove_padding"
EXTERNAL_LIB = f"{MODEL}.external_lib"
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
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_warmup_steps": 0,
    f"{ACTOR}.optim.lr_scheduler_type": "cosine",
    FINAL_LR: 1.0,
    f"{ACTOR}.optim.weight_decay": 0.01,
    NODES: 1,
    WORKERS: 1,
    TEST_FREQ: -1,
}

OWNED = (
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    "critic.",
    "custom_reward_function",
    "data.filter_overlong_prompts",
    "data.shuffle",
    "data.train_files",
    "data.train_max_samples",
    "distillation",
    f"{ACTOR}.shuffle",
    f"{ACTOR}.strategy",
    f"{ROLLOUT}.name",
    "reward",
    "trainer.default_local_dir",
    "trainer.logger",
    "trainer.resume_mode",
    "trainer.total_epochs",
    "trainer.v1",
)
"""Settings, and beginnings of settings, that the other tables of a recipe and this library decide."""


def completed(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``chosen``, completed with :data:`DEFAULTS`.

    Raises ``ValueError`` for a setting of :data:`OWNED`, and for values with which a step cannot be made.
    """
    for name in chosen:
        if name.removeprefix("+").startswith(OWNED):
            raise ValueError(f"verl.{name} is not a recipe's to set; leave it out")
    values = DEFAULTS | dict(chosen)
    mini_batch = values.get(MINI_BATCH, values[PROMPTS])
    numbers = {SAVE_FREQ: values.get(STEPS)} | values | {MINI_BATCH: mini_batch}
    for name in (STEPS, PROMPTS, ROLLOUTS, MINI_BATCH, NODES, WORKERS, SAVE_FREQ):
        number = numbers.get(name)
        least = 2 if name == ROLLOUTS else 1  # a rollout is compared with the others of its group
        if not isinstance(number, int) or number < least:
            raise ValueError(f"verl.{name} must be a whole number of at least {least}, got {number!r}")
    temperature = values[f"{ROLLOUT}.temperature"]
    if not isinstance(temperature, int | float) or temperature <= 0:  # at 0, all rollouts of a prompt are the same
        raise ValueError(f"verl.{ROLLOUT}.temperature must be a number above 0, got {temperature!r}")
    if values[PROMPTS] % mini_batch:
        raise ValueError(f"verl.{MINI_BATCH} must divide {PROMPTS} = {values[PROMPTS]}, got {mini_batch}")
    if values[REUSE_LOGPROBS] and mini_batch < values[PROMPTS]:
        why = "with more optimizer steps a batch, the policy is no longer the one that sampled"
        raise ValueError(f"verl.{REUSE_LOGPROBS} needs {MINI_BATCH} = {PROMPTS} = {values[PROMPTS]}: {why}")
    return values
