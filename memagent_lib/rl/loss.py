"""The published policy loss, with two measurements that only the worker can make: which rows were trained on, and
whether sampler and actor agree about the sampled tokens.

verl knows it as ``memagent``. The gradient is that of verl's ``vanilla`` loss (PPO, clipped and dual-clipped); sums
over the micro-batch travel with it as metrics. When a run skips the old policy's forward pass, these sums are the only
comparison of sampler and actor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss

NAME = "memagent"
PREFIX = "moment/"
_MOMENTS = ("tokens", "old", "new", "old_old", "new_new", "old_new", "difference")


@register_policy_loss(NAME)
def memagent_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **settings: Any,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return verl's ``vanilla`` loss and its metrics, plus ``moment/*``. Shapes: (rows, longest reply)."""
    loss, metrics = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, response_mask, **settings)
    counts = {
        f"{PREFIX}rows": float(response_mask.bool().any(-1).sum()),
        f"{PREFIX}batch_tokens": float(settings["config"].global_batch_info["batch_num_tokens"]),
    }
    return loss, metrics | moments(old_log_prob, log_prob.detach(), response_mask) | counts


def moments(old: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Return sums over the tokens in ``mask``. verl averages them over micro-batches, which scales all alike."""
    chosen = mask.bool()
    x = old[chosen].double()
    y = new[chosen].double()
    tokens = x.new_tensor(x.numel())
    sums = (tokens, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum(), (x - y).abs().sum())
    return {PREFIX + name: value.item() for name, value in zip(_MOMENTS, sums, strict=True)}


def agreement(means: Mapping[str, float]) -> tuple[float, float]:
    """Return Pearson correlation and mean absolute difference of log-probabilities, from averaged :func:`moments`."""
    n, x, y, xx, yy, xy, difference = (means[PREFIX + name] for name in _MOMENTS)
    if n == 0:
        return math.nan, math.nan
    spread = math.sqrt(max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y))
    return (n * xy - x * y) / spread if spread else 1.0, difference / n


def rows_trained(means: Mapping[str, float]) -> int:
    """Return how many rows of a mini-batch had a token in the loss, over all workers and micro-batches.

    verl passes on averages over micro-batches only. Rows per token is the same in averages and in sums, and the number
    of tokens in the whole mini-batch is known, because it is the normaliser.
    """
    tokens = means[f"{PREFIX}tokens"]
    if not tokens:
        return 0
    return round(means[f"{PREFIX}rows"] / tokens * means[f"{PREFIX}batch_tokens"])
