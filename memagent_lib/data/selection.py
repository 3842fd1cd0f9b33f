"""Convert other projects' files to data sets: select questions, and lay out documents of a requested length.

Questions are in the files' own order, or in an order that depends only on a seed and the questions' ids, whatever the
lengths of their documents.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data.examples import Example, stream_records
from memagent_lib.data.formats import format_named, read_original, read_pool
from memagent_lib.data.layout import Length, Meter
from memagent_lib.data.plans import ExampleKey
from memagent_lib.data.pools import AnyQuestion, Pool, PoolQuestion, Question, shuffled
from memagent_lib.driver import gather
from memagent_lib.prompts import BudgetError
from memagent_lib.scoring import box_or_all, judge_named, score
from memagent_lib.text import Tokenizer

Filter = Callable[[Sequence[Question]], Sequence[bool | None]]
"""A function that returns, for each question, whether it is known without its document; ``None`` means undetermined."""
SIDE_BY_SIDE = 64  # requests at the same time, as in `memagent evaluate`
_LEAST_BATCH = 32  # the filter sends requests in parallel, so a batch of only the missing few would waste its models


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which questions to select: the first ``n`` (``None``: all) in the order of ``seed`` (``None``: the files' own).

    A question is skipped, and a later one is selected instead, if a question with its text is in one of the data sets
    ``apart_from``, or if the filter ``known`` returns ``True`` or ``None`` for it.
    """

    n: int | None = None
    seed: int | None = None
    apart_from: tuple[str | Path, ...] = ()
    known: Filter | None = None

    def of(self, questions: Sequence[AnyQuestion]) -> Selected:
        """Select from ``questions``, which may lack documents. Raises ``ValueError`` if too few remain."""
        order = list(questions) if self.seed is None else shuffled(questions, self.seed)
        others = {record["prompt"][0]["content"] for path in self.apart_from for record in stream_records(path)}
        left = [question for question in order if question.question not in others]
        found = Selected()
        found.left_out["in another data set"] = len(order) - len(left)
        wanted = len(left) if self.n is None else self.n
        while left and len(found.questions) < wanted:
            size = max(wanted - len(found.questions), _LEAST_BATCH)
            batch, left = left[:size], left[size:]
            verdicts = self.known(batch) if self.known else [False] * len(batch)
            found.questions += [question for question, known in zip(batch, verdicts, strict=True) if known is False]
            found.left_out["known without the document"] += sum(known is True for known in verdicts)
            found.left_out["without a reply from the filter's models"] += sum(known is None for known in verdicts)
        if len(found.questions) < (self.n or 1):
            raise ValueError(
                f"n={self.n or 1:,}, and {len(found.questions):,} of {len(order):,} questions remain, {found.summary()}"
            )
        del found.questions[wanted:]  # the last batch may have found too many
        return found


@dataclass(slots=True)
class Selected:
    """The selected questions in order, and how many were left out, or are doubtful, for each reason."""

    questions: list[Question] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """Return a phrase with the number of questions left out for each reason."""
        return ", ".join(f"{n:,} {reason}" for reason, n in self.left_out.items() if n) or "none left out"


def convert(
    form: str,
    paths: str | Path | Sequence[str | Path],
    selection: Selection,
    *,
    length: Length | None = None,
    tokenizer: Tokenizer | None = None,
    rule: str | None = None,
    **options: Any,
) -> tuple[Selected, Iterator[Example]]:
    """Convert files in the format ``form``; return the selected questions and an iterator over their examples.

    ``options`` are the format's own. With a ``length``, each document is built from the documents of its file; this
    needs a ``tokenizer`` and a format that has a pool. ``rule`` replaces the judge.
    """
    known = format_named(form)
    wrong = sorted(set(options) - set(known.options))
    if wrong:
        accepted = ", ".join(known.options) or "no options"
        raise ValueError(f"format {form!r} takes no {', '.join(wrong)}; it takes {accepted}")
    if rule:
        judge_named(rule)
        if "rule" in known.options:
            options["rule"] = rule  # such formats refuse questions that their own judge cannot score
    if isinstance(paths, str | Path):
        paths = [paths]
    pools = [read_pool(path, form) for path in paths] if known.pool or length else []
    if length:
        selected, examples = _among_others(form, pools, selection, length, tokenizer)
    else:
        selected, examples = _as_they_are(form, paths, selection, options)
    selected.left_out["left out as unanswerable"] += sum(pool.unanswerable for pool in pools)
    return selected, (replace(example, rule=rule) if rule else example for example in examples)


