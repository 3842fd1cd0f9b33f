"""A finished reading of files, and the page of it that needs nothing else: the answer, its evidence with the place, the
memory's history.

Everything that comes from a document or a model is escaped by the template engine. Asks no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.diagnostics import MemoryChange, MemoryPiece, Phrase, Provenance
from memagent_lib.documents.sources import Document
from memagent_lib.pages import Page, render
from memagent_lib.paths import write_atomically
from memagent_lib.scoring import boxed
from memagent_lib.trace import Trace

SHOWN_CHANGES = 400
SHOWN_EVIDENCE = 40
SHOWN_FILES = 20


@dataclass(frozen=True)
class FileReading:
    """A finished reading of files: its trace (without the chunks' text), provenance and places."""

    questions: tuple[str, ...]
    trace: Trace = field(repr=False)
    document: Document = field(repr=False)
    provenance: Provenance = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    seconds: float = 0.0

    @property
    def answers(self) -> dict[str, str]:
        return self.trace.answers

    def evidence(self, question: str) -> list[tuple[Phrase, str]]:
        """The phrases behind the answer to ``question``, each with its place in words."""
        return [(phrase, str(self.document.place(phrase.start))) for phrase in self.provenance.evidence(question)]

    @property
    def warnings(self) -> list[str]:
        """What a person should know of the answer: memories that were cut, files left out, bytes that were no text. The
        page names every file."""
        return _cut_memories(self.trace) + self.document.warnings

    def save(self, path: str | Path) -> Path:
        """Write what a later :func:`read_files` needs to continue with more text, as its ``previous``."""
        record = {
            "memagent_reading": 1,
            "questions": list(self.questions),
            "settings": self.settings,
            "parts": [asdict(part) for part in self.document.parts],
            "provenance": self.provenance.to_record(),
            "trace": self.trace.to_record(),
        }
        return write_atomically(path, json.dumps(record, ensure_ascii=False))

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page: answer, evidence with its place, the memory's history."""
        return Page(self.questions[0], self._repr_html_()).save(path)

    def _repr_html_(self) -> str:
        """The page's body."""
        return render(
            "documents/file_reading.html",
            answers=[_answer(self, question) for question in self.questions],
            facts=_facts(self),
            warnings=_cut_memories(self.trace) + self.document.warned(),
            history=_history(self),
        )  # fmt: skip


def plain(answer: str) -> str:
    """An answer as a person reads it: what the last box holds stands there without the box."""
    inside = boxed(answer)
    return answer if inside is None else answer.replace(f"\\boxed{{{inside}}}", inside)


def _cut_memories(trace: Trace) -> list[str]:
    return [f"{trace.cut_memories:,} memories were cut at their token limit"] * bool(trace.cut_memories)


def _answer(reading: FileReading, question: str) -> dict[str, Any]:
    answer, pieces = reading.provenance.answers.get(question, (reading.answers.get(question, ""), ()))
    evidence = reading.evidence(question)
    return {
        "question": question,
        "runs": [run for run in _runs(answer, pieces, _box(answer), all_traced=True) if run.text],
        "traced": any(piece.source for piece in pieces),
        "evidence": [_quoted(phrase, place) for phrase, place in evidence[:SHOWN_EVIDENCE]],
        "more": max(0, len(evidence) - SHOWN_EVIDENCE),
    }


def _quoted(phrase: Phrase, place: str) -> dict[str, str]:
    first, last = phrase.start - phrase.quote_start, phrase.end - phrase.quote_start
    until = "to the end" if phrase.dropped is None else f"to turn {phrase.dropped}"
    return {
        "before": phrase.quote[:first],
        "text": phrase.quote[first:last],
        "after": phrase.quote[last:],
        "place": place,
        "fate": f"in memory from turn {phrase.brought + 1} {until}",
    }


def _facts(reading: FileReading) -> list[str]:
    trace, names = reading.trace, reading.document.names
    more = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return [
        f"{len(trace.reads):,} chunks read",
        f"{trace.prompt_tokens:,} prompt and {trace.reply_tokens:,} reply tokens",
        f"reader {trace.reader}",
        f"{reading.seconds:,.1f} s",
        f"files: {', '.join(names[:SHOWN_FILES])}{more}",
    ]


def _history(reading: FileReading) -> dict[str, Any]:
    every = reading.provenance.steps
    changes = [change for change in every if change.pieces or change.dropped or change.signal]
    told = f"{len(changes):,} turns changed the memory, {len(every) - len(changes):,} left it as it was"
    if len(changes) > SHOWN_CHANGES:
        half = SHOWN_CHANGES // 2
        changes = changes[:half] + changes[-half:]
        told += f"; the first and last {half} changes are shown"
    return {"told": told, "turns": [_turn(reading, change) for change in changes]}


def _turn(reading: FileReading, change: MemoryChange) -> dict[str, Any]:
    return {
        "number": change.turn + 1,
        "place": str(reading.document.place(change.chunk[0])),
        "gains": sum(piece.fresh for piece in change.pieces),
        "dropped": change.dropped,
        "notes": [note for note in (change.signal, "cut at its limit" if change.cut else "") if note],
        "runs": [run for run in _runs(change.memory, change.pieces) if run.text],
    }


class _Run(NamedTuple):
    """A run of a text: plain, the model's ``own`` words, or ``traced`` to a place in the source."""

    text: str
    kind: str = "plain"
    title: str = ""


def _runs(
    text: str, pieces: Sequence[MemoryPiece], hidden: frozenset[int] = frozenset(), all_traced: bool = False
) -> Iterator[_Run]:
    """``text`` in runs without the ``hidden`` characters. Traced are pieces that are fresh, or all with a source."""

    def shown(start: int, end: int) -> str:
        return "".join(text[at] for at in range(start, end) if at not in hidden)

    at = 0
    for piece in pieces:
        yield _Run(shown(at, piece.start))
        words, at = shown(piece.start, piece.end), piece.end
        if piece.source is None:
            yield _Run(words, "own")
        elif piece.fresh or all_traced:
            yield _Run(words, "traced", f"characters {piece.source[0]:,} to {piece.source[1]:,} of the text")
        else:
            yield _Run(words)
    yield _Run(shown(at, len(text)))


def _box(answer: str) -> frozenset[int]:
    """The characters of the answer's last box that are not what it holds."""
    inside = boxed(answer)
    if inside is None:
        return frozenset()
    at, head = answer.rfind(f"\\boxed{{{inside}}}"), len("\\boxed{")
    return frozenset() if at < 0 else frozenset({*range(at, at + head), at + head + len(inside)})
