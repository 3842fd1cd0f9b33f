"""Capture, retention and fate: what became of each needed fact, turn by turn.

A fact is *in memory* if one sentence of the memory states it: its value, about its own subject. It is *captured* if it
is in memory right after the chunk that contains its end, and *retained* if it was captured and is in memory at the end.
What is in memory after a turn follows from the prompts, because a reply replaces the memories that its prompt
displayed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Trace, Turn

# A number with its points and commas, one character of a script without spaces, or a word. Accents may be characters of
# their own, as in many PDF files.
WORD = re.compile(r"\d+(?:[.,]\d+)+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|(?:[^\W_][\u0300-\u036f]*)+")
_ARTICLES = frozenset(("a", "an", "the"))
COMMON_WORDS = _ARTICLES.union(
    (  # noqa: SIM905
        "and are as at be been but by for from had has have he her his i if in is it its let not of on or she so that "
        "their there they this to was we were which who will with you"
    ).split()
)

_LABELS = frozenset(
    (  # noqa: SIM905
        "again also answer boxed current final found latest memory new note now still update value"
    ).split()
)
"""Words beside a value that name no subject: ``Final answer: 4711``."""
# A line, a part before a semicolon, or a sentence. A point after one or two characters ends none: 1. St. D.C.
_BREAK = re.compile(r"\s*[\n;]\s*|(?<=[.!?])(?<!\b\w\.)(?<!\b\w\w\.)\s+|(?<=[。！？])")


class Fate(StrEnum):
    """The state of a needed fact after a turn.

    A fact is ahead until a chunk contains part of it. Until then its words may already be in memory, because they may
    also occur elsewhere in the document.
    """

    AHEAD = "not read yet"
    IN_MEMORY = "in memory"
    MISSED = "read but never noted"
    LOST = "noted and lost"


@dataclass(frozen=True, slots=True)
class EvidenceHistory:
    """The history of one needed fact: its ``span`` in the document, and the ``words`` that identify it.

    ``span`` is ``None`` if it is unknown. ``read`` is the turn whose chunk contains the span's last character, or
    ``None`` if no chunk does. ``fates`` has one entry per turn. The entries, ``captured`` and ``retained`` are ``None``
    for a reader without a memory and for a fact without words. ``captured`` is also ``None`` for an unknown span;
    ``retained`` also for a fact that was not captured.
    """

    span: tuple[int, int] | None
    words: tuple[str, ...]
    read: int | None
    fates: tuple[Fate | None, ...]
    captured: bool | None
    retained: bool | None
    outcome: str = ""
    """The last fate in words. A lost fact also has for how many turns it was in memory, and what replaced it there:
    another value of its subject, another statement, or nothing."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The history of every fact that a question needs, in the order of the evidence."""

    histories: tuple[EvidenceHistory, ...]
    fates: tuple[Fate | None, ...]
    """After each turn, the worst fate of the evidence read so far: lost, else never noted, else in memory.

    It is ahead if none was read yet, and ``None`` without evidence or for a reader without a memory.
    """

    @property
    def capture(self) -> float | None:
        """The share of the evidence that was in memory right after its chunk was read.

        ``None`` for a reader without a memory, or if no position of the evidence is known.
        """
        return _share(history.captured for history in self.histories)

    @property
    def retention(self) -> float | None:
        """The share of the captured evidence that is in memory at the end; ``None`` if nothing was captured.

        Evidence at an unknown position counts as captured.
        """
        return _share(history.retained for history in self.histories)

    @property
    def steps(self) -> tuple[float | None, ...]:
        """For each turn, the share of the evidence within its reach that is in memory after it.

        Evidence is within reach of a turn if it was in memory before, if the turn reads it, or if it first appears in
        memory at this turn. The share is ``None`` if nothing was within reach, so a turn is never blamed for evidence
        that was lost or missed earlier.
        """
        after = list(zip(*(history.fates for history in self.histories), strict=True)) or [()] * len(self.fates)
        before = [(Fate.AHEAD,) * len(self.histories), *after]
        here = Fate.IN_MEMORY
        shares = []
        for old_fates, new_fates in zip(before, after, strict=False):
            pairs = zip(old_fates, new_fates, strict=True)
            within_reach = [
                (old, new) for old, new in pairs if old is here or (old is Fate.AHEAD and new in (here, Fate.MISSED))
            ]
            shares.append(_share(new is here for _, new in within_reach))
        return tuple(shares)

    @property
    def fate(self) -> Fate | None:
        """The fate after the last turn; ``None`` without turns, without evidence, or for a reader without a memory."""
        return self.fates[-1] if self.fates else None

    @property
    def changes(self) -> list[int]:
        """The turns at which the fate differs from the fate one turn earlier."""
        first = None if self.fate is None else Fate.AHEAD
        before = (first, *self.fates)
        return [turn for turn, (old, new) in enumerate(zip(before, self.fates, strict=False)) if new is not old]


