"""Merge LoRA adapters into the weights of their model, which gives a plain model with the same outputs.

Weights have the names that peft gives them. Nothing here depends on the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

PREFIX = "base_model.model."
BASE = ".base_layer."
DOWN = ".lora_A.default.weight"
UP = ".lora_B.default.weight"


def merged(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Return all weights by the plain model's names, with each ``W`` that has an adapter replaced by ``W + scale B A``.

    ``scale`` is alpha / rank (arXiv 2106.09685, equation 3). The product is computed in fp32, then rounded to the
    weight's own type.
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
