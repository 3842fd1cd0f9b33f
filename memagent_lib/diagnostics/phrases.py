"""Trace a memory's phrases: which chunk brought each in, which turn dropped it, and which words are the model's own.

A memory's words are matched, longest run first, with the previous memory (carried over) and with the chunk just read
(brought in); words that match neither are the model's own. Runs match word for word, never by similarity. Tracing works
turn by turn, so a huge document need not stay in memory. This module depends on traces, not on files.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from memagent_lib.diagnostics.fates import COMMON_WORDS, WORD, distinctive_words
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Trace, Turn

NO_ANSWERS = frozenset({"unknown", "unanswerable", "not known", "not mentioned", "not stated", "no answer", "none"})
"""Answers which mean that the text has none."""
REMEMBERED_STATES = 1024
SAVED_STATES = 16
QUOTE_CHARS = 280
_OWN = -1
_GAP_CHARS = 24  # words of one phrase stand no further apart in the source
_POSITIONS_TRIED = 40
_LONG_WORD_CHARS = 6
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class MemoryPiece(NamedTuple):
    """A run of words in a text, ``text[start:end]``, with its ``source`` span in the document if it has one."""

    start: int
    end: int
    fresh: bool
    source: tuple[int, int] | None


@dataclass(slots=True)
class Phrase:
    """Words that a chunk brought in, their span in the document, and the turns that brought and dropped them.

    ``quote`` is the sentence around these words; it begins at character ``quote_start`` of the document.
    """

    text: str
    start: int
    end: int
    brought: int
    quote_start: int
    quote: str
    dropped: int | None = None
    """The turn whose reply left it out; ``None`` while it is in memory."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What a ``turn``, the one with a ``number`` (from 0), changed in its memory.

    ``pieces`` is empty if the memory is unchanged. ``displayed`` is what the prompt displayed beside the memory and the
    chunk: a recalled memory, or both memories of a merge.
    """

    number: int
    turn: Turn
    pieces: tuple[MemoryPiece, ...]
    dropped: tuple[str, ...]
    displayed: tuple[str, ...] = ()

    @property
    def memory(self) -> str:
        return self.turn.reply.text

    @property
    def chunk(self) -> tuple[int, int]:
        """The span of the document that was read; for a merge, the span that the second memory covers."""
        return self.turn.prompt.chunk.start, self.turn.prompt.chunk.end


class _State(NamedTuple):
    """A memory with each word's origin (a character of the document, or ``_OWN``) and the numbers of its phrases."""

    text: str
    origins: array
    phrases: tuple[int, ...]


_EMPTY = _State("", array("q"), ())


