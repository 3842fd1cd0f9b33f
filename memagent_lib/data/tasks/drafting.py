"""Documents of a wanted length: facts that must stand in them, and filler up to the last token that fits.

A long document is never tokenised to find its length. Each unit of filler is counted once, in its surroundings; the sum is
then held against the tokenizer, on the whole document where it is short and on a sample of it where it is long. Knows
tokenizers; knows no task.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from memagent_lib.data.examples import Span
from memagent_lib.text import Tokenizer, chunks

COUNTED_TOKENS = 1 << 17
"""Documents up to this length are counted whole; of longer ones a sample this long is."""
_ANCHOR = "so."
_ROUNDS = 12
_CARE = 1.0005  # where parts do not simply add up, stay below rather than above
_NOISE = 2e-4  # the first unit of a sample has no separator before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a document is to be: in ``tokens``, in ``chunks`` of ``chunk_tokens`` as the library's chunker cuts them, or,
    for tasks that put whole documents of a pool together, in ``documents``.
    """

    tokens: int | None = None
    chunks: int | None = None
    documents: int | None = None
    chunk_tokens: int = 5000

    def __post_init__(self) -> None:
        given = [name for name in ("tokens", "chunks", "documents") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of length_tokens, chunks and documents; got {' and '.join(given) or 'none of them'}"
            )
        for name in (*given, "chunk_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def limit(self) -> int:
        """The most tokens the document can have."""
        if self.documents is not None:
            raise ValueError("this task has no pool to take whole documents from; give length_tokens or chunks")
        return self.tokens if self.tokens is not None else self.chunks * self.chunk_tokens

    @property
    def label(self) -> str:
        if self.documents is not None:
            return f"{self.documents}d"
        return f"{self.tokens}t" if self.tokens is not None else f"{self.chunks}x{self.chunk_tokens}"


class Meter:
    """Counts tokens of text in running prose, and remembers short texts that come again."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._anchor = tokenizer.count(_ANCHOR)
        self._known: dict[str, int] = {}
        self._stocks: dict[tuple[str, tuple[str, ...]], list[int]] = {}

    def cost(self, text: str, separator: str = " ") -> int:
        """The tokens that ``separator + text`` adds to a document that ends in a full stop."""
        unit = separator + text
        if (known := self._known.get(unit)) is None:
            known = self.tokenizer.count(_ANCHOR + unit) - self._anchor
            if len(self._known) < 200_000:
                self._known[unit] = known
        return known

    def costs(self, texts: Sequence[str], separator: str = " ") -> list[int]:
        return [self.cost(text, separator) for text in texts]

    def stock(self, texts: tuple[str, ...], separator: str) -> list[int]:
        """:meth:`costs` of a stock of texts that is asked for again and again."""
        if (separator, texts) not in self._stocks:
            self._stocks[separator, texts] = self.costs(texts, separator)
        return self._stocks[separator, texts]


class Units(NamedTuple):
    """Units of filler (texts, or what stands for them) and what they cost together, by the meter."""

    texts: Sequence[Any]
    tokens: int


class Filler(Protocol):
    """Where the text around the facts comes from."""

    def take(self, tokens: int, meter: Meter, separator: str) -> Units:
        """The longest run of units that costs at most ``tokens``. A longer run begins like a shorter one."""
        ...


@dataclass(frozen=True, slots=True)
class Repeated:
    """One line, again and again."""

    line: str

    def take(self, tokens: int, meter: Meter, separator: str) -> Units:
        cost = max(1, meter.cost(self.line, separator))
        return Units([self.line] * (tokens // cost), tokens // cost * cost)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Units that a function makes one after the other from a generator of their own."""

    draw: Callable[[random.Random], str]
    seed: int

    def take(self, tokens: int, meter: Meter, separator: str) -> Units:
        rng, units, total = random.Random(self.seed), [], 0
        while total + (cost := meter.cost(unit := self.draw(rng), separator)) <= tokens:
            units.append(unit)
            total += cost
        return Units(units, total)


@dataclass(frozen=True, slots=True)
class Bank:
    """Units drawn with replacement from a fixed stock, so that each is counted once however long the document."""

    stock: tuple[str, ...] = field(repr=False)
    seed: int

    def take(self, tokens: int, meter: Meter, separator: str) -> Units:
        costs = meter.stock(self.stock, separator)
        rng, places, total = random.Random(self.seed), [], 0
        while total <= tokens:
            more = rng.choices(range(len(costs)), k=256)
            places += more
            total += sum(costs[i] for i in more)
        return prefix([self.stock[i] for i in places], [costs[i] for i in places], tokens)


@dataclass(frozen=True, slots=True)
class Running:
    """The sentences of a text in their order; an error where the text is too short, unless it may start again."""

    sentences: tuple[str, ...] = field(repr=False)
    source: str
    repeat: bool = False

    def take(self, tokens: int, meter: Meter, separator: str) -> Units:
        costs = meter.stock(self.sentences, separator)
        whole = sum(costs)
        if whole < tokens and not self.repeat:
            raise ValueError(
                f"the haystack {self.source} has {whole:,} tokens and {tokens:,} are asked for; add files to it, ask for a shorter "
                "document, or set repeat_haystack=True to start again at its beginning (as RULER does)"
            )
        laps = 1 + tokens // whole
        return prefix(self.sentences * laps, costs * laps, tokens)


def prefix(texts: Sequence[str], costs: Sequence[int], tokens: int) -> Units:
    sums = list(accumulate(costs))
    keep = bisect_right(sums, tokens)
    return Units(texts[:keep], sums[keep - 1] if keep else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a task decides before the length is known: the sentences that must stand in the document, and how deep.

    ``needed`` are the places in ``sentences`` of what answers the question; sentences of equal depth keep their order.
    """

    sentences: tuple[str, ...]
    depths: tuple[float, ...]
    needed: tuple[int, ...]
    filler: Filler
    separator: str = "\n"

    def __post_init__(self) -> None:
        if len(self.sentences) != len(self.depths):
            raise ValueError(f"{len(self.sentences)} sentences and {len(self.depths)} depths; give one depth for each")
        if bad := [d for d in self.depths if not 0 <= d <= 1]:
            raise ValueError(f"a depth is a share of the document between 0 and 1, got {bad[0]}")


class Draft(NamedTuple):
    """A finished document. ``depths`` are where the needed sentences came to stand, as shares of its characters."""

    text: str
    evidence: tuple[Span, ...]
    depths: tuple[float, ...]
    tokens: int


def write(plan: Plan, length: Length, meter: Meter) -> Draft:
    """The longest document for ``plan`` that is not longer than ``length``; ``ValueError`` where its facts alone are longer."""
    must = sum(meter.costs(plan.sentences, plan.separator))
    if must > length.limit:
        raise ValueError(
            f"the task's facts alone need {must:,} tokens and {length.limit:,} were asked for; ask for at least {must:,}"
        )
    fillers, tokens = _fitted(plan, length, meter, must)
    text, spans = weave(fillers, plan)
    evidence = tuple(spans[i] for i in plan.needed)
    return Draft(text, evidence, tuple(round(s.start / len(text), 4) for s in evidence), tokens)


def weave(fillers: Sequence[str], plan: Plan) -> tuple[str, list[Span]]:
    """The text with each sentence at its depth among the fillers, and the spans of the sentences in the order of the plan."""
    order = sorted(range(len(plan.sentences)), key=lambda i: plan.depths[i])
    spans: list[Span] = [Span(0, 0)] * len(order)
    parts: list[str] = []
    gap, at, before = len(plan.separator), 0, 0
    for i in order:
        place = round(plan.depths[i] * len(fillers))
        run = fillers[before:place]
        at += sum(map(len, run)) + gap * len(run)
        parts += run
        parts.append(sentence := plan.sentences[i])
        spans[i] = Span(at, at + len(sentence))
        at, before = at + len(sentence) + gap, place
    parts += fillers[before:]
    return plan.separator.join(parts), spans


def _fitted(plan: Plan, length: Length, meter: Meter, must: int) -> tuple[Sequence[str], int]:
    def take(tokens: int) -> Units:
        return plan.filler.take(tokens, meter, plan.separator)

    def draft(fillers: Sequence[str]) -> str:
        return weave(fillers, plan)[0]

    def measure(units: Units) -> int:
        some = units.texts[: 1 + len(units.texts) * COUNTED_TOKENS // (2 * (must + units.tokens))]
        costs = sum(meter.costs(some, plan.separator))
        return measured(
            must + units.tokens, lambda: draft(units.texts), lambda: (plan.separator.join(some), costs), meter
        )

    if length.chunks is not None:
        return by_chunks(draft, take(length.limit - must).texts, length, meter)
    return by_tokens(take, measure, length.limit, must)


def measured(parts: int, text: Callable[[], str], sample: Callable[[], tuple[str, int]], meter: Meter) -> int:
    """A document's tokens: counted where it is short, else the sum of its ``parts``, held against the count of a sample.

    ``sample`` gives a stretch of the document and the sum of that stretch's parts.
    """
    if parts <= COUNTED_TOKENS:
        return meter.tokenizer.count(text())
    stretch, costs = sample()
    ratio = meter.tokenizer.count(stretch) / max(1, costs)
    return math.ceil(parts * ratio * _CARE) if abs(ratio - 1) > _NOISE else parts


def by_tokens(
    take: Callable[[int], Units], measure: Callable[[Units], int], limit: int, must: int
) -> tuple[Sequence[Any], int]:
    """Fillers for the longest document of at most ``limit`` tokens, and its tokens, when all else in it costs ``must``."""
    budget, tokens = limit - must, 0
    best: tuple[Sequence[Any], int] | None = None
    for _ in range(_ROUNDS):
        units = take(budget)
        tokens = measure(units)
        if tokens <= limit and (best is None or tokens > best[1]):
            best = units.texts, tokens
        unit = units.tokens // max(1, len(units.texts)) + 1
        over = tokens - limit
        if not budget or -max(unit, limit // 200) <= over <= 0:
            break
        budget = max(0, budget - over - (unit // 2 + over // 64 if over > 0 else 0))
    if best is None:
        raise ValueError(
            f"the task's facts alone need {tokens:,} tokens and {limit:,} were asked for; ask for at least {tokens:,}"
        )
    return best


def by_chunks(
    draft: Callable[[Sequence[Any]], str], fillers: Sequence[Any], length: Length, meter: Meter
) -> tuple[Sequence[Any], int]:
    """Cut after the last filler that ends in the wanted chunk, until nothing is over; facts move with the length, hence again."""
    n, most = len(fillers), length.chunks
    for _ in range(64):
        pieces = chunks(text := draft(fillers[:n]), meter.tokenizer, length.chunk_tokens)
        if len(pieces) <= most:
            return fillers[:n], sum(piece.tokens for piece in pieces)
        if not n:
            break
        n = max(0, min(n - 1, int(n * pieces[most - 1].end / len(text))))
    raise ValueError(
        f"the task's facts need {len(pieces):,} chunks of {length.chunk_tokens:,} tokens and {most:,} were asked for; "
        "ask for more or longer chunks"
    )
