"""Where every phrase of a memory came from: which chunk brought it, when it was dropped, what is the model's own.

A memory's words are matched, longest run first, with the memory before it (kept) and with the chunk just read (brought
in); what matches neither is the model's own wording. Word runs are exact; nothing is guessed by likeness. Works turn by
turn, so that a huge document need not be at hand afterwards. Knows traces; knows no files.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from memagent_lib.diagnostics.fates import COMMON_WORDS, WORD, telling_words
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Trace, Turn

KEPT_STATES = 1024
QUOTE_CHARS = 280
_OWN = -1
_GAP_CHARS = 24  # words of one phrase stand no further apart in the source
_PLACES_TRIED = 40
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class MemoryPiece(NamedTuple):
    """A run of a text's words, ``text[start:end]``, and its ``source`` in the document, where it has one."""

    start: int
    end: int
    fresh: bool
    source: tuple[int, int] | None


@dataclass(slots=True)
class Phrase:
    """Words that a chunk brought in, their place in the document, and the turns between which they were held."""

    text: str
    start: int
    end: int
    brought: int
    quote_start: int
    quote: str
    dropped: int | None = None
    """The turn whose reply no longer held it; ``None`` while it is held."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What one turn did to its memory. ``pieces`` is empty where nothing came in and nothing went."""

    turn: int
    chunk: tuple[int, int]
    memory: str
    pieces: tuple[MemoryPiece, ...]
    dropped: tuple[str, ...]
    signal: str
    cut: bool


class _State(NamedTuple):
    """A memory whose words' origins are known: the character of the document, or ``_OWN``."""

    text: str
    origins: array
    phrases: tuple[int, ...]


_EMPTY = _State("", array("q"), ())


class Provenance:
    """Give it every turn in order (:meth:`turn`), or a whole trace that still has its chunks' text (:meth:`of`)."""

    def __init__(self) -> None:
        self.phrases: list[Phrase] = []
        self.steps: list[MemoryChange] = []
        self.answers: dict[str, tuple[str, tuple[MemoryPiece, ...]]] = {}
        """For each question, the answer and its pieces."""
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._turns = 0

    @classmethod
    def of(cls, trace: Trace) -> Provenance:
        provenance = cls()
        for turn in trace.turns:
            provenance.turn(turn)
        return provenance

    def turn(self, turn: Turn) -> None:
        kind, chunk, memory = turn.prompt.kind, turn.prompt.chunk, self._state(turn.prompt.memory)
        if kind.reads and chunk is not None:
            self._step(turn, memory, chunk)
        elif kind is Kind.MERGE and chunk is not None:
            self._step(turn, _joined(memory, self._state(chunk.text)), None)
        elif kind is Kind.ANSWER:
            self._answer(turn, memory, None)
        elif kind is Kind.DIRECT and chunk and len(chunk.text) == chunk.end - chunk.start:
            self._answer(turn, _EMPTY, chunk)
        self._turns += 1

    def evidence(self, question: str) -> list[Phrase]:
        """The phrases that the answer's words came from; where there are none, what was held at the end."""
        answer, pieces = self.answers.get(question, ("", ()))
        traced = [piece for piece in pieces if piece.source]
        telling = [piece for piece in traced if _tells(_words(answer[piece.start : piece.end]))]
        said = [piece.source for piece in telling or traced]
        held = [p for p in self.phrases if any(p.start < end and start < p.end for start, end in said)]
        return held or [p for p in self.phrases if p.dropped is None]

    def to_frame(self) -> Any:
        """One row per phrase: its words, its place, the turns (counted from 1) that brought and dropped it."""
        import pandas as pd

        frame = pd.DataFrame([asdict(p) for p in self.phrases], columns=list(Phrase.__slots__))
        return frame.assign(brought=frame["brought"] + 1, dropped=frame["dropped"].astype("Int64") + 1)

    def to_record(self) -> dict[str, Any]:
        """What a later continuation needs: the phrases, and the origins of the memories that are still held."""
        states = [
            {"text": s.text, "origins": list(s.origins), "phrases": list(s.phrases)}
            for s in list(self._states.values())[-16:]
        ]
        return {"turns": self._turns, "phrases": [asdict(p) for p in self.phrases], "states": states}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Provenance:
        provenance = cls()
        provenance._turns = record["turns"]
        provenance.phrases = [Phrase(**p) for p in record["phrases"]]
        for s in record["states"]:
            provenance._keep(_State(s["text"], array("q", s["origins"]), tuple(s["phrases"])))
        return provenance

    def _answer(self, turn: Turn, known: _State, chunk: Chunk | None) -> None:
        answer = turn.reply.text
        _, pieces, _ = _matched(answer, known, chunk)
        self._bring(pieces, answer, chunk)
        self.answers[turn.prompt.question] = (answer, pieces)

    def _step(self, turn: Turn, before: _State, chunk: Chunk | None) -> None:
        memory = turn.reply.text
        origins, pieces, used = _matched(memory, before, chunk)
        held, brought = set(origins), self._bring(pieces, memory, chunk)
        said = [(word.group(), origin) for word, origin in zip(WORD.finditer(before.text), before.origins, strict=True)]
        kept = []
        for number in before.phrases:
            phrase = self.phrases[number]
            here = [(word, origin) for word, origin in said if phrase.start <= origin < phrase.end]
            telling = set(telling_words(word for word, _ in here))
            left = [origin in held for word, origin in here if word in telling or not telling]
            if 2 * sum(left) >= len(left) > 0:  # it ends when what tells is gone, whatever filler is left
                kept.append(number)
            elif phrase.dropped is None:
                phrase.dropped = self._turns
        self._keep(_State(memory, origins, (*kept, *brought)))
        place = turn.prompt.chunk
        self.steps.append(
            MemoryChange(
                self._turns,
                (place.start, place.end),
                memory,
                pieces if memory != before.text else (),
                tuple(_left_out(before.text, used)),
                turn.reply.signal,
                turn.reply.cut,
            )
        )

    def _bring(self, pieces: Sequence[MemoryPiece], text: str, chunk: Chunk | None) -> tuple[int, ...]:
        first = len(self.phrases)
        for piece in pieces:
            if piece.fresh and piece.source:
                start, end = piece.source
                quote_start, quote = _quote(chunk, start, end)
                self.phrases.append(Phrase(text[piece.start : piece.end], start, end, self._turns, quote_start, quote))
        return tuple(range(first, len(self.phrases)))

    def _keep(self, state: _State) -> None:
        self._states[state.text] = state
        self._states.move_to_end(state.text)
        while len(self._states) > KEPT_STATES:
            self._states.popitem(last=False)

    def _state(self, text: str) -> _State:
        """What is known of a memory's words; a text of several memories is put together from them."""
        if text in self._states or not text:
            return self._states.get(text, _EMPTY)
        words = list(WORD.finditer(text))
        origins, phrases, covered = array("q", [_OWN] * len(words)), [], 0
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
    """Each word's origin; the pieces of the text; which words of ``before`` live on."""
    source = list(WORD.finditer(chunk.text)) if chunk else []
    words, old, new = _words(text), _words(before.text), [word.group().lower() for word in source]
    old_places, new_places = _places(old), _places(new)
    origins, fresh, used = array("q", [_OWN] * len(words)), [False] * len(words), set()
    at = 0
    while at < len(words):
        kept, kept_at = _longest(words, at, old, old_places, used)
        came, came_at = _longest(words, at, new, new_places, ())
        if not _tells(words[at : at + came]):
            came = 0
        if kept == 1 and not _tells(words[at : at + 1]) and kept_at and (kept_at - 1) not in used:
            kept = 0
        if kept and kept >= came:
            used.update(range(kept_at, kept_at + kept))
            origins[at : at + kept] = before.origins[kept_at : kept_at + kept]
        elif came:
            for i in range(came):
                origins[at + i], fresh[at + i] = chunk.start + source[came_at + i].start(), True
        at += max(1, kept if kept >= came else came)
    return origins, _pieces(text, origins, fresh), used


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _places(words: Sequence[str]) -> dict[str, list[int]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word].append(place)
    return places


