"""Readings driven by hand, with chunks made from texts and replies from a function.

No backend or tokenizer is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memagent_lib.readers import ReaderSession
from memagent_lib.text import Chunk
from memagent_lib.trace import Prompt, Reply, Trace, Turn


def pieces(*texts: str) -> list[Chunk]:
    """Return the chunks of a document that consists of ``texts``. A word counts as a token."""
    made, at = [], 0
    for index, text in enumerate(texts):
        made.append(Chunk(index, text, at, at + len(text), len(text.split())))
        at += len(text)
    return made


def play(session: ReaderSession, reply: Callable[[Prompt], str]) -> tuple[Trace, list[Any]]:
    """Drive a session with a function of the prompt.

    Return the trace, and every prompt or tuple of prompts it yielded.
    """

    def turn(prompt: Prompt) -> Turn:
        return Turn(prompt, prompt.opened(Reply(reply(prompt))))

    moves, move = [], next(session)
    while True:
        moves.append(move)
        turns = tuple(map(turn, move)) if isinstance(move, tuple) else turn(move)
        try:
            move = session.send(turns)
        except StopIteration as done:
            return done.value, moves


def remember_all(prompt: Prompt) -> str:
    """Reply as a perfect memory: every word so far, in order."""
    words = prompt.memory.split() + (prompt.chunk.text.split() if prompt.chunk else [])
    return " ".join(dict.fromkeys(words))


ABC = pieces("a b ", "c ", "d e f ", "g ", "h ")
