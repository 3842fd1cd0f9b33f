"""A finished reading of files, and its self-contained page: answer, evidence with positions, the memory's history.

The template engine escapes everything that comes from a document or a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from memagent_lib.diagnostics import NO_ANSWERS, MemoryChange, MemoryPiece, Phrase, Provenance
from memagent_lib.documents.sources import Document
from memagent_lib.pages import Page, render
from memagent_lib.paths import write_atomically
from memagent_lib.trace import Kind, Trace

# The page is for a person, and opens in a browser: longer lists are cut, and state how many entries are missing.
MOST_CHANGES = 200
MOST_EVIDENCE = 40
_BOX = re.compile(r"\\boxed\{\s*((?:[^{}]|\{[^{}]*\})*?)\s*\}(\.?)")
_SENTENCE_ENDS = tuple(".!?。！？")


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
    finished: datetime = field(default_factory=datetime.now)

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
            "memagent_reading": 1,  # the version of this format
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
        trace = self.trace
        by = self.document.converters
        model = Path(self.settings["model"])
        return render(
            "documents/file_reading.html",
            files=[f"{name} (by {by[name]})" if name in by else name for name in self.document.names],
            model=model.name if model.is_absolute() else model,
            date=f"{self.finished:%d %B %Y}",
            answers=[_answer(self, question) for question in self.questions],
            numbers=[
                f"{len(trace.chunks_read):,} chunks read" if trace.reads else "one prompt, no memory",
                f"{trace.prompt_tokens:,} prompt and {trace.reply_tokens:,} reply tokens",
                f"reader {trace.reader}",
                f"{self.seconds:,.1f} s",
            ],
            warnings=_of_reading(self) + self.document.notes,
            history=_history(self),
        )


def plain(answer: str) -> str:
    r"""Return an answer as a person would read it, with every ``\boxed{...}`` unwrapped.

    A box that stands alone after a sentence with the same words is left out.
    """

    def unwrapped(box: re.Match[str]) -> str:
        before = answer[: box.start()].rstrip()
        again = before.endswith(_SENTENCE_ENDS) and re.search(rf"\b{re.escape(box[1])}\b", before, re.IGNORECASE)
        return "" if again else box[1] + box[2]

    return _BOX.sub(unwrapped, answer).strip()


def _of_reading(reading: FileReading) -> list[str]:
    trace = reading.trace
    cut_answers = sum(turn.reply.cut for turn in trace.turns if turn.prompt.kind.answers)
    warnings = {
        f"the model ended the reading before the last {reading.unread:,} characters": reading.unread,
        f"{trace.cut_memories:,} memories were cut at their token limit": trace.cut_memories,
        f"{cut_answers:,} answers were cut at their limit; raise answer_tokens": cut_answers,
        f"the server refused {trace.sampling_left_out} and used its own setting": trace.sampling_left_out,
        f"{trace.bad_memories:,} replies were not a memory: {trace.bad_memory_kinds}": trace.bad_memories,
    }
    return [warning for warning, applies in warnings.items() if applies]


def _answer(reading: FileReading, question: str) -> dict[str, Any]:
    answer = plain(reading.answers.get(question, ""))
    quotes = _quotes(reading, reading.provenance.evidence(question))
    remembered: list[Phrase] = []
    # The memory holds what all questions need, so it is no evidence for one of several.
    if not quotes and len(reading.questions) == 1 and answer.strip().strip(".").casefold() not in NO_ANSWERS:
        remembered = reading.provenance.remembered
    return {
        "question": question,
        "answer": answer,
        "evidence": quotes[:MOST_EVIDENCE],
        "more": max(0, len(quotes) - MOST_EVIDENCE),
        "remembered": _quotes(reading, remembered, mark="{}")[:MOST_EVIDENCE],
    }


def _quotes(reading: FileReading, phrases: Sequence[Phrase], mark: str = "<mark>{}</mark>") -> list[dict[str, Any]]:
    """Return each sentence around the phrases once, with all of them in it as ``mark`` has them.

    Quotes that overlap, or that a chunk's end cuts apart inside a sentence, are one.
    """
    sentences: list[tuple[int, str, list[Phrase]]] = []
    for phrase in sorted(phrases, key=lambda phrase: (phrase.quote_start, phrase.start)):
        start, quote, inside = sentences[-1] if sentences else (0, "", [])
        overlap = start + len(quote) - phrase.quote_start
        if inside and (overlap > 0 or (overlap == 0 and not quote.endswith(_SENTENCE_ENDS))):
            sentences[-1] = (start, quote + phrase.quote[overlap:], [*inside, phrase])
        else:
            sentences.append((phrase.quote_start, phrase.quote, [phrase]))
    quotes = []
    for start, quote, inside in sentences:
        text = Markup("")
        at = 0
        for phrase in sorted(inside, key=lambda phrase: phrase.start):
            first = max(at, phrase.start - start)
            last = max(first, phrase.end - start)
            text += quote[at:first] + Markup(mark).format(quote[first:last])
            at = last
        position = reading.document.locate(min(phrase.start for phrase in inside))
        dropped = [phrase.dropped for phrase in inside]
        until = "to the end" if None in dropped else f"to turn {max(dropped)}"
        fate = f"in memory from turn {min(phrase.brought for phrase in inside) + 1} {until}"
        quotes.append({"text": text + quote[at:], "position": f"{position} · {fate}"})
    return quotes


def _history(reading: FileReading) -> dict[str, Any] | None:
    """Return a summary and the turns to list; ``None`` for a reader without a memory."""
    steps = reading.provenance.steps
    if not steps:
        return None
    changed = sum(bool(step.pieces or step.dropped) for step in steps)
    listed = [s for s in steps if s.pieces or s.dropped or s.displayed or s.turn.reply.cut or s.turn.bad_memory]
    summary = f"{changed:,} of {len(steps):,} turns changed the memory"
    if len(listed) > changed:
        summary += f"; {len(listed) - changed:,} more were cut, turned away or displayed an older memory"
    if len(listed) > MOST_CHANGES:
        summary += f"; the last {MOST_CHANGES} of {len(listed):,} turns are below"
        listed = listed[-MOST_CHANGES:]
    # A merge reads no chunk, but a memory.
    texts = _chunk_texts(reading.document, {step.chunk for step in listed if step.turn.prompt.kind != Kind.MERGE})
    return {"summary": summary, "turns": [_turn(reading.document, step, texts.get(step.chunk)) for step in listed]}


def _turn(document: Document, change: MemoryChange, chunk: str | None) -> dict[str, Any]:
    start, end = change.chunk
    first = document.locate(start)
    last = document.locate(max(start, end - 1))
    bad = change.turn.bad_memory
    reply = change.turn.reply
    notes = [reply.signal, "merges memories" * (change.turn.prompt.kind == Kind.MERGE), "cut at its limit" * reply.cut]
    return {
        "number": change.number + 1,
        # Both ends if a chunk reaches from one file or page into another.
        "position": str(first) if first[::2] == last[::2] else f"{first} to {last}",
        "gains": sum(piece.fresh for piece in change.pieces),
        "dropped": [plain(words) for words in change.dropped],
        "notes": [note for note in notes if note],
        "displayed": change.displayed,
        "memory": _marked(change.memory, change.pieces),
        "bad": str(bad or ""),
        "turned_away": [reply.text for reply in bad.replies] if bad else [],
        "chunk": chunk,
    }


def _chunk_texts(document: Document, spans: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the text of each span, read from the files again.

    Spans of an earlier reading that this one continues are missing, because they are not in these files.
    """
    texts = dict.fromkeys(spans, "")
    at = document.begins_at
    for block in document.blocks():
        for start, end in spans:
            texts[start, end] += block[max(0, start - at) : max(0, end - at)]
        at += len(block)
    return {(start, end): text for (start, end), text in texts.items() if len(text) == end - start}


def _marked(memory: str, pieces: Sequence[MemoryPiece]) -> Markup:
    """Return a memory as HTML, with the model's own words and those that this turn's chunk brought marked."""
    marked = Markup("")
    at = 0
    for piece in pieces:
        marked += memory[at : piece.start]
        words = memory[piece.start : piece.end]
        at = piece.end
        if piece.source is None:
            marked += Markup('<span class="own">{}</span>').format(words)
        elif piece.fresh:
            title = f"characters {piece.source[0]:,} to {piece.source[1]:,} of the text"
            marked += Markup('<ins title="{}">{}</ins>').format(title, words)
        else:
            marked += words
    return marked + memory[at:]
