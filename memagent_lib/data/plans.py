"""Documents of any length: a plan names the statements and their depths, and filler takes up the rest.

The length of a document is estimated as the sum of its units' token counts, each counted once and cached. A short
document is then tokenised as a whole. For a long one, only a sample is tokenised, and corrects the estimate.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, Protocol

from annotated_types import Ge, Interval

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.layout import Layout, Length, Meter, Statement, heading, insert, longest, numbered_documents

COUNTED_TOKENS = 1 << 17
"""The longest document that is tokenised as a whole, in tokens. The sample of a longer one has half this size."""
_MARGIN = 1.0005  # if token counts do not simply add up, a document is rather too short than too long
_NOISE = 2e-4  # the first unit of a sample has no separator before it
# The bounds of a task's parameters, which ``memagent_lib.settings`` checks when a task is configured.
AtLeastOne = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]


class ExampleKey(NamedTuple):
    """The identity of an example: its task's ``name``, its data set's ``seed`` and ``length``, and its ``index`` there.

    A seed yields the same questions at every length, except for the task ``needle``. Any worker can make any example
    from its key.
    """

    name: str
    seed: int
    index: int
    length: Length

    @property
    def id(self) -> str:
        return f"{self.name}-{self.length.label}-{self.seed}-{self.index}"

    def rng(self, name: str | None = None) -> random.Random:
        """Return the example's random generator, which does not depend on length, platform or other examples.

        Another ``name`` than the task's gives another, independent generator.
        """
        return random.Random(f"{name or self.name}/{self.seed}/{self.index}")

    def example(self, plan: Any, text: str, evidence: Sequence[Span], metadata: Mapping[str, Any]) -> Example:
        """Return the example with the document ``text``. Its question, answers and rule come from ``plan``."""
        length: dict[str, Any] = {}
        if self.length.chunks:
            length = {"chunks": self.length.chunks, "chunk_tokens": self.length.chunk_tokens}
        return Example(
            id=self.id,
            task=self.name,
            question=plan.question,
            document=text,
            answers=plan.answers,
            rule=plan.rule,
            evidence=tuple(evidence),
            metadata={**length, **metadata, "seed": self.seed, **plan.metadata},
        )


class Plan(Protocol):
    """An example before its document is written, such as a :class:`DocumentPlan`."""

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """Return the example.

        Its evidence is only what the final memory needs for the answer: if a value changes, only the last change.
        """


class Task(Protocol):
    """A task: a frozen dataclass whose fields are its parameters."""

    def plan(self, key: ExampleKey) -> Plan:
        """Return the plan of example ``key``. The same key always gives the same plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """An entry of the catalogue: a task with its parameters, and a one-line description.

    ``needs`` names files that the user must provide, ``chance`` is the score of a guess, and ``chunk_tokens`` is the
    default chunk length.
    """

    task: Task
    description: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = 5000

    @property
    def parameters(self) -> str:
        """The task's parameters with their values, as ``memagent data`` accepts them."""
        return ", ".join(f"{field.name}={getattr(self.task, field.name)!r}" for field in fields(self.task))


class Filler(NamedTuple):
    """The text around the statements, in units. Every call of ``units`` starts the same sequence of units again.

    ``source`` names the filler in the error that it is too short for a document.
    """

    units: Callable[[], Iterator[str]]
    source: str = "the filler"


