"""The plan of an evaluation: which data files, how many examples of each, and which readers.

A plan is validated when it is created, before a model is loaded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memagent_lib.agent import Agent
from memagent_lib.data import Example, count, document_bytes, save, split_file, stream
from memagent_lib.errors import MissingFile
from memagent_lib.evaluation.evaluator import evaluate, usable_shared_reading
from memagent_lib.evaluation.results import Result, reading_key
from memagent_lib.paths import absolute, shortest_ends
from memagent_lib.readers import SHARED_QUESTION, reader_named
from memagent_lib.status_line import status_line


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Data files, how many examples to read from each, and the readers by name.

    ``n`` has one number of examples for all files, or one per file; 0 means all examples. ``shared_reading`` is as in
    :func:`~memagent_lib.evaluation.evaluate`.
    """

    files: Sequence[str | Path]
    n: Sequence[int] = (0,)
    readers: Sequence[str] = ("overwrite",)
    shared_reading: str = ""

    def __post_init__(self) -> None:
        if not self.files or not self.readers:
            raise ValueError(f"an evaluation needs {'readers' if self.files else 'data files'}; give at least one")
        named: dict[str, str] = {}
        for reader in self.readers:
            # Raises an error for an unknown reader now, not after the first reader has run for hours.
            name = reader_named(reader).name
            if name in named:  # tables know a reader by its name alone
                raise ValueError(
                    f"the readers {named[name]} and {reader} are both called {name!r}; rename or leave out one"
                )
            named[name] = reader
        if len(self.n) not in (1, len(self.files)):
            raise ValueError(
                f"n has {len(self.n)} values for {len(self.files)} files; give one for each, or one for all"
            )
        paths = [absolute(file) for file in self.files]
        repeated = [str(file) for file in dict.fromkeys(paths) if paths.count(file) > 1]
        if repeated:
            raise ValueError(f"{', '.join(repeated)} is given more than once; its examples would count as others")
        if min(self.n) < 0:
            raise ValueError(f"n is a number of examples, or 0 for all of them; got {min(self.n)}")
        for file, n in self.each():
            there = count(file)
            # Checked first: an empty file would pass every n = 0.
            if there == 0:
                raise ValueError(
                    f"{file} holds no examples; make some with: memagent data TASK --out {shlex.quote(str(file))}"
                )
            if there < n:
                raise ValueError(f"{file} has {there:,} examples and n asks for {n:,}; make more, or lower n")

    @classmethod
    def of_lengths(
        cls,
        data: str | Path,
        chunks: Sequence[int] | int,
        n: Sequence[int] | int,
        readers: Sequence[str] | str,
        shared_reading: str = "",
    ) -> EvaluationPlan:
        """Return the plan for files that 01_make_data writes, one per length in chunks.

        Lengths, numbers and readers may each be a single value. Raises ``ValueError`` for a length without a file, and
        names the lengths that have one.
        """
        lengths = [chunks] if isinstance(chunks, int) else list(chunks)
        numbers = [n] if isinstance(n, int) else list(n)
        missing = [length for length in lengths if not split_file(data, "test", length).is_file()]
        if missing:
            files = split_file(data, "test", 0).parent.glob("test_*.parquet")
            named = [file.stem.removeprefix("test_") for file in files]
            known = sorted(int(length) for length in named if length.isdigit())
            there = f"there are {', '.join(map(str, known))}" if known else "there is none"
            raise MissingFile(
                f"no documents of {', '.join(map(str, missing))} chunks in {data}; {there}; 01_make_data makes others"
            )
        if len(numbers) not in (1, len(lengths)):
            raise ValueError(
                f"chunks has {len(lengths)} lengths ({', '.join(map(str, lengths))}) and n has {len(numbers)} numbers "
                f"of documents ({', '.join(map(str, numbers))}); give n one number, or one for each length"
            )
        files = [split_file(data, "test", length) for length in lengths]
        return cls(files, numbers, [readers] if isinstance(readers, str) else readers, shared_reading)

    @property
    def total(self) -> int:
        """The number of examples that each reader reads."""
        return sum(n or count(file) for file, n in self.each())

    def title(self, policy: str, agent: Agent) -> str:
        """Return a run's name that tells evaluations of one policy apart: data, readers, and sampling unless greedy."""
        names = [Path(file).stem for file in self.files]
        data = " to ".join(dict.fromkeys((names[0], names[-1])))
        parts = [f"evaluate {policy} on {data}"]
        if list(self.readers) != ["overwrite"]:
            parts.append(" and ".join(self.readers))
        if self.shared_reading:
            parts.append("read once for all")
        temperature = agent.identity["sampling"]["temperature"]
        if temperature:
            parts.append(f"temperature {temperature:g}")
        return ", ".join(parts)

    def examples(self) -> Iterator[Example]:
        """Yield the examples one at a time, files of long documents first. ``metadata`` has each example's ``file``.

        ``file_name`` is the file in tables: its name, with as many folders as tell it from the plan's other files.

        The many turns of a long document come one after the other, and short documents fill the engine's batch
        meanwhile. In the opposite order, the engine would end with a few long documents and an almost empty batch.
        """
        longest_first = sorted(self.each(), key=lambda each: _bytes_each(each[0]), reverse=True)
        names = shortest_ends(map(absolute, self.files))
        for file, n in longest_first:
            named = {"file": str(file), "file_name": names[absolute(file)]}
            for example in stream(file, n or None):
                yield replace(example, metadata={**example.metadata, **named})

    def each(self) -> Iterator[tuple[str | Path, int]]:
        """Return each file and how many of its examples to read (0 for all)."""
        numbers = self.n
        if len(numbers) == 1:
            numbers = list(numbers) * len(self.files)
        return zip(self.files, numbers, strict=True)


