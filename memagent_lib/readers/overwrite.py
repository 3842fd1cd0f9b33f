"""MemAgent's reader (arXiv 2507.02259, section 3): every reply replaces the memory, the answer sees it alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn


def overwrite(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> Generator[Prompt, Turn, Trace]:
    """Read chunk by chunk, carrying nothing but the memory; cost is linear in the document.

    ``previous`` is a reading that these chunks continue: its memory is the first memory, its turns stay in the trace.
    """
    turns = yield from _read(question, chunks, previous)
    memory = turns[-1].reply.text if turns else NO_MEMORY
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer), reader="overwrite")


def several_questions(questions: Sequence[str]) -> Callable[..., Generator]:
    """A reader for all ``questions`` in one pass: one memory serves them all, and each is answered from it alone."""

    def read_for_all(question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> Generator:
        turns = yield from _read(question, chunks, previous)
        memory = turns[-1].reply.text if turns else NO_MEMORY
        answers = yield tuple(Prompt(Kind.ANSWER, one, memory) for one in questions)
        return Trace(question, (*turns, *answers), reader="several_questions")

    read_for_all.__name__ = "several_questions"
    return read_for_all


def question_list(questions: Sequence[str]) -> str:
    """The question that the memory serves while all of ``questions`` are read for."""
    return questions[0] if len(questions) == 1 else "\n".join(f"{i}. {q.strip()}" for i, q in enumerate(questions, 1))


def _read(question: str, chunks: Iterable[Chunk], previous: Trace | None) -> Generator[Prompt, Turn, list[Turn]]:
    turns = list(previous.reads) if previous else []
    memory = turns[-1].reply.text if turns else NO_MEMORY
    for chunk in chunks:
        turn = yield Prompt(Kind.READ, question, memory, chunk)
        turns.append(turn)
        memory = turn.reply.text
    return turns
