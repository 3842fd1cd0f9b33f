"""Rewards besides the score of the answer: for single turns, and for where a reading ends.

A reader's kinds of prompt declare the commands that replies may contain (:attr:`~memagent_lib.trace.Kind.commands`).
With the positions of the evidence, these are all that the rewards need, so they serve every reader with such a command.
A turn's reward is compared with the same turn of the prompt's other rollouts
(:func:`~memagent_lib.rl.advantages.step_advantages`); the reward of a reading's end is added to its score. This module
depends on traces and their diagnosis, not on verl.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from memagent_lib.data import Span
from memagent_lib.diagnostics import Diagnosis, Fate
from memagent_lib.readers import DONE, KEEP, RECALL_COMMAND, SEARCH_COMMAND, Reader
from memagent_lib.settings import require_at_least
from memagent_lib.trace import Kind, Trace, Turn

_WORD = re.compile(r"\w+")


class TurnReward(StrEnum):
    """A reward of single turns. :class:`RewardConfig` defines ``update`` and ``gain``."""

    EVIDENCE = "evidence"
    """The share of the evidence that the turn noted and retained (``train.evidence_reward``)."""
    UPDATE = "update"
    GAIN = "gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """What is rewarded besides the answer. By default, nothing is.

    Turn ``j`` of rollout ``i`` has the advantage ``rollout_weight A_i + sum_k w_k S_kij``. ``A_i`` compares the
    rollout's reward ``R_i`` with those of its group, and is shared as ``train.credit`` states. ``S_kij`` is the reward
    ``k`` of turn ``j`` less its mean over the rollouts of the group that have this turn. A reading that ends early has
    fewer turns, and only these get credit.

    *Gates* (GRU-Mem, arXiv 2602.10560, equations 8 to 13), for readers with the commands KEEP and DONE. ``update`` is
    the weight of a turn's reward: 1 if the memory was rewritten and the chunk has evidence, or if it was left unchanged
    and the chunk has none; otherwise -1. ``R_i`` is the score plus ``early_exit`` if the reading ended before all
    evidence was read, or plus ``late_exit`` if it ended after more turns than that needs. The paper's objective is
    ``rollout_weight = 0.9, update = 0.1, early_exit = -0.75, late_exit = -0.5``; its reward for the form of a reply is
    left out, because a reply without a gate is a valid memory here.

    *Recall* (ReMemR1, arXiv 2509.23040, multi-level rewards). ``gain`` is the weight of a turn's reward ``g(m_j) -
    g(m_j-1) + max(0, g(p_j + c_j) - g(p_j))``. ``g`` is the mean over the accepted answers of the share of their words
    in a text, ``m`` a memory, ``p`` a turn's prompt and reply, and ``c`` what the next prompt displays because the
    reply requested it (a past memory, or a passage). The paper's objective is ``rollout_weight = 0.8, gain = 0.2``.

    *Stopping* (InfMem, arXiv 2602.02704, early-stop reward), for readers with the command DONE. ``R_i`` is the score
    plus ``stop * stop_decay ** d``, where ``d`` counts the turns after the first memory with all of the evidence (or,
    if its position is unknown, with an answer), and plus nothing if there is no such memory. The authors' code has
    ``stop = 0.6, stop_decay = 0.6``.
    """

    rollout_weight: float = 1.0
    update: float = 0.0
    gain: float = 0.0
    early_exit: float = 0.0
    late_exit: float = 0.0
    stop: float = 0.0
    stop_decay: float = 0.6

    def __post_init__(self) -> None:
        require_at_least(self, 0, "rollout_weight", "update", "gain", "stop")
        for name in ("early_exit", "late_exit"):
            if getattr(self, name) > 0:
                raise ValueError(f"{name} is added to the score and must be at most 0, got {getattr(self, name)}")
        if not 0 < self.stop_decay <= 1:
            raise ValueError(f"stop_decay must be above 0 and at most 1, got {self.stop_decay}")

    @property
    def needing_evidence(self) -> tuple[str, ...]:
        """The rewards in use that cannot be computed for an example whose evidence has no known position."""
        return tuple(name for name in ("update", "early_exit", "late_exit") if getattr(self, name))

    def require_commands(self, reader: Reader) -> None:
        """Raise ``ValueError`` if a reward is for a command that the reader's replies cannot contain."""
        needed = {"update": KEEP, "early_exit": DONE, "late_exit": DONE, "stop": DONE}
        for name, command in needed.items():
            if getattr(self, name) and command not in reader.commands:
                raise ValueError(
                    f"rewards.{name} is for replies with the command {command.upper()}, and the reader {reader.name!r} "
                    f'has no such command; set reading.reader = "gated", or leave rewards.{name} out'
                )


class Exit(StrEnum):
    """Where a reading ended: before all of its evidence was read, with the last of it, or after more turns."""

    EARLY = "early"
    RIGHT = "right"
    LATE = "late"


