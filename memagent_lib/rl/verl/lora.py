"""A model with LoRA adapters as the plain model that it computes: adapters folded into the weights beside them.

Knows peft's names of weights; knows no trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

PREFIX = "base_model.model."
BASE = ".base_layer."
DOWN = ".lora_A.default.weight"
UP = ".lora_B.default.weight"


def merged(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Return ``W + scale B A`` for every ``W`` with an adapter, and all other weights, by the plain model's names.

    ``scale`` is alpha / rank (arXiv 2106.09685, equation 3). The product is taken in fp32; no weight changes its type.
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
