"""A model with LoRA adapters as the plain model that it computes: adapters folded into the weights they stand beside.

Knows the names that peft gives to weights; knows no trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

PREFIX, BASE, DOWN, UP = "base_model.model.", ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def merged(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """``W + scale B A`` for every ``W`` with an adapter (arXiv 2106.09685, equation 3; ``scale`` is alpha / rank), all
    by the plain model's names. The product is taken in fp32; a weight keeps its type.
    """
    plain = {}
    for name, weight in weights.items():
        if name.endswith((DOWN, UP)):
            continue
        stem = name.removesuffix(f"{BASE}weight")
        if stem != name:
            change = weights[stem + UP].float() @ weights[stem + DOWN].float()
            weight = (weight.float() + scale * change).to(weight.dtype)
        plain[name.removeprefix(PREFIX).replace(BASE, ".")] = weight
    return plain
