"""What an evaluation reads: which data files, how many examples of each, with which readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memagent_lib.agent import Agent
from memagent_lib.data import Example, count, save, split_file, stream
from memagent_lib.evaluation.evaluator import evaluate, progress_bar
from memagent_lib.evaluation.results import Result, reading_key
from memagent_lib.paths import absolute
from memagent_lib.readers import reader_named


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Data files, how many examples of each (one number serves all, 0 takes every one), and the readers by name."""

    files: Sequence[str | Path]
    n: Sequence[int] = (0,)
    readers: Sequence[str] = ("overwrite",)

    def __post_init__(self) -> None:
        for reader in self.readers:
            reader_named(reader)
        if len(self.n) not in (1, len(self.files)):
            raise ValueError(
                f"n has {len(self.n)} values for {len(self.files)} files; give one for each, or one for all"
            )
        places = [absolute(file) for file in self.files]
        if twice := [str(file) for file in dict.fromkeys(places) if places.count(file) > 1]:
            raise ValueError(f"{', '.join(twice)} is given more than once; its examples would count as others")
        if (least := min(self.n)) < 0:
            raise ValueError(f"n is a number of examples, or 0 for all of them; got {least}")
        for file, n in self.each():
            if (there := count(file)) == 0:
                raise ValueError(f"{file} holds no examples; make some with: memagent data TASK --out {file}")
            if there < n:
                raise ValueError(f"{file} has {there:,} examples and n asks for {n:,}; make more, or lower n")

    @classmethod
    def of_lengths(
        cls, data: str | Path, chunks: Sequence[int], n: Sequence[int], readers: Sequence[str]
    ) -> EvaluationPlan:
        """The files that 01_make_data writes, one per length in chunks."""
        return cls([split_file(data, "test", length) for length in chunks], n, readers)

    @property
    def total(self) -> int:
        """How many examples each reader reads."""
        return sum(n or count(file) for file, n in self.each())

    def examples(self) -> Iterator[Example]:
        """The examples one at a time, each with its ``file`` in its metadata.

        Files of long documents come first: their turns are many and one after the other, and short documents fill the
        engine's batch beside them. The other way round the last long ones would be alone with it.
        """
        for file, n in sorted(self.each(), key=lambda each: _bytes_each(each[0]), reverse=True):
            for example in stream(file, n or None):
                yield replace(example, metadata={**example.metadata, "file": str(file)})

    def each(self) -> Iterator[tuple[str | Path, int]]:
        """Every file with how many of its examples are read, 0 for all."""
        return zip(self.files, self.n if len(self.n) > 1 else list(self.n) * len(self.files), strict=True)


def _bytes_each(file: str | Path) -> float:
    """Of an example on the disk, which tells how long its document is without reading it."""
    return absolute(file).stat().st_size / count(file)


def evaluate_plan(
    agent: Agent, plan: EvaluationPlan, folder: str | Path | None = None, concurrency: int = 64
) -> list[Result]:
    """Read all of a plan with one engine, reader by reader, kept and resumed as :func:`evaluate` does."""
    agents, results = [replace(agent, reader=reader_named(reader)) for reader in plan.readers], []
    with progress_bar(plan.total * len(agents)) as advance:
        for reading in agents:
            results += evaluate(reading, plan.examples(), concurrency, folder, advance, plan.total)
    return results


def save_wrong(plan: EvaluationPlan, results: Iterable[Result], path: str | Path) -> int:
    """Write the plan's examples that its first reader answered wrong, or in part, as data, and return their number:
    what a policy still has to learn. A reading that failed says nothing of its example. Of none, no file is written.
    """
    read = (
        result for result in results if result.reader == reader_named(plan.readers[0]).name and result.score is not None
    )
    keys = {result.key for result in read if not result.correct}
    examples = (example for file, n in plan.each() for example in stream(file, n or None))
    if keys:
        save((example for example in examples if reading_key(example) in keys), path)
    return len(keys)
