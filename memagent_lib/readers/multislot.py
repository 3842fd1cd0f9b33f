"""Several memories, one rewritten per turn (after MHM-LRU, arXiv 2607.01523). Needs no training of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn

SLOTS = 4


def multislot(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> Generator[Prompt, Turn, Trace]:
    """Each chunk rewrites the slot that was rewritten longest ago, seeing that slot alone; the answer sees all of them.

    A fact must survive one rewriting in :data:`SLOTS` turns instead of every turn, so what is lost per turn is lost
    that much more slowly: retention ``r`` over ``T`` chunks falls like ``r ** (T / SLOTS)``.
    """
    turns = list(previous.reads) if previous else []
    slots = [NO_MEMORY] * SLOTS
    for number, turn in enumerate(turns):
        slots[number % SLOTS] = turn.reply.text
    for chunk in chunks:
        place = len(turns) % SLOTS
        turn = yield Prompt(Kind.READ, question, slots[place], chunk)
        turns.append(turn)
        slots[place] = turn.reply.text
    held = [slot for slot in slots if slot]
    answer = yield Prompt(Kind.ANSWER, question, "\n".join(held), memories=max(1, len(held)))
    return Trace(question, (*turns, answer), reader="multislot")
