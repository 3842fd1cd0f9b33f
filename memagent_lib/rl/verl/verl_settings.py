"""Turn a recipe into verl's configuration: our settings for the device, overridden by the recipe's ``[verl]`` table.

The names are those of verl's configuration (``verl/trainer/config/ppo_trainer.yaml``). The module also writes the file
from which verl builds agent loops. It starts no process, and loads verl only in :func:`compose` and :func:`validate`.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
from contextlib import redirect_stdout
from typing import Any

from memagent_lib.errors import nearest
from memagent_lib.paths import write_atomically
from memagent_lib.prompts import Encoder
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.rl.verl import verl_keys as keys
from memagent_lib.rl.verl.cpu_settings import cpu_environment, cpu_settings
from memagent_lib.settings import SettingsError, flatten
from memagent_lib.system import LOCAL

AGENT_FILE = "agent_loop.json"
VERL_FILE = "verl.yaml"
NULL = "null"
MICRO_BATCH_TOKENS = 16_384  # at least, on a GPU: twice a small window would make micro-batches of two or three rows


def verl_settings(recipe: Recipe, folder: RunFolder, device: str) -> dict[str, Any]:
    """Return verl's settings for a recipe by dotted name. A leading ``+`` marks a name that verl does not define."""
    encoder = recipe.encoder()
    settings = _common(recipe, folder, encoder)
    settings |= cpu_settings(recipe, encoder) if device == "cpu" else _cuda(recipe, encoder)
    chosen = {name.removeprefix("+") for name in recipe.verl}
    return {name: value for name, value in settings.items() if name.removeprefix("+") not in chosen} | recipe.verl


