"""Documents of a wanted length: a plan says what must stand in them and how deep, filler takes up the rest.

A long document is never tokenised to find its length. Each unit of filler is counted once, in its surroundings; the sum
is then held against the tokenizer, on the whole document where it is short and on a sample of it where it is long.
Knows tokenizers; knows no task.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from memagent_lib.data.examples import Example, Span
from memagent_lib.text import Tokenizer, chunk_stream, chunks

COUNTED_TOKENS = 1 << 17
"""Documents up to this length are counted whole; of longer ones a sample this long is."""
DOCUMENT_SEPARATOR = "\n\n"
_ANCHOR = "so."
_ROUNDS = 24
_MARGIN = 1.0005  # where parts do not simply add up, stay below rather than above
_NOISE = 2e-4  # the first unit of a sample has no separator before it
_BLOCK_CHARS = 1 << 20
_SPACE = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a document is to be: in ``tokens``, in ``chunks`` of ``chunk_tokens``, or in ``documents`` of a pool."""

    tokens: int | None = None
    chunks: int | None = None
    documents: int | None = None
    chunk_tokens: int = 5000

    def __post_init__(self) -> None:
        sizes = {"length_tokens": self.tokens, "chunks": self.chunks, "documents": self.documents}
        given = {name: value for name, value in sizes.items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                f"give one of length_tokens, chunks and documents; got {' and '.join(given) or 'none of them'}"
            )
        for name, value in {**given, "chunk_tokens": self.chunk_tokens}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def limit(self) -> int:
        """The most tokens the document can have."""
        if self.documents is not None:
            raise ValueError("this task has no pool to take whole documents from; give length_tokens or chunks")
        return self.tokens if self.tokens is not None else self.chunks * self.chunk_tokens

    @property
    def whole_chunks(self) -> int:
        """How many chunks; an error for a length that is given in something else."""
        if self.chunks is None:
            raise ValueError(f"it is made in whole chunks; give chunks (and chunk_tokens) instead of {self.label}")
        return self.chunks

    @property
    def label(self) -> str:
        if self.documents is not None:
            return f"{self.documents}d"
        return f"{self.tokens}t" if self.tokens is not None else f"{self.chunks}x{self.chunk_tokens}"


def end_of_chunks(text: str, length: Length, tokenizer: Tokenizer) -> int:
    """The character at which the last of a length's ``chunks`` ends, in a text that has them or is shorter."""
    *_, last = islice(chunk_stream([text], tokenizer, length.chunk_tokens), length.chunks)
    return last.end


class Meter:
    """Counts tokens of text in running prose, and remembers short texts that come again."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._anchor = tokenizer.count(_ANCHOR)
        self._known: dict[str, int] = {}

    def cost(self, text: str, separator: str = " ") -> int:
        """The tokens that ``separator + text`` adds to a document that ends in a full stop."""
        unit = separator + text
        if (known := self._known.get(unit)) is None:
            known = self.tokenizer.count(_ANCHOR + unit) - self._anchor
            if len(self._known) < 200_000:
                self._known[unit] = known
        return known

    def count(self, text: str) -> int:
        """The tokens of a text; a long one is counted in pieces cut before spaces, to bound memory."""
        total = at = 0
        while at < len(text):
            cut = _SPACE.search(text, at + _BLOCK_CHARS)
            end = cut.start() if cut else len(text)
            total, at = total + self.tokenizer.count(text[at:end]), end
        return total


class ExampleKey(NamedTuple):
    """Which example is made: number ``index`` of the data set of a task's ``name`` and a ``seed``, at a ``length``.

    The length only adds filler, so one seed asks the same questions at every length, and any worker can make any
    example.
    """

    name: str
    seed: int
    index: int
    length: Length

    @property
    def id(self) -> str:
        return f"{self.name}-{self.length.label}-{self.seed}-{self.index}"

    def rng(self, name: str | None = None) -> random.Random:
        """The example's one source of chance, whatever the length, the platform and the other examples."""
        return random.Random(f"{name or self.name}/{self.seed}/{self.index}")

    def example(self, plan: Any, text: str, evidence: Sequence[Span], facts: Mapping[str, Any]) -> Example:
        """The example of a finished document; ``plan`` has its question, answers, rule and metadata."""
        length = {"chunks": self.length.chunks, "chunk_tokens": self.length.chunk_tokens} if self.length.chunks else {}
        return Example(
            id=self.id,
            task=self.name,
            question=plan.question,
            document=text,
            answers=tuple(plan.answers),
            rule=plan.rule,
            evidence=tuple(evidence),
            metadata={**length, **facts, "seed": self.seed, **plan.metadata},
        )


