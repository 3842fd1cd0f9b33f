"""A finished reading of files, and its self-contained page: answer, evidence with positions, the memory's history.

The template engine escapes everything that comes from a document or a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.diagnostics import NO_ANSWERS, MemoryChange, MemoryPiece, Phrase, Provenance
from memagent_lib.documents.sources import Document
from memagent_lib.pages import Page, render
from memagent_lib.paths import write_atomically
from memagent_lib.readers import SLOTS, multislot, signal_in_words
from memagent_lib.trace import Kind, Trace

MOST_CHANGES = 400
# The page is for a person: longer lists are cut, and state how many entries are missing.
MOST_EVIDENCE = 40
MOST_FILES = 20
CHUNK_CHARS = 4_000_000
"""The page contains at most this many characters of the chunks that were read."""
_BOX = "\\boxed{"


@dataclass(frozen=True)
class FileReading:
    """A finished reading of files: its trace (without the chunks' text), its document, and its phrases' sources."""

    questions: tuple[str, ...]
    trace: Trace = field(repr=False)
    document: Document = field(repr=False)
    provenance: Provenance = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    seconds: float = 0.0
    unread: int = 0
    """The characters at the document's end that were not read, because the model ended the reading before them."""

    @property
    def answers(self) -> dict[str, str]:
        return self.trace.answers

    def evidence(self, question: str) -> list[tuple[Phrase, str]]:
        """Return the phrases behind the answer to ``question``, each with a description of its position."""
        return [(phrase, str(self.document.locate(phrase.start))) for phrase in self.provenance.evidence(question)]

    @property
    def warnings(self) -> list[str]:
        """What may limit the answers, such as memories cut or turned away, files left out, or bytes that were not text.

        This list has only the first few lines about files; the page has all of them.
        """
        return _of_reading(self) + self.document.warnings

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
            warnings=_of_reading(self) + self.document.warned(),
            history=_history(self),
        )  # fmt: skip


def plain(answer: str) -> str:
    r"""Return an answer as a person would read it, with every ``\boxed{...}`` unwrapped."""
    hidden = _boxes(answer)
    return "".join(character for at, character in enumerate(answer) if at not in hidden)


def _of_reading(reading: FileReading) -> list[str]:
    trace = reading.trace
    warnings = []
    if reading.unread:
        warnings.append(
            f"the model ended the reading before the last {reading.unread:,} characters, which were not read"
        )
    if trace.cut_memories:
        warnings.append(f"{trace.cut_memories:,} memories were cut at their token limit")
    if trace.sampling_left_out:
        turns = sum(bool(turn.reply.sampling_left_out) for turn in trace.turns)
        warnings.append(f"the server refused {trace.sampling_left_out} in {turns:,} turns and used its own setting")
    if trace.bad_memories:
        turns = "1 turn" if trace.bad_memories == 1 else f"{trace.bad_memories:,} turns"
        warnings.append(f"in {turns} a reply was no memory: {trace.bad_memory_kinds}")
    return warnings


def _answer(reading: FileReading, question: str) -> dict[str, Any]:
    answer, pieces = reading.provenance.answers.get(question, (reading.answers.get(question, ""), ()))
    quotes = _quotes(reading, reading.provenance.evidence(question))
    # The memory holds what all questions need, so it is no evidence for one of several.
    rests_on = reading.provenance.remembered if not quotes and len(reading.questions) == 1 else []
    if plain(answer).strip().strip(".").casefold() in NO_ANSWERS:
        rests_on = []
    remembered = _quotes(reading, rests_on)
    return {
        "question": question,
        "runs": [run for run in _runs(answer, pieces, _boxes(answer), all_traced=True) if run.text],
        "untraced": _untraced(reading, question),
        "evidence": quotes[:MOST_EVIDENCE],
        "more": max(0, len(quotes) - MOST_EVIDENCE),
        "remembered": remembered[:MOST_EVIDENCE],
    }


