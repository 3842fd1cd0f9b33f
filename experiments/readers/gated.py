"""Gates in words (after GRU-Mem, arXiv 2602.10560): the model may leave its memory unchanged or stop reading early.

The paper's objective is, in a recipe,

    [rewards]
    rollout_weight = 0.9
    update = 0.1
    early_exit = -0.75
    late_exit = -0.5

Its reward for the form of a reply is left out, because a reply without a gate is a valid memory here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from memagent_lib.readers import ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace

if TYPE_CHECKING:
    from memagent_lib.evaluation import Result
    from memagent_lib.sft import Moment

KEEP = "keep"
DONE = "done"
# Models put a name before the word, and marks around it: "**Decision:** keep".
_NAME = r"\W*(?:(?i:decision|gate|action|command|verdict)\W*[:=–—-]\W*)?"
# Alone in any case; in capitals also with a comment behind a dash, a bracket or another mark that ends the word. "Keep
# the red door shut" is a memory.
_KEEP = re.compile(rf"{_NAME}((?i:keep)\W*|KEEP[*_\"'`]*(\s*[(.,:;!\n–—]|\s+-).*)", re.DOTALL)
_DONE = re.compile(rf"{_NAME}((?i:done)\b[^\n\w]*|DONE[*_\"'`]*( *[(–—]| +-)[^\n]*)(?:\n|$)")
# Models that write the memory first put the word behind it, where it means nothing.
_LAST_LINE = re.compile(r"\n\W*(?:KEEP|DONE)\W*\Z")
_LAST_CHARS = 200  # in thousands of line breaks, the search would take seconds


def open_gate(reply: Reply, memory: str) -> Reply:
    """Return the reply with the resulting memory as its text, and the gate as its signal ("" for a plain memory)."""
    # The whole reply: a memory may itself contain the word.
    if _KEEP.fullmatch(reply.text):
        return replace(reply, text=memory, signal=KEEP)
    return open_done(reply, memory)


def open_done(reply: Reply, memory: str) -> Reply:
    """Return a reply that begins with DONE without the word, which becomes its signal; return any other unchanged."""
    done = _DONE.match(reply.text)
    if not done:
        return reply
    # DONE may come with a last memory; alone, it leaves the memory unchanged.
    return replace(reply, text=reply.text[done.end() :].strip() or memory, signal=DONE)


def write_gate(memory: str, signal: str) -> str:
    """Return the reply that opens to ``memory`` and ``signal``."""
    if signal == KEEP:
        return KEEP.upper()
    return f"{DONE.upper()}\n{memory}".strip() if signal else memory


def ends_with_gate(text: str) -> bool:
    """Return whether the last of several lines is a gate's word by itself."""
    return _LAST_LINE.search(text[-_LAST_CHARS:]) is not None


def teach(moment: Moment) -> str:
    """Choose the gate of a lesson: the blind teacher draws it with the shares ``keep`` and ``done``."""
    if moment.aware:
        if moment.complete:
            return DONE
        return KEEP if moment.memory == moment.before else ""
    chance = moment.rng.random()
    keep = moment.share(KEEP, 0.25)
    if chance < keep:
        return KEEP
    return DONE if chance - keep < moment.share(DONE, 0.1) else ""


GATE = Kind(
    "gate",
    reads=True,
    commands={KEEP: "left its memory unchanged", DONE: "stopped reading here"},
    opened=open_gate,
    written=write_gate,
    malformed=ends_with_gate,
    taught=teach,
    words="If this piece brings nothing for the question, reply with the single word KEEP and the memory stays as it "
    "is. If the memory already holds all that the question needs, begin the reply with the single word DONE, then a "
    "line break, then the memory.",
)


@reader({GATE: 1, Kind.ANSWER: 1})
def gated(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Read like ``overwrite``, but let the model leave the memory unchanged (KEEP) or end the reading (DONE).

    After a reply that starts with DONE, no further chunk is requested and the answer follows. An unchanged memory
    cannot decay, and KEEP costs only one token. In the trace, a reply's ``text`` is the memory after its turn, and its
    ``signal`` is the gate that the model chose.
    """
    turns, memory = turns_and_memory(previous)
    for chunk in chunks:
        turn = yield Prompt(GATE, question, memory, chunk)
        turns.append(turn)
        memory = turn.reply.text
        if turn.reply.signal == DONE:
            break
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))


# Rewards, equations 8 to 13. Without known evidence, none applies.


def update(result: Result) -> list[float | None]:
    """Return for each turn 1 if it rewrote its memory exactly if its chunk has evidence, else -1."""
    return [_update(turn, result.example.evidence) for turn in result.trace.turns]


def early_exit(result: Result) -> float | None:
    """Return 1 if the reading ended before all evidence was read, else 0."""
    late = _turns_after_evidence(result)
    return None if late is None else float(late < 0)


def late_exit(result: Result) -> float | None:
    """Return 1 if the reading ended after more turns than the evidence needs, else 0.

    A reading of the whole document is late too, unless the last chunk completes the evidence.
    """
    late = _turns_after_evidence(result)
    return None if late is None else float(late > 0)


def _update(turn, evidence) -> float | None:
    chunk = turn.prompt.chunk
    if not turn.prompt.kind.reads or not evidence:
        return None
    has_evidence = any(start < chunk.end and chunk.start < end for start, end in evidence)
    # By the command and not by the text: a memory that is copied out costs as many tokens as a new one.
    return 1.0 if (turn.reply.command != KEEP) == has_evidence else -1.0


def _turns_after_evidence(result: Result) -> int | None:
    """Return how many turns read on after the last evidence, or -1 if some was not read.

    Evidence is read by the first turn whose chunk contains its last character.
    """
    if not result.example.evidence:
        return None
    chunks = [turn.prompt.chunk for turn in result.trace.reads]
    needed = 0
    for _, end in result.example.evidence:
        read = next((number for number, chunk in enumerate(chunks) if chunk.start < end <= chunk.end), None)
        if read is None:
            return -1
        needed = max(needed, read)
    return len(chunks) - 1 - needed
