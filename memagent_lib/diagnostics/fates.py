"""Capture, retention and fate: what became of each needed fact, turn by turn.

A fact is *captured* when it is in memory right after the chunk that holds its end, and *retained* when a captured fact
is in memory at the end. What is in memory after a turn follows from the prompts: a turn replaces the memories that it
was shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Trace, Turn

# A number with its points and commas, one character of a script without spaces, or a word.
WORD = re.compile(r"\d+(?:[.,]\d+)+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")
_ARTICLES = frozenset(("a", "an", "the"))
COMMON_WORDS = _ARTICLES.union(
    (  # noqa: SIM905
        "and are as at be been but by for from had has have he her his i if in is it its not of on or she so that "
        "their there they this to was we were which who will with you"
    ).split()
)


class Fate(StrEnum):
    """How a needed fact stands after a turn. Until a chunk holds some of it, it is not read yet, whatever memory says:
    the same words stand in other facts too.
    """

    AHEAD = "not read yet"
    HELD = "in memory"
    MISSED = "read but never noted"
    LOST = "noted and lost"


@dataclass(frozen=True, slots=True)
class FactHistory:
    """One needed fact: its ``span`` of the document, ``None`` where that is unknown, and the ``words`` that tell it.

    ``read`` is the turn whose chunk holds its last character, ``None`` where there was none. ``fates`` has one entry
    per turn, ``None`` where a reader has no memory. ``captured`` is ``None`` where the reader keeps no memory or the
    place is unknown; ``retained`` where there was nothing to retain.
    """

    span: tuple[int, int] | None
    words: tuple[str, ...]
    read: int | None
    fates: tuple[Fate | None, ...]
    captured: bool | None
    retained: bool | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The histories of all facts that a question needs, in the order of their evidence."""

    facts: tuple[FactHistory, ...]
    fates: tuple[Fate | None, ...]
    """After each turn, the worst of the facts that have been read: lost, else never noted, else in memory."""

    @property
    def capture(self) -> float | None:
        """The share of facts that were in memory right after their chunk; ``None`` where that cannot be said of any."""
        return _share(fact.captured for fact in self.facts)

    @property
    def retention(self) -> float | None:
        """The share of captured facts that were in memory at the end; ``None`` where none was captured."""
        return _share(fact.retained for fact in self.facts)

    @property
    def steps(self) -> tuple[float | None, ...]:
        """For each turn, of the facts that it could note or keep the share that are in memory after it.

        It could keep what was in memory before it, and note what is read or in memory for the first time. ``None``
        where there was nothing to do: a fact that was lost or never noted is not held against later turns.
        """
        after = list(zip(*(fact.fates for fact in self.facts), strict=True)) or [()] * len(self.fates)
        before = [(Fate.AHEAD,) * len(self.facts), *after]
        return tuple(
            _share(now is Fate.HELD for old, now in zip(*turn, strict=True) if _could(old, now))
            for turn in zip(before, after, strict=False)
        )

    @property
    def fate(self) -> Fate | None:
        """How it ended."""
        return self.fates[-1] if self.fates else None

    @property
    def changes(self) -> list[int]:
        """The turns after which the question's fate is another than before."""
        before = (None if self.fate is None else Fate.AHEAD, *self.fates)
        return [i for i, (old, new) in enumerate(zip(before, self.fates, strict=False)) if new is not old]


def diagnose(
    trace: Trace,
    evidence: Iterable[tuple[int, int]],
    answers: Sequence[str],
    document: str | Sequence[str] | None = None,
) -> Diagnosis:
    """What became of the facts at ``evidence`` (character spans of the document), from the trace of any reader.

    A fact is told by the accepted answers that stand inside its span, any one of them; a fact without an answer by the
    names and numbers in it that the question does not give away (where it has none, by its uncommon words), all of
    them. Its text comes from ``document`` (or is given there, a text per span), else from the chunks. Without evidence
    the accepted answers are one fact whose place is unknown."""
    kept = any(turn.prompt.kind.reads for turn in trace.turns)
    held = [_spoken("\n".join(live)) for live in live_memories(trace)] if kept else []
    spans = [(int(start), int(end)) for start, end in evidence]
    if not spans:
        told = _telling("", answers, trace.question)
        last = max((i for i, turn in enumerate(trace.turns) if turn.prompt.kind.reads), default=None)
        facts = (_history(None, told, held, last, len(trace.turns)),) if answers else ()
    else:
        texts = [_text_of(trace, span, document, number) for number, span in enumerate(spans)]
        told = [_telling(text, answers, trace.question) for text in texts]
        facts = tuple(
            _history(span, words, held, _last_part(trace, span), len(trace.turns), _first_part(trace, span))
            for span, words in zip(spans, told, strict=True)
        )
    fates = tuple(_worst([fact.fates[turn] for fact in facts]) for turn in range(len(trace.turns)))
    return Diagnosis(facts, fates)


def live_memories(trace: Trace) -> list[tuple[str, ...]]:
    """After each turn, the memories that are held, in reading order.

    A turn's reply replaces the memories that its prompt showed: the one memory of most readers, a slot of
    ``multislot``, the memory of a part of ``map_merge``, both that a merge joins. One that was shown again from the
    past (``recall``) is not held.
    """
    live: list[str] = []
    after = []
    for turn in trace.turns:
        if turn.prompt.kind.reads or turn.prompt.kind is Kind.MERGE:
            live = _replaced(live, turn)
        after.append(tuple(live))
    return after


