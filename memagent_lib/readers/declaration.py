"""How a reader is declared: its name, the generator that reads, and the prompts it yields, all in one file.

    @reader({Kind.READ: 1, Kind.ANSWER: 1})
    def overwrite(question, chunks, previous=None):
        ...

This module does not depend on any particular reader.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature

from memagent_lib.errors import UserError
from memagent_lib.plugins import shipped_plugin
from memagent_lib.text import Chunk
from memagent_lib.trace import NO_MEMORY, Kind, Prompt, Trace, Turn

ReaderSession = Generator[Prompt | tuple[Prompt, ...], Turn | tuple[Turn, ...], Trace]
MEMAGENT_PROMPTS = {Kind.READ: 1, Kind.ANSWER: 1}


class ReaderError(UserError, ValueError):
    """A reader of your own yields or returns something else than readers do."""


@dataclass(frozen=True)
class Reader:
    """A reading strategy. Calling it with a question and chunks starts a session.

    ``prompts`` maps each kind of prompt that ``session`` yields to the most memories that it displays, which determines
    the window that the reader needs. ``file`` is ``FILE.py:NAME`` for a reader that was loaded from a file.
    """

    name: str
    session: Callable[..., ReaderSession]
    prompts: Mapping[Kind, int] = field(default_factory=lambda: MEMAGENT_PROMPTS)
    file: str = ""

    def __call__(self, question: str, chunks: Iterable[Chunk], previous: Trace | None = None) -> ReaderSession:
        """Start a session. With ``previous``, it continues that reading, if the reader can (:attr:`continues`)."""
        # Not passed at all when unset: a reader without the parameter must still work.
        options = {} if previous is None else {"previous": previous}
        trace = yield from self.session(question, chunks, **options)
        if not isinstance(trace, Trace) or not trace.turns or not trace.turns[-1].prompt.kind.answers:
            raise ReaderError(f"the reader {self.source!r} must return a Trace that ends in an answer")
        return replace(trace, reader=self.source)

    @property
    def source(self) -> str:
        """The name or ``FILE.py:NAME`` with which ``open_agent`` opens this reader again."""
        is_shipped = not self.file or self.file == shipped_plugin("readers", self.name)
        return self.name if is_shipped else self.file

    @property
    def continues(self) -> bool:
        """Whether the reader can continue a reading: its session has a ``previous`` parameter."""
        return "previous" in signature(self.session).parameters

    @property
    def commands(self) -> dict[str, str]:
        """The commands that replies may contain besides a memory, with their words on pages."""
        return {command: words for kind in self.prompts for command, words in kind.commands.items()}

    @property
    def has_memory(self) -> bool:
        """Whether the reader reads chunk by chunk into a memory. Readers without one are baselines."""
        return any(kind.reads for kind in self.prompts)


def turns_and_memory(previous: Trace | None) -> tuple[list[Turn], str]:
    """Return the turns that wrote a memory in ``previous``, and the last memory, with which a session starts."""
    if previous is None or not previous.reads:
        return [], NO_MEMORY
    # Answers of the previous reading are dropped: its questions may differ from the new ones.
    turns = [turn for turn in previous.turns if turn.prompt.kind.writes_memory]
    return turns, turns[-1].reply.text


def reader(prompts: Mapping[Kind, int]) -> Callable[[Callable[..., ReaderSession]], Reader]:
    """Turn the decorated generator function into a reader with the function's name and these ``prompts``."""
    # The function's name is what --reader accepts.
    return lambda session: Reader(session.__name__, session, prompts)