def _untraced(reading: FileReading, question: str) -> str:
    """Return why no word of this answer has evidence, in words; an answer from excerpts is not traced at all."""
    if question not in reading.provenance.answers and reading.trace.turns[-1].prompt.chunk:
        return f"The reader {reading.trace.reader!r} displays excerpts of the text; this answer is not traced to them."
    return "No word of this answer comes from the text."


def _quotes(reading: FileReading, phrases: Sequence[Phrase]) -> list[dict[str, Any]]:
    """Return each sentence around the phrases once, with all of them marked in it."""
    sentences: dict[tuple[int, str], list[Phrase]] = {}
    for phrase in phrases:
        sentences.setdefault((phrase.quote_start, phrase.quote), []).append(phrase)
    return [_quoted(reading, start, quote, inside) for (start, quote), inside in sentences.items()]


def _quoted(reading: FileReading, start: int, quote: str, phrases: Sequence[Phrase]) -> dict[str, Any]:
    pieces: list[tuple[str, bool]] = []
    at = 0
    for phrase in sorted(phrases, key=lambda phrase: phrase.start):
        first = max(at, phrase.start - start)
        last = max(first, phrase.end - start)
        pieces += [(quote[at:first], False), (quote[first:last], True)]
        at = last
    pieces.append((quote[at:], False))
    dropped = [phrase.dropped for phrase in phrases]
    until = "to the end" if None in dropped else f"to turn {max(dropped)}"
    return {
        "pieces": [piece for piece in pieces if piece[0]],
        "position": str(reading.document.locate(min(phrase.start for phrase in phrases))),
        "fate": f"in memory from turn {min(phrase.brought for phrase in phrases) + 1} {until}",
    }


def _numbers(reading: FileReading) -> list[str]:
    trace = reading.trace
    names = reading.document.names
    files = ", ".join(names[:MOST_FILES])
    if len(names) > MOST_FILES:
        files += f" and {len(names) - MOST_FILES} more"
    read = f"{len(trace.chunks_read):,} chunks read"
    if not trace.reads:
        read = "one prompt, no memory"
    return [
        read,
        f"{trace.prompt_tokens:,} prompt and {trace.reply_tokens:,} reply tokens",
        f"reader {trace.reader}",
        f"{reading.seconds:,.1f} s",
        f"files: {files}",
    ]


def _history(reading: FileReading) -> dict[str, Any] | None:
    """Return a summary and the turns to list; ``None`` for a reader without a memory."""
    steps = reading.provenance.steps
    if not steps:
        return None
    notes = _notes(reading)
    before = ["", *(step.memory for step in steps)]
    changed = [_has_changed(step, memory) for step, memory in zip(steps, before, strict=False)]
    count = sum(changed)
    turns_changed = f"{count:,} turns" if count != 1 else "1 turn"
    summary = f"{turns_changed} changed the memory, {len(steps) - count:,} left it as it was"
    # A turn that was cut, or that did something other than write, is listed too, even if it left the memory unchanged.
    is_special = [bool(step.cut or step.signal or step.bad_memory or step.displayed) for step in steps]
    listed = [number for number, reasons in enumerate(zip(changed, is_special, strict=True)) if any(reasons)]
    if len(listed) > MOST_CHANGES:
        # A page with thousands of changes would not open in a browser.
        half = MOST_CHANGES // 2
        listed = listed[:half] + listed[-half:]
        summary += f"; the first and last {half} of {len(listed):,} turns are below"
    # A merge reads no chunk, but a memory.
    read = [number for number in listed if steps[number].kind != Kind.MERGE.name]
    texts = dict(zip(read, _chunk_texts(reading.document, [steps[number].chunk for number in read]), strict=True))
    turns = [_turn(reading, steps[number], notes[number]) | {"chunk": texts.get(number)} for number in listed]
    without = sum(text is None for text in texts.values())
    if without:
        summary += f"; {without:,} chunks are not in this page"
    return {"summary": summary, "turns": turns}


def _has_changed(step: MemoryChange, before: str) -> bool:
    """Return whether a turn took words in, dropped some, or wrote words of its own; another layout is no change."""
    own = (step.memory[piece.start : piece.end] for piece in step.pieces if piece.source is None)
    return bool(step.dropped) or any(piece.fresh for piece in step.pieces) or any(words not in before for words in own)