def _longest(
    words: Sequence[str], at: int, other: Sequence[str], places: Mapping[str, list[int]], used: set[int] | tuple
) -> tuple[int, int]:
    """The longest run of ``words`` from ``at`` that stands in ``other``, and where; unused places first."""
    best, best_at = 0, 0
    for place in places.get(words[at], ())[:_PLACES_TRIED]:
        size = 0
        while at + size < len(words) and place + size < len(other) and words[at + size] == other[place + size]:
            size += 1
        if size > best or (size == best and best_at in used and place not in used):
            best, best_at = size, place
    return best, best_at


def _tells(run: Sequence[str]) -> bool:
    """Whether a run of words says where it came from: two words with meaning, or one that is long or holds a digit."""
    meaning = [word for word in run if word not in COMMON_WORDS]
    return len(meaning) >= 2 or any(len(word) >= 6 or any(c.isdigit() for c in word) for word in meaning)


def _pieces(text: str, origins: array, fresh: Sequence[bool]) -> tuple[MemoryPiece, ...]:
    """Neighbouring words of one kind, whose sources are neighbours too, as pieces."""
    pieces: list[MemoryPiece] = []
    for word, origin, new in zip(WORD.finditer(text), origins, fresh, strict=True):
        last = pieces[-1] if pieces else None
        source = None if origin == _OWN else (origin, origin + len(word.group()))
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
    """The runs of words of ``text`` that were not used again."""
    for live, run in groupby(enumerate(WORD.finditer(text)), lambda numbered: numbered[0] in used):
        if not live:
            words = [word for _, word in run]
            yield text[words[0].start() : words[-1].end()]


def _quote(chunk: Chunk, start: int, end: int) -> tuple[int, str]:
    """The sentence around a place of the document, and where it begins."""
    text, first, last = chunk.text, start - chunk.start, end - chunk.start
    left = max(
        (m.end() for m in _SENTENCE.finditer(text, max(0, first - QUOTE_CHARS), first)),
        default=max(0, first - QUOTE_CHARS // 2),
    )
    right = next(
        (m.start() for m in _SENTENCE.finditer(text, last, min(len(text), last + QUOTE_CHARS))),
        min(len(text), last + QUOTE_CHARS // 2),
    )
    return chunk.start + left, text[left:right]
