"""Compute the advantages of turns from the rewards of rollouts: the paper's equation, and a recipe's variants of it.

A row is one turn of one rollout; verl names it ``{prompt}_{rollout}_{turn}``. The module uses neither verl nor tensors.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from memagent_lib.trace import Turn

SMALLEST_DEVIATION = 1e-6  # as in verl's own GRPO


class Credit(StrEnum):
    """Which turns of a rollout receive its advantage ``A``.

    ``shared``: every turn gets ``A``, as published; a rollout with more turns weighs more. ``final``: only the answer
    gets ``A``, a baseline that measures what training the memory adds. ``split``: each of ``n`` turns gets ``A / n``,
    so that long and short documents weigh the same. Use ``split`` for batches that mix lengths.
    """

    SHARED = "shared"
    FINAL = "final"
    SPLIT = "split"


class Overlong(StrEnum):
    """What training does with a reply that was truncated at its limit.

    ``keep``: train on the reply as on any other, as published. ``mask``: leave its tokens out of the loss and the
    normaliser, because the rest of the reply is unknown. Use it for policies that often reach the limit at first; it
    does not teach them to stop. ``penalty``: lower the rollout's reward as its replies approach their limits, to ``R +
    overlong_weight mean_j(p_j)`` with the :func:`length_penalty` ``p_j`` of turn ``j`` (DAPO, arXiv 2503.14476,
    equation 13, averaged over turns). Use it for memories that should stay short. ``penalty_if_right``: the same for
    rollouts with a score above 0; the reward of the others is 0. Use it where most rollouts are wrong at first: groups
    without a right rollout differ in length only, and the penalty would teach them to remember less.
    """

    KEEP = "keep"
    MASK = "mask"
    PENALTY = "penalty"
    PENALTY_IF_RIGHT = "penalty_if_right"


_PROMPT_NAME = re.compile(r"s\d+p(\d+)")


def prompt_name(step: int, number: int) -> str:
    """Return the name of a step's prompt. Numbers are padded with zeros, because rows are sorted by these names."""
    return f"s{step:06d}p{number:05d}"


def prompt_number(name: str) -> int | None:
    """Return the number in a name from :func:`prompt_name`, and None for another: verl names those of a validation."""
    found = _PROMPT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def is_traced(name: str) -> bool:
    """Return whether a run keeps rollouts of the prompt to look at: it does of the first one of every step."""
    return prompt_number(name) == 0


class RowName(NamedTuple):
    """The parts of a row's name: the prompt, the rollout of that prompt, and the turn of that rollout."""

    prompt: str
    rollout: str
    turn: int

    @classmethod
    def of(cls, key: str) -> RowName:
        prompt, rollout, turn = key.rsplit("_", 2)  # from the right, so that a prompt's name may have underscores
        return cls(prompt, rollout, int(turn))


class Credited(NamedTuple):
    """What a rollout is trained with: its reward, and for each reply an advantage and the number of tokens that get it.

    A reply without tokens is left out of the loss. ``group`` has the rewards of all rollouts of the prompt.
    """

    reward: float
    advantages: list[float]
    tokens: list[int]
    group: list[float]

    def by_turn(self, turns: Sequence[Turn]) -> list[list[tuple[float, int]]]:
        """Return the (advantage, tokens) pairs of each turn's replies; a reply that was turned away has one too."""
        replies = zip(self.advantages, self.tokens, strict=True)
        return [list(islice(replies, len(turn.attempts))) for turn in turns]


def length_penalty(reply_tokens: int, limit: int, buffer: float) -> float:
    """Return a reply's penalty: 0 up to ``(1 - buffer) * limit`` tokens, then falling linearly to -1 at ``limit``."""
    room = buffer * limit
    return -min(1.0, max(0.0, (reply_tokens - (limit - room)) / room))


