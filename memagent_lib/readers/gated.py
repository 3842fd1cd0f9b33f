"""Gates in words (after GRU-Mem, arXiv 2602.10560): the model may keep its memory as it is, and may stop early."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from dataclasses import replace

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Reply, Trace, Turn

KEEP, DONE = "keep", "done"
_KEEP = re.compile(r"\W*keep\W*", re.IGNORECASE)
_DONE = re.compile(r"\W*done\b[^\n\w]*(?:\n|$)", re.IGNORECASE)


def gated(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> Generator[Prompt, Turn, Trace]:
    """Like ``overwrite``; a reply of KEEP leaves the memory unchanged, one that begins with DONE ends the reading.

    A kept memory cannot decay and costs one token to write. The trace holds the memory that each turn left behind, and
    what the gate said as the reply's ``signal``. Chunks after DONE are never asked for.
    """
    turns = list(previous.reads) if previous else []
    memory = turns[-1].reply.text if turns else NO_MEMORY
    for chunk in chunks:
        turn = yield Prompt(Kind.GATE, question, memory, chunk)
        turn = replace(turn, reply=opened(turn.reply, memory))
        turns.append(turn)
        memory = turn.reply.text
        if turn.reply.signal == DONE:
            break
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer), reader="gated")


def opened(reply: Reply, memory: str) -> Reply:
    """The reply with its gate read: the memory that it leaves behind, and the signal."""
    if _KEEP.fullmatch(reply.text):
        return replace(reply, text=memory, signal=KEEP)
    if found := _DONE.match(reply.text):
        return replace(reply, text=reply.text[found.end() :].strip() or memory, signal=DONE)
    return reply
