"""From the rewards of rollouts to the advantages of their turns: the paper's equation, and variants for a recipe.

Rows are named as verl names them: ``{prompt}_{rollout}_{turn}``. Knows neither verl nor tensors.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

SMALLEST_DEVIATION = 1e-6


class Credit(StrEnum):
    """Which turns of a rollout share its advantage ``A``.

    ``shared``: every turn gets ``A``, as published; a rollout of many turns weighs more. ``final``: the answer alone;
    a baseline that shows what training the memory adds. ``split``: every one of ``n`` turns gets ``A / n``, so that
    long and short documents pull alike; for batches that mix lengths.
    """

    SHARED = "shared"
    FINAL = "final"
    SPLIT = "split"


class Overlong(StrEnum):
    """What happens to a reply that was cut at its limit.

    ``keep``: it is trained on like any other, as published. ``mask``: its tokens leave loss and normaliser, because
    what the policy would have written is unknown; for limits that are often hit early on, though it does not teach a
    policy to stop. ``penalty``: the rollout's reward falls as its replies near their limits:
    ``R + overlong_weight mean_j(p_j)`` with :func:`length_penalty` ``p_j`` of turn ``j`` (DAPO, arXiv 2503.14476,
    equation 13, averaged over turns); for memories that should stay short.
    """

    KEEP = "keep"
    MASK = "mask"
    PENALTY = "penalty"


class RowName(NamedTuple):
    """A row by prompt, rollout of the prompt, and turn of the rollout."""

    prompt: str
    rollout: str
    turn: int

    @classmethod
    def of(cls, key: str) -> RowName:
        prompt, rollout, turn = key.rsplit("_", 2)
        return cls(prompt, rollout, int(turn))


def length_penalty(reply_tokens: int, limit: int, buffer: float) -> float:
    """Return 0 up to ``(1 - buffer) * limit`` tokens, then a value that falls in a line to -1 at ``limit``."""
    room = buffer * limit
    return -min(1.0, max(0.0, (reply_tokens - (limit - room)) / room))


def last_turns(keys: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return, for each (prompt, rollout), the position among ``keys`` of its last turn."""
    last: dict[tuple[str, str], int] = {}
    for position, row in enumerate(map(RowName.of, keys)):
        found = last.get(row[:2])
        if found is None or RowName.of(keys[found]).turn < row.turn:
            last[row[:2]] = position
    return last


def row_advantages(
    keys: Sequence[str], rewards: Sequence[float], *, by_deviation: bool = False, credit: Credit = Credit.SHARED
) -> list[float]:
    """Return the advantage of every row's tokens; ``rewards`` are per row, and only those of last turns count.

    ``A_i = R_i - mean(R)`` over the rollouts ``i`` of a prompt (arXiv 2507.02259, equation 4), each counted once
    however many turns it took. With ``by_deviation`` it is GRPO as published: ``A_i / (deviation(R) + 1e-6)``, with
    the sample's standard deviation. A prompt with a single rollout has nothing to compare with: 0.
    """
    last = last_turns(keys)
    groups: dict[str, list[float]] = defaultdict(list)
    for (prompt, _), position in last.items():
        groups[prompt].append(float(rewards[position]))
    turns: dict[tuple[str, str], int] = defaultdict(int)
    for key in keys:
        turns[RowName.of(key)[:2]] += 1

    def advantage(row: RowName, position: int) -> float:
        rollout = row[:2]
        group = groups[row.prompt]
        value = float(rewards[last[rollout]]) - statistics.fmean(group)
        if by_deviation and len(group) > 1:
            value /= statistics.stdev(group) + SMALLEST_DEVIATION
        if credit is Credit.FINAL:
            return value if last[rollout] == position else 0.0
        return value / turns[rollout] if credit is Credit.SPLIT else value

    return [advantage(RowName.of(key), position) for position, key in enumerate(keys)]


def step_advantages(keys: Sequence[str], steps: Sequence[float | None]) -> list[float]:
    """Return ``S_ij = s_ij - mean(s_j)``: the evidence a turn noted and retained, against that turn of the group.

    ``s_ij`` is :attr:`~memagent_lib.diagnostics.Diagnosis.steps` of turn ``j`` of rollout ``i``. The mean is over the
    rollouts of a prompt whose turn ``j`` had evidence to note or retain; a turn that had none gets 0.
    """
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows = [RowName.of(key) for key in keys]
    for row, step in zip(rows, steps, strict=True):
        if step is not None:
            groups[row.prompt, row.turn].append(step)
    return [
        0.0 if step is None else step - statistics.fmean(groups[row.prompt, row.turn])
        for row, step in zip(rows, steps, strict=True)
    ]


def prompts_without_spread(
    keys: Sequence[str], rewards: Sequence[float], steps: Sequence[float | None] | None = None
) -> set[str]:
    """Return the prompts whose advantages are all 0: equal rewards, and equal step rewards in every turn."""
    seen: dict[str, set[float]] = defaultdict(set)
    noted: dict[tuple[str, int], set[float]] = defaultdict(set)
    for (prompt, _), position in last_turns(keys).items():
        seen[prompt].add(float(rewards[position]))
    for row, step in zip(map(RowName.of, keys), steps or (), strict=False):
        if step is not None:
            noted[row.prompt, row.turn].add(step)
    spread = {prompt for (prompt, _), values in noted.items() if len(values) > 1}
    return {prompt for prompt, values in seen.items() if len(values) == 1} - spread