class Provenance:
    """Traces phrases to their sources, one turn at a time (:meth:`turn`) or over a whole trace (:meth:`of`).

    ``steps`` has one :class:`MemoryChange` per turn that wrote a memory. A chunk's text is needed only at its own turn.
    """

    def __init__(self) -> None:
        self.phrases: list[Phrase] = []
        self.steps: list[MemoryChange] = []
        self.answers: dict[str, tuple[str, tuple[MemoryPiece, ...]]] = {}
        """For each question, the answer and its pieces."""
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._turns = 0

    @classmethod
    def of(cls, trace: Trace) -> Provenance:
        """Trace the phrases of a finished reading. The chunks of ``trace`` must still have their text."""
        provenance = cls()
        for turn in trace.turns:
            provenance.turn(turn)
        return provenance

    def turn(self, turn: Turn) -> None:
        """Trace the phrases of the next turn. Turns must be processed in order."""
        kind = turn.prompt.kind
        chunk = turn.prompt.chunk
        memory = self._state(turn.prompt.memory)
        if kind.reads and chunk is not None:
            self._step(turn, memory, chunk)
        # The chunk of a merge is the other memory.
        elif kind == Kind.MERGE and chunk is not None:
            self._step(turn, _joined(memory, self._state(chunk.text)), None)
        elif kind.answers and chunk is None:
            self._answer(turn, memory, None)
        elif kind.answers and len(chunk.text) == chunk.end - chunk.start:
            self._answer(turn, _EMPTY, chunk)
        self._turns += 1

    def evidence(self, question: str) -> list[Phrase]:
        """Return the phrases that the answer to ``question`` came from; none if it is one of :data:`NO_ANSWERS`.

        Function words are not evidence, nor are words that the answer repeats from the question if it has others.
        """
        answer, pieces = self.answers.get(question, ("", ()))
        # Without punctuation and without the name of a box around the answer.
        words = [word for word in _words(answer) if word != "boxed"]
        if " ".join(words) in NO_ANSWERS:
            return []
        traced = [(piece, _content(answer[piece.start : piece.end])) for piece in pieces if piece.source]
        of_question = set(_words(question))
        new = [piece for piece, content in traced if content - of_question]
        if not new and _content(answer) <= {*of_question, "boxed", "yes", "no"}:
            new = [piece for piece, content in traced if content]  # "red or blue?" has its answer in the question
        distinctive = [piece for piece in new if _is_distinctive(_words(answer[piece.start : piece.end]))]
        sources = [piece.source for piece in distinctive or new]
        return [p for p in self.phrases if any(p.start < end and start < p.end for start, end in sources)]

    @property
    def remembered(self) -> list[Phrase]:
        """The phrases in memory at the end, on which an answer in other words (yes, 3) rests."""
        return [phrase for phrase in self.phrases if phrase.dropped is None]

    def to_frame(self) -> Any:
        """Return one row per phrase: its words, its span, and the turns that brought and dropped it.

        Turns are numbered from 1.
        """
        import pandas as pd

        frame = pd.DataFrame([asdict(p) for p in self.phrases], columns=list(Phrase.__slots__))
        return frame.assign(brought=frame["brought"] + 1, dropped=frame["dropped"].astype("Int64") + 1)

    def to_record(self) -> dict[str, Any]:
        """Return what a continued reading needs: the phrases, and the origins of the words in the latest memories."""
        states = [
            {"text": s.text, "origins": list(s.origins), "phrases": list(s.phrases)}
            # Only memories that a continuation can display again; all of them would outgrow the trace.
            for s in list(self._states.values())[-SAVED_STATES:]
        ]
        return {"turns": self._turns, "phrases": [asdict(p) for p in self.phrases], "states": states}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Provenance:
        """Restore the state saved by :meth:`to_record`.

        The ``steps`` and ``answers`` of earlier turns are not restored.
        """
        provenance = cls()
        provenance._turns = record["turns"]
        provenance.phrases = [Phrase(**p) for p in record["phrases"]]
        for s in record["states"]:
            provenance._remember(_State(s["text"], array("q", s["origins"]), tuple(s["phrases"])))
        return provenance

    def _answer(self, turn: Turn, known: _State, chunk: Chunk | None) -> None:
        answer = turn.reply.text
        _, pieces, _ = _matched(answer, known, chunk)
        self._bring(pieces, answer, chunk)
        self.answers[turn.prompt.question] = (answer, pieces)

    def _step(self, turn: Turn, before: _State, chunk: Chunk | None) -> None:
        memory = turn.reply.text
        origins, pieces, used = _matched(memory, before, chunk)
        brought = self._bring(pieces, memory, chunk)
        carried = self._carried_over(before, set(origins))
        self._remember(_State(memory, origins, (*carried, *brought)))
        prompt = turn.prompt
        old = before.text
        displayed: tuple[str, ...] = ()
        if chunk is None:
            displayed = (prompt.memory, prompt.chunk.text)
        elif prompt.replaced is not None:
            # A recalled memory stands behind the one that is replaced. It was no part of it, so it cannot be dropped.
            old = prompt.replaced
            displayed = (prompt.memory.removeprefix(old).strip(),)
        # An unchanged memory has nothing to display, and most turns change nothing. Other white space is no change.
        is_changed = _words(memory) != _words(old)
        dropped = tuple(_left_out(old, used)) if is_changed else ()
        self.steps.append(MemoryChange(self._turns, turn.lean(), pieces if is_changed else (), dropped, displayed))

    def _carried_over(self, before: _State, origins: set[int]) -> list[int]:
        """Return the phrases of the memory ``before`` that remain in the next memory; mark the others as dropped.

        ``origins`` are those of the next memory's words. A phrase that was dropped before and returns, because a prompt
        displayed an old memory again, becomes a new phrase.
        """
        words = list(zip(WORD.findall(before.text), before.origins, strict=True))
        carried = []
        for number in before.phrases:
            phrase = self.phrases[number]
            of_phrase = [(word, origin) for word, origin in words if phrase.start <= origin < phrase.end]
            distinctive = set(distinctive_words(word for word, _ in of_phrase))
            alive = [origin in origins for word, origin in of_phrase if word in distinctive or not distinctive]
            # A phrase ends when most of what identifies it is gone, whatever filler words are left.
            if alive and 2 * sum(alive) >= len(alive):
                if phrase.dropped is not None:
                    number = len(self.phrases)
                    self.phrases.append(replace(phrase, brought=self._turns, dropped=None))
                carried.append(number)
            elif phrase.dropped is None:
                phrase.dropped = self._turns
        return carried

    def _bring(self, pieces: Sequence[MemoryPiece], text: str, chunk: Chunk | None) -> tuple[int, ...]:
        first = len(self.phrases)
        for piece in pieces:
            if piece.fresh and piece.source:
                start, end = piece.source
                quote_start, quote = _quote(chunk, start, end)
                self.phrases.append(Phrase(text[piece.start : piece.end], start, end, self._turns, quote_start, quote))
        return tuple(range(first, len(self.phrases)))

    def _remember(self, state: _State) -> None:
        self._states[state.text] = state
        self._states.move_to_end(state.text)
        while len(self._states) > REMEMBERED_STATES:
            self._states.popitem(last=False)

    def _state(self, text: str) -> _State:
        """Return the origins of a memory's words. For a text made of several memories, join what is known of each."""
        if text in self._states or not text:
            return self._states.get(text, _EMPTY)
        words = list(WORD.finditer(text))
        origins = array("q", [_OWN] * len(words))
        phrases: list[int] = []
        covered = 0
        # Latest first: of equal texts the newest state has the right origins.
        for state in reversed(self._states.values()):
            at = text.find(state.text) if state.text else -1
            if at < 0:
                continue
            inside = [i for i, word in enumerate(words) if at <= word.start() and word.end() <= at + len(state.text)]
            if len(inside) == len(state.origins) and all(origins[i] == _OWN for i in inside):
                for i, origin in zip(inside, state.origins, strict=True):
                    origins[i] = origin
                phrases.extend(state.phrases)
                covered += len(inside)
            if covered == len(words):
                break
        return _State(text, origins, tuple(phrases))


