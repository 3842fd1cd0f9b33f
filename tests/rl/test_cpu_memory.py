"""The memory of a run on a CPU: sums worked by hand, the settings that fit a machine, and the refusals."""

from __future__ import annotations

import dataclasses

import pytest

from memagent_lib.backends import ModelShape
from memagent_lib.rl.cpu.cpu_memory import (
    SERVERS,
    CpuFit,
    MemoryShort,
    choose_fit,
    fit_of,
    memory_of,
    require_free,
    return_freed_memory,
)
from memagent_lib.rl.verl.verl_keys import CHECKPOINTING, MICRO_BATCH

SMOLLM2 = ModelShape(
    parameters=134_515_008,
    body=106_203_456,
    layers=30,
    hidden=576,
    kv_width=192,
    vocabulary=49_152,
    attention=576,
    ffn=1536,
)
GB = 1e9


def gigabytes(needed: dict[str, float]) -> dict[str, float]:
    return {name: round(size / GB, 2) for name, size in needed.items()}


def test_the_bytes_of_smollm2_are_those_worked_by_hand():
    fit = CpuFit(micro_batch_tokens=2048, servers=2)
    assert gigabytes(memory_of(SMOLLM2, fit)) == {
        "weights": 0.54,
        "gradients": 0.54,
        "optimizer": 1.08,
        "activations": 2.83,  # 0.8 x 2,048 tokens x 30 layers x 14,400 numbers x 4 bytes
        "attention mask": 0.02,  # 2,048 x 2,048 x 4 bytes
        "logits": 1.61,  # 2,048 x 49,152 x 4 bytes x 4 copies
        "training process": 2.0,
        "2 rollout servers": 7.22,  # each 0.54 of weights, 1.07 of cache and 2.0 of its process
        "Ray and trainer": 2.9,
    }


def test_in_bf16_activations_and_servers_are_smaller():
    fit = CpuFit(micro_batch_tokens=2048, servers=2, half=True)
    needed = gigabytes(memory_of(SMOLLM2, fit))
    assert needed["weights"] == 0.81  # 4 bytes of the optimizer's and 2 of the model's
    assert needed["activations"] == 2.12  # 0.6 in place of 0.8
    assert needed["2 rollout servers"] == 6.69  # each 0.27 of weights


def test_adapters_alone_have_gradients_and_moments():
    # Rank 8, 30 layers: q 576 + 576, k and v 576 + 192 each, o 576 + 576, and three of 576 + 1,536 in the MLP.
    adapters = 8 * 30 * (1_152 + 2 * 768 + 1_152 + 3 * 2_112)
    assert SMOLLM2.adapter_parameters(8) == adapters == 2_442_240
    needed = memory_of(SMOLLM2, CpuFit(micro_batch_tokens=2048, servers=2, half=True, lora_rank=8))
    assert needed["weights"] == 6 * (134_515_008 + 2_442_240)  # 4 bytes and a copy of 2, frozen or not
    assert needed["gradients"] == 4 * 2_442_240
    assert needed["optimizer"] == 8 * 2_442_240
    whole = memory_of(SMOLLM2, CpuFit(micro_batch_tokens=2048, servers=2, half=True))
    assert needed["activations"] == whole["activations"]


def test_a_reference_policy_is_a_second_model_without_adapters():
    fit = CpuFit(micro_batch_tokens=2048, servers=2, reference=True)
    needed = memory_of(SMOLLM2, fit)
    assert needed.pop("reference policy") == 4 * SMOLLM2.parameters
    assert needed == memory_of(SMOLLM2, dataclasses.replace(fit, reference=False))
    assert "reference policy" not in memory_of(SMOLLM2, dataclasses.replace(fit, lora_rank=8))
    of_verl = {MICRO_BATCH: 512, SERVERS: 2, CHECKPOINTING: False, "actor_rollout_ref.actor.use_kl_loss": True}
    assert fit_of(of_verl, nodes=1).reference


def test_adapters_leave_room_for_larger_micro_batches():
    sizes = {"window": 371, "servers": 2, "workers": 1, "machine_bytes": 25 * GB}
    assert choose_fit(SMOLLM2, **sizes, half=True).micro_batch_tokens == 2048
    assert choose_fit(SMOLLM2, **sizes, half=True, lora_rank=8).micro_batch_tokens == 4096


def test_freed_memory_goes_back_to_the_system():
    import psutil

    process = psutil.Process()
    blocks = [b"x" * (64 << 10) for _ in range(3200)]  # 210 MB, each below the size that glibc maps by itself
    for block in range(0, len(blocks), 2):
        blocks[block] = b""  # those between stay, so the blocks cannot be joined and returned at once
    before = process.memory_info().rss
    return_freed_memory()
    assert before - process.memory_info().rss > 60 * 1e6
    assert len(blocks) == 3200


def test_checkpointing_saves_each_layers_input_and_one_layer():
    fit = CpuFit(micro_batch_tokens=2048, servers=1, checkpointing=True)
    # 2,048 tokens x 4 bytes x (576 x 30 layers + 0.8 x 14,400)
    assert gigabytes(memory_of(SMOLLM2, fit))["activations"] == 0.24


@pytest.mark.parametrize(
    ("machine", "tokens", "servers", "checkpointing"),
    [
        (64 * GB, 8192, 2, False),
        (25 * GB, 2048, 2, False),
        (21 * GB, 1024, 2, False),
        (17 * GB, 1024, 1, False),
        (14 * GB, 1024, 1, True),
        (4 * GB, 1024, 1, True),
    ],
)
def test_the_fastest_settings_that_fit_are_chosen(machine, tokens, servers, checkpointing):
    chosen = choose_fit(SMOLLM2, window=371, servers=2, workers=1, machine_bytes=machine)
    assert chosen == CpuFit(micro_batch_tokens=tokens, servers=servers, checkpointing=checkpointing)


def test_a_micro_batch_has_room_for_the_longest_row():
    chosen = choose_fit(SMOLLM2, window=3000, servers=2, workers=1, machine_bytes=10 * GB)
    assert chosen.micro_batch_tokens == 3000


def test_verls_own_settings_decide_what_a_run_needs():
    settings = {
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 512,
        "actor_rollout_ref.rollout.agent.num_workers": 4,
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "actor_rollout_ref.model.lora_rank": 8,
    }
    assert fit_of(settings, nodes=2) == CpuFit(micro_batch_tokens=512, servers=2, checkpointing=True, lora_rank=8)


def test_too_little_free_memory_is_refused_with_the_numbers():
    fit = CpuFit(micro_batch_tokens=2048, servers=2)
    needed = memory_of(SMOLLM2, fit)
    require_free(needed, fit, 13 * GB)
    message = (
        r"the run can need 18\.7 GB \(weights 0\.5, .*logits 1\.6.*\) and 7\.0 GB are free; .*"
        r"lower verl\.\S+ppo_max_token_len_per_gpu \(now 2,048\)"
    )
    with pytest.raises(MemoryShort, match=message):
        require_free(needed, fit, 7 * GB)
