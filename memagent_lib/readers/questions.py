"""Several questions about one document: answered from one pass, or from one reading that knows none of them.

MemoryAgentBench feeds its agents in the second order (arXiv 2507.05257): the whole text first, then question after
question. That works with any reader whose last prompt answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from memagent_lib.readers.declaration import MEMAGENT_PROMPTS, Reader, ReaderSession
from memagent_lib.readers.with_memory import read_chunks
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

SHARED_QUESTION = (
    "Questions about this text will be asked after its end, and they are not known yet. Keep what such questions may "
    "be about: names, numbers, dates, places, who did what and when, what changed and its latest value."
)
"""What stands instead of the question while a document is read for all questions about it."""


def several_questions(questions: Sequence[str]) -> Reader:
    """Return a reader that answers all ``questions`` from one pass. Each answer sees only the final memory."""

    def read_for_all(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
        turns, memory = yield from read_chunks(question, chunks, previous)
        # Independent prompts, so they may run concurrently.
        answers = yield tuple(Prompt(Kind.ANSWER, each, memory) for each in questions)
        return Trace(question, (*turns, *answers))

    return Reader("several_questions", read_for_all, MEMAGENT_PROMPTS)


def question_list(questions: Sequence[str]) -> str:
    """Return the text used as the question while the document is read for all ``questions``."""
    # Unchanged, so that a single question gets the prompts of training.
    if len(questions) == 1:
        return questions[0]
    return "\n".join(f"{i}. {question.strip()}" for i, question in enumerate(questions, 1))


def before_answer(reader: Reader) -> Reader:
    """Return a reader that stops where ``reader`` answers: its trace ends in that prompt, with an empty reply.

    Raises ``ValueError`` in a session that goes on after its answer.
    """

    def read(question: str, chunks: Iterable[Chunk]) -> ReaderSession:
        session = reader(question, chunks)
        prompt = next(session)
        while (answering := _answering(prompt)) is None:
            prompt = session.send((yield prompt))
        last = Turn(answering, Reply(""))
        try:
            session.send((last,) if isinstance(prompt, tuple) else last)
        except StopIteration as done:
            return done.value
        raise ValueError(f"the reader {reader.name!r} goes on after its answer, so no questions can share its reading")

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
