"""The memory of a run on a CPU: a sum worked by hand, and the settings that fit a machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memagent_lib.backends import ModelShape
from memagent_lib.rl.verl import cpu_settings
from memagent_lib.rl.verl.cpu_settings import CpuFit, choose_fit, node_bytes

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


def recipe(rank: int = 0, reference: bool = False) -> SimpleNamespace:
    verl = {"actor_rollout_ref.model.lora_rank": rank, "actor_rollout_ref.actor.use_kl_loss": reference}
    return SimpleNamespace(workers=1, verl=verl)


def test_the_bytes_of_smollm2_are_those_worked_by_hand():
    fit = CpuFit(2, 2048)
    # Weights, gradients and moments; 0.8 x 2,048 tokens x 30 layers x 14,400 numbers x 4 bytes of activations; a mask
    # of 2,048 x 2,048; 4 copies of logits; the training process; two servers; Ray and the trainer.
    parts = (0.54, 0.54, 1.08, 2.83, 0.02, 1.61, 2.0, 2 * (0.54 + 1.07 + 2.0), 2.9)
    assert node_bytes(recipe(), SMOLLM2, fit, half=False) / GB == pytest.approx(sum(parts), abs=0.03)
    reference = node_bytes(recipe(reference=True), SMOLLM2, fit, half=False)
    assert reference - node_bytes(recipe(), SMOLLM2, fit, half=False) == 4 * SMOLLM2.parameters
    # Rank 8, 30 layers: q 576 + 576, k and v 576 + 192 each, o 576 + 576, and three of 576 + 1,536 in the MLP.
    assert SMOLLM2.adapter_parameters(8) == 8 * 30 * (1_152 + 2 * 768 + 1_152 + 3 * 2_112)


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (64 * GB, CpuFit(2, 8192)),
        (25 * GB, CpuFit(2, 2048)),
        (21 * GB, CpuFit(2, 1024)),
        (17 * GB, CpuFit(1, 1024)),
        (4 * GB, CpuFit(1, 1024)),
    ],
)
def test_the_fastest_settings_that_fit_are_chosen(monkeypatch, machine, chosen):
    monkeypatch.setattr(cpu_settings, "cores", lambda: 2)
    assert choose_fit(recipe(), SMOLLM2, 371, False, machine) == chosen


def test_adapters_leave_room_and_a_micro_batch_has_room_for_the_longest_row():
    assert choose_fit(recipe(), SMOLLM2, 371, True, 25 * GB).micro_batch_tokens == 2048
    assert choose_fit(recipe(rank=8), SMOLLM2, 371, True, 25 * GB).micro_batch_tokens == 4096
    assert choose_fit(recipe(), SMOLLM2, 3000, False, 10 * GB).micro_batch_tokens == 3000
