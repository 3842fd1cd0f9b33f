"""MemAgent's reader (arXiv 2507.02259, section 3): each reply replaces the memory, and the answer rests on it alone."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from memagent_lib.readers.declaration import MEMAGENT_PROMPTS, Reader, ReaderSession, reader, turns_and_memory
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Trace, Turn


@reader({Kind.READ: 1, Kind.ANSWER: 1})
def overwrite(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
    """Read chunk by chunk, and pass only the memory to the next turn. The cost is linear in the document's length.

    ``previous`` is a reading to continue from: its last memory becomes the first one here, and its turns stay in the
    trace.
    """
    turns, memory = yield from _read(question, chunks, previous)
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))


def several_questions(questions: Sequence[str]) -> Reader:
    """Return a reader that answers all ``questions`` from one pass. Each answer sees only the final memory."""

    def read_for_all(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
        turns, memory = yield from _read(question, chunks, previous)
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


def _read(
    question: str, chunks: Iterable[Chunk], previous: Trace | None
) -> Generator[Prompt, Turn, tuple[list[Turn], str]]:
    turns, memory = turns_and_memory(previous)
    for chunk in chunks:
        turn = yield Prompt(Kind.READ, question, memory, chunk)
        turns.append(turn)
        memory = turn.reply.text
    return turns, memory