def evidence_in(turn: Turn, evidence: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The evidence in a turn's chunk, as places in its text; none in a text that is no slice of the document."""
    chunk = turn.prompt.chunk
    if chunk is None or turn.prompt.kind is Kind.MERGE or (chunk.text and not _is_slice(chunk)):
        return ()
    inside = ((max(start, chunk.start) - chunk.start, min(end, chunk.end) - chunk.start) for start, end in evidence)
    return tuple((start, end) for start, end in inside if start < end)


def _replaced(live: list[str], turn: Turn) -> list[str]:
    prompt = turn.prompt
    shown = [prompt.memory, *([prompt.chunk.text] if prompt.kind is Kind.MERGE and prompt.chunk else [])]
    gone: set[int] = set()
    for text in shown:
        gone |= set([i for i, memory in enumerate(live) if memory == text and i not in gone][:1])
    if not gone:  # shown with other words around it
        gone = {i for i, memory in enumerate(live) if memory in prompt.memory}
    at = min(gone, default=len(live))
    after = [memory for i, memory in enumerate(live) if i > at and i not in gone]
    return [*live[:at], *filter(None, [turn.reply.text]), *after]


def _history(
    span: tuple[int, int] | None,
    told: tuple[tuple[str, ...], bool],
    held: Sequence[str],
    due: int | None,
    turns: int,
    first: int = 0,
) -> FactHistory:
    words, every = told
    read = None if span is None else due
    if not held or not words:
        return FactHistory(span, words, read, (None,) * turns, None, None)
    needles, enough = [_spoken(word) for word in words], all if every else any
    stands = [enough(needle in memory for needle in needles) for memory in held]
    captured = None if span is None else due is not None and stands[due]
    retained = stands[-1] if captured is not False else None
    return FactHistory(span, words, read, _fates(stands, due, first), captured, retained)


def _fates(stands: Sequence[bool], due: int | None, first: int) -> tuple[Fate, ...]:
    """Before turn ``first``, the first to read any of it, a fact is ahead: its words are in memory from elsewhere."""
    fates: list[Fate] = [Fate.AHEAD] * min(first, len(stands))
    noted = False
    for turn, stand in enumerate(stands[first:], start=first):
        noted = noted or stand
        read = due is not None and turn >= due
        fates.append(Fate.HELD if stand else Fate.LOST if noted else Fate.MISSED if read else Fate.AHEAD)
    return tuple(fates)


def _could(before: Fate | None, after: Fate | None) -> bool:
    """Whether it was up to a turn that a fact is in memory after it."""
    return before is Fate.HELD or (before is Fate.AHEAD and after in (Fate.HELD, Fate.MISSED))


def _worst(fates: Sequence[Fate | None]) -> Fate | None:
    return next((f for f in (Fate.LOST, Fate.MISSED, Fate.HELD, Fate.AHEAD) if f in fates), None)


def _first_part(trace: Trace, span: tuple[int, int]) -> int:
    """The first turn whose chunk holds any of a fact; the number of turns where none does."""
    start, end = span
    return next((i for i, chunk in _chunks(trace) if chunk.start < end and start < chunk.end), len(trace.turns))


def _last_part(trace: Trace, span: tuple[int, int]) -> int | None:
    """The turn whose chunk holds the last character of a fact; ``None`` where it was never read."""
    return next((i for i, chunk in _chunks(trace) if chunk.start < span[1] <= chunk.end), None)


def _chunks(trace: Trace) -> Iterator[tuple[int, Chunk]]:
    return ((i, t.prompt.chunk) for i, t in enumerate(trace.turns) if t.prompt.kind.reads and t.prompt.chunk)


def _text_of(trace: Trace, span: tuple[int, int], document: str | Sequence[str] | None, number: int) -> str:
    start, end = span
    if document:
        return document[start:end] if isinstance(document, str) else document[number]
    chunks = [t.prompt.chunk for t in trace.reads if t.prompt.chunk and _is_slice(t.prompt.chunk)]
    inside = sorted((c for c in chunks if c.start < end and start < c.end), key=lambda c: c.start)
    return "".join(c.text[max(start, c.start) - c.start : min(end, c.end) - c.start] for c in inside)


def _is_slice(chunk: Chunk) -> bool:
    return len(chunk.text) == chunk.end - chunk.start


def _telling(text: str, answers: Sequence[str], question: str) -> tuple[tuple[str, ...], bool]:
    """The words that tell a fact, and whether all of them must stand in a memory or any one."""
    spoken = _spoken(text)
    inside = tuple(answer for answer in answers if not text or _spoken(answer) in spoken)
    if inside:
        return inside, False
    return tuple(telling_words(dict.fromkeys(WORD.findall(text)), set(_spoken(question).split()))), True


def telling_words(words: Iterable[str], known: Container[str] = ()) -> list[str]:
    """The words that tell: names and numbers that are not ``known``, else the uncommon ones."""
    words = list(words)
    uncommon = [word for word in words if word.lower() not in COMMON_WORDS]
    new = [word for word in uncommon if _plain(word) not in known]
    names = [word for word in new if word[0].isupper() or any(c.isdigit() for c in word)]
    return names or new or uncommon


def _spoken(text: str) -> str:
    """The words of a text in one plain form, each between blanks: case, punctuation and articles do not count."""
    return f" {' '.join(word for word in WORD.findall(_plain(text)) if word not in _ARTICLES)} "


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _share(known: Iterable[bool | None]) -> float | None:
    told = [value for value in known if value is not None]
    return sum(told) / len(told) if told else None
