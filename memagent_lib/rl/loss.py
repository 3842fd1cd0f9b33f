"""The published policy loss, with one measurement added: do rollouts and actor agree about the tokens that were sampled?

Registered with verl as ``memagent``. The gradient is that of verl's ``vanilla`` loss (PPO, clipped and dual-clipped); the
moments of old and new log-probabilities ride along as metrics, from which the trainer computes their correlation. With one
optimizer step per batch this replaces a whole forward pass that would measure the same thing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss

NAME = "memagent"
_MOMENTS = ("tokens", "old", "new", "old_old", "new_new", "old_new", "difference")
PREFIX = "moment/"


@register_policy_loss(NAME)
def memagent_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **settings: Any,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's ``vanilla`` loss and its metrics, plus ``moment/*``. Shapes: (rows, longest reply)."""
    loss, metrics = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, response_mask, **settings)
    return loss, metrics | moments(old_log_prob, log_prob.detach(), response_mask)


def moments(old: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Sums over the tokens in ``mask``. verl averages metrics over micro-batches, which scales all of them alike."""
    chosen = mask.bool()
    x, y = old[chosen].double(), new[chosen].double()
    values = (
        x.new_tensor(x.numel()),
        x.sum(),
        y.sum(),
        (x * x).sum(),
        (y * y).sum(),
        (x * y).sum(),
        (x - y).abs().sum(),
    )
    return {PREFIX + name: value.item() for name, value in zip(_MOMENTS, values, strict=True)}


def agreement(means: dict[str, float]) -> tuple[float, float]:
    """Pearson correlation and mean absolute difference of log-probabilities, from averaged :func:`moments`."""
    n, x, y, xx, yy, xy, difference = (means[PREFIX + name] for name in _MOMENTS)
    if n == 0:
        return math.nan, math.nan
    spread = math.sqrt(max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y))
    return (n * xy - x * y) / spread if spread else 1.0, difference / n
