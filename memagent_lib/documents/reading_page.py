"""A finished reading of files, and its self-contained page: answer, evidence with positions, the memory's history.

The template engine escapes everything that comes from a document or a model.
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

MOST_CHANGES = 400
# The page is for a person: longer lists are cut, and state how many entries are missing.
MOST_EVIDENCE = 40
MOST_FILES = 20


@dataclass(frozen=True)
class FileReading:
    """A finished reading of files: its trace (without the chunks' text), its document, and its phrases' sources."""

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
        """Return the phrases behind the answer to ``question``, each with a description of its position."""
        return [(phrase, str(self.document.locate(phrase.start))) for phrase in self.provenance.evidence(question)]

    @property
    def warnings(self) -> list[str]:
        """The limits of the answer: truncated memories, files left out, bytes that were not text.

        This list names only the first few files of each kind; the page names all of them.
        """
        return _of_trace(self.trace) + self.document.warnings

    def save(self, path: str | Path) -> Path:
        """Save this reading, so that a later :func:`read_files` can continue it as ``previous``."""
        record = {
            # The version of this format.
            "memagent_reading": 1,
            "questions": list(self.questions),
            "settings": self.settings,
            "parts": [asdict(part) for part in self.document.parts],
            "provenance": self.provenance.to_record(),
            "trace": self.trace.to_record(),
        }
        return write_atomically(path, json.dumps(record, ensure_ascii=False))

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page: the answer, its evidence with positions, and the memory's history."""
        return Page(self.questions[0], self._repr_html_()).save(path)

    def _repr_html_(self) -> str:
        """Return the page's body."""
        return render(
            "documents/file_reading.html",
            answers=[_answer(self, question) for question in self.questions],
            numbers=_numbers(self),
            warnings=_of_trace(self.trace) + self.document.warned(),
            history=_history(self),
        )  # fmt: skip


def plain(answer: str) -> str:
    r"""Return an answer as a person would read it, with its last ``\boxed{...}`` unwrapped."""
    inside = boxed(answer)
    if inside is None:
        return answer
    return answer.replace(f"\\boxed{{{inside}}}", inside)


def _of_trace(trace: Trace) -> list[str]:
    warnings = []
    if trace.cut_memories:
        warnings.append(f"{trace.cut_memories:,} memories were cut at their token limit")
    if trace.sampling_left_out:
        turns = sum(bool(turn.reply.sampling_left_out) for turn in trace.turns)
        warnings.append(f"the server refused {trace.sampling_left_out} in {turns:,} turns and used its own setting")
    return warnings


def _answer(reading: FileReading, question: str) -> dict[str, Any]:
    answer, pieces = reading.provenance.answers.get(question, (reading.answers.get(question, ""), ()))
    evidence = reading.evidence(question)
    return {
        "question": question,
        "runs": [run for run in _runs(answer, pieces, _box(answer), all_traced=True) if run.text],
        "traced": any(piece.source for piece in pieces),
        "evidence": [_quoted(phrase, position) for phrase, position in evidence[:MOST_EVIDENCE]],
        "more": max(0, len(evidence) - MOST_EVIDENCE),
    }


def _quoted(phrase: Phrase, position: str) -> dict[str, str]:
    first = phrase.start - phrase.quote_start
    last = phrase.end - phrase.quote_start
    until = "to the end" if phrase.dropped is None else f"to turn {phrase.dropped}"
    return {
        "before": phrase.quote[:first],
        "text": phrase.quote[first:last],
        "after": phrase.quote[last:],
        "position": position,
        "fate": f"in memory from turn {phrase.brought + 1} {until}",
    }


def _numbers(reading: FileReading) -> list[str]:
    trace = reading.trace
    names = reading.document.names
    files = ", ".join(names[:MOST_FILES])
    if len(names) > MOST_FILES:
        files += f" and {len(names) - MOST_FILES} more"
    return [
        f"{len(trace.reads):,} chunks read",
        f"{trace.prompt_tokens:,} prompt and {trace.reply_tokens:,} reply tokens",
        f"reader {trace.reader}",
        f"{reading.seconds:,.1f} s",
        f"files: {files}",
    ]


def _history(reading: FileReading) -> dict[str, Any]:
    steps = reading.provenance.steps
    changes = [step for step in steps if step.pieces or step.dropped or step.signal]
    summary = f"{len(changes):,} turns changed the memory, {len(steps) - len(changes):,} left it as it was"
    if len(changes) > MOST_CHANGES:
        # A page with thousands of changes would not open in a browser.
        half = MOST_CHANGES // 2
        changes = changes[:half] + changes[-half:]
        summary += f"; the first and last {half} changes are below"
    return {"summary": summary, "turns": [_turn(reading, change) for change in changes]}


def _turn(reading: FileReading, change: MemoryChange) -> dict[str, Any]:
    notes = [change.signal] if change.signal else []
    if change.cut:
        notes.append("cut at its limit")
    return {
        "number": change.turn + 1,
        "position": str(reading.document.locate(change.chunk[0])),
        "gains": sum(piece.fresh for piece in change.pieces),
        "dropped": change.dropped,
        "notes": notes,
        "runs": [run for run in _runs(change.memory, change.pieces) if run.text],
    }


class _Run(NamedTuple):
    """A run of a text: plain, the model's ``own`` words, or ``traced`` to the source."""

    text: str
    kind: str = "plain"
    title: str = ""


def _runs(
    text: str, pieces: Sequence[MemoryPiece], hidden: frozenset[int] = frozenset(), all_traced: bool = False
) -> Iterator[_Run]:
    """Yield ``text`` in runs, without the ``hidden`` characters.

    A piece that has a source is traced to it if the piece is fresh, or always with ``all_traced``.
    """

    def visible(start: int, end: int) -> str:
        return "".join(text[at] for at in range(start, end) if at not in hidden)

    at = 0
    for piece in pieces:
        yield _Run(visible(at, piece.start))
        words = visible(piece.start, piece.end)
        at = piece.end
        if piece.source is None:
            yield _Run(words, "own")
        elif piece.fresh or all_traced:
            yield _Run(words, "traced", f"characters {piece.source[0]:,} to {piece.source[1]:,} of the text")
        else:
            yield _Run(words)
    yield _Run(visible(at, len(text)))


def _box(answer: str) -> frozenset[int]:
    """Return the positions of the characters that make up the answer's last box, without its content."""
    inside = boxed(answer)
    if inside is None:
        return frozenset()
    # The last box, as ``boxed`` takes it.
    at = answer.rfind(f"\\boxed{{{inside}}}")
    if at < 0:
        return frozenset()
    content = at + len("\\boxed{")
    return frozenset({*range(at, content), content + len(inside)})