def _joined(left: _State, right: _State) -> _State:
    return _State(f"{left.text}\n{right.text}", left.origins + right.origins, left.phrases + right.phrases)


def _matched(text: str, before: _State, chunk: Chunk | None) -> tuple[array, tuple[MemoryPiece, ...], set[int]]:
    """Return each word's origin, the pieces of the text, and which words of ``before`` it carries over."""
    source = list(WORD.finditer(chunk.text)) if chunk else []
    words = _words(text)
    old = _words(before.text)
    new = [word.group().lower() for word in source]
    old_positions = _positions(old)
    new_positions = _positions(new)
    origins = array("q", [_OWN] * len(words))
    fresh = [False] * len(words)
    used: set[int] = set()
    at = 0
    while at < len(words):
        carried, carried_at = _longest(words, at, old, old_positions, used)
        brought, brought_at = _longest(words, at, new, new_positions, ())
        if not _is_distinctive(words[at : at + brought]):
            brought = 0
        # One filler word is carried over only beside another word that is.
        alone = carried == 1 and not _is_distinctive(words[at : at + 1])
        if alone and carried_at and (carried_at - 1) not in used:
            carried = 0
        if carried and carried >= brought:
            used.update(range(carried_at, carried_at + carried))
            origins[at : at + carried] = before.origins[carried_at : carried_at + carried]
        elif brought:
            for i in range(brought):
                origins[at + i] = chunk.start + source[brought_at + i].start()
                fresh[at + i] = True
        at += max(1, carried, brought)
    return origins, _pieces(text, origins, fresh), used