class Filler(NamedTuple):
    """Where the text around the facts comes from: ``units`` begins it anew, always alike.

    Filler that ends too early is an error, which calls it ``source`` and says what would ``help``.
    """

    units: Callable[[], Iterator[str]]
    source: str = ""
    help: str = ""


class Fact(NamedTuple):
    """A text that must stand in the document, how deep (0 to 1), and which of its characters are evidence."""

    text: str
    depth: float
    evidence: tuple[Span, ...] = ()

    @classmethod
    def needed(cls, text: str, depth: float) -> Fact:
        """A fact that is evidence as a whole."""
        return cls(text, depth, (Span(0, len(text)),))


def in_order(texts: Sequence[str], needed: Container[int], rng: random.Random) -> tuple[Fact, ...]:
    """Facts at random depths that keep their order; those at the places ``needed`` are evidence."""
    depths = sorted(rng.random() for _ in texts)
    facts = enumerate(zip(texts, depths, strict=True))
    return tuple(Fact.needed(*fact) if place in needed else Fact(*fact) for place, fact in facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """What a task decides before the length is known: a question, its answers, the facts and the filler.

    Facts of equal depth keep their order. In a ``numbered`` plan facts and filler are documents under numbered
    headings, and the filler that is taken is shuffled. ``decoys`` are other questions that the document answers too.
    """

    question: str
    answers: tuple[str, ...]
    facts: tuple[Fact, ...]
    filler: Filler
    rule: str = "match_all"
    separator: str = "\n"
    numbered: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    decoys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bad := [fact.depth for fact in self.facts if not 0 <= fact.depth <= 1]:
            raise ValueError(f"a depth is a share of the document between 0 and 1, got {bad[0]}")

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """The longest document within the key's length; ``ValueError`` where the facts alone are longer."""
        units = _Units(self, meter)
        if key.length.documents is not None and self.numbered:
            if (size := key.length.documents - len(self.facts)) < 0:
                raise ValueError(
                    f"{key.length.documents:,} documents were asked for; this question needs at least {len(self.facts)}"
                )
            tokens = units.measure(size)
        else:
            guess = units.paid_by(key.length.limit - units.must)
            size, tokens = longest(lambda n: units.draft(n).text, units.measure, guess, key.length, meter, units.must)
        text, starts, places = units.draft(size)
        evidence = [Span(at + a, at + b) for at, fact in zip(starts, self.facts, strict=True) for a, b in fact.evidence]
        facts: dict[str, Any] = {"tokens": tokens, "depths": [round(s.start / len(text), 4) for s in evidence]}
        if self.numbered:
            gold = [place for place, fact in zip(places, self.facts, strict=True) if fact.evidence]
            facts |= {"documents": size + len(self.facts), "gold_places": gold}
        return key.example(self, text, evidence, facts)


class Draft(NamedTuple):
    """A document, and for each fact the character at which it starts and its place among facts and filler."""

    text: str
    starts: list[int]
    places: list[int]


def heading(number: int) -> str:
    """What stands above the ``number``-th document, counted from 1; the form that RULER and MemAgent use."""
    return f"Document {number}:\n"


def joined(documents: Sequence[str]) -> str:
    """Numbered documents as one text."""
    return DOCUMENT_SEPARATOR.join(heading(i) + document for i, document in enumerate(documents, 1))


def starts_of(parts: Sequence[str], separator: str, numbered: bool = False) -> list[int]:
    """Where each part begins in their text, behind its heading where they are numbered."""
    starts, at = [], 0
    for number, part in enumerate(parts, 1):
        at += len(heading(number)) if numbered else 0
        starts.append(at)
        at += len(part) + len(separator)
    return starts


def weave(fillers: Sequence[str], plan: DraftPlan) -> Draft:
    """The text with each fact at its depth among the fillers."""
    parts: list[str] = []
    before, places = 0, [0] * len(plan.facts)
    for i in sorted(range(len(plan.facts)), key=lambda i: plan.facts[i].depth):
        upto = round(plan.facts[i].depth * len(fillers))
        parts += fillers[before:upto]
        places[i], before = len(parts), upto
        parts.append(plan.facts[i].text)
    parts += fillers[before:]
    starts = starts_of(parts, plan.separator, plan.numbered)
    text = joined(parts) if plan.numbered else plan.separator.join(parts)
    return Draft(text, [starts[place] for place in places], places)


class _Units:
    """A plan's filler as far as it was needed, with the running sum of what it costs."""

    def __init__(self, plan: DraftPlan, meter: Meter):
        self.plan, self.meter = plan, meter
        self.texts: list[str] = []
        self.sums = [0]
        self._source = plan.filler.units()
        self.must = sum(self._cost(fact.text, i) for i, fact in enumerate(plan.facts, 1))
        self._ratio: float | None = None

    def _cost(self, text: str, number: int) -> int:
        if not self.plan.numbered:
            return self.meter.cost(text, self.plan.separator)
        return self.meter.cost(heading(number).rstrip(), self.plan.separator) + self.meter.cost(text, "\n")

    def _more(self) -> bool:
        if (unit := next(self._source, None)) is None:
            return False
        self.texts.append(unit)
        self.sums.append(self.sums[-1] + max(1, self._cost(unit, len(self.plan.facts) + len(self.texts))))
        return True

    def paid_by(self, tokens: int) -> int:
        """How many units ``tokens`` pay for."""
        while self.sums[-1] <= tokens:
            if not self._more():
                self._require(self.sums[-1] >= 0.98 * tokens, f"{self.sums[-1]:,} tokens and {tokens:,} are asked for")
                break
        return max(0, bisect_right(self.sums, tokens) - 1)

    def _fill(self, n: int) -> None:
        while len(self.texts) < n:
            have = len(self.texts) + len(self.plan.facts)
            self._require(self._more(), f"{have:,} units of text and {n + len(self.plan.facts):,} are asked for")

    def _require(self, enough: bool, said: str) -> None:
        if not enough:
            raise ValueError(f"{self.plan.filler.source} has {said}; {self.plan.filler.help}")

    def draft(self, n: int) -> Draft:
        """The document with ``n`` units."""
        self._fill(n)
        chosen = self.texts[:n]
        if self.plan.numbered:
            random.Random(repr([fact.depth for fact in self.plan.facts])).shuffle(chosen)
        return weave(chosen, self.plan)

    def measure(self, n: int) -> int:
        """The tokens of the document with ``n`` units: counted where it is short, else estimated from a sample."""
        self._fill(n)
        if (parts := self.must + self.sums[n]) <= COUNTED_TOKENS:
            return self.meter.count(self.draft(n).text)
        if self._ratio is None:
            some = max(1, bisect_right(self.sums, COUNTED_TOKENS // 2) - 1)
            sample = joined(self.texts[:some]) if self.plan.numbered else self.plan.separator.join(self.texts[:some])
            numbers = enumerate(self.texts[:some], 1)
            self._ratio = self.meter.count(sample) / max(1, sum(self._cost(text, i) for i, text in numbers))
        return math.ceil(parts * self._ratio * _MARGIN) if abs(self._ratio - 1) > _NOISE else parts


def longest(
    build: Callable[[int], str],
    measure: Callable[[int], int],
    guess: int,
    length: Length,
    meter: Meter,
    fixed: int = 0,
) -> tuple[int, int]:
    """``n`` and the tokens of ``build(n)`` for about the largest ``n`` within a length; ``measure(n)`` grows evenly.

    ``fixed`` is what the text measures at 0, about. In tokens it ends half a percent or one unit below the limit; in
    chunks, inside the last one: as facts move with the length, a text may have to be shortened more than once.
    """
    n, tokens = _within(measure, guess, length.limit, fixed)
    if length.chunks is None:
        return n, tokens
    while len(pieces := chunks(text := build(n), meter.tokenizer, length.chunk_tokens)) > length.chunks:
        if not n:
            raise ValueError(
                f"the task's facts need {len(pieces):,} chunks of {length.chunk_tokens:,} tokens and {length.chunks:,} "
                "were asked for; ask for more or longer chunks"
            )
        n = max(0, min(n - 1, int(n * pieces[length.chunks - 1].end / len(text))))
    return n, sum(piece.tokens for piece in pieces)


def _within(measure: Callable[[int], int], guess: int, limit: int, fixed: int) -> tuple[int, int]:
    low, high, n, best = -1, None, guess, 0
    for _ in range(_ROUNDS):
        tokens = measure(n)
        unit = max(1.0, (tokens - fixed) / max(1, n))
        step = math.floor((limit - tokens) / unit)
        if tokens <= limit:
            low, best = n, tokens
            if limit - tokens <= max(unit, limit // 200):
                break
        else:
            high = n
        if high is not None and high - low <= 1:
            break
        n = max(low + 1, n + step if high is None else min(n + step, high - 1))
    if low < 0:
        raise ValueError(
            f"the task's facts alone need {tokens:,} tokens and {limit:,} were asked for; ask for at least {tokens:,}"
        )
    return low, best
