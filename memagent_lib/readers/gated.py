"""Gates in words (after GRU-Mem, arXiv 2602.10560): the model may leave its memory unchanged or stop reading early."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from memagent_lib.readers.declaration import ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace

KEEP = "keep"
DONE = "done"
UPDATE = "update"
# Models put a name before the word, and marks around it: "**Decision:** keep".
_NAME = r"\W*(?:(?i:decision|gate|action|command|verdict)\W*[:=–—-]\W*)?"
# Alone in any case; in capitals also with a comment behind a dash, a bracket or another mark that ends the word. "Keep
# the red door shut" is a memory.
_KEEP = re.compile(rf"{_NAME}((?i:keep)\W*|KEEP[*_\"'`]*(\s*[(.,:;!\n–—]|\s+-).*)", re.DOTALL)
_DONE = re.compile(rf"{_NAME}((?i:done)\b[^\n\w]*|DONE[*_\"'`]*( *[(–—]| +-)[^\n]*)(?:\n|$)")
# The third decision of the paper, which our wording leaves unnamed. The word is removed only before a memory.
_UPDATE = re.compile(
    r"[^\w\n]*(?:UPDATE|(?i:decision|gate|action|command|verdict)\W*[:=–—-]\W*(?i:update))[*_\"'`]*"
    r"(?:\s*[:–—][*_]*\s*|\s+-\s+|[^\S\n]*\n)\s*(?=\S)"
)
# Models that write the memory first put the word behind it, where it means nothing.
_LAST_LINE = re.compile(r"\n\W*(?:KEEP|DONE|UPDATE)\W*\Z")
_LAST_CHARS = 200  # in thousands of line breaks, the search would take seconds


def open_gate(reply: Reply, memory: str) -> Reply:
    """Return the reply with the resulting memory as its text, and the gate as its signal ("" for a plain memory)."""
    if reply.signal:  # the driver has opened it
        return reply
    # The whole reply: a memory may itself contain the word.
    if _KEEP.fullmatch(reply.text):
        return replace(reply, text=memory, signal=KEEP)
    reply = open_done(reply, memory)
    if reply.signal:
        return reply
    update = _UPDATE.match(reply.text)
    if update:
        return replace(reply, text=reply.text[update.end() :].strip(), signal=UPDATE)
    return reply


def open_done(reply: Reply, memory: str) -> Reply:
    """Return a reply that begins with DONE without the word, which becomes its signal; return any other unchanged."""
    done = _DONE.match(reply.text)
    if reply.signal or not done:
        return reply
    # DONE may come with a last memory; alone, it leaves the memory unchanged.
    return replace(reply, text=reply.text[done.end() :].strip() or memory, signal=DONE)


def write_gate(memory: str, signal: str) -> str:
    """Return the reply that opens to ``memory`` and ``signal``."""
    if signal == KEEP:
        return KEEP.upper()
    if signal:
        return f"{signal.upper()}\n{memory}".strip()
    return memory


def ends_with_gate(text: str) -> bool:
    """Return whether the last of several lines is a gate's word by itself."""
    return _LAST_LINE.search(text[-_LAST_CHARS:]) is not None


GATE = Kind(
    "gate",
    reads=True,
    commands=frozenset((KEEP, DONE, UPDATE)),
    opened=open_gate,
    written=write_gate,
    malformed=ends_with_gate,
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
        turn = replace(turn, reply=open_gate(turn.reply, memory))
        turns.append(turn)
        memory = turn.reply.text
        if turn.reply.signal == DONE:
            break
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))
