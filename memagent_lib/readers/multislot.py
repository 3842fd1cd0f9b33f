"""Several memories, one of which is rewritten per turn (after MHM-LRU, arXiv 2607.01523).

This works with any trained policy.
"""

from __future__ import annotations

from collections.abc import Iterable

from memagent_lib.readers.declaration import ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace

SLOTS = 4


@reader({Kind.READ: 1, Kind.ANSWER: SLOTS})
def multislot(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Let each chunk rewrite the least recently written of :data:`SLOTS` memories, and answer from all of them.

    Each read prompt includes only the memory to be rewritten. Each memory is rewritten once every :data:`SLOTS` turns,
    so if a share ``r`` of its content survives each rewrite, ``r ** (T / SLOTS)`` remains after ``T`` chunks.
    """
    turns, _ = turns_and_memory(previous)
    slots = [NO_MEMORY] * SLOTS
    # Slots are written in turn, so a turn's number gives its slot.
    for number, turn in enumerate(turns):
        slots[number % SLOTS] = turn.reply.text
    for chunk in chunks:
        slot = len(turns) % SLOTS
        turn = yield Prompt(Kind.READ, question, slots[slot], chunk)
        turns.append(turn)
        slots[slot] = turn.reply.text
    # A short document leaves slots empty; the prompt's budget counts only those in use.
    memories = [memory for memory in slots if memory]
    answer = yield Prompt(Kind.ANSWER, question, "\n".join(memories), memories=max(1, len(memories)))
    return Trace(question, (*turns, answer))