def rows_by_rollout(keys: Sequence[str]) -> dict[tuple[str, str], list[int]]:
    """Map each (prompt, rollout) to the positions of its rows in ``keys``, in the order of its turns."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, position in sorted((RowName.of(key), position) for position, key in enumerate(keys)):
        rows[row[:2]].append(position)
    return rows


def row_advantages(
    keys: Sequence[str], rewards: Sequence[float], *, by_deviation: bool = False, credit: Credit = Credit.SHARED
) -> list[float]:
    """Return the advantage of each row. ``rewards`` has a value per row; only that of a rollout's last turn counts.

    ``A_i = R_i - mean(R)`` over the rollouts ``i`` of a prompt (arXiv 2507.02259, equation 4); every rollout counts
    once, whatever its number of turns. ``by_deviation`` divides by ``deviation(R) + 1e-6``, with the sample standard
    deviation, as in the published GRPO. If a prompt has only one rollout, its advantage is 0.
    """
    rollouts = rows_by_rollout(keys)
    groups = _rewards_of_groups(rollouts, rewards)
    advantages = [0.0] * len(keys)
    for (prompt, _), rows in rollouts.items():
        value = float(rewards[rows[-1]]) - statistics.fmean(groups[prompt])
        if by_deviation and len(groups[prompt]) > 1:
            value /= statistics.stdev(groups[prompt]) + SMALLEST_DEVIATION
        if credit is Credit.SPLIT:
            value /= len(rows)
        for row in rows[-1:] if credit is Credit.FINAL else rows:
            advantages[row] = value
    return advantages


def credited(
    keys: Sequence[str], rewards: Sequence[float], advantages: Sequence[float], tokens: Sequence[int]
) -> dict[str, Credited]:
    """Return what each rollout is trained with, by its name ``{prompt}_{rollout}``, from a value per row."""
    rollouts = rows_by_rollout(keys)
    groups = _rewards_of_groups(rollouts, rewards)
    found = {}
    for (prompt, rollout), rows in rollouts.items():
        own = [advantages[row] for row in rows], [tokens[row] for row in rows]
        found[f"{prompt}_{rollout}"] = Credited(rewards[rows[-1]], *own, groups[prompt])
    return found


def turn_advantages(keys: Sequence[str], rewards: Sequence[float | None], positions: Sequence[str]) -> list[float]:
    """Return ``S_ij = s_ij - mean(s_j)`` for each row: a reward of the turn less the mean of its group.

    ``s_ij`` (``rewards``) is a reward of turn ``j`` of rollout ``i`` alone (:mod:`memagent_lib.rl.rewards`), or None if
    the turn has no such reward. The mean is over all rewards that the rollouts of a prompt have for the turn (a reply
    that was turned away has one too); a turn without one gets 0. ``positions`` name the turns that are the same work
    in several rollouts.
    """
    groups = _rewards_of_turns(keys, rewards, positions)
    return [
        0.0 if reward is None else reward - statistics.fmean(groups[RowName.of(key).prompt, position])
        for key, reward, position in zip(keys, rewards, positions, strict=True)
    ]


def prompts_without_spread(keys: Sequence[str], rewards: Sequence[float]) -> set[str]:
    """Return the prompts whose rollouts have equal rewards, so that their advantages are all 0."""
    # Compared exactly: equal replies get their rewards by the same arithmetic.
    groups = _rewards_of_groups(rows_by_rollout(keys), rewards)
    return {prompt for prompt, values in groups.items() if len(set(values)) == 1}


def prompts_with_turn_spread(
    keys: Sequence[str], rewards: Sequence[float | None], positions: Sequence[str]
) -> set[str]:
    """Return the prompts with different rewards (``rewards``) of the same turn (:func:`turn_advantages`)."""
    groups = _rewards_of_turns(keys, rewards, positions)
    return {prompt for (prompt, _), values in groups.items() if len(set(values)) > 1}


def _rewards_of_turns(
    keys: Sequence[str], rewards: Sequence[float | None], positions: Sequence[str]
) -> dict[tuple[str, str], list[float]]:
    """Return the rewards of the same turn in the rollouts of a prompt, by prompt and position."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for key, reward, position in zip(keys, rewards, positions, strict=True):
        if reward is not None:
            groups[RowName.of(key).prompt, position].append(reward)
    return groups


def _rewards_of_groups(
    rollouts: Mapping[tuple[str, str], Sequence[int]], rewards: Sequence[float]
) -> dict[str, list[float]]:
    """Return the rewards of each prompt's rollouts, which are those of their last turns."""
    groups: dict[str, list[float]] = defaultdict(list)
    for (prompt, _), rows in rollouts.items():
        groups[prompt].append(float(rewards[rows[-1]]))
    return groups