def exit_of(trace: Trace, evidence: Sequence[Span]) -> Exit | None:
    """Return where the reading ended; ``None`` if the position of the evidence is unknown.

    Evidence is read by the first turn whose chunk contains its last character. A reading that goes through the whole
    document is late too, unless the last chunk completes the evidence (GRU-Mem, equation 9).
    """
    if not evidence:
        return None
    chunks = [turn.prompt.chunk for turn in trace.reads]
    read = [
        next((number for number, chunk in enumerate(chunks) if chunk.start < end <= chunk.end), None)
        for _, end in evidence
    ]
    if None in read:
        return Exit.EARLY
    return Exit.LATE if len(chunks) - 1 > max(read) else Exit.RIGHT


def reward_of_end(config: RewardConfig, trace: Trace, evidence: Sequence[Span], diagnosis: Diagnosis) -> float:
    """Return what the end of a reading adds to its score."""
    reward = 0.0
    if config.early_exit or config.late_exit:
        ends = {Exit.EARLY: config.early_exit, Exit.LATE: config.late_exit}
        reward += ends.get(exit_of(trace, evidence), 0.0)
    if config.stop:
        complete = [_has_all(diagnosis, number) for number, turn in enumerate(trace.turns) if turn.prompt.kind.reads]
        if True in complete:
            reward += config.stop * config.stop_decay ** (len(complete) - 1 - complete.index(True))
    return reward


def turn_rewards(
    names: Collection[str], trace: Trace, evidence: Sequence[Span], answers: Sequence[str], diagnosis: Diagnosis
) -> list[dict[str, float | None]]:
    """Return the rewards called ``names`` of each turn; ``None`` where a reward does not apply to a turn."""
    compute = {
        TurnReward.EVIDENCE: lambda: diagnosis.steps,
        TurnReward.UPDATE: lambda: [update_reward(turn, evidence) for turn in trace.turns],
        TurnReward.GAIN: lambda: [
            gain_reward(turn, following, answers) for turn, following in pairwise((*trace.turns, None))
        ],
    }
    columns = {name: compute[TurnReward(name)]() for name in names}
    return [{name: column[number] for name, column in columns.items()} for number in range(len(trace.turns))]


def update_reward(turn: Turn, evidence: Sequence[Span]) -> float | None:
    """Return 1 if a turn rewrote its memory exactly if its chunk has evidence, and else -1; ``None`` for no read."""
    chunk = turn.prompt.chunk
    if not turn.prompt.kind.reads or chunk is None:
        return None
    has_evidence = any(start < chunk.end and chunk.start < end for start, end in evidence)
    # By the command and not by the text: a memory that is copied out costs as many tokens as a new one.
    updated = turn.reply.command != KEEP
    return 1.0 if updated == has_evidence else -1.0


def gain_reward(turn: Turn, following: Turn | None, answers: Sequence[str]) -> float | None:
    """Return how much closer a turn brought memory and next prompt to the answers; ``None`` if it wrote no memory."""
    prompt = turn.prompt
    if not prompt.kind.writes_memory:
        return None
    chunk = prompt.chunk.text if prompt.chunk else ""
    before = prompt.old_memory
    if prompt.kind == Kind.MERGE:  # its chunk is the other memory
        before = f"{before} {chunk}"
    seen = " ".join((prompt.question, prompt.memory, chunk, turn.reply.text))
    brought = f"{seen} {_requested_text(turn, following)}"
    gained = share_of_words(turn.reply.text, answers) - share_of_words(before, answers)
    return gained + max(0.0, share_of_words(brought, answers) - share_of_words(seen, answers))


def share_of_words(text: str, answers: Sequence[str]) -> float:
    """Return the mean over ``answers`` of the share of their words that ``text`` contains, ignoring case."""
    there = set(_WORD.findall(text.casefold()))
    shares = []
    for answer in answers:
        words = _WORD.findall(answer.casefold())
        if words:
            shares.append(sum(word in there for word in words) / len(words))
    return sum(shares) / len(shares) if shares else 0.0


def turn_position(turn: Turn) -> str:
    """Return what a turn works on, in a form in which rollouts of one document can be compared turn by turn.

    Turn numbers differ as soon as one rollout searches or ends early.
    """
    chunk = turn.prompt.chunk
    return f"{turn.prompt.kind} {chunk.start}-{chunk.end}" if chunk else str(turn.prompt.kind)


def _requested_text(turn: Turn, following: Turn | None) -> str:
    """Return the text that the next prompt displays because this turn's reply requested it."""
    if following is None:
        return ""
    # A request that matched no memory leaves the next prompt with one.
    if turn.reply.command == RECALL_COMMAND and following.prompt.memories > 1:
        return following.prompt.memory
    # A search that found a passage is followed by a prompt of another kind, which has it as its chunk.
    if turn.reply.command == SEARCH_COMMAND and following.prompt.kind != turn.prompt.kind and following.prompt.chunk:
        return following.prompt.chunk.text
    return ""


def _has_all(diagnosis: Diagnosis, turn: int) -> bool:
    """Return whether all evidence is in memory after a turn; False for an example without evidence and answers."""
    fates = [history.fates[turn] for history in diagnosis.histories]
    return bool(fates) and all(fate is Fate.IN_MEMORY for fate in fates)
