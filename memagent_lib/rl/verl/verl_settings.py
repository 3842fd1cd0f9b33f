"""A recipe in verl's own settings: ours for its device, then the user's raw overrides.

Writes the file from which verl builds agent loops. Knows verl's configuration, starts nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import asdict
from typing import Any

from memagent_lib.backends import shape_of
from memagent_lib.paths import write_atomically
from memagent_lib.prompts import Encoder, Template
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import cpu_environment, cpu_settings
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.settings import SettingsError
from memagent_lib.text import Tokenizer

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
AGENT_FILE = "agent_loop.json"
DRAWING = {f"data.{name}" for name in ("shuffle", "train_files", "train_max_samples", "filter_overlong_prompts")}
MICRO_BATCH_TOKENS = 16_384  # at least, on a GPU: twice a small window would make micro-batches of two or three rows
MOST_IN_UPDATE, MOST_BESIDE_SAMPLING = 0.6, 0.4  # shares of a GPU's memory
ASSUMED_GPU_BYTES = 80e9  # where a run is planned on a machine without one
POLL_S = 0.2  # how often the trainer looks whether the rollouts have finished


def verl_settings(recipe: Recipe, folder: RunFolder, device: str) -> dict[str, Any]:
    """verl's settings by dotted name; those that start with ``+`` are not in verl's own configuration."""
    if taken := DRAWING & set(recipe.verl):
        raise SettingsError(f"[verl] has {', '.join(sorted(taken))}; which examples a step trains on is said in [data]")
    encoder = encoder_of(recipe)
    own = cpu_settings(recipe, encoder) if device == "cpu" else _cuda(recipe, encoder)
    chosen = _model_and_data(recipe, encoder) | _training(recipe) | _rollout(recipe, folder, encoder)
    chosen |= _trainer(recipe, folder) | own
    given = {name.removeprefix("+") for name in recipe.verl}
    return {name: value for name, value in chosen.items() if name.removeprefix("+") not in given} | dict(recipe.verl)


def encoder_of(recipe: Recipe) -> Encoder:
    """What counts the tokens of the recipe's prompts."""
    reading = recipe.reading
    return Encoder(Tokenizer.load(recipe.model.path), Template.load(reading.template), reading.budget, reading.shows)