def _notes(reading: FileReading) -> list[list[str]]:
    """Return what each turn did besides reading its chunk into the memory: commands, slots and merges."""
    steps = reading.provenance.steps
    trace = reading.trace
    notes = []
    first_read = len(trace.reads) - len(steps)
    written: dict[int, int] = {}
    for number, step in enumerate(steps):
        found = [signal_in_words(trace.reader, step.signal)]
        if step.kind == Kind.MERGE.name:
            # The two memories cover neighbouring spans, so the first one ends where the second one begins.
            first, second = (written.get(end, "?") for end in step.chunk)
            found.append(f"merges the memories of turns {first} and {second}")
        if trace.reader == multislot.name:
            found.append(f"memory {(first_read + number) % SLOTS + 1} of {SLOTS}")
        if step.cut:
            found.append("cut at its limit")
        written[step.chunk[1]] = step.turn + 1
        notes.append([note for note in found if note])
    return notes


def _turn(reading: FileReading, change: MemoryChange, notes: list[str]) -> dict[str, Any]:
    return {
        "number": change.turn + 1,
        "position": _positions(reading.document, *change.chunk),
        "gains": sum(piece.fresh for piece in change.pieces),
        "dropped": [plain(words) for words in change.dropped],
        "notes": notes,
        "displayed": change.displayed,
        "runs": [run for run in _runs(change.memory, change.pieces, _boxes(change.memory)) if run.text],
        "bad": str(change.bad_memory or ""),
        "turned_away": [reply.text for reply in change.bad_memory.replies] if change.bad_memory else [],
    }


def _positions(document: Document, start: int, end: int) -> str:
    """Return where a chunk lies; both ends if it reaches from one file or page into another."""
    first = document.locate(start)
    last = document.locate(max(start, end - 1))
    if (first.name, first.where) == (last.name, last.where):
        return str(first)
    return f"{first} to {last}"


def _chunk_texts(document: Document, spans: Sequence[tuple[int, int]]) -> list[str | None]:
    """Return the text of each span, read from the files again; ``None`` if it would make the page too large.

    It is ``None`` too for the parts of an earlier reading that this one continues, because they are not in these files.
    """
    texts: list[str | None] = [None] * len(spans)
    room = CHUNK_CHARS
    waiting = sorted(range(len(spans)), key=lambda number: spans[number])
    found: dict[int, list[str]] = {number: [] for number in waiting}
    at = document.begins_at
    parts = document.parts
    for block in document.blocks():
        for number in waiting:
            start, end = spans[number]
            if start < at + len(block) and end > at:
                found[number].append(block[max(0, start - at) : end - at])
        at += len(block)
        waiting = [number for number in waiting if spans[number][1] > at]
        if not waiting:
            break
    document.parts = parts  # reading a part of the files again must not shorten the list of parts
    for number, pieces in found.items():
        text = "".join(pieces)
        if len(text) == spans[number][1] - spans[number][0] and len(text) <= room:
            texts[number] = text
            room -= len(text)
    return texts


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


def _boxes(text: str) -> frozenset[int]:
    r"""Return the positions of the characters around the content of every ``\boxed{...}``, and of blanks inside it."""
    hidden: set[int] = set()
    start = text.find(_BOX)
    while start >= 0:
        content = start + len(_BOX)
        end = _closing_brace(text, content)
        if end is not None:
            inside = text[content:end]
            # Some tokenizers begin every word with a blank: "is lantern. \boxed{ lantern}".
            first = content + len(inside) - len(inside.lstrip())
            last = content + len(inside.rstrip())
            hidden |= {*range(start, first), *range(max(first, last), end + 1)}
        start = text.find(_BOX, content)
    return frozenset(hidden)


def _closing_brace(text: str, content: int) -> int | None:
    """Return the position of the brace that closes a box whose content begins at ``content``."""
    depth = 1
    for at in range(content, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None