def _as_they_are(
    form: str, paths: Sequence[str | Path], selection: Selection, options: dict[str, Any]
) -> tuple[Selected, Iterator[Example]]:
    """Read the files twice, first for the questions alone, so that the documents are never all in memory at once."""

    def read() -> Iterator[Example | None]:
        for path in paths:
            for example in read_original(path, form, **options):
                # A format's own question_id wins: several examples may have the same question.
                yield example and replace(example, metadata={"question_id": example.id, **example.metadata})

    found: list[Example | None] = []
    earlier: dict[tuple[str, int], set[str]] = {}
    contradicting = 0
    for example in read():
        if example:
            answers = set(map(str.casefold, example.answers))
            same = (" ".join(example.question.casefold().split()), hash(example.document.strip()))
            before = earlier.setdefault(same, answers)
            contradicting += before.isdisjoint(answers)
            example = replace(example, id=example.metadata["question_id"], document="", evidence=())
        found.append(example)
    questions = [example for example in found if example]
    _require_unique(questions)
    selected = selection.of(questions)
    selected.left_out["left out as unanswerable"] = len(found) - len(questions)
    selected.left_out["with other answers than an earlier record of the same question and document"] = contradicting
    wanted = {question.id for question in selected.questions}
    return selected, (example for example in read() if example and example.metadata["question_id"] in wanted)


def _among_others(
    form: str, pools: Sequence[Pool], selection: Selection, length: Length, tokenizer: Tokenizer
) -> tuple[Selected, Iterator[Example]]:
    pairs = [(question, pool) for pool in pools for question in pool.questions]
    _require_unique([question for question, _ in pairs])
    owners = {question.id: pool for question, pool in pairs}
    selected = selection.of([question for question, _ in pairs])
    meter = Meter(tokenizer)

    def make(index: int, question: PoolQuestion) -> Example:
        key = ExampleKey(form, selection.seed or 0, index, length)
        made = owners[question.id].plan(question, key, "contains").example(key, meter)
        return replace(made, id=f"{form}-{length.label}-{question.id}")

    return selected, (make(index, question) for index, question in enumerate(selected.questions))


def _require_unique(questions: Sequence[AnyQuestion]) -> None:
    """Raise ``ValueError`` if an id is repeated, in a file or in two."""
    ((id, times),) = Counter(question.id for question in questions).most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"the id {id!r} is there twice; ids must differ, so convert files with equal ids one by one")


def known_without_document(
    questions: Sequence[Question], agents: Sequence[Agent], samples: int = 2
) -> list[bool | None]:
    """For each question, return whether any agent answers it without the document in any of ``samples`` tries.

    Such questions measure knowledge, not memory (MemAgent, section 4.1; ``filter.py``). The result is ``None`` if no
    reply answers the question and at least one request failed, was over its budget, or ended in an unfinished thought.
    The agents use the reader ``blind``.
    """
    return run_sync(_verdicts(questions, agents, samples))


def knows(reply: str, answers: Sequence[str]) -> bool:
    """Return whether a reply has the words of an accepted answer.

    If an accepted answer is the letter of an option, return whether the reply chooses the option. Unlike in MemAgent,
    the words must be whole, because ``no`` is in every "I do not know". Of a reply with a box, only its content counts.
    """
    # Whatever judge the data set has: the filter finds what a model knows, not how it is scored.
    if any(re.fullmatch("[A-Z]", answer) for answer in answers):  # "a" is a word of nearly every reply
        return score("choice", reply, answers).value > 0
    # Only Latin letters and digits are borders, because many scripts do not separate words.
    words = "|".join(re.escape(answer.lower()) for answer in answers)
    return re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", box_or_all(reply).lower()) is not None


async def _verdicts(questions: Sequence[Question], agents: Sequence[Agent], samples: int) -> list[bool | None]:
    slots = asyncio.Semaphore(SIDE_BY_SIDE)

    async def known_to(agent: Agent, question: Question) -> bool | None:
        async with slots:
            # A failed request, an unfinished thought and a question over its budget are no verdict.
            try:
                trace = await agent.aread("", question.question)
            except (BackendError, BudgetError):
                return None
        return knows(trace.answer, question.answers)

    async def verdict(question: Question) -> bool | None:
        found = await gather(known_to(agent, question) for agent in agents for _ in range(samples))
        if True in found:  # one correct reply settles it, even if other requests failed
            return True
        return None if None in found else False

    return await gather(map(verdict, questions))