def diagnose(
    trace: Trace,
    evidence: Iterable[tuple[int, int]],
    answers: Sequence[str],
    document: str | Sequence[str] | None = None,
) -> Diagnosis:
    """Return what became of the ``evidence`` (character spans of the document) in the trace of any reader.

    A fact is in memory if one sentence, line or part before a semicolon has its value and is not about another subject.

    The value is an accepted answer that the fact's span contains and the question does not. If there is none, it is all
    of the span's names and numbers that the question does not mention, or else its uncommon words. The subject is the
    names that the fact shares with the question or with the other evidence, or else the last run of words that it
    shares with the question. A sentence without the whole subject is about another one if it has a word that is not the
    fact's. If the subject is a name, and the sentence is not worded like the fact, only a name counts as such a word.

    So a bare value counts as its fact, except in a hop, whose value is the subject of other evidence. A fact that
    shares no word with the question is known by its value alone, as are texts without spaces between words. Without
    evidence, the accepted answers count as one fact at an unknown position, wherever they stand in the memory. The text
    of a fact comes from ``document`` (one text, or one text per span) if that is set, or else from the chunks.
    """
    memories = ["\n".join(live) for live in live_memories(trace)]
    if not trace.reads:
        memories = []  # a reader without memory
    spans = [(int(start), int(end)) for start, end in evidence]
    texts = [_text_of(trace, span, document, number) for number, span in enumerate(spans)]
    if not spans and answers:
        spans, texts = [None], [""]
    histories = []
    for number, span in enumerate(spans):
        others = " ".join((*texts[:number], *texts[number + 1 :]))
        statements = _statements(texts[number], answers, trace.question, others)
        histories.append(_history(span, statements, trace, memories))
    fates = tuple(_worst([history.fates[turn] for history in histories]) for turn in range(len(trace.turns)))
    return Diagnosis(tuple(histories), fates)


def live_memories(trace: Trace) -> list[tuple[str, ...]]:
    """Return the memories in use after each turn, in reading order.

    A reply replaces the memories that its prompt displayed: the one memory of most readers, a slot of ``multislot``,
    the memory of a part of ``map_merge``, both memories of a merge. An old memory does not return to use when
    the reader displays it again.
    """
    live: list[str] = []
    after = []
    for turn in trace.turns:
        if turn.prompt.kind.reads or turn.prompt.kind == Kind.MERGE:
            live = _replaced(live, turn)
        after.append(tuple(live))
    return after


