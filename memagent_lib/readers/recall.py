"""Looking back (after ReMemR1, arXiv 2509.23040): the model may ask for a past memory, found by its words."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

from memagent_lib.readers.ranking import ranked
from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Reply, Trace, Turn

_CALL = re.compile(r"\n?[ \t]*RECALL:[ \t]*(?P<words>[^\n]*)\s*\Z", re.IGNORECASE)
_SEAM = "\nFrom an earlier memory:\n"


def recall(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> Generator[Prompt, Turn, Trace]:
    """Like ``overwrite``; a last line "RECALL: words" shows the past memory that fits the words best beside the next
    chunk.

    The memory just written is no past memory: it is shown anyway. A recalled memory is shown once; what the model does
    not write down again is gone again. The call is kept as the reply's ``signal``.
    """
    turns = list(previous.reads) if previous else []
    memory, recalled = (turns[-1].reply.text if turns else NO_MEMORY), None
    for chunk in chunks:
        turn = yield _prompt(Kind.RECALL, question, memory, recalled, chunk)
        reply, words = called(turn.reply)
        past = [turn.reply.text for turn in turns]
        turns.append(replace(turn, reply=reply))
        memory = reply.text
        recalled = best_past(words, past, memory) if words else None
    answer = yield _prompt(Kind.ANSWER, question, memory, recalled)
    return Trace(question, (*turns, answer), reader="recall")


def called(reply: Reply) -> tuple[Reply, str]:
    """The reply without its call, and the words it calls for (empty where it calls for none)."""
    found = _CALL.search(reply.text)
    if not found or not (words := found["words"].strip()):
        return reply, ""
    return replace(reply, text=reply.text[: found.start()].strip(), signal=f"recall: {words}"), words


def best_past(words: str, past: Sequence[str], now: str) -> str | None:
    """The past memory that fits ``words`` best, other than ``now``; ``None`` where none shares a word with them."""
    others = [memory for memory in dict.fromkeys(past) if memory and memory != now]
    best = ranked(words, others)[:1]
    return others[best[0]] if best else None


def _prompt(kind: Kind, question: str, memory: str, recalled: str | None, chunk: Chunk | None = None) -> Prompt:
    if recalled is None:
        return Prompt(kind, question, memory, chunk)
    return Prompt(kind, question, f"{memory}{_SEAM}{recalled}", chunk, memories=2)
