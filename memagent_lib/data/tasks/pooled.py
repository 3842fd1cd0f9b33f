"""Questions over a pool of documents: the RULER-HQA construction, RULER's qa_1 and qa_2, and the generated world's questions.

A document of an example is many documents of the pool, numbered: those that hold the answer, those that come with the
question (its hard distractors), and others at random. Unlike in the reference, where every example has its gold documents in
the same ten places, each gold document stands at a random depth of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.tasks.drafting import COUNTED_TOKENS, Length, Meter, Units, by_chunks, by_tokens, measured
from memagent_lib.data.tasks.generation import example_id, generator, length_facts

SEPARATOR = "\n\n"
_LOOKAHEAD = 24
_FEWEST_TOKENS = 4  # a heading alone has as many


class Place(NamedTuple):
    """Where a needed fact stands: characters ``start`` to ``end`` of a pool document."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuestion:
    """A question with its gold documents, the distractors that come with it (both as places in the pool), and its evidence."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()
    evidence: tuple[Place, ...] = ()
    rule: str = "contains"
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Pool(Protocol):
    """Documents, and questions about them."""

    documents: Sequence[str]

    def question(self, seed: int, index: int) -> PoolQuestion:
        """Question ``index`` of the data set that ``seed`` stands for."""
        ...


@dataclass(frozen=True, slots=True)
class FilePool:
    """A pool read from a file: its questions are asked in the file's order, whatever the seed."""

    documents: tuple[str, ...] = field(repr=False)
    questions: tuple[PoolQuestion, ...] = field(repr=False)
    source: str

    def question(self, seed: int, index: int) -> PoolQuestion:
        if index >= len(self.questions):
            raise ValueError(
                f"{self.source} has {len(self.questions):,} questions and number {index + 1:,} was asked for; ask for fewer examples"
            )
        return self.questions[index]


def heading(number: int) -> str:
    """What stands above the ``number``-th document, counted from 1; the form that RULER and MemAgent use."""
    return f"Document {number}:"


def joined(documents: Sequence[str]) -> str:
    """Numbered documents as one text."""
    return SEPARATOR.join(f"{heading(i)}\n{document}" for i, document in enumerate(documents, 1))


