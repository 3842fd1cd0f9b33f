"""A training run in verl's own settings: defaults of ours for its device, then the user's raw overrides.

Writes the two files verl wants to be told by path. Knows verl's configuration, starts nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memagent_lib.prompts import Encoder, Template
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run.folder import RunFolder
from memagent_lib.settings import SettingsError
from memagent_lib.text import Tokenizer

AGENT_FILE = "agent_loop.json"
CPU_PLUGIN = "memagent_lib.rl.cpu.platform"
WEIGHTS_EXTENSION = "memagent_lib.rl.cpu.weights.CpuWeights"


def settings(config: Recipe, folder: RunFolder, device: str) -> dict[str, Any]:
    """verl's settings by dotted name; those that start with ``+`` are not in verl's own configuration."""
    encoder = Encoder(
        Tokenizer.load(config.model.path),
        Template.load(config.reading.template),
        config.reading.budget,
        config.reading.shows,
    )
    chosen = _common(config, folder, encoder) | (_cpu(config, encoder) if device == "cpu" else _cuda(config, encoder))
    own = {name.removeprefix("+") for name in config.verl}
    return {name: value for name, value in chosen.items() if name.removeprefix("+") not in own} | dict(config.verl)


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
        if not add and leaf not in set(
            (OmegaConf.select(config, parent) if parent else config) or ()
        ):  # a set sees ??? values too
            raise SettingsError(f"verl has no setting {key!r}; to add one that it does not know, write '+{key}'")
        OmegaConf.update(config, key, value, force_add=True, merge=True)
    return config


def write_agent_file(config: Recipe, folder: RunFolder) -> Path:
    """The file from which verl builds one agent loop per rollout."""
    folder.traces.mkdir(parents=True, exist_ok=True)
    entry = {
        "name": "memagent",
        "_target_": "memagent_lib.rl.agent_loop.MemAgentLoop",
        "reader": config.reading.reader,
        "template": config.reading.template,
        "budget": asdict(config.reading.budget),
        "trace_folder": str(folder.traces),
        "traces_per_step": config.train.traces_per_step,
    }
    path = folder.path / AGENT_FILE
    path.write_text(json.dumps([entry], indent=2), encoding="utf-8")
    return path


def _common(config: Recipe, folder: RunFolder, encoder: Encoder) -> dict[str, Any]:
    model, train = config.model, config.train
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        "algorithm.rollout_correction.bypass_mode": train.reuse_logprobs,
        "actor_rollout_ref.model.path": model.path,
        "actor_rollout_ref.model.external_lib": "memagent_lib.rl.loss",  # imported by the workers: it registers our loss
        "data.train_files": list(config.data.train),
        "data.val_files": list(config.data.eval),
        "data.val_max_samples": config.data.eval_examples,
        "data.train_batch_size": train.prompts_per_step,
        "data.max_prompt_length": encoder.longest_prompt,
        "data.max_response_length": encoder.longest_reply,
        "data.seed": train.seed,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.policy_loss.loss_mode": "memagent",
        f"{actor}.ppo_mini_batch_size": max(1, train.prompts_per_step // train.mini_batches),
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.use_kl_loss": train.kl_loss > 0,
        f"{actor}.kl_loss_coef": train.kl_loss,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": train.entropy_bonus,
        f"{actor}.clip_ratio": train.clip_low,
        f"{actor}.clip_ratio_low": train.clip_low,
        f"{actor}.clip_ratio_high": train.clip_high,
        f"{actor}.loss_agg_mode": "token-mean",
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{actor}.data_loader_seed": train.seed,
        f"{actor}.fsdp_config.seed": train.seed,
        f"{actor}.optim.lr": train.lr,
        f"{actor}.optim.lr_warmup_steps": train.warmup_steps,
        f"{actor}.optim.weight_decay": train.weight_decay,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": train.rollouts,
        f"{rollout}.seed": train.seed,
        f"{rollout}.temperature": train.temperature,
        f"{rollout}.max_model_len": encoder.window,
        f"{rollout}.agent.agent_loop_config_path": str(folder.path / AGENT_FILE),
        f"{rollout}.agent.default_agent_loop": "memagent",
        "reward.num_workers": 0,  # the agent loop scores
        "trainer.project_name": config.tracking.experiment,
        "trainer.experiment_name": config.tracking.run_name or folder.path.name,
        "trainer.logger": ["console", "file"],
        "trainer.nnodes": model.nodes,
        "trainer.n_gpus_per_node": model.workers,
        "trainer.total_training_steps": train.steps,
        "trainer.total_epochs": 1 << 30,
        "trainer.test_freq": train.eval_every or -1,
        "trainer.val_before_train": bool(train.eval_every) and train.eval_first,
        "trainer.save_freq": train.save_every or train.steps,
        "trainer.max_actor_ckpt_to_keep": train.keep_checkpoints,
        "trainer.default_local_dir": str(folder.checkpoints),
        "trainer.resume_mode": "auto",
        "trainer.v1.trainer_mode": "sync",  # what our trainer is a kind of; verl asks for it by this name
        "+trainer.v1.memagent": {
            "mini_batches": train.mini_batches,
            "poll_s": 0.2,
            "trace_folder": str(folder.traces),
            "stop_file": str(folder.stop_request),
        },
    }


def _cpu(config: Recipe, encoder: Encoder) -> dict[str, Any]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    rows = config.train.prompts_per_step * config.train.rollouts
    micro = max(8192, encoder.window)
    return {
        "trainer.device": "cpu",
        "actor_rollout_ref.model.external_lib": "memagent_lib.rl.cpu.engine",  # which registers the loss too
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.fsdp_config.reshard_after_forward": False,
        f"{actor}.fsdp_config.dtype": "float32",
        f"+{actor}.fsdp_config.mixed_precision": {"param_dtype": "fp32"},
        f"{actor}.ppo_max_token_len_per_gpu": micro,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        f"{rollout}.dtype": "float32",
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.enforce_eager": True,  # CPU vLLM has neither graphs nor a sleep mode
        f"{rollout}.free_cache_engine": False,
        f"+{rollout}.enable_sleep_mode": False,
        f"{rollout}.max_num_seqs": min(256, rows),
        f"+{rollout}.engine_kwargs.vllm": {
            "worker_extension_cls": WEIGHTS_EXTENSION,
            "distributed_executor_backend": "uni",  # a worker of its own waits for the engine by spinning
            "block_size": 32,  # prefixes are shared in whole blocks, and 128 is most of a small prompt
        },
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": _bucket_megabytes(config.model.path),
        f"{rollout}.agent.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _cuda(config: Recipe, encoder: Encoder) -> dict[str, Any]:
    return {
        "trainer.device": "cuda",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2 * encoder.window,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 4 * encoder.window,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
    }


def _bucket_megabytes(model: str) -> int:
    """Weights travel in buckets, and the largest tensor must fit in one."""
    size = sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) >> 20
    return min(2048, 16 + 2 * size)  # twice: a model stored in half precision is sent in single


def environment(device: str, workers: int, run: Path) -> dict[str, str]:
    """Environment variables that verl, vLLM and Ray read, for the process that trains and all that it starts."""
    common = {
        "VERL_FILE_LOGGER_PATH": str(RunFolder(run).verl_metrics),
        "PYTHONDONTWRITEBYTECODE": "",  # set in some containers: ten processes would then compile all of verl and vLLM each time
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if device != "cpu":
        return common
    cores = len(os.sched_getaffinity(0))
    return (
        common
        | {
            "MEMAGENT_RUN_KEY": hashlib.sha256(str(run).encode()).hexdigest()[:12],
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": CPU_PLUGIN,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets one process hold engine and worker
            "RAY_worker_niceness": "0",  # Ray's own 15 makes the run stand behind anything else on the machine
            "RAY_prestart_worker_first_driver": "0",  # verl's actors bring their own environment and would not use these workers
            "OMP_NUM_THREADS": str(max(1, cores // workers)),
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at barriers take the cores from the other processes of the run
        }
    )