def evidence_in(turn: Turn, evidence: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the evidence in a turn's chunk, as spans of the chunk's text.

    The result is empty if there is no chunk, or if it is not a slice of the document (the second memory of a merge).
    """
    chunk = turn.prompt.chunk
    if chunk is None or turn.prompt.kind == Kind.MERGE or (chunk.text and not _is_slice(chunk)):
        return ()
    inside = ((max(start, chunk.start) - chunk.start, min(end, chunk.end) - chunk.start) for start, end in evidence)
    return tuple((start, end) for start, end in inside if start < end)


def distinctive_words(words: Iterable[str], known: Container[str] = ()) -> list[str]:
    """Return the words that identify a text: names and numbers that are not ``known``, or else its uncommon words."""
    uncommon = [word for word in words if word.lower() not in COMMON_WORDS]
    new = [word for word in uncommon if _plain(word) not in known]
    # Names and numbers survive a paraphrase; other words of a sentence often do not.
    return [word for word in new if _is_name(word)] or new or uncommon


class _Statement(NamedTuple):
    """How a fact is found in a memory: all ``words`` of its value in one sentence that is about its ``subject``.

    ``rest`` are the fact's other words. ``known`` words name no other subject. If the subject is a name, ``asked`` are
    the question's words that are not names.
    """

    words: tuple[str, ...]
    subject: frozenset[str]
    rest: frozenset[str]
    known: frozenset[str]
    asked: frozenset[str]

    def is_in(self, memory: str) -> bool:
        """Return whether a sentence of the memory states the fact."""
        # Blanks around words, so that 12 is not found in 312.
        needles = [_comparable(word) for word in self.words]
        has_break = any(map(_BREAK.search, self.words))
        for sentence in [memory] if has_break else _BREAK.split(memory):
            text = _comparable(sentence)
            if all(needle in text for needle in needles) and self._is_about(sentence, set(text.split())):
                return True
        return False

    def _is_about(self, sentence: str, words: set[str]) -> bool:
        """Return whether a sentence with the value has the subject, or no other one."""
        # A number, such as that of a line, is not another subject.
        others = (word for word in WORD.findall(sentence) if _is_telling(word) and any(map(str.isalpha, word)))
        if self.asked and not self.rest <= words:
            others = (word for word in others if _is_name(word) and _plain(word) not in self.asked)
        return self.subject <= words or self.known.issuperset(map(_plain, others))


def _statements(text: str, answers: Sequence[str], question: str, others: str) -> list[_Statement]:
    """Return the ways to state a fact, one of which has to be in memory: one for each of its values."""
    asked = _comparable(question)

    def has_words_in(answer: str) -> bool:
        # An answer without words, such as the article "A" of a multiple choice, cannot be found in a text. One that
        # the question has too is one of its choices, and no value.
        needle = _comparable(answer)
        return bool(needle.strip()) and (not text or (needle in _comparable(text) and needle not in asked))

    inside = list(filter(has_words_in, answers))
    # In a chain, a value of several facts is the subject of all but one.
    inside = [answer for answer in inside if _comparable(answer) not in _comparable(others)] or inside
    words = WORD.findall(text)
    own = set(filter(_is_telling, words))
    values = [(answer,) for answer in inside] or [tuple(distinctive_words(dict.fromkeys(words), asked.split()))]
    found = []
    for value in filter(None, values):
        beside = own.difference(*map(WORD.findall, value))
        plain = frozenset(map(_plain, beside))
        names = beside.intersection(filter(_is_name, WORD.findall(f"{question} {others}")))
        runs = [list(run) for is_shared, run in groupby(asked.split(), plain.__contains__) if is_shared]
        subject = frozenset(map(_plain, names)) or frozenset(*runs[-1:])
        known = _LABELS.union(map(_plain, own), *(_comparable(answer).split() for answer in answers))
        if (own - beside).intersection(WORD.findall(others)):
            known = frozenset()  # the value of a hop, which other evidence is about, needs its subject
        lower = frozenset(word for word in WORD.findall(question) if names and not _is_name(word))
        found.append(_Statement(value, subject, plain - subject, known, lower))
    return found


def _is_name(word: str) -> bool:
    return word[0].isupper() or any(character.isdigit() for character in word)


def _is_telling(word: str) -> bool:
    """Return whether a word can belong to a subject: common words and single characters cannot."""
    return len(word) > 1 and word.lower() not in COMMON_WORDS


def _replaced(live: list[str], turn: Turn) -> list[str]:
    prompt = turn.prompt
    displayed = [prompt.memory]
    if prompt.kind == Kind.MERGE and prompt.chunk:
        displayed.append(prompt.chunk.text)
    gone: set[int] = set()
    for text in displayed:
        same = [i for i, memory in enumerate(live) if memory == text and i not in gone]
        # Only one of two equal memories was displayed.
        gone.update(same[:1])
    if not gone:  # displayed with other words around it
        gone = {i for i, memory in enumerate(live) if memory in prompt.memory}
    at = min(gone, default=len(live))
    after = [memory for i, memory in enumerate(live) if i > at and i not in gone]
    return [*live[:at], *filter(None, [turn.reply.text]), *after]


def _history(
    span: tuple[int, int] | None, statements: Sequence[_Statement], trace: Trace, memories: Sequence[str]
) -> EvidenceHistory:
    """Return the history of a fact; ``memories`` has the memory after each turn."""
    words = tuple(word for statement in statements for word in statement.words)
    turns = len(trace.turns)
    chunks = list(_chunks(trace))
    # At an unknown position, a fact is missed only if it is not in memory after the last read.
    first = 0
    due = chunks[-1][0] if chunks else None
    if span:
        first = next((turn for turn, chunk in chunks if chunk.start < span[1] and span[0] < chunk.end), turns)
        due = next((turn for turn, chunk in chunks if chunk.start < span[1] <= chunk.end), None)
    read = due if span else None
    if not memories or not words:
        return EvidenceHistory(span, words, read, (None,) * turns, None, None)
    in_memory = [any(statement.is_in(memory) for statement in statements) for memory in memories]
    captured = None if span is None else due is not None and in_memory[due]
    retained = None if captured is False else in_memory[-1]
    fates = _fates(in_memory, due, first)
    outcome = str(fates[-1])
    if fates[-1] is Fate.LOST:
        last = max(turn for turn, fate in enumerate(fates) if fate is Fate.IN_MEMORY)
        turns = fates.count(Fate.IN_MEMORY)
        replacement = _replacement(statements, *memories[last : last + 2])
        outcome += f" after {turns} turn{'s' * (turns > 1)} to {replacement}"
    return EvidenceHistory(span, words, read, fates, captured, retained, outcome)


def _replacement(statements: Sequence[_Statement], before: str, after: str) -> str:
    """Return what a memory has in place of a fact that the memory before it stated."""
    new = set(_BREAK.split(after)).difference(_BREAK.split(before), ("",))
    subjects = [statement.subject for statement in statements if statement.subject]
    if any(subject.issubset(_comparable(text).split()) for subject in subjects for text in new):
        return "another value"
    return "another statement" if new else "nothing"


def _fates(in_memory: Sequence[bool], due: int | None, first: int) -> tuple[Fate, ...]:
    # Before ``first``, the first turn to read any of it, a fact is ahead: its words are in memory from elsewhere.
    fates: list[Fate] = [Fate.AHEAD] * min(first, len(in_memory))
    noted = False
    for turn, there in enumerate(in_memory[first:], start=first):
        noted = noted or there
        if there:
            fates.append(Fate.IN_MEMORY)
        elif noted:
            fates.append(Fate.LOST)
        elif due is not None and turn >= due:
            fates.append(Fate.MISSED)
        else:
            fates.append(Fate.AHEAD)
    return tuple(fates)


def _worst(fates: Sequence[Fate | None]) -> Fate | None:
    # An answer needs every fact, so the worst decides.
    order = (Fate.LOST, Fate.MISSED, Fate.IN_MEMORY, Fate.AHEAD)
    return next((fate for fate in order if fate in fates), None)


def _chunks(trace: Trace) -> Iterator[tuple[int, Chunk]]:
    for number, turn in enumerate(trace.turns):
        if turn.prompt.kind.reads and turn.prompt.chunk:
            yield number, turn.prompt.chunk


def _text_of(trace: Trace, span: tuple[int, int], document: str | Sequence[str] | None, number: int) -> str:
    start, end = span
    if isinstance(document, str) and document:
        return document[start:end]
    if document:
        return document[number]
    parts = [chunk for _, chunk in _chunks(trace) if _is_slice(chunk) and chunk.start < end and start < chunk.end]
    # Readers with parallel parts read out of document order.
    parts.sort(key=lambda chunk: chunk.start)
    return "".join(c.text[max(start, c.start) - c.start : min(end, c.end) - c.start] for c in parts)


def _is_slice(chunk: Chunk) -> bool:
    return len(chunk.text) == chunk.end - chunk.start


@lru_cache(maxsize=4096)  # a sentence stays in memory for many turns
def _comparable(text: str) -> str:
    """Return a text's words between blanks, without articles, punctuation and case, so that texts can be compared."""
    return f" {' '.join(word for word in WORD.findall(_plain(text)) if word not in _ARTICLES)} "


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _share(values: Iterable[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
