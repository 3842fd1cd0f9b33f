"""What ``memagent read`` does: files in, answers out, and where each remembered thing came from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memagent_lib.agent import Agent, Observer
from memagent_lib.backends import BackendError
from memagent_lib.diagnostics import Provenance
from memagent_lib.documents.reading_page import FileReading
from memagent_lib.documents.sources import Document, Part
from memagent_lib.errors import MissingFile
from memagent_lib.journal import Journal
from memagent_lib.readers import overwrite, question_list, several_questions
from memagent_lib.text import whole_characters
from memagent_lib.trace import Trace, Turn

SILENT_TURNS = 64


@dataclass(frozen=True)
class SavedReading:
    """What :meth:`FileReading.save` wrote."""

    questions: tuple[str, ...]
    trace: Trace
    settings: dict[str, Any]
    parts: tuple[Part, ...]
    provenance: Provenance

    @classmethod
    def load(cls, path: str | Path) -> SavedReading:
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            known = record["memagent_reading"] == 1
        except FileNotFoundError:
            raise MissingFile(f"no saved reading at {path}; make one with: memagent read ... --save {path}") from None
        except (ValueError, KeyError, TypeError) as odd:
            raise ValueError(f"{path} is no saved reading; give a file that was written by --save") from odd
        if not known:
            raise ValueError(
                f"{path} was saved by another version ({record['memagent_reading']!r}); read the documents again"
            )
        try:
            provenance, trace = Provenance.from_record(record["provenance"]), Trace.from_record(record["trace"])
            parts = tuple(Part(**part) for part in record["parts"])
            return cls(tuple(record["questions"]), trace, record["settings"], parts, provenance)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as odd:
            raise ValueError(f"{path} is damaged ({odd!r}); read its documents again") from odd

    @property
    def end(self) -> int:
        """How many characters have been read."""
        return max((t.prompt.chunk.end for t in self.trace.reads if t.prompt.chunk), default=0)


def asked_questions(
    questions: Sequence[str], saved: SavedReading | None = None, reader: str = overwrite.name
) -> tuple[str, ...]:
    """The questions of a reading, or those of the one that it continues; :class:`ValueError` for one that is none, and
    for several where the reader has no memory that serves them all.
    """
    asked = tuple(questions) or (saved.questions if saved else ())
    if not asked or not all(q.strip() for q in asked):
        raise ValueError('no question; give at least one, and none empty: --question "..."')
    if odd := [question for question in asked if whole_characters(question) != question]:
        raise ValueError(f"the question {odd[0]!r} holds bytes that are not UTF-8; write it again")
    if len(asked) > 1 and reader != overwrite.name:
        raise ValueError(
            f"several questions in one pass need the reader 'overwrite', not {reader!r}; ask them one by one"
        )
    return asked


def read_files(
    agent: Agent,
    paths: Sequence[str | Path],
    questions: Sequence[str] = (),
    *,
    journal: str | Path | None = None,
    previous: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    on_turn: Callable[[Turn], None] | None = None,
) -> FileReading:
    """Read files and folders as one document and answer every question from one pass.

    ``journal`` keeps finished turns: the same call after a crash continues where it was. ``previous`` is a saved
    reading that these files continue, with its questions unless others are given. ``settings`` (model, sampling, ...)
    go into journal and save file; a journal with other settings is refused. Raises
    :class:`~memagent_lib.documents.sources.DocumentError`, ``BudgetError``, ``JournalError`` (all ``ValueError``),
    ``BackendError`` or ``BackendUnavailable``.
    """
    saved = SavedReading.load(previous) if previous else None
    asked = asked_questions(questions, saved, agent.reader.name)
    if len(asked) > 1:
        agent = replace(agent, reader=several_questions(asked))
    identity = agent.identity
    # A model's name is no weights: those of a folder change when it is trained again.
    settings = {"questions": list(asked)} | identity | (settings or {}) | {"weights": identity["model"]}
    document = Document(paths, saved.end if saved else 0, saved.parts if saved else ())
    provenance = saved.provenance if saved else Provenance()
    started, turns, spoke = time.monotonic(), 0, False

    def follow(turn: Turn) -> None:
        """The phrases, turn by turn. A model that says nothing at all is not read on with."""
        nonlocal turns, spoke
        turns, spoke = turns + 1, spoke or bool(turn.reply.text)
        if not spoke and turns >= SILENT_TURNS:
            raise _silent(turns)
        provenance.turn(turn)
        if on_turn:
            on_turn(turn)

    kept = Journal(journal, settings | {"continues_at": saved.end if saved else 0}) if journal else None
    try:
        trace = agent.read(
            document.blocks(),
            question_list(asked),
            previous=saved.trace if saved else None,
            observer=Observer(store=kept and kept.reading(), on_turn=follow, lean=True),
        )
    finally:
        if kept:
            kept.close()
    if not any(trace.answers.values()):
        raise _silent(turns)
    return FileReading(asked, trace, document, provenance, settings, time.monotonic() - started)


def _silent(turns: int) -> BackendError:
    return BackendError(
        f"the model answered with nothing ({turns} turns); if it thinks first, raise memory_tokens and "
        "answer_tokens; otherwise check that it is an instruction-tuned model and its chat template the right one"
    )