def pooled_example(pool: Pool, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
    """The example that a pool's question makes at a length in tokens, chunks or documents."""
    asked, rng = pool.question(seed, index), generator(f"{name} places", seed, index)
    depths = [rng.random() for _ in asked.gold]
    others = _others(len(pool.documents), asked, length, rng)
    try:
        chosen, tokens = _chosen(pool.documents, asked, depths, others, length, meter)
    except ValueError as error:
        raise ValueError(f"task {name!r}: {error}") from error
    order = arranged(asked.gold, depths, chosen)
    return _example(pool.documents, asked, order, tokens, name, seed, index, length)


def arranged(gold: Sequence[int], depths: Sequence[float], others: Sequence[int]) -> list[int]:
    """The gold documents at their depths among the others."""
    order, before = [], 0
    for depth, document in sorted(zip(depths, gold, strict=True)):
        place = round(depth * len(others))
        order += [*others[before:place], document]
        before = place
    return [*order, *others[before:]]


def _others(size: int, asked: PoolQuestion, length: Length, rng: random.Random) -> list[int]:
    """The documents beside the gold ones in the order in which they are taken: near ones first, then enough of the rest."""
    near = [i for i in dict.fromkeys(asked.near) if i not in asked.gold]
    rng.shuffle(near)
    used = {*asked.gold, *near}
    most = length.documents if length.documents is not None else length.limit // _FEWEST_TOKENS + _LOOKAHEAD
    rest = rng.sample(range(size), min(size, most + len(used)))
    return near + [i for i in rest if i not in used]


def _chosen(
    documents: Sequence[str],
    asked: PoolQuestion,
    depths: Sequence[float],
    others: list[int],
    length: Length,
    meter: Meter,
) -> tuple[Sequence[int], int]:
    def text(chosen: Sequence[int]) -> str:
        return joined([documents[i] for i in arranged(asked.gold, depths, _mixed(chosen, depths))])

    if length.documents is not None:
        chosen = _counted_out(documents, asked, others, length.documents)
        whole = sum(len(documents[i]) for i in chosen) < 4 * COUNTED_TOKENS
        return _mixed(chosen, depths), meter.tokenizer.count(text(chosen)) if whole else _parts(
            documents, (*asked.gold, *chosen), meter
        )
    must = _parts(documents, asked.gold, meter)
    if must > length.limit:
        raise ValueError(
            f"the gold documents alone need {must:,} tokens and {length.limit:,} were asked for; ask for at least {must:,}"
        )

    def take(tokens: int) -> Units:
        return _affordable(documents, others, len(asked.gold), tokens, meter)

    def measure(units: Units) -> int:
        some = units.texts[: 1 + len(units.texts) * COUNTED_TOKENS // (2 * (must + units.tokens))]
        stretch = joined([documents[i] for i in some])
        return measured(
            must + units.tokens, lambda: text(units.texts), lambda: (stretch, _parts(documents, some, meter)), meter
        )

    if length.chunks is not None:
        chosen, tokens = by_chunks(text, take(length.limit - must).texts, length, meter)
    else:
        chosen, tokens = by_tokens(take, measure, length.limit, must)
    return _mixed(chosen, depths), tokens


def _counted_out(documents: Sequence[str], asked: PoolQuestion, others: list[int], wanted: int) -> list[int]:
    more = wanted - len(asked.gold)
    if not 0 <= more <= len(others):
        needs = f"this question needs at least {len(asked.gold)}, and its pool has {len(documents):,}"
        raise ValueError(f"{wanted:,} documents were asked for; {needs}")
    return others[:more]


def _mixed(chosen: Sequence[int], depths: Sequence[float]) -> list[int]:
    """The near documents come first when documents are chosen; in the text they stand anywhere."""
    mixed = list(chosen)
    random.Random(repr(depths)).shuffle(mixed)
    return mixed


def _affordable(documents: Sequence[str], others: Sequence[int], gold: int, tokens: int, meter: Meter) -> Units:
    """The first documents that fit, and then, of the next few, those that still fit into what is left."""
    chosen, total = [], 0
    for place, i in enumerate(others):
        cost = _cost(documents[i], gold + place + 1, meter)
        if total + cost > tokens:
            return _filled_up(documents, chosen, others[place : place + _LOOKAHEAD], total, tokens, meter)
        chosen.append(i)
        total += cost
    if total < 0.98 * tokens:
        raise ValueError(
            f"the pool's {len(documents):,} documents have {total:,} tokens and {tokens:,} are asked for; "
            "ask for a shorter document, or for a larger pool"
        )
    return Units(chosen, total)


def _filled_up(
    documents: Sequence[str], chosen: list[int], more: Sequence[int], total: int, tokens: int, meter: Meter
) -> Units:
    costs = {i: _cost(documents[i], len(chosen) + 1, meter) for i in more}
    while fitting := [i for i, cost in costs.items() if total + cost <= tokens]:
        best = max(fitting, key=lambda i: (costs[i], -i))
        chosen.append(best)
        total += costs.pop(best)
    return Units(chosen, total)


def _cost(document: str, number: int, meter: Meter) -> int:
    return meter.cost(heading(number), SEPARATOR) + meter.cost(document, "\n")


def _parts(documents: Sequence[str], chosen: Sequence[int], meter: Meter) -> int:
    return sum(_cost(documents[i], number, meter) for number, i in enumerate(chosen, 1))


def _example(
    documents: Sequence[str],
    asked: PoolQuestion,
    order: list[int],
    tokens: int,
    name: str,
    seed: int,
    index: int,
    length: Length,
) -> Example:
    text, starts = located(documents, order, set(asked.gold))
    evidence = tuple(Span(starts[p.document] + p.start, starts[p.document] + p.end) for p in asked.evidence)
    facts = length_facts(length, tokens) | {
        "seed": seed,
        "documents": len(order),
        "gold": list(asked.gold),
        "gold_places": [order.index(i) for i in asked.gold],
        "depths": [round(starts[i] / len(text), 4) for i in asked.gold],
    }
    return Example(
        id=example_id(name, seed, index, length),
        task=name,
        question=asked.question,
        document=text,
        answers=asked.answers,
        rule=asked.rule,
        evidence=evidence,
        metadata=facts | dict(asked.metadata),
    )


def located(documents: Sequence[str], order: Sequence[int], wanted: set[int]) -> tuple[str, dict[int, int]]:
    """The text, and the character at which each wanted document begins in it, after its heading."""
    starts, at, parts = {}, 0, []
    for number, i in enumerate(order, 1):
        head = heading(number) + "\n"
        if i in wanted:
            starts[i] = at + len(head)
        parts.append(head + documents[i])
        at += len(parts[-1]) + len(SEPARATOR)
    return SEPARATOR.join(parts), starts
