"""One reading for many questions: the document is read before any of them is known, and each is answered from the end.

MemoryAgentBench feeds its agents in this order (arXiv 2507.05257): the whole text first, then question after question.
Works with any reader whose last prompt answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from memagent_lib.readers.declaration import Reader, ReaderSession
from memagent_lib.text import Chunk
from memagent_lib.trace import Prompt, Reply, Trace, Turn

SHARED_QUESTION = (
    "Questions about this text will be asked after its end, and they are not known yet. Keep what such questions may "
    "be about: names, numbers, dates, places, who did what and when, what changed and its latest value."
)
"""What stands in place of the question while a document is read for all questions about it."""


def before_answer(reader: Reader) -> Reader:
    """Return a reader that stops where ``reader`` answers: its trace ends in that prompt, with an empty reply.

    Raises ``ValueError`` in a session that goes on after its answer.
    """

    def read(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
        session = reader(question, chunks)
        prompt = next(session)
        answering = _answering(prompt)
        while answering is None:
            prompt = session.send((yield prompt))
            answering = _answering(prompt)
        last = Turn(answering, Reply(""))
        try:
            session.send((last,) if isinstance(prompt, tuple) else last)
        except StopIteration as done:
            return done.value
        raise ValueError(
            f"the reader {reader.name!r} goes on after its answer, so no questions can share its reading; choose "
            "another reader, or read once for each question"
        )

    return Reader(reader.name, read, reader.prompts, reader.file)


def after_reading(reader: Reader, reading: Trace) -> Reader:
    """Return a reader that answers one question from a trace of :func:`before_answer`; it reads no chunks.

    Its trace has the turns of ``reading`` and the answer.
    """

    def answer(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
        *turns, last = reading.turns
        answer = yield replace(last.prompt, question=question)
        return Trace(question, (*turns, answer))

    return Reader(reader.name, answer, reader.prompts, reader.file)


def _answering(prompt: Prompt | tuple[Prompt, ...]) -> Prompt | None:
    """Return the prompt if it answers, also as the only one of a tuple; else ``None``."""
    prompts = prompt if isinstance(prompt, tuple) else (prompt,)
    return prompts[0] if len(prompts) == 1 and prompts[0].kind.answers else None
