"""Read files as ``memagent read`` does: answer questions, and record the source of every remembered phrase."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memagent_lib.agent import Agent, AgentSettings
from memagent_lib.backends import BackendError
from memagent_lib.bad_memory import OnBadMemory
from memagent_lib.diagnostics import Provenance, live_memories
from memagent_lib.documents.reading_page import FileReading
from memagent_lib.documents.sources import Document, Part
from memagent_lib.driver import Observer, TimedStore
from memagent_lib.errors import MissingFile, nearest_path
from memagent_lib.journal import Journal
from memagent_lib.readers import READERS, overwrite, question_list, require_continues, several_questions
from memagent_lib.text import whole_characters
from memagent_lib.trace import Trace, Turn


@dataclass(frozen=True)
class SavedReading:
    """The content of a file that :meth:`FileReading.save` wrote."""

    questions: tuple[str, ...]
    trace: Trace
    settings: dict[str, Any]
    parts: tuple[Part, ...]
    provenance: Provenance

    @classmethod
    def load(cls, path: str | Path) -> SavedReading:
        """Load a saved reading.

        Raises :class:`MissingFile` if there is no such file, and ``ValueError`` if it is damaged or of another version.
        """
        if not Path(path).is_file():
            raise MissingFile(f"no saved reading at {path}; memagent read --save FILE writes one{nearest_path(path)}")
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if record["memagent_reading"] != 1:
                raise ValueError(f"version {record['memagent_reading']!r}")
            return cls(
                questions=tuple(record["questions"]),
                trace=Trace.from_record(record["trace"]),
                settings=record["settings"],
                parts=tuple(Part(**part) for part in record["parts"]),
                provenance=Provenance.from_record(record["provenance"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as odd:
            raise ValueError(f"{path} is not a saved reading of this version ({odd!r}); read its files again") from odd

    @property
    def end(self) -> int:
        """The number of characters that have been read."""
        return max((t.prompt.chunk.end for t in self.trace.reads if t.prompt.chunk), default=0)


def questions_to_answer(
    questions: str | Sequence[str], saved: SavedReading | None = None, reader: str = overwrite.name
) -> tuple[str, ...]:
    """Return the questions of a reading: one or several ``questions``, or else those of the saved reading to continue.

    Raises :class:`ValueError` if a question is missing, empty, not text or repeated, or if the reader cannot answer
    several questions from one memory.
    """
    found = (questions,) if isinstance(questions, str) else tuple(questions)
    found = found or (saved.questions if saved else ())
    is_text = all(question.strip() and whole_characters(question) == question for question in found)
    if not found or not is_text or len(set(found)) < len(found):
        raise ValueError(f"questions must be different texts and at least one (--question), got {list(found)}")
    if len(found) > 1 and reader != overwrite.name:
        raise ValueError(f"several questions in one pass need the reader 'overwrite', not {reader!r}")
    return found


def require_continuable(saved: SavedReading, reader: str) -> None:
    """Raise :class:`ValueError` if the reader cannot continue the saved reading, or would lose a part of its memory."""
    # A reader's own file may be needed by name only; the agent checks what its reader can do.
    if reader in READERS:
        require_continues(READERS[reader])
    before = saved.trace.reader
    memories = len(live_memories(saved.trace)[-1]) if saved.trace.reads else 0
    if not memories or (memories > 1 and reader != before):
        raise ValueError(
            f"the saved reading by {before!r} has {memories} memories, and reader {reader!r} continues only one; "
            f"read its files again, or continue with {before!r}"
        )


def on_bad_memory_for(model: str | Path) -> str | None:
    """Return the default of ``on_bad_memory`` for reading a person's own documents with ``model``.

    It is ``keep`` for a model that this project has not trained: one comment instead of a memory would lose all that
    was read before, and there is no other answer to compare with. A policy trained here has learnt from the
    consequences of its own replies, so its saved settings decide, and ``None`` is returned.
    """
    return None if AgentSettings.are_saved(model) else OnBadMemory.KEEP


def read_files(
    agent: Agent,
    paths: str | Path | Sequence[str | Path] | Document,
    questions: Sequence[str] = (),
    *,
    journal: str | Path | None = None,
    previous: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> FileReading:
    """Read files and folders as one document and answer every question from one pass.

    ``paths`` may also be a ``Document``, whose ``warnings`` are then available before this call. ``journal`` is a file
    for finished turns, so that the same call continues after a crash. ``previous`` is a saved reading to continue with
    these files; its questions are used again unless there are new ones. ``settings`` (model, sampling, ...) are
    recorded in the journal and the saved reading; a journal with others, ``on_bad_memory`` aside, is refused.

    Raises ``ValueError`` for wrong questions, files, budgets, journals or saved readings, and ``BackendError``.
    """
    saved = SavedReading.load(previous) if previous else None
    if saved:
        require_continuable(saved, agent.reader.source)
    read_before = saved.end if saved else 0
    provenance = saved.provenance if saved else Provenance()
    questions = questions_to_answer(questions, saved, agent.reader.name)
    if len(questions) > 1:
        # The questions are read as one list, and answered separately from the same memory.
        agent = replace(agent, reader=several_questions(questions))
    identity = agent.identity
    # ``settings`` may name the model, but a folder's weights change when it is trained again.
    settings = {"questions": list(questions)} | identity | (settings or {}) | {"weights": identity["model"]}
    document = paths
    if not isinstance(document, Document):
        document = Document(document, read_before, saved.parts if saved else ())

    def observe(turn: Turn) -> None:
        provenance.turn(turn)
        if on_turn:
            on_turn(turn)

    # A turn is found by its prompt, which has the memory: replies do not depend on what happens to a bad memory.
    reply_settings = {name: value for name, value in settings.items() if name != "on_bad_memory"}
    # The same files at another position get other memories, so they need another journal.
    turns = Journal(journal, reply_settings | {"continues_at": read_before}) if journal else nullcontext()
    with turns as store:
        timed = TimedStore(store and store.reading())
        trace = agent.read(
            document.blocks(),
            question_list(questions),
            previous=saved.trace if saved else None,
            observer=Observer(store=timed, on_turn=observe, lean=True),
        )
    if not any(trace.answers.values()):
        raise BackendError(
            "the model answered with nothing; raise thinking_tokens if it thinks first, or check its chat template"
        )
    return FileReading(questions, trace, document, provenance, settings, timed.seconds, _unread(trace, document))


def _unread(trace: Trace, document: Document) -> int:
    """Return how many characters at the document's end were not read because the model ended the reading."""
    if not trace.reads:
        return 0
    end = document.begins_at
    # A passage that a search found may stand far behind the last chunk that was read.
    for chunk in sorted((turn.prompt.chunk for turn in trace.reads if turn.prompt.chunk), key=lambda one: one.start):
        if chunk.start <= end:
            end = max(end, chunk.end)
    if document.ends_at is None:
        for _ in document.blocks():  # sets it
            pass
    return max(0, (document.ends_at or 0) - end)
