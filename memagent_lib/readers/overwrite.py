"""MemAgent's reader (arXiv 2507.02259, section 3): every reply replaces the memory, the last prompt sees the memory alone."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Reply, Trace, Turn


def overwrite(question: str, chunks: Iterable[Chunk]) -> Generator[Prompt, Reply, Trace]:
    """Read chunk by chunk, carrying nothing but the memory; cost is linear in the document."""
    memory, turns = NO_MEMORY, []
    for chunk in chunks:
        reply = yield (prompt := Prompt(Kind.READ, question, memory, chunk))
        turns.append(Turn(prompt, reply))
        memory = reply.text
    reply = yield (prompt := Prompt(Kind.ANSWER, question, memory))
    return Trace(question, (*turns, Turn(prompt, reply)), reader="overwrite")
