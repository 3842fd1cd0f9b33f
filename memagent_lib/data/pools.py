"""Questions over a pool of documents: the RULER-HQA construction, and RULER's qa_1 and qa_2.

A document of an example is many documents of the pool, numbered: those that hold the answer, those that come with the
question (its hard distractors), and others at random. Unlike in the reference, where every example has its gold
documents in the same ten places, each gold document stands at a random depth of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from memagent_lib.data.drafting import DOCUMENT_SEPARATOR, DraftPlan, ExampleKey, Fact, Filler, joined, starts_of
from memagent_lib.data.examples import Example, Span


class PoolPlace(NamedTuple):
    """Where a needed fact stands: characters ``start`` to ``end`` of a pool document."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuestion:
    """A question with its gold documents, the documents that come with it (places in the pool), and its evidence."""

    id: str
    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    own: tuple[int, ...] = ()
    evidence: tuple[PoolPlace, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


Question = Example | PoolQuestion
Asked = TypeVar("Asked", Example, PoolQuestion)


@dataclass(frozen=True, slots=True)
class Pool:
    """The documents of a file without repeats, and its questions in the file's order."""

    documents: tuple[str, ...] = field(repr=False)
    questions: tuple[PoolQuestion, ...] = field(repr=False)
    source: str

    def own(self, asked: PoolQuestion, task: str) -> Example:
        """The example of a question over the documents that come with it, in their order."""
        texts = [self.documents[i] for i in asked.own]
        starts = dict(zip(asked.own, starts_of(texts, DOCUMENT_SEPARATOR, numbered=True), strict=True))
        return Example(
            id=f"{task}-{asked.id}",
            task=task,
            question=asked.question,
            document=joined(texts),
            answers=asked.answers,
            rule="contains",
            evidence=tuple(Span(starts[p.document] + p.start, starts[p.document] + p.end) for p in asked.evidence),
            metadata={"question_id": asked.id, "documents": len(texts), **asked.metadata},
        )

    def plan(self, asked: PoolQuestion, key: ExampleKey, rule: str) -> DraftPlan:
        """A question over gold documents at random depths, then its own, then others of the pool, as many as fit."""
        rng = random.Random(f"{key.name} places/{key.seed}/{asked.id}")
        spans = {i: tuple(Span(p.start, p.end) for p in asked.evidence if p.document == i) for i in asked.gold}
        facts = [
            Fact(self.documents[i], rng.random(), spans[i] or (Span(0, len(self.documents[i])),)) for i in asked.gold
        ]
        near = [i for i in asked.own if i not in asked.gold]
        rng.shuffle(near)
        units = others(self.documents, asked.gold, rng.getrandbits(64), near)
        return DraftPlan(
            question=asked.question,
            answers=asked.answers,
            facts=tuple(facts),
            filler=Filler(units, f"the pool {self.source}", "ask for a shorter document, or give a larger pool"),
            rule=rule,
            separator=DOCUMENT_SEPARATOR,
            numbered=True,
            metadata={"question_id": asked.id, **asked.metadata},
        )


def others(
    documents: Sequence[str], taken: Iterable[int], seed: int, first: Sequence[int] = ()
) -> Callable[[], Iterator[str]]:
    """Units of filler: the documents at the places ``first``, then all that are not ``taken`` in random order."""
    used = {*taken, *first}

    def units() -> Iterator[str]:
        rest = random.Random(seed).sample(range(len(documents)), len(documents))
        return (documents[i] for i in (*first, *(i for i in rest if i not in used)))

    return units


def shuffled(questions: Sequence[Asked], seed: int) -> list[Asked]:
    """The questions in an order that depends on the seed and on their ids alone: parts of it never share one."""
    return sorted(questions, key=lambda question: hashlib.sha256(f"{seed}/{question.id}".encode()).digest())
