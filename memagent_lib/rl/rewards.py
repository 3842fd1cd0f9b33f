"""Rewards besides the score of the answer: functions that a recipe's table ``[rewards]`` names, with their weights.

    [rewards]
    rollout_weight = 0.9
    evidence = 0.5                      # how well a turn notes and retains the evidence, for any reader
    update = 0.1                        # a function of the reader's own file
    "experiments/mine.py:brief" = 0.2   # of any file

A reward takes the result of a reading. If it returns a list, these are rewards of single turns: one for every turn of
the trace, the answer included, and ``None`` where none applies. A number is added to the score of the answer; ``None``
adds nothing.

Turn ``j`` of rollout ``i`` has the advantage ``rollout_weight A_i + sum_k w_k S_kij``. ``A_i`` compares the rollout's
reward with those of its group, and is shared as ``train.credit`` states. ``S_kij`` is the reward ``k`` of turn ``j``
less its mean over the rollouts of the group that have this turn (:func:`~memagent_lib.rl.advantages.turn_advantages`).
A reading that ends early has fewer turns, and only these get credit.

Use ``evidence`` for documents whose question is never answered at first: it trains the memory towards the evidence, not
the answer. If an example has no evidence, its accepted answers serve as evidence.

This module depends on results and on files of readers, not on verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memagent_lib.evaluation import Result
from memagent_lib.plugins import PluginError, is_plugin, load_plugin
from memagent_lib.readers import reader_named
from memagent_lib.trace import Turn

Reward = Callable[[Result], float | list[float | None] | None]
EVIDENCE = "evidence"


def evidence(result: Result) -> list[float | None]:
    """Return the share of the evidence that each turn noted and retained."""
    return list(result.diagnosis.steps)


def reward_named(name: str, reader: str) -> Reward:
    """Return the reward ``name`` of a reader's own file, or the one that ``FILE.py:NAME`` defines."""
    if name == EVIDENCE:
        return evidence
    file = name
    if not is_plugin(name):
        own = reader_named(reader).file
        if not own:
            raise PluginError(f"the reader {reader!r} has no file with a reward {name!r}; give FILE.py:NAME")
        file = f"{own.rpartition(':')[0]}:{name}"
    found = load_plugin(file)
    if not callable(found):
        raise PluginError(f"{file} must be a function of a result, got {found!r}")
    return found


def rewards_of(
    result: Result, rewards: Mapping[str, Reward]
) -> tuple[dict[str, list[float | None]], dict[str, float | None]]:
    """Return the rewards of single turns, with a value for every turn of the trace, and those of the whole reading."""
    found = {name: function(result) for name, function in rewards.items()}
    of_turns = {name: list(values) for name, values in found.items() if isinstance(values, Sequence)}
    turns = len(result.trace.turns)
    for name, values in of_turns.items():
        if len(values) != turns:
            raise PluginError(f"the reward {name!r} has {len(values)} values for a reading of {turns} turns")
    return of_turns, {name: value for name, value in found.items() if name not in of_turns}


def turn_position(turn: Turn) -> str:
    """Return what a turn works on, in a form in which rollouts of one document can be compared turn by turn.

    Turn numbers differ as soon as one rollout searches or ends early.
    """
    chunk = turn.prompt.chunk
    return f"{turn.prompt.kind} {chunk.start}-{chunk.end}" if chunk else str(turn.prompt.kind)