def compose(settings: dict[str, Any]) -> Any:
    """Return verl's whole configuration with ``settings`` applied, in the form that verl's main function receives.

    The text ``null`` stands for no value, as in verl's own files, because TOML has no word for it. Raises
    :class:`SettingsError` for a name that verl does not define and that has no leading ``+``.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("ppo_trainer")
    for name, value in settings.items():
        key = name.removeprefix("+")
        added = name.startswith("+") or key.startswith(f"{keys.CHAT_TEMPLATE}.")
        try:
            OmegaConf.update(config, key, None if value == NULL else value, force_add=added, merge=True)
        except (ConfigAttributeError, ConfigKeyError):
            near = nearest(key, flatten(OmegaConf.to_container(config)))
            raise SettingsError(f"verl has no setting {key!r}; to add it, write '+{key}'{near}") from None
    return config


def save_composed(verl: Any, folder: RunFolder) -> None:
    """Write verl's whole configuration to the run's folder, for :func:`load_composed` in the process that trains."""
    from omegaconf import OmegaConf

    write_atomically(folder.path / VERL_FILE, OmegaConf.to_yaml(verl))


def load_composed(folder: RunFolder) -> Any:
    """Return verl's whole configuration from the run's folder."""
    from omegaconf import OmegaConf

    config = OmegaConf.load(folder.path / VERL_FILE)
    OmegaConf.set_struct(config, True)  # as Hydra does
    return config


def validate(verl: Any) -> None:
    """Let verl check its composed configuration; raise :class:`SettingsError` for what it refuses."""
    from hydra.errors import InstantiationException
    from verl.utils.config import validate_config

    from memagent_lib.rl.verl.cpu_platform import answer_for_vllm

    answer_for_vllm()  # verl looks up the version of "vllm", and the CPU build has another name
    reference = verl.actor_rollout_ref.actor.use_kl_loss
    try:
        with redirect_stdout(io.StringIO()):  # verl prints that its checks have passed
            validate_config(config=verl, use_reference_policy=reference, use_critic=False)
    except (InstantiationException, AssertionError, TypeError, ValueError, NotImplementedError) as refused:
        raise SettingsError(f"verl refuses the settings in [verl]: {refused.__cause__ or refused}") from refused


def write_agent_file(folder: RunFolder) -> None:
    """Write the YAML file from which verl builds one agent loop per rollout."""
    folder.traces.mkdir(parents=True, exist_ok=True)
    entry = {"name": "memagent", "_target_": "memagent_lib.rl.agent_loop.MemAgentLoop", "folder": str(folder.path)}
    # JSON is valid YAML, unless it escapes a character beyond 16 bits as two.
    write_atomically(folder.path / AGENT_FILE, json.dumps([entry], indent=2, ensure_ascii=False))


def leave_out_slow_imports(folder: RunFolder) -> None:
    """Hide a slow module from the run's processes; it takes 1.6 of the 2.2 processor seconds of ``import ray``.

    Ray imports jsonschema, which builds a grammar of web addresses if the package ``rfc3987_syntax``, a dependency of
    Jupyter, is installed. A dozen processes would build the grammar, and Ray never uses it.
    """
    text = 'raise ImportError("left out: nothing in a training run checks web addresses")\n'
    write_atomically(folder.left_out / "rfc3987_syntax.py", text)


def environment(device: str, recipe: Recipe, folder: RunFolder) -> dict[str, str]:
    """Return the environment variables for verl, vLLM and Ray in the training process and all of its descendants."""
    paths = [str(folder.left_out), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VERL_FILE_LOGGER_PATH": str(folder.verl_metrics),
        "PYTHONDONTWRITEBYTECODE": "",  # where it is set, ten processes compile all of verl and vLLM each time
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "SAGEMAKER_CONTAINER_LOG_LEVEL": "WARNING",  # vLLM's server sets the root logger to it, else to ERROR
    }
    if recipe.cluster.address == LOCAL:  # a private Ray listens on loopback
        variables |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
    if device == "cpu":
        variables |= cpu_environment(recipe.workers, folder.key)
    return variables


def _common(recipe: Recipe, folder: RunFolder, encoder: Encoder) -> dict[str, Any]:
    train = recipe.train
    reused = recipe.verl[keys.REUSE_LOGPROBS]
    return {
        f"{keys.MODEL}.path": recipe.model.path,
        keys.EXTERNAL_LIB: "memagent_lib.rl.verl.reply_engine",  # registers it and the loss
        # vLLM samples from one model without adapters: its CPU build loads none, and there is one policy at a time.
        f"{keys.MODEL}.lora.merge": True,
        "data.train_files": list(recipe.data.files),
        "data.val_files": list(recipe.data.eval),
        "data.max_prompt_length": encoder.longest_prompt,
        "data.max_response_length": encoder.longest_reply,
        "data.seed": 0,  # draws only the examples of val_max_samples: the same for every train.seed
        "data.gen_batch_size": 1 if train.dynamic_sampling else None,  # prompts are replaced one by one
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction.rollout_is": None if reused else "token",
        f"{keys.ACTOR}.strategy": "fsdp2",
        f"{keys.ACTOR}.policy_loss.loss_mode": keys.OWN_LOSS,
        keys.MINI_BATCH: recipe.prompts,
        f"{keys.ACTOR}.use_dynamic_bsz": True,
        f"{keys.ACTOR}.data_loader_seed": train.seed,
        f"{keys.ACTOR}.fsdp_config.seed": train.seed,
        f"{keys.ACTOR}.optim.zero_indexed_step": False,  # else the first step has a rate of zero
        f"{keys.ROLLOUT}.name": "vllm",
        f"{keys.ROLLOUT}.seed": train.seed,
        f"{keys.ROLLOUT}.tensor_model_parallel_size": 1,  # verl's own 2 halves the replicas, and fails on one GPU
        keys.MAX_MODEL_LEN: encoder.window,
        f"{keys.ROLLOUT}.agent.agent_loop_config_path": str(folder.path / AGENT_FILE),
        f"{keys.ROLLOUT}.agent.default_agent_loop": "memagent",
        "reward.num_workers": 0,  # the agent loop scores
        "trainer.logger": ["console", "file"],  # the supervisor reads the file
        "trainer.total_epochs": 1 << 30,  # the number of steps ends a run
        "trainer.val_before_train": recipe.verl[keys.TEST_FREQ] > 0,
        keys.SAVE_FREQ: recipe.steps,
        "trainer.default_local_dir": str(folder.checkpoints),
        "+trainer.v1.memagent": {"folder": str(folder.path)},
    }


def _cuda(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    packed = recipe.verl.get(keys.PACKED, True)
    flash = packed and importlib.util.find_spec("flash_attn") is not None
    micro_batch = max(MICRO_BATCH_TOKENS, 2 * encoder.window)
    return {
        # PyTorch's own attention keeps packed rows apart by their positions; the objective's test checks it.
        f"+{keys.MODEL}.override_config.attn_implementation": "flash_attention_2" if flash else "sdpa",
        keys.MICRO_BATCH: micro_batch,
        f"{keys.ROLLOUT}.log_prob_max_token_len_per_gpu": 2 * micro_batch,
        f"{keys.ROLLOUT}.gpu_memory_utilization": 0.6,
        # A shard group is one machine: weights are gathered within it, and only gradients cross the network.
        f"{keys.ACTOR}.fsdp_config.fsdp_size": recipe.workers if recipe.nodes > 1 else -1,
    }