def shared_text(shared_reading: bool, shared_question: str = "") -> str:
    """Return the text that stands in place of the question in a shared reading, and "" if readings are not shared.

    Raises ``ValueError`` for a ``shared_question`` without a shared reading.
    """
    if not shared_reading:
        if shared_question:
            raise ValueError("shared_question is the text of a shared reading; set shared_reading too")
        return ""
    return shared_question or SHARED_QUESTION


def _bytes_each(file: str | Path) -> float:
    """Return the bytes of text per example, an estimate of how long a file's documents are without loading them."""
    return document_bytes(file) / count(file)


def evaluate_plan(
    agent: Agent, plan: EvaluationPlan, folder: str | Path | None = None, concurrency: int = 64
) -> list[Result]:
    """Evaluate everything in a plan with one engine, reader by reader. Saves and resumes like :func:`evaluate`."""
    agents = [replace(agent, reader=reader_named(name)) for name in plan.readers]
    for each in agents:
        # All before the first reading: a baseline may read for hours before the first reader with a memory.
        usable_shared_reading(each, plan.shared_reading)
    results: list[Result] = []
    with status_line("reading", plan.total * len(plan.readers), "questions") as bar:
        for each in agents:
            bar.set_description(f"reading with {each.reader.name}", refresh=False)
            results += evaluate(each, plan.examples(), concurrency, folder, bar, plan.total, plan.shared_reading)
    return results


def save_wrong(plan: EvaluationPlan, results: Iterable[Result], path: str | Path) -> int:
    """Save the examples that the plan's first reader did not answer entirely correctly, and return how many were saved.

    The file is training data: the examples that a policy still has to learn. Failed readings are not included. If there
    is nothing to save, no file is written.
    """
    first = reader_named(plan.readers[0]).name
    # By the first reader alone, because others are baselines that fail where a policy need not learn.
    scored = (result for result in results if result.reader == first and result.score is not None)
    wrong = {result.key for result in scored if not result.correct}
    if wrong:
        examples = (example for file, n in plan.each() for example in stream(file, n or None))
        save((example for example in examples if reading_key(example) in wrong), path)
    return len(wrong)
