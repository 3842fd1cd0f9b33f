"""The settings and environment variables with which verl, vLLM and Ray train on a bare CPU.

Comments give the reasons. The settings are computed from a recipe, the model's shape and the machine's memory, without
loading any of these packages.
"""

from __future__ import annotations

from typing import Any

from memagent_lib.backends import ModelShape, shape_of
from memagent_lib.prompts import Encoder
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.cpu.cpu_memory import PRECISION, SERVERS, choose_fit
from memagent_lib.rl.verl.verl_keys import (
    ACTOR,
    CHECKPOINTING,
    EXTERNAL_LIB,
    KL_LOSS,
    LORA_RANK,
    MICRO_BATCH,
    MODEL,
    PACKED,
    RESUMED,
    ROLLOUT,
    SAVED,
)
from memagent_lib.system import cores, machine_bytes, multiplies

LARGEST_BUCKET_MB = 2048
MOST_SERVERS = 2  # of a worker: each needs memory for vLLM and a cache
HALF_FROM = 30_000_000  # parameters: a smaller model spends its time outside of matrix products


def cpu_settings(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    """Return verl's settings for a CPU by dotted name, in addition to the settings for every device."""
    shape = shape_of(recipe.model.path)
    half = computes_in_half(shape)
    rank = recipe.verl.get(LORA_RANK) or 0
    reference = bool(recipe.verl.get(KL_LOSS))
    servers = servers_of_node(recipe)
    fit = choose_fit(shape, encoder.window, servers, recipe.workers, machine_bytes(), half, rank, reference)
    return {
        "trainer.device": "cpu",
        EXTERNAL_LIB: "memagent_lib.rl.cpu.engine",  # which registers the loss too
        "data.dataloader_num_workers": 0,
        PACKED: False,
        CHECKPOINTING: fit.checkpointing,
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        # What trains on a CPU is small: every checkpoint can be loaded by itself, and is a model in MLflow.
        SAVED: [*RESUMED, "hf_model"],
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.reshard_after_forward": False,
        f"{ACTOR}.fsdp_config.dtype": "float32",
        f"+{PRECISION}": {"param_dtype": "bf16" if half else "fp32"},
        f"+{PRECISION.replace('.actor.', '.ref.')}": f"${{{PRECISION}}}",  # else the reference would compute in bf16
        MICRO_BATCH: fit.micro_batch_tokens,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        f"{ROLLOUT}.dtype": "bfloat16" if half else "float32",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.enforce_eager": True,  # CPU vLLM has neither graphs nor a sleep mode
        # A step with part of a prompt fails on a CPU ("CPU Generator does not use offset"), so no prompt is split.
        f"{ROLLOUT}.enable_chunked_prefill": False,
        f"{ROLLOUT}.free_cache_engine": False,
        f"+{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.max_num_seqs": min(256, recipe.prompts * recipe.rollouts),
        f"+{ROLLOUT}.engine_kwargs.vllm": {
            "worker_extension_cls": "memagent_lib.rl.cpu.weights.CpuWeights",
            "distributed_executor_backend": "uni",  # a worker of its own waits for the engine by spinning
            "block_size": 32,  # prefixes are shared in whole blocks, and 128 is most of a small prompt
        },
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": _bucket_mb(shape),
        SERVERS: recipe.nodes * fit.servers,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def cpu_environment(workers: int, run_key: str) -> dict[str, str]:
    """Return the environment variables for the training process and all of its descendants."""
    return {
        "MEMAGENT_RUN_KEY": run_key,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "memagent_lib.rl.cpu.platform",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets one process hold engine and worker
        "RAY_worker_niceness": "0",  # Ray's own 15 makes the run stand behind anything else on the machine
        "RAY_prestart_worker_first_driver": "0",  # verl's actors have their own environment and use no such worker
        "OMP_NUM_THREADS": str(max(1, cores() // workers)),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at barriers take the cores from the run's other processes
    }


def computes_in_half(shape: ModelShape) -> bool:
    """Return whether a model of this shape computes in bf16 here: a large one, on a processor that supports it.

    The optimizer's weights stay in fp32. An update of SmolLM2-135M is 1.6 times faster for it.
    """
    return shape.parameters >= HALF_FROM and multiplies("bfloat16")


def servers_of_node(recipe: Recipe) -> int:
    """Return how many rollout servers the workers of a node start if its memory allows.

    Two servers with one thread each are faster than one server with two, because of Python's global lock.
    """
    workers = recipe.workers
    return workers * min(MOST_SERVERS, max(1, cores() // workers))


def _bucket_mb(shape: ModelShape) -> int:
    """Choose the size of the buckets in which weights travel in fp32: the whole model in one if it is small."""
    return min(LARGEST_BUCKET_MB, 16 + (4 * shape.parameters >> 20))


def require_platform() -> None:
    """Raise ``RuntimeError`` unless verl uses our platform for CPUs."""
    from memagent_lib.rl.cpu.platform import check_registered

    check_registered()


def answer_for_vllm() -> None:
    """Let verl find vLLM's version in this process, although vLLM's CPU build is installed as ``vllm-cpu``."""
    from memagent_lib.rl.cpu.platform import answer_for_vllm as answer

    answer()


def start_rollouts(config: Any) -> type:
    """Start the rollout servers, each with its engine and agent loops in one process; return their manager's class."""
    from memagent_lib.rl.cpu.rollout_server import LocalRolloutManager, start_servers

    start_servers(config)
    return LocalRolloutManager
