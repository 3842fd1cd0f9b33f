"""Turn a recipe into verl's configuration: our settings for the device, overridden by the recipe's ``[verl]`` table.

The module also writes the file from which verl builds agent loops. It starts no process, and loads verl only in
:func:`compose`.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
from dataclasses import asdict
from typing import Any

from memagent_lib.backends import end_tokens, shape_of
from memagent_lib.models import load_tokenizer
from memagent_lib.paths import write_atomically
from memagent_lib.prompts import Encoder, Template
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu import cpu_environment, cpu_settings
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl.verl_keys import (
    ACTOR,
    CHAT_TEMPLATE,
    EXTERNAL_LIB,
    GPU_SHARE,
    KIND_NAMES,
    LOGGER,
    LORA_RANK,
    LOSS,
    MAX_MODEL_LEN,
    MICRO_BATCH,
    MINI_BATCH,
    MODEL,
    NULL,
    OWN_LOSS,
    PACKED,
    RESUMED,
    REUSE_LOGPROBS,
    ROLLOUT,
    SAVE_FREQ,
    SAVED,
    TEST_FREQ,
)
from memagent_lib.settings import SettingsError, flatten

AGENT_FILE = "agent_loop.json"
MICRO_BATCH_TOKENS = 16_384  # at least, on a GPU: twice a small window would make micro-batches of two or three rows
MOST_IN_UPDATE = 0.6  # of a GPU's memory, for weights, gradients and moments during the update
MOST_BESIDE_SAMPLING = 0.4  # of a GPU's memory, for the same while vLLM samples
ASSUMED_GPU_BYTES = 80e9  # where a run is planned on a machine without one
POLL_S = 0.2  # how often the trainer looks whether the rollouts have finished


def verl_settings(recipe: Recipe, folder: RunFolder, device: str) -> dict[str, Any]:
    """Return verl's settings for a recipe by dotted name. A leading ``+`` marks a name that verl does not define."""
    encoder = encoder_of(recipe)
    settings = _model_and_data(recipe, encoder) | _objective(recipe) | _rollout(recipe, folder, encoder)
    settings |= _trainer(recipe, folder)
    settings |= cpu_settings(recipe, encoder) if device == "cpu" else _cuda(recipe, encoder)
    chosen = {name.removeprefix("+") for name in recipe.verl}
    settings = {name: value for name, value in settings.items() if name.removeprefix("+") not in chosen}
    return settings | dict(recipe.verl) | _loggers(recipe)


def _loggers(recipe: Recipe) -> dict[str, Any]:
    """Return verl's setting of its loggers. They always include the file that the supervisor reads."""
    chosen = recipe.verl.get(LOGGER, "console")
    loggers = [chosen] if isinstance(chosen, str) else list(chosen)
    if "file" not in loggers:
        loggers.append("file")
    return {LOGGER: loggers}


def encoder_of(recipe: Recipe) -> Encoder:
    """Return the encoder of the recipe's prompts, which also counts their tokens."""
    reading = recipe.reading
    tokenizer = load_tokenizer(recipe.model.path).with_chat_arguments(recipe.chat_template)
    return Encoder(tokenizer, Template.load(reading.template), reading.budget, reading.shows)