def _content(text: str) -> set[str]:
    """Return the words of a text that are not function words."""
    return set(_words(text)) - COMMON_WORDS


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _positions(words: Sequence[str]) -> dict[str, list[int]]:
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, word in enumerate(words):
        positions[word].append(position)
    return positions


def _longest(
    words: Sequence[str], at: int, other: Sequence[str], positions: Mapping[str, list[int]], used: Container[int]
) -> tuple[int, int]:
    """Return how long a run of ``words`` from ``at`` occurs in ``other``, and where; unused positions are preferred."""
    best = 0
    best_at = 0
    # A common word has thousands of positions in a large chunk; trying all would take minutes.
    for position in positions.get(words[at], ())[:_POSITIONS_TRIED]:
        size = 0
        while at + size < len(words) and position + size < len(other) and words[at + size] == other[position + size]:
            size += 1
        # Unused positions first, so that a repeated word is carried over as often as it was there.
        if size > best or (size == best and best_at in used and position not in used):
            best = size
            best_at = position
    return best, best_at


def _is_distinctive(run: Sequence[str]) -> bool:
    """Return whether a run of words identifies its source.

    It does if it has two uncommon words, or one that is long or has a digit.
    """
    uncommon = [word for word in run if word not in COMMON_WORDS]
    return len(uncommon) >= 2 or any(
        len(word) >= _LONG_WORD_CHARS or any(c.isdigit() for c in word) for word in uncommon
    )


def _pieces(text: str, origins: array, fresh: Sequence[bool]) -> tuple[MemoryPiece, ...]:
    """Join neighbouring words of one kind whose sources are also neighbours."""
    pieces: list[MemoryPiece] = []
    for word, origin, new in zip(WORD.finditer(text), origins, fresh, strict=True):
        last = pieces[-1] if pieces else None
        source = None
        if origin != _OWN:
            source = (origin, origin + len(word.group()))
        if last and last.fresh == new and _adjoins(last.source, source):
            joined = (last.source[0], source[1]) if source else None
            pieces[-1] = MemoryPiece(last.start, word.end(), new, joined)
        else:
            pieces.append(MemoryPiece(word.start(), word.end(), new, source))
    return tuple(pieces)


def _adjoins(last: tuple[int, int] | None, this: tuple[int, int] | None) -> bool:
    if last is None or this is None:
        return last is this
    return 0 <= this[0] - last[1] <= _GAP_CHARS


def _left_out(text: str, used: set[int]) -> Iterator[str]:
    """Yield the runs of words in ``text`` that were not used again."""
    for carried, run in groupby(enumerate(WORD.finditer(text)), lambda numbered: numbered[0] in used):
        if not carried:
            words = [word for _, word in run]
            yield text[words[0].start() : words[-1].end()]


def _quote(chunk: Chunk, start: int, end: int) -> tuple[int, str]:
    """Return where the sentence around a span of the document begins, and its text."""
    text = chunk.text
    first = start - chunk.start
    last = end - chunk.start
    sentence_starts = [m.end() for m in _SENTENCE.finditer(text, max(0, first - QUOTE_CHARS), first)]
    left = max(sentence_starts, default=max(0, first - QUOTE_CHARS // 2))
    sentence_ends = (m.start() for m in _SENTENCE.finditer(text, last, min(len(text), last + QUOTE_CHARS)))
    right = next(sentence_ends, min(len(text), last + QUOTE_CHARS // 2))
    return chunk.start + left, text[left:right]
