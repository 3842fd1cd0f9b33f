"""The settings and environment variables with which verl, vLLM and Ray train on a bare CPU.

They are computed from a recipe, the model's shape and the machine's memory, without loading any of these packages.
Weights, gradients and moments are in fp32; a larger model computes in bf16 where the processor does so in hardware, and
is sampled from in bf16. With LoRA, only the adapters have gradients and moments. The largest other use of memory is
what the update's forward pass leaves for the backward pass; it grows with the tokens of a micro-batch.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from memagent_lib.backends import ModelShape, shape_of
from memagent_lib.prompts import Encoder
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.verl import verl_keys as keys
from memagent_lib.system import cores, machine_bytes

PRECISION = f"{keys.ACTOR}.fsdp_config.mixed_precision"
LARGEST_BUCKET_MB = 2048
MOST_SERVERS = 2  # of a worker: each needs memory for vLLM and a cache
FLOAT = 4
HALF = 2
MICRO_BATCHES = (8192, 4096, 2048, 1024)  # from 1,024 tokens down, an update becomes slow rather than smaller
MEASURED = 0.8  # of ModelShape.saved_width: 0.78 with SmolLM2-135M in fp32 at 512 and 1,024 tokens
MEASURED_HALF = 0.6  # of the same in fp32, when the model computes in bf16: 0.49 and 0.56
LOGITS_COPIES = 4  # logits, divided by the temperature, their log_softmax, and a gradient
# Measured, see experiments/studies/speed/README.md: an engine with its cache of 1 GiB, the training process without the
# model (verl, torch, Ray, the rows of a step), and all other processes of a run.
SERVER_BYTES = 2.0e9 + (1 << 30)
WORKER_BYTES = 2.0e9
BESIDE_BYTES = 2.9e9
SAFETY = 0.8  # of the machine: the system, the page cache and the person at it need some too


class CpuFit(NamedTuple):
    """What decides the memory of a node: rollout servers, and tokens of a micro-batch."""

    servers: int
    micro_batch_tokens: int


def cpu_settings(recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    """Return verl's settings for a CPU by dotted name, in addition to the settings for every device."""
    shape = shape_of(recipe.model.path)
    # An update of SmolLM2-135M is 1.6 times faster in bf16; the optimizer's weights stay in fp32.
    half = shape.cpu_dtype == "bfloat16"
    fit = choose_fit(recipe, shape, encoder.window, half, machine_bytes())
    return {
        "trainer.device": "cpu",
        keys.EXTERNAL_LIB: "memagent_lib.rl.verl.cpu_engine",  # which registers the loss too
        "data.dataloader_num_workers": 0,
        keys.PACKED: False,
        f"{keys.MODEL}.enable_gradient_checkpointing": False,  # it computes the forward pass twice
        f"+{keys.MODEL}.override_config.attn_implementation": "sdpa",
        # What trains on a CPU is small: every checkpoint can be loaded by itself.
        f"{keys.ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{keys.ACTOR}.use_torch_compile": False,
        f"{keys.ACTOR}.fsdp_config.use_torch_compile": False,
        f"{keys.ACTOR}.fsdp_config.reshard_after_forward": False,
        f"{keys.ACTOR}.fsdp_config.dtype": "float32",
        f"+{PRECISION}": {"param_dtype": "bf16" if half else "fp32"},
        f"+{PRECISION.replace('.actor.', '.ref.')}": f"${{{PRECISION}}}",  # else the reference would compute in bf16
        keys.MICRO_BATCH: fit.micro_batch_tokens,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        f"{keys.ROLLOUT}.dtype": shape.cpu_dtype,
        f"{keys.ROLLOUT}.enforce_eager": True,  # CPU vLLM has neither graphs nor a sleep mode
        # A step with part of a prompt fails on a CPU ("CPU Generator does not use offset"), so no prompt is split.
        f"{keys.ROLLOUT}.enable_chunked_prefill": False,
        f"{keys.ROLLOUT}.free_cache_engine": False,
        f"+{keys.ROLLOUT}.enable_sleep_mode": False,
        f"{keys.ROLLOUT}.max_num_seqs": min(256, recipe.prompts * recipe.rollouts),
        f"+{keys.ROLLOUT}.engine_kwargs.vllm": {
            "worker_extension_cls": "memagent_lib.rl.verl.cpu_rollouts.CpuWeights",
            "distributed_executor_backend": "uni",  # a worker of its own waits for the engine by spinning
            "block_size": 32,  # prefixes are shared in whole blocks, and 128 is most of a small prompt
        },
        # Weights travel in fp32, the whole model in one bucket if it is small.
        f"{keys.ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": min(
            LARGEST_BUCKET_MB, 16 + (FLOAT * shape.parameters >> 20)
        ),
        f"{keys.ROLLOUT}.agent.num_workers": recipe.nodes * fit.servers,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def cpu_environment(workers: int, run_key: str) -> dict[str, str]:
    """Return the environment variables for the training process and all of its descendants."""
    return {
        "MEMAGENT_RUN_KEY": run_key,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "memagent_lib.rl.verl.cpu_platform",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets one process hold engine and worker
        "RAY_worker_niceness": "0",  # Ray's own 15 makes the run stand behind anything else on the machine
        "RAY_prestart_worker_first_driver": "0",  # verl's actors have their own environment and use no such worker
        "OMP_NUM_THREADS": str(max(1, cores() // workers)),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at barriers take the cores from the run's other processes
    }


def choose_fit(recipe: Recipe, shape: ModelShape, window: int, half: bool, memory: float) -> CpuFit:
    """Return the fastest settings that fit a machine of ``memory`` bytes, or the smallest if none do.

    If the memory is short, micro-batches become smaller first; next there are fewer servers. A micro-batch has at least
    ``window`` tokens, the longest row.
    The machine's whole memory decides, not what is free at the moment, so that a run rounds its sums in the same way
    each time.
    """
    workers = recipe.workers
    # Two servers with one thread each are faster than one server with two, because of Python's global lock.
    servers = workers * min(MOST_SERVERS, max(1, cores() // workers))
    sizes = dict.fromkeys(max(size, window) for size in MICRO_BATCHES)
    for choice in product(dict.fromkeys((servers, workers)), sizes):
        fit = CpuFit(*choice)
        if node_bytes(recipe, shape, fit, half) <= SAFETY * memory:
            break
    return fit


def node_bytes(recipe: Recipe, shape: ModelShape, fit: CpuFit, half: bool) -> float:
    """Return the bytes of a run on one node at the peak of an update.

    It is the worst case, in which a micro-batch is full and every token of it is part of a reply.
    """
    tokens = fit.micro_batch_tokens
    rank = recipe.verl.get(keys.LORA_RANK) or 0
    adapters = shape.adapter_parameters(rank)
    trained = adapters if rank else shape.parameters
    update = (FLOAT + HALF * half) * (shape.parameters + adapters)  # weights
    update += 3 * FLOAT * trained  # gradients and the optimizer's two moments
    update += tokens * (MEASURED_HALF if half else MEASURED) * FLOAT * shape.saved_width * shape.layers  # activations
    update += tokens**2 * FLOAT  # the attention mask, if one row fills the micro-batch
    update += LOGITS_COPIES * FLOAT * tokens * shape.vocabulary
    if recipe.verl.get(keys.KL_LOSS) and not rank:
        update += FLOAT * shape.parameters  # the reference policy
    server = (HALF if half else FLOAT) * shape.parameters + SERVER_BYTES
    return recipe.workers * (update + WORKER_BYTES) + fit.servers * server + BESIDE_BYTES
