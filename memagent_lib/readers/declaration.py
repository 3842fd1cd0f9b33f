"""What a reader is: a name, a generator that reads, and the prompts that it yields, all declared in one file.

    @reader({Kind.READ: 1, Kind.ANSWER: 1})
    def overwrite(question, chunks, previous=None):
        ...

Knows no reader.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature

from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn

ReaderSession = Generator[Prompt | tuple[Prompt, ...], Turn | tuple[Turn, ...], Trace]
MEMAGENT_PROMPTS = {Kind.READ: 1, Kind.ANSWER: 1}


@dataclass(frozen=True)
class Reader:
    """A strategy that can read. Call it with a question and chunks to start a session.

    ``prompts`` are the kinds of prompt that ``session`` yields and the most memories that each displays: the window
    that the reader needs follows from them. ``file`` is ``FILE.py:NAME`` for a reader that does not ship.
    """

    name: str
    session: Callable[..., ReaderSession]
    prompts: Mapping[Kind, int] = field(default_factory=lambda: MEMAGENT_PROMPTS)
    file: str = ""

    def __call__(self, question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
        """Start a session; with ``previous``, one that continues it, for readers that can (:attr:`continues`)."""
        options = {}
        if previous is not None:
            options["previous"] = previous
        trace = yield from self.session(question, chunks, **options)
        return replace(trace, reader=self.source)

    @property
    def source(self) -> str:
        """What opens the reader again: its name, or its file and name."""
        return self.file or self.name

    @property
    def continues(self) -> bool:
        """Whether the session takes ``previous``, a reading to continue."""
        return "previous" in signature(self.session).parameters

    @property
    def has_memory(self) -> bool:
        """Whether the reader reads chunk by chunk into a memory; the others are baselines."""
        return any(kind.reads for kind in self.prompts)


def turns_and_memory(previous: Trace | None) -> tuple[list[Turn], str]:
    """Return what a session starts with: the reads of ``previous`` and its last memory, or nothing and no memory."""
    if previous is None or not previous.reads:
        return [], NO_MEMORY
    turns = list(previous.reads)
    return turns, turns[-1].reply.text


def reader(prompts: Mapping[Kind, int]) -> Callable[[Callable[..., ReaderSession]], Reader]:
    """Declare the decorated generator function as a reader of its name that yields these ``prompts``."""
    return lambda session: Reader(session.__name__, session, prompts)