def compose(chosen: dict[str, Any]) -> Any:
    """verl's whole configuration with ``chosen`` in it, as its own main function would get it."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("ppo_trainer")
    for name, value in chosen.items():
        add, key = name.startswith("+"), name.removeprefix("+")
        parent, _, leaf = key.rpartition(".")
        known = set((OmegaConf.select(config, parent) if parent else config) or ())  # a set, because it sees ??? values
        if not add and leaf not in known:
            raise SettingsError(f"verl has no setting {key!r}; to add one that it does not know, write '+{key}'")
        OmegaConf.update(config, key, value, force_add=True, merge=True)
    return config


def write_agent_file(recipe: Recipe, folder: RunFolder) -> None:
    """The file from which verl builds one agent loop per rollout."""
    folder.traces.mkdir(parents=True, exist_ok=True)
    entry = {
        "name": "memagent",
        "_target_": "memagent_lib.rl.agent_loop.MemAgentLoop",
        "reader": recipe.reading.reader,
        "template": recipe.reading.template,
        "budget": asdict(recipe.reading.budget),
        "window": encoder_of(recipe).window,
        "seed": recipe.train.seed,
        "overlong": str(recipe.train.overlong),
        "overlong_buffer": recipe.train.overlong_buffer,
        "overlong_weight": recipe.train.overlong_weight,
        "trace_folder": str(folder.traces),
        "traces_per_step": recipe.train.traces_per_step,
    }
    write_atomically(folder.path / AGENT_FILE, json.dumps([entry], indent=2))


def leave_out_slow_imports(folder: RunFolder) -> None:
    """Ray imports jsonschema, which builds a grammar of web addresses wherever Jupyter's package for it is installed.

    It costs 1.6 of the 2.2 processor seconds of ``import ray``, in a dozen processes, and Ray has no use for it.
    """
    text = 'raise ImportError("left out: nothing in a training run checks web addresses")\n'
    write_atomically(folder.left_out / "rfc3987_syntax.py", text)


def environment(device: str, workers: int, folder: RunFolder) -> dict[str, str]:
    """Environment variables that verl, vLLM and Ray read, for the process that trains and all that it starts."""
    paths = [str(folder.left_out), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VERL_FILE_LOGGER_PATH": str(folder.verl_metrics),
        "PYTHONDONTWRITEBYTECODE": "",  # where it is set, ten processes compile all of verl and vLLM each time
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    } | (cpu_environment(workers, folder.key) if device == "cpu" else {})


def _model_and_data(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": recipe.model.path,
        "actor_rollout_ref.model.external_lib": "memagent_lib.rl.verl.reply_engine",  # registers it and the loss
        "data.train_files": list(recipe.data.files),
        "data.val_files": list(recipe.data.eval),
        "data.val_max_samples": recipe.data.eval_examples,
        "data.train_batch_size": recipe.train.prompts_per_step,
        "data.max_prompt_length": encoder.longest_prompt,
        "data.max_response_length": encoder.longest_reply,
        "data.seed": recipe.train.seed,
        "data.gen_batch_size": 1 if recipe.train.dynamic_sampling else None,  # prompts are replaced one by one
    }


def _training(recipe: Recipe) -> dict[str, Any]:
    train = recipe.train
    importance = train.importance_cap > 0 and not train.reuse_logprobs
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": train.advantage == "deviation",
        "algorithm.rollout_correction.bypass_mode": train.reuse_logprobs,
        "algorithm.rollout_correction.rollout_is": "token" if importance else None,
        "algorithm.rollout_correction.rollout_is_threshold": train.importance_cap or 2.0,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.policy_loss.loss_mode": "memagent",
        f"{ACTOR}.ppo_mini_batch_size": max(1, train.prompts_per_step // train.mini_batches),
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.use_kl_loss": train.kl_loss > 0,
        f"{ACTOR}.kl_loss_coef": train.kl_loss,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.entropy_coeff": train.entropy_bonus,
        f"{ACTOR}.clip_ratio": train.clip_low,
        f"{ACTOR}.clip_ratio_low": train.clip_low,
        f"{ACTOR}.clip_ratio_high": train.clip_high,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra"],  # the export follows at the end
        f"{ACTOR}.data_loader_seed": train.seed,
        f"{ACTOR}.fsdp_config.seed": train.seed,
        f"{ACTOR}.optim.lr": train.lr,
        f"{ACTOR}.optim.lr_warmup_steps": train.warmup_steps,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.optim.min_lr_ratio": train.final_lr,
        f"{ACTOR}.optim.zero_indexed_step": False,  # else the first step has a rate of zero
        f"{ACTOR}.optim.weight_decay": train.weight_decay,
    }


def _rollout(recipe: Recipe, folder: RunFolder, encoder: Encoder) -> dict[str, Any]:
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": recipe.train.rollouts,
        f"{ROLLOUT}.seed": recipe.train.seed,
        f"{ROLLOUT}.temperature": recipe.train.temperature,
        f"{ROLLOUT}.max_model_len": encoder.window,
        f"{ROLLOUT}.agent.agent_loop_config_path": str(folder.path / AGENT_FILE),
        f"{ROLLOUT}.agent.default_agent_loop": "memagent",
        "reward.num_workers": 0,  # the agent loop scores
    }


def _trainer(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    train = recipe.train
    return {
        "trainer.project_name": recipe.tracking.experiment,
        "trainer.experiment_name": recipe.tracking.run_name or folder.path.name,
        "trainer.logger": ["console", "file"],
        "trainer.nnodes": recipe.model.nodes,
        "trainer.n_gpus_per_node": recipe.model.workers,
        "trainer.total_training_steps": train.steps,
        "trainer.total_epochs": 1 << 30,
        "trainer.test_freq": train.eval_every or -1,
        "trainer.val_before_train": bool(train.eval_every) and train.eval_first,
        "trainer.save_freq": train.save_every or train.steps,
        "trainer.max_actor_ckpt_to_keep": None,  # our trainer deletes, once a newer one was read back
        "trainer.default_local_dir": str(folder.checkpoints),
        "trainer.resume_mode": "auto",
        "trainer.v1.trainer_mode": "sync",  # what our trainer is a kind of; verl asks for it by this name
        "+trainer.v1.memagent": {
            "stages": [asdict(stage) for stage in recipe.stages],
            "mix": recipe.data.mix,
            "seed": train.seed,
            "mini_batches": train.mini_batches,
            "credit": str(train.credit),
            "evidence_reward": train.evidence_reward,
            "dynamic_sampling": train.dynamic_sampling,
            "skip_equal_groups": train.skip_equal_groups,
            "failed_share": train.failed_share,
            "keep_checkpoints": train.keep_checkpoints,
            "poll_s": POLL_S,
            "trace_folder": str(folder.traces),
            "stop_file": str(folder.stop_request),
        },
    }


def _cuda(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    trees = recipe.train.share_prefixes
    flash = importlib.util.find_spec("flash_attn") is not None and not trees
    return {
        "trainer.device": "cuda",
        "actor_rollout_ref.model.use_remove_padding": not trees,
        # PyTorch's own attention keeps packed rows apart by their positions; the objective's test proves it.
        "+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_2" if flash else "sdpa",
        f"{ACTOR}.ppo_max_token_len_per_gpu": max(MICRO_BATCH_TOKENS, 2 * encoder.window),
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 2 * max(MICRO_BATCH_TOKENS, 2 * encoder.window),
        f"{ROLLOUT}.gpu_memory_utilization": 0.6,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,  # verl's own 2 halves the replicas, and fails on one GPU
    } | _placement(recipe)


def _placement(recipe: Recipe) -> dict[str, Any]:
    """In which shards weights, gradients and moments lie, and whether on the GPU: 16 bytes a parameter in all.

    Shards span one machine: weights are gathered at every layer, and over the network only gradients go. What would
    leave vLLM too little is on the host while it samples, and what would leave the update too little always.
    """
    import torch

    gpu = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else ASSUMED_GPU_BYTES
    state = 16 * shape_of(recipe.model.path).parameters / recipe.model.workers
    lora = bool(recipe.verl.get("actor_rollout_ref.model.lora_rank"))  # most of it has neither gradient nor moments
    return {
        f"{ACTOR}.fsdp_config.fsdp_size": recipe.model.workers if recipe.model.nodes > 1 else -1,
        f"{ACTOR}.fsdp_config.offload_policy": not lora and state > MOST_IN_UPDATE * gpu,
        f"{ACTOR}.fsdp_config.param_offload": not lora and state > MOST_BESIDE_SAMPLING * gpu,
        f"{ACTOR}.fsdp_config.optimizer_offload": not lora and state > MOST_BESIDE_SAMPLING * gpu,
    }
