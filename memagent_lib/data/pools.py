"""Questions over a pool of documents: the RULER-HQA construction, and RULER's qa_1 and qa_2.

An example's document consists of numbered documents from the pool: the gold documents (with the answer), the question's
other documents (hard distractors), and random ones. MemAgent's own files have the gold documents of all examples at the
same ten positions; here each gold document has a random depth.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.layout import DOCUMENT_SEPARATOR, Statement, join
from memagent_lib.data.plans import DocumentPlan, ExampleKey, Filler


class PoolSpan(NamedTuple):
    """A piece of evidence in a pool: ``text[start:end]``, where ``text`` is document number ``document``."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuestion:
    """A question about a pool.

    ``gold`` lists the numbers of the documents with the answer, ``own`` those of the documents that came with the
    question, and ``near`` hard distractors that did not.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    own: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    evidence: tuple[PoolSpan, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


Question = Example | PoolQuestion
AnyQuestion = TypeVar("AnyQuestion", Example, PoolQuestion)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The distinct documents of a file, and its questions in the file's order.

    ``unanswerable`` more questions are left out, because the file marks them as such or lacks documents that they need.
    """

    documents: tuple[str, ...] = field(repr=False)
    questions: tuple[PoolQuestion, ...] = field(repr=False)
    source: str
    unanswerable: int = 0

    def own_example(self, question: PoolQuestion, task: str) -> Example:
        """Return the example whose document consists of the question's ``own`` documents, in their order."""
        texts = [self.documents[i] for i in question.own]
        layout = join(texts, range(len(texts)), DOCUMENT_SEPARATOR, numbered=True)
        # Evidence counts characters within its own document, so it is shifted to the joined text.
        starts = {number: span.start for number, span in zip(question.own, layout.spans, strict=True)}
        return Example(
            id=f"{task}-{question.id}",
            task=task,
            question=question.question,
            document=layout.text,
            answers=question.answers,
            rule="contains",
            evidence=tuple(Span(starts[at] + start, starts[at] + end) for at, start, end in question.evidence),
            metadata={"question_id": question.id, "documents": len(texts), **question.metadata},
        )

    def plan(self, question: PoolQuestion, key: ExampleKey, rule: str) -> DocumentPlan:
        """Plan a document: the gold documents at random depths, and as many other documents as fit.

        The question's own and near documents are used before random ones.
        """
        # Seeded by the question's id, not its index, so its depths are the same in every data set that selects it.
        rng = random.Random(f"{key.name} places/{key.seed}/{question.id}")
        statements = [Statement(self.documents[i], rng.random(), self._evidence(question, i)) for i in question.gold]
        near = [i for i in question.near or question.own if i not in question.gold]
        rng.shuffle(near)  # the order in the file may reveal which documents are gold
        units = other_documents(self.documents, question.gold, rng.getrandbits(64), near)
        return DocumentPlan(
            question=question.question,
            answers=question.answers,
            statements=tuple(statements),
            filler=Filler(units, f"the pool {self.source}"),
            rule=rule,
            separator=DOCUMENT_SEPARATOR,
            numbered=True,
            metadata={"question_id": question.id, **question.metadata},
        )

    def _evidence(self, question: PoolQuestion, document: int) -> tuple[Span, ...]:
        """Return the question's spans in a gold document, or the whole document if the source marks no span in it."""
        spans = [Span(start, end) for number, start, end in question.evidence if number == document]
        return tuple(spans or [Span(0, len(self.documents[document]))])


def read_once(read: Callable[[str], Pool], path: str | Path) -> Pool:
    """Return ``read(path)``. The file is read again only if it has changed, or after two other files."""
    return _version(read, str(path), os.stat(path).st_mtime_ns)


@lru_cache(maxsize=2)  # a training and a test file
def _version(read: Callable[[str], Pool], path: str, changed_ns: int) -> Pool:
    return read(path)


def other_documents(
    documents: Sequence[str], taken: Iterable[int], seed: int, first: Sequence[int] = ()
) -> Callable[[], Iterator[str]]:
    """Return the ``units`` of a :class:`Filler`: a function that yields the documents ``first``, then others at random.

    All documents are given by their numbers. Those in ``taken`` are not among the others.
    """
    used = {*taken, *first}

    def units() -> Iterator[str]:
        order = random.Random(seed).sample(range(len(documents)), len(documents))
        yield from (documents[i] for i in (*first, *(i for i in order if i not in used)))

    return units


def shuffled(questions: Sequence[AnyQuestion], seed: int) -> list[AnyQuestion]:
    """Return ``questions`` in an order that depends only on ``seed`` and their ids, not on their order in the file."""
    # Not by hash(), which differs from process to process.
    return sorted(questions, key=lambda question: hashlib.sha256(f"{seed}/{question.id}".encode()).digest())