def in_order(texts: Sequence[str], needed: Container[int], rng: random.Random) -> tuple[Statement, ...]:
    """Return ``texts`` as statements at random, increasing depths. A text is evidence if its index is in ``needed``."""
    depths = sorted(rng.random() for _ in texts)
    pairs = zip(texts, depths, strict=True)
    return tuple(Statement.needed(text, depth, i in needed) for i, (text, depth) in enumerate(pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPlan:
    """The part of an example that does not depend on its length: question, answers, statements and filler.

    In a ``numbered`` plan, each statement and each unit of filler is a document under a numbered heading, and the
    documents of the filler are shuffled. ``decoys`` are other questions that the document also answers.
    """

    question: str
    answers: tuple[str, ...]
    statements: tuple[Statement, ...]
    filler: Filler
    rule: str = "match_all"
    separator: str = "\n"
    numbered: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    decoys: tuple[str, ...] = ()

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """Return the example, with about the longest document that fits into the length of ``key``.

        A length in documents is met exactly. Raises ``ValueError`` if the statements alone are longer, if the filler is
        too short, or if the length is in documents and the plan is not ``numbered``.
        """
        draft = _Draft(self, meter)  # the same units and counts serve every size that is tried
        length = key.length
        if length.documents is not None and self.numbered:  # their number is the length; no search is needed
            size = length.documents - len(self.statements)
            if size < 0:
                raise ValueError(f"documents must be at least {len(self.statements)}, got {length.documents}")
            tokens = draft.measure(size)
        else:
            guess = draft.affordable(length.limit - draft.fixed_tokens)
            build = lambda n: draft.layout(n).text  # noqa: E731
            size, tokens = longest(build, draft.measure, guess, length, meter, draft.fixed_tokens)
        text, spans, positions = draft.layout(size)
        evidence = [
            Span(start + a, start + b)
            for (start, _), statement in zip(spans, self.statements, strict=True)
            for a, b in statement.evidence
        ]
        metadata: dict[str, Any] = {"tokens": tokens, "depths": [round(s.start / len(text), 4) for s in evidence]}
        if self.numbered:
            metadata["documents"] = size + len(self.statements)
            pairs = zip(positions, self.statements, strict=True)
            metadata["gold_places"] = [position for position, statement in pairs if statement.evidence]
        return key.example(self, text, evidence, metadata)


class _Draft:
    """A plan with the units of filler taken so far, and the running sums of their tokens."""

    def __init__(self, plan: DocumentPlan, meter: Meter):
        self.plan = plan
        self.meter = meter
        self.texts: list[str] = []
        self.sums = [0]
        self.fixed_tokens = sum(self._cost(statement.text, i) for i, statement in enumerate(plan.statements, 1))
        self._source = plan.filler.units()
        self._correction: float | None = None

    def _cost(self, text: str, number: int) -> int:
        if not self.plan.numbered:
            return self.meter.cost(text, self.plan.separator)
        # Heading and text are counted apart, so that the text's cost is cached for any number.
        return self.meter.cost(heading(number).rstrip(), self.plan.separator) + self.meter.cost(text, "\n")

    def _take_unit(self) -> bool:
        unit = next(self._source, None)
        if unit is None:
            return False
        self.texts.append(unit)
        number = len(self.plan.statements) + len(self.texts)
        # At least 1, so that the sums rise: the bisection and the end of the loop below depend on that.
        self.sums.append(self.sums[-1] + max(1, self._cost(unit, number)))
        return True

    def affordable(self, tokens: int) -> int:
        """Return how many units of filler fit into ``tokens`` tokens."""
        while self.sums[-1] <= tokens and self._take_unit():
            pass
        if self.sums[-1] < 0.98 * tokens:  # a pool that is almost long enough fills the length well enough
            raise self._exhausted(f"{self.sums[-1]:,} tokens and {tokens:,}")
        return max(0, bisect_right(self.sums, tokens) - 1)

    def _exhausted(self, sizes: str) -> ValueError:
        return ValueError(f"{self.plan.filler.source} has {sizes} are needed; request a shorter document")

    def _take_units(self, n: int) -> None:
        while len(self.texts) < n:
            if not self._take_unit():
                raise self._exhausted(f"{len(self.texts):,} units of text and {n:,}")

    def layout(self, n: int) -> Layout:
        """Return the document with ``n`` units of filler."""
        self._take_units(n)
        chosen = self.texts[:n]
        plan = self.plan
        if plan.numbered:
            # A pool yields the question's hard distractors first; unshuffled they would come at the beginning. The
            # depths are the example's own random numbers, so they serve as a seed that no length changes.
            random.Random(repr([statement.depth for statement in plan.statements])).shuffle(chosen)
        return insert(chosen, plan.statements, plan.separator, plan.numbered)

    def measure(self, n: int) -> int:
        """Return the number of tokens of the document with ``n`` units of filler, estimated for a long document."""
        self._take_units(n)
        summed = self.fixed_tokens + self.sums[n]
        if summed <= COUNTED_TOKENS:
            return self.meter.count(self.layout(n).text)
        if self._correction is None:
            self._correction = self._measured_over_summed()
        if abs(self._correction - 1) <= _NOISE:
            return summed
        return math.ceil(summed * self._correction * _MARGIN)

    def _measured_over_summed(self) -> float:
        """Return the token count of a sample of the filler, divided by the sum of its units' costs."""
        units = self.texts[: max(1, bisect_right(self.sums, COUNTED_TOKENS // 2) - 1)]
        sample = numbered_documents(units) if self.plan.numbered else self.plan.separator.join(units)
        summed = sum(self._cost(text, i) for i, text in enumerate(units, 1))
        return self.meter.count(sample) / max(1, summed)