def compose(settings: dict[str, Any]) -> Any:
    """Return verl's whole configuration with ``settings`` applied, in the form that verl's main function receives.

    The text ``null`` stands for no value, as in verl's own files, because TOML has no word for it. Raises
    :class:`SettingsError` for a name that verl does not define and that has no leading ``+``, and for a text where verl
    has a number or a switch.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("ppo_trainer")
    for name, value in settings.items():
        key = name.removeprefix("+")
        parent, _, leaf = key.rpartition(".")
        added = name.startswith("+") or parent == CHAT_TEMPLATE
        table = OmegaConf.select(config, parent) if parent else config
        known = set(table or ())  # a set, because `in` on the table overlooks values that are still missing (???)
        if not added and leaf not in known:
            raise SettingsError(f"verl has no setting {key!r}; {_nearest(config, key)}to add it, write '+{key}'")
        default = OmegaConf.select(config, key)
        # verl would fail at its first use of the text, which may be in the update.
        if isinstance(default, int | float) and isinstance(value, str) and value != NULL and "${" not in value:
            raise SettingsError(f"verl.{key} must be {KIND_NAMES[type(default)]}, got {value!r}")
        OmegaConf.update(config, key, None if value == NULL else value, force_add=True, merge=True)
    return config


def _nearest(config: Any, key: str) -> str:
    """Name the settings of verl for which ``key`` may be a misspelling."""
    from omegaconf import OmegaConf

    names = flatten(OmegaConf.to_container(config, resolve=False))
    near = [name for name in names if name.endswith(f".{key.rpartition('.')[2]}")]
    near = near or difflib.get_close_matches(key, names, n=3, cutoff=0.8)
    if near:
        return f"did you mean {' or '.join(near[:3])}? Or, "
    return ""


def write_agent_file(recipe: Recipe, folder: RunFolder) -> None:
    """Write the YAML file from which verl builds one agent loop per rollout."""
    folder.traces.mkdir(parents=True, exist_ok=True)
    encoder = encoder_of(recipe)
    entry = {
        "name": "memagent",
        "_target_": "memagent_lib.rl.agent_loop.MemAgentLoop",
        "reader": recipe.reading.reader,
        "template": recipe.reading.template,
        "budget": asdict(recipe.reading.budget),
        "window": encoder.window,
        "ends": list(end_tokens(recipe.model.path, encoder.tokenizer)),
        "on_bad_memory": str(recipe.reading.on_bad_memory),
        "seed": recipe.train.seed,
        "overlong": str(recipe.train.overlong),
        "overlong_buffer": recipe.train.overlong_buffer,
        "overlong_weight": recipe.train.overlong_weight,
        "rewards": recipe.reward_weights,
        "trace_folder": str(folder.traces),
        "traces_per_step": recipe.train.traces_per_step,
    }
    # JSON is valid YAML, unless it escapes a character beyond 16 bits as two.
    write_atomically(folder.path / AGENT_FILE, json.dumps([entry], indent=2, ensure_ascii=False))


def leave_out_slow_imports(folder: RunFolder) -> None:
    """Hide a slow module from the run's processes; it takes 1.6 of the 2.2 processor seconds of ``import ray``.

    Ray imports jsonschema, which builds a grammar of web addresses if the package ``rfc3987_syntax``, a dependency of
    Jupyter, is installed. A dozen processes would build the grammar, and Ray never uses it.
    """
    text = 'raise ImportError("left out: nothing in a training run checks web addresses")\n'
    write_atomically(folder.left_out / "rfc3987_syntax.py", text)


def environment(device: str, workers: int, folder: RunFolder) -> dict[str, str]:
    """Return the environment variables for verl, vLLM and Ray in the training process and all of its descendants."""
    paths = [str(folder.left_out), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VERL_FILE_LOGGER_PATH": str(folder.verl_metrics),
        "PYTHONDONTWRITEBYTECODE": "",  # where it is set, ten processes compile all of verl and vLLM each time
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return variables | (cpu_environment(workers, folder.key) if device == "cpu" else {})


def _model_and_data(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    return {
        f"{MODEL}.path": recipe.model.path,
        EXTERNAL_LIB: "memagent_lib.rl.verl.reply_engine",  # registers it and the loss
        # vLLM samples from one model without adapters: its CPU build loads none, and there is one policy at a time.
        f"{MODEL}.lora.merge": True,
        "data.train_files": list(recipe.data.files),
        "data.val_files": list(recipe.data.eval),
        "data.max_prompt_length": encoder.longest_prompt,
        "data.max_response_length": encoder.longest_reply,
        "data.seed": 0,  # draws only the examples of val_max_samples: the same for every train.seed
        "data.gen_batch_size": 1 if recipe.train.dynamic_sampling else None,  # prompts are replaced one by one
    }


def _objective(recipe: Recipe) -> dict[str, Any]:
    reused = recipe.verl[REUSE_LOGPROBS]
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction.rollout_is": None if reused else "token",
        "algorithm.rollout_correction.rollout_is_threshold": 2.0,
        f"{ACTOR}.strategy": "fsdp2",
        LOSS: OWN_LOSS,
        MINI_BATCH: recipe.prompts,
        f"{ACTOR}.use_dynamic_bsz": True,
        SAVED: list(RESUMED),  # the export follows at the end
        f"{ACTOR}.data_loader_seed": recipe.train.seed,
        f"{ACTOR}.fsdp_config.seed": recipe.train.seed,
        f"{ACTOR}.optim.zero_indexed_step": False,  # else the first step has a rate of zero
    }


def _rollout(recipe: Recipe, folder: RunFolder, encoder: Encoder) -> dict[str, Any]:
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.seed": recipe.train.seed,
        MAX_MODEL_LEN: encoder.window,
        f"{ROLLOUT}.agent.agent_loop_config_path": str(folder.path / AGENT_FILE),
        f"{ROLLOUT}.agent.default_agent_loop": "memagent",
        "reward.num_workers": 0,  # the agent loop scores
    }


def _trainer(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    train = recipe.train
    return {
        "trainer.project_name": recipe.tracking.experiment,
        "trainer.experiment_name": recipe.tracking.run_name or folder.path.name,
        "trainer.total_epochs": 1 << 30,  # the number of steps ends a run
        "trainer.val_before_train": recipe.verl[TEST_FREQ] > 0,
        SAVE_FREQ: recipe.steps,
        "trainer.max_actor_ckpt_to_keep": None,  # our trainer deletes, once a newer one was read back
        "trainer.default_local_dir": str(folder.checkpoints),
        "trainer.resume_mode": "auto",
        "trainer.v1.trainer_mode": "sync",  # the trainer that ours extends
        "+trainer.v1.memagent": {
            "stages": [asdict(stage) for stage in recipe.stages],
            "mix": recipe.data.mix,
            "seed": train.seed,
            "mini_batches": recipe.mini_batches,
            "credit": str(train.credit),
            "rewards": recipe.reward_weights,
            "rollout_weight": recipe.rewards.get("rollout_weight", 1.0),
            "dynamic_sampling": train.dynamic_sampling,
            "skip_equal_groups": train.skip_equal_groups,
            "failed_share": train.failed_share,
            "keep_checkpoints": recipe.retained_checkpoints,
            "poll_s": POLL_S,
            "trace_folder": str(folder.traces),
            "stop_file": str(folder.stop_request),
        },
    }


def _cuda(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    packed = recipe.verl.get(PACKED, True)
    flash = packed and importlib.util.find_spec("flash_attn") is not None
    micro_batch = max(MICRO_BATCH_TOKENS, 2 * encoder.window)
    return {
        "trainer.device": "cuda",
        PACKED: True,
        # PyTorch's own attention keeps packed rows apart by their positions; the objective's test checks it.
        f"+{MODEL}.override_config.attn_implementation": "flash_attention_2" if flash else "sdpa",
        MICRO_BATCH: micro_batch,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 2 * micro_batch,
        GPU_SHARE: 0.6,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,  # verl's own 2 halves the replicas, and fails on one GPU
    } | _sharding(recipe)


def _sharding(recipe: Recipe) -> dict[str, Any]:
    """Choose how weights, gradients and moments (16 bytes a parameter in all) are sharded, and what is offloaded.

    A shard group is one machine, so weights are gathered within it and only gradients cross the network. All three move
    to the host while vLLM samples if vLLM would have too little memory, and stay there if the update would.
    """
    import torch

    gpu = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else ASSUMED_GPU_BYTES
    state = 16 * shape_of(recipe.model.path).parameters / recipe.workers
    lora = bool(recipe.verl.get(LORA_RANK))  # most of it has neither gradient nor moments
    in_the_way = not lora and state > MOST_BESIDE_SAMPLING * gpu
    return {
        f"{ACTOR}.fsdp_config.fsdp_size": recipe.workers if recipe.nodes > 1 else -1,
        f"{ACTOR}.fsdp_config.offload_policy": not lora and state > MOST_IN_UPDATE * gpu,
        f"{ACTOR}.fsdp_config.param_offload": in_the_way,
        f"{ACTOR}.fsdp_config.optimizer_offload": in_the_way,
    }
