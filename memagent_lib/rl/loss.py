"""The published policy loss, plus two measurements: the number of rows trained, and how well sampler and actor agree.

The loss is registered with verl as ``memagent``. Its gradient is that of verl's ``vanilla`` loss (PPO, clipped and
dual-clipped). Both measurements can be made only where the loss is computed, so it returns sums over the micro-batch as
metrics. If a run skips the old policy's forward pass, the sums are the only comparison of sampler and actor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss

from memagent_lib.rl.verl.verl_keys import OWN_LOSS

PREFIX = "moment/"
_MOMENTS = ("tokens", "old", "new", "old_old", "new_new", "old_new", "difference")


@register_policy_loss(OWN_LOSS)
def memagent_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **settings: Any,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return verl's ``vanilla`` loss and its metrics, plus the metrics ``moment/*``.

    All tensors have the shape (rows, longest reply).
    """
    loss, metrics = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, response_mask, **settings)
    counts = {
        f"{PREFIX}rows": float(response_mask.bool().any(-1).sum()),
        f"{PREFIX}batch_tokens": float(settings["config"].global_batch_info["batch_num_tokens"]),
    }
    return loss, metrics | moments(old_log_prob, log_prob.detach(), response_mask) | counts


def moments(old: torch.Tensor, new: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Return the sums that :func:`agreement` needs, over the tokens in ``mask``.

    ``old`` and ``new`` are log-probabilities. verl averages metrics over micro-batches, which scales every sum by the
    same factor, so their ratios stay exact.
    """
    chosen = mask.bool()
    x = old[chosen].double()
    y = new[chosen].double()
    tokens = x.new_tensor(x.numel())
    sums = (tokens, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum(), (x - y).abs().sum())
    return {PREFIX + name: value.item() for name, value in zip(_MOMENTS, sums, strict=True)}


def agreement(means: Mapping[str, float]) -> tuple[float, float]:
    """Return the Pearson correlation and the mean absolute difference of log-probabilities.

    ``means`` are the :func:`moments`, averaged over micro-batches. Both results are NaN if no token counts. The
    correlation of constant values is 1.
    """
    n, x, y, xx, yy, xy, difference = (means[PREFIX + name] for name in _MOMENTS)
    if n == 0:
        return math.nan, math.nan
    # Rounding can make a variance slightly negative. Constant values have no correlation; they count as agreeing.
    spread = math.sqrt(max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y))
    return (n * xy - x * y) / spread if spread else 1.0, difference / n


def sampled_entropy(means: Mapping[str, float]) -> float:
    """Return the mean negative log-probability of the sampled tokens; NaN if no token counts.

    At temperature 1 it estimates the policy's entropy per token, which costs nothing here: the exact one needs the
    probabilities of the whole vocabulary (``actor.calculate_entropy``).
    """
    tokens = means[f"{PREFIX}tokens"]
    return -means[f"{PREFIX}old"] / tokens if tokens else math.nan


def rows_trained(means: Mapping[str, float]) -> int:
    """Return how many rows of a mini-batch had a token in the loss, over all workers and micro-batches.

    verl reports only averages over micro-batches, but their ratio of rows to tokens is that of the sums. The ratio
    times the mini-batch's number of tokens (the loss's normaliser) is the number of rows.
    """
    tokens = means[f"{PREFIX}tokens"]
    if not tokens:
        return 0
    return round(means[f"{PREFIX}rows"] / tokens * means[f"{PREFIX}batch_tokens"])
