"""The memory of a training run on a CPU, in bytes by use, and the settings with which a run fits its machine.

Weights, gradients and moments are in fp32; a larger model computes in bf16 where the processor does so in hardware, and
is sampled from in bf16. With LoRA, only the adapters have gradients and moments. The largest other use is what the
update's forward pass leaves for the backward pass; it grows with the tokens of a micro-batch, so that number is lowered
first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from memagent_lib.backends import ModelShape
from memagent_lib.errors import UserError
from memagent_lib.rl.verl.verl_keys import ACTOR, CHECKPOINTING, KL_LOSS, LORA_RANK, MICRO_BATCH, ROLLOUT

SERVERS = f"{ROLLOUT}.agent.num_workers"
PRECISION = f"{ACTOR}.fsdp_config.mixed_precision"
PARAM_DTYPE = f"{PRECISION}.param_dtype"
FIT_SETTINGS = (MICRO_BATCH, SERVERS, CHECKPOINTING, PARAM_DTYPE, LORA_RANK, KL_LOSS)
FLOAT = 4
HALF = 2
HALF_TYPES = ("bf16", "bfloat16")
MICRO_BATCHES = (8192, 4096, 2048, 1024)  # from 1,024 tokens down, an update becomes slow rather than smaller
MEASURED = 0.8  # of ModelShape.saved_width: 0.78 with SmolLM2-135M in fp32 at 512 and 1,024 tokens
MEASURED_HALF = 0.6  # of the same in fp32, when the model computes in bf16: 0.49 and 0.56
LOGITS_COPIES = 4  # logits, divided by the temperature, their log_softmax, and a gradient
KV_CACHE_BYTES = 1 << 30  # VLLM_CPU_KVCACHE_SPACE
SERVER_BYTES = 2.0e9  # an engine without weights and cache, 1.9 to 2.1 measured: vLLM, torch and Ray in one process
# The training process without the model (verl, torch, Ray, the rows of a step): 1.6 measured with SmolLM2 after an
# update, and up to 0.4 of freed blocks that later ones do not fit; experiments/studies/speed/README.md.
WORKER_BYTES = 2.0e9
# Peaks of proportional memory (PSS) in a run on two cores: trainer 0.8, command 0.6, transfer queue 0.6, Ray 0.5,
# supervisors 0.4; experiments/studies/speed/README.md.
BESIDE_BYTES = 2.9e9
SAFETY = 0.8  # of the machine: the system, the page cache and the person at it need some too
LEAST_FREE = 0.5  # of a run's bytes: the worst case is rare, and a run that would fit must not be refused


class MemoryShort(UserError, RuntimeError):
    """A run would end for lack of memory. The message has the numbers and the settings to lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFit:
    """How a run trains on this machine: the tokens of a micro-batch, the rollout servers, activation checkpointing.

    ``half`` tells whether the model computes in bf16, in the update and in rollouts. ``lora_rank`` above 0 trains
    adapters of that rank in place of the model's own weights. ``reference`` tells whether the loss compares with the
    first policy; without adapters, that is a second model.
    """

    micro_batch_tokens: int
    servers: int
    checkpointing: bool = False
    half: bool = False
    lora_rank: int = 0
    reference: bool = False


def memory_of(shape: ModelShape, fit: CpuFit, workers: int = 1) -> dict[str, float]:
    """Return the bytes of a run on one node by use, at the peak of an update.

    It is the worst case, in which a micro-batch is full and every token of it is part of a reply.
    """
    tokens = fit.micro_batch_tokens
    share = MEASURED_HALF if fit.half else MEASURED
    layer = share * FLOAT * shape.saved_width
    if fit.checkpointing:  # each layer's input is saved, and one layer at a time is computed again
        activations = tokens * (FLOAT * shape.hidden * shape.layers + layer)
    else:
        activations = tokens * layer * shape.layers
    adapters = shape.adapter_parameters(fit.lora_rank)
    trained = adapters if fit.lora_rank else shape.parameters
    update = {
        "weights": (FLOAT + HALF * fit.half) * (shape.parameters + adapters),
        "gradients": FLOAT * trained,
        "optimizer": 2 * FLOAT * trained,
        "activations": activations,
        "attention mask": tokens**2 * FLOAT,  # if one row fills the micro-batch; less in the blocks of a tree
        "logits": LOGITS_COPIES * FLOAT * tokens * shape.vocabulary,
        "training process": WORKER_BYTES,
    }
    if fit.reference and not fit.lora_rank:
        update["reference policy"] = FLOAT * shape.parameters
    server = (HALF if fit.half else FLOAT) * shape.parameters + KV_CACHE_BYTES + SERVER_BYTES
    return {name: workers * size for name, size in update.items()} | {
        f"{fit.servers} rollout server{'s' * (fit.servers > 1)}": fit.servers * server,
        "Ray and trainer": BESIDE_BYTES,
    }


def choose_fit(
    shape: ModelShape,
    window: int,
    servers: int,
    workers: int,
    machine_bytes: float,
    half: bool = False,
    lora_rank: int = 0,
    reference: bool = False,
) -> CpuFit:
    """Return the fastest settings that fit a machine of ``machine_bytes``, or the smallest if none do.

    If the memory is short, micro-batches become smaller first; next there are fewer servers; activation checkpointing,
    which computes the forward pass twice, comes last. A micro-batch has at least ``window`` tokens, the longest row.
    The machine's whole memory decides, not what is free at the moment, so that a run rounds its sums in the same way
    each time.
    """
    known = {"half": half, "lora_rank": lora_rank, "reference": reference}
    sizes = dict.fromkeys(max(size, window) for size in MICRO_BATCHES)
    for checkpointing, count, size in product((False, True), dict.fromkeys((servers, workers)), sizes):
        fit = CpuFit(micro_batch_tokens=size, servers=count, checkpointing=checkpointing, **known)
        if sum(memory_of(shape, fit, workers).values()) <= SAFETY * machine_bytes:
            break
    return fit


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system, where the C library can (glibc).

    glibc keeps freed blocks of up to 32 MB in arenas, where later ones of other sizes do not fit well: a training
    process of SmolLM2 grew from 6 to 8 GB in six steps, 6.3 of them in arenas.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def fit_of(settings: Mapping[str, Any], nodes: int) -> CpuFit:
    """Return what verl's ``settings`` state about the memory of one node: :data:`FIT_SETTINGS`, by dotted name."""
    return CpuFit(
        micro_batch_tokens=settings[MICRO_BATCH],
        servers=max(1, settings[SERVERS] // nodes),
        checkpointing=settings[CHECKPOINTING],
        half=settings.get(PARAM_DTYPE) in HALF_TYPES,
        lora_rank=settings.get(LORA_RANK) or 0,
        reference=bool(settings.get(KL_LOSS)),
    )


def require_free(needed: Mapping[str, float], fit: CpuFit, free: float) -> None:
    """Raise :class:`MemoryShort` if less than the share :data:`LEAST_FREE` of what a run needs is free."""
    total = sum(needed.values())
    if free >= LEAST_FREE * total:
        return
    parts = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in needed.items())
    raise MemoryShort(
        f"the run can need {total / 1e9:.1f} GB ({parts}) and {free / 1e9:.1f} GB are free; end other programs, lower "
        f"verl.{MICRO_BATCH} (now {fit.micro_batch_tokens:,}), or set verl.{CHECKPOINTING} = true"
    )
