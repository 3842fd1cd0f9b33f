"""Run an agent on examples: bounded concurrency, one error boundary, one record per result, resumable after any turn.

A failed example is an error result with its reason; it is never an empty answer scored as wrong. This module depends on
agents and examples, not on tables.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example, count, save, stream
from memagent_lib.driver import Observer, TimedStore, gather
from memagent_lib.evaluation.results import (
    DOCUMENTS,
    DocumentStore,
    Result,
    Sharing,
    code_of_replies,
    code_of_results,
    reading_key,
)
from memagent_lib.journal import Journal, digest
from memagent_lib.paths import absolute, shortest_ends
from memagent_lib.prompts import Budget, BudgetError
from memagent_lib.readers import SHARED_QUESTION, after_reading, before_answer, reader_named
from memagent_lib.scoring import judge_hash, judge_named, score
from memagent_lib.status_line import StatusLine, status_line
from memagent_lib.system import machine_bytes
from memagent_lib.trace import Turn

_LOG = logging.getLogger("memagent_lib")
CHARS_IN_FLIGHT = 1 << 26
BYTES_PER_CHAR = 64
"""How much of the machine's memory is reserved per character. A document with its trace takes some 30 bytes per
character, so that all documents in flight fill about half of the memory."""


def evaluate(
    agent: Agent,
    examples: Iterable[Example],
    concurrency: int = 64,
    folder: str | Path | None = None,
    progress: bool | StatusLine = True,
    shared_reading: bool = False,
) -> list[Result]:
    """Evaluate an agent on examples; return one result per example, in order.

    At most ``concurrency`` documents are loaded and read at a time. With a ``folder``, the same call resumes after a
    crash: finished turns and results are saved there under a key of everything that a reply depends on,
    :attr:`Agent.identity`, the reading code, the question and the document. If weights, wording, budgets or code
    change, a new file is started. Failed examples are read again, and all scores are computed again by the current
    judges. The folder also stores the documents; where it has no room for one, its results drop the text, so that a
    thousand huge documents fit in memory. ``progress`` is whether to display a progress bar, or a :class:`StatusLine`
    to advance.

    With ``shared_reading``, neighbouring examples of one document share a reading: the document is read once with
    :data:`~memagent_lib.readers.SHARED_QUESTION` instead of the question, then every question is answered from where
    the reading ended. Readers without a memory still answer each question alone.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    judge_named.cache_clear()
    judge_hash.cache_clear()
    together = shared_reading and agent.reader.has_memory
    total = len(examples) if hasattr(examples, "__len__") else None
    what = f"reading with {agent.reader.name}"
    is_own = isinstance(progress, bool)
    own = status_line(what, total, "questions", progress) if is_own else nullcontext(progress)
    saved = _opened(agent, folder, together) if folder else nullcontext((None, None))
    with own as bar, saved as (journal, documents):
        evaluation = _Evaluation(agent, concurrency, together, journal, documents, bar)
        return run_sync(evaluation.results(examples))


@contextmanager
def _opened(agent: Agent, folder: str | Path, together: bool) -> Iterator[tuple[Journal, DocumentStore]]:
    """Open an agent's journal in a folder of results, and the folder's store of documents."""
    # A finished record is not checked against its prompts, so other code has to be another file.
    identity = agent.identity | {"code": code_of_replies()}
    if together:
        identity |= {"shared_reading": True}
    hashed = digest(json.dumps(identity, sort_keys=True, default=str))[:8]
    path = absolute(folder) / f"{agent.reader.name}-{hashed}.jsonl"
    with Journal(path, identity) as journal:
        yield journal, DocumentStore(path.parent / DOCUMENTS)


class _Group(NamedTuple):
    """Examples about one document, which are the ``first`` of all examples and those after it."""

    first: int
    examples: tuple[Example, ...]

    @property
    def document(self) -> str:
        return self.examples[0].document


def _groups(examples: Iterable[Example], together: bool) -> Iterator[_Group]:
    """Yield each example alone, or neighbouring examples of one document ``together``."""
    if not together:
        yield from (_Group(number, (example,)) for number, example in enumerate(examples))
        return
    first = 0
    for document, neighbours in groupby(examples, key=attrgetter("document")):
        # Each example was loaded with a copy of its own, and there may be hundreds.
        group = tuple(replace(example, document=document) for example in neighbours)
        yield _Group(first, group)
        first += len(group)


class _Room:
    """Limits the number of characters of the documents in memory, but always lets one document in.

    :data:`CHARS_IN_FLIGHT` is enough for four documents of 3.5M tokens or 500 of 32K. A machine with over 4 GB of
    memory may read more: with 24 GB, some twenty documents of 3.5M tokens.
    """

    def __init__(self) -> None:
        self._all = max(CHARS_IN_FLIGHT, int(machine_bytes() // BYTES_PER_CHAR))
        self._free = self._all
        self._changed = asyncio.Condition()
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, waiting: Iterator[_Group]) -> _Group | None:
        """Return the next group once there is room for its document; ``None`` after the last one."""
        # Else every waiting caller would have a document in memory before there is room.
        async with self._one_at_a_time:
            taken = next(waiting, None)  # may read a file, briefly
            if taken is None:
                return None
            # A document larger than all the room is read too, alone.
            size = min(len(taken.document), self._all)
            async with self._changed:
                await self._changed.wait_for(lambda: self._free >= size)
                self._free -= size
        return taken

    async def release(self, group: _Group) -> None:
        async with self._changed:
            self._free += min(len(group.document), self._all)
            self._changed.notify_all()


@dataclass(frozen=True)
class _Evaluation:
    """One call of :func:`evaluate`."""

    agent: Agent
    concurrency: int
    together: bool
    journal: Journal | None
    documents: DocumentStore | None
    bar: StatusLine

    async def results(self, examples: Iterable[Example]) -> list[Result]:
        waiting = _groups(examples, self.together)
        results: dict[int, Result] = {}
        room = _Room()
        slots = asyncio.Semaphore(self.concurrency)

        async def work() -> None:
            while group := await room.fetch(waiting):
                on_turn = self._shares(group)
                if self.together:
                    found = await self._shared(group, on_turn, slots)
                else:
                    found = [await self._alone(group.examples[0], on_turn)]
                on_turn(None)
                for number, result in enumerate(found, group.first):
                    stored = self.documents is None or self.documents.add(result.document, group.document)
                    results[number] = result if stored else result.lean()
                await room.release(group)

        await gather(work() for _ in range(self.concurrency))
        return [results[number] for number in sorted(results)]

    def _shares(self, group: _Group) -> Callable[[Turn | None], None]:
        """Return a function that counts a group as done turn by turn, because a long document takes hours.

        It is called with each turn, and with ``None`` at the end.
        """
        characters = max(1, len(group.document))
        left = float(len(group.examples))

        def count(turn: Turn | None) -> None:
            nonlocal left
            chunk = turn.prompt.chunk if turn and turn.prompt.kind.reads else None
            read = (chunk.end - chunk.start) / characters * len(group.examples) if chunk else 0.0
            share = left if turn is None else min(left, read)
            left -= share
            self.bar.advance(share)

        return count

    async def _alone(self, example: Example, on_turn: Callable[[Turn], None]) -> Result:
        finished = self._finished(example)
        if finished:
            return finished
        timed = TimedStore(self.journal.reading(reading_key(example)) if self.journal else None)
        result = await self._read(self.agent, example, example.document, timed, on_turn)
        await self._save(result)
        return result

    async def _shared(self, group: _Group, on_turn: Callable[[Turn], None], slots: asyncio.Semaphore) -> list[Result]:
        """Read a document once and return the results of all its examples. Each slot answers one question at a time."""
        examples = group.examples
        finished = list(map(self._finished, examples))
        sharings = [Sharing(len(examples), number) for number in range(len(examples))]
        if all(finished):
            return [replace(result, sharing=sharing) for result, sharing in zip(finished, sharings, strict=True)]
        # A key apart from those of the results: the turns stay until every question has its answer.
        store = self.journal.reading(f"shared {digest(group.document)}") if self.journal else None
        timed = TimedStore(store)
        failure = None
        try:
            reading = await replace(self.agent, reader=before_answer(self.agent.reader)).aread(
                group.document, SHARED_QUESTION, observer=Observer(store=timed, on_turn=on_turn)
            )
            answering = replace(self.agent, reader=after_reading(self.agent.reader, reading))
        except (BackendError, BudgetError) as failed:
            failure = failed
        seconds = timed.seconds / len(examples)

        async def answered(example: Example, found: Result | None, sharing: Sharing) -> Result:
            if found:
                return replace(found, sharing=sharing)
            if failure:
                result = replace(self._failed(example, seconds, failure), sharing=sharing)
            else:
                async with slots:
                    alone = await self._read(answering, example, "", TimedStore(store))
                result = replace(alone, seconds=alone.seconds + seconds, sharing=sharing)
            await self._save(result)
            return result

        return await gather(map(answered, examples, finished, sharings))

    async def _read(
        self,
        agent: Agent,
        example: Example,
        document: str,
        timed: TimedStore,
        on_turn: Callable[[Turn], None] | None = None,
    ) -> Result:
        """Read and judge; a failed reading is a result with its error."""
        observer = Observer(store=timed, on_turn=on_turn)
        try:
            trace = (await agent.aread(document, example.question, observer=observer)).lean(keep_text=True)
        except (BackendError, BudgetError) as failed:  # anything else is a bug and stops the evaluation
            return self._failed(example, timed.seconds, failed)
        verdict = score(example.rule, trace.answer, example.answers)
        return Result(example, agent.reader.name, timed.seconds, trace, verdict, code=self._code(example))

    def _failed(self, example: Example, seconds: float, failed: Exception) -> Result:
        error = f"{type(failed).__name__}: {failed}"
        return Result(example, self.agent.reader.name, seconds, error=error, code=self._code(example))

    def _code(self, example: Example) -> str:
        return code_of_results(example.rule, self.agent.reader.file)

    async def _save(self, result: Result) -> None:
        if self.journal:  # in a thread: the record of a long document takes a while to encode
            record = result.to_record(stored=True)
            await asyncio.to_thread(self.journal.finish, result.key, record, result.error is not None)

    def _finished(self, example: Example) -> Result | None:
        """Return a result that a previous call has finished, judged again; ``None`` if there is none or it failed."""
        record = self.journal.record(reading_key(example)) if self.journal else None
        if record is None or record["trace"] is None:
            return None
        found = Result.from_record(record, example.document)
        verdict = score(example.rule, found.trace.answer, example.answers)
        judged = replace(found, example=example, score=verdict, code=self._code(example))
        # Saved, because reports read the scores from the file.
        if judged != found or judged.code != found.code:
            self.journal.finish(judged.key, judged.to_record(stored=True))
        return judged


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Data files, how many examples to read from each, and the readers by name; validated when it is created.

    ``n`` has one number of examples for all files, or one per file; 0 means all examples. ``shared_reading`` is as in
    :func:`evaluate`.
    """

    files: Sequence[str | Path]
    n: Sequence[int] = (0,)
    readers: Sequence[str] = ("overwrite",)
    shared_reading: bool = False

    def __post_init__(self) -> None:
        names = [reader_named(reader).name for reader in self.readers]  # unknown ones are refused now, not after hours
        paths = [absolute(file) for file in self.files]
        for what, values in {"files": paths, "readers": names}.items():
            if not values or len(set(values)) < len(values):  # tables know a reader by its name alone
                raise ValueError(f"{what} has to list different ones, at least one; got {', '.join(map(str, values))}")
        if len(self.n) not in (1, len(paths)):
            raise ValueError(f"n has {len(self.n)} values for {len(paths)} files; give one for each, or one for all")
        for file, n in self.each():
            there = count(file)
            if not 0 <= n <= there or not there:
                raise ValueError(f"{file} has {there:,} examples and n asks for {n:,}; make more, or change n")

    @property
    def total(self) -> int:
        """The number of examples that each reader reads."""
        return sum(n or count(file) for file, n in self.each())

    def title(self, policy: str) -> str:
        """Return a run's name: the policy, the data, and the readers unless it is ``overwrite`` alone."""
        names = [Path(file).stem for file in self.files]
        data = " to ".join(dict.fromkeys((names[0], names[-1])))
        readers = "" if list(self.readers) == ["overwrite"] else f", {' and '.join(self.readers)}"
        return f"evaluate {policy} on {data}{readers}"

    def examples(self) -> Iterator[Example]:
        """Yield the examples one at a time, files of long documents first. ``metadata`` has each example's ``file``.

        ``file_name`` is the file in tables: its name, with as many folders as tell it from the plan's other files.
        ``chunks``, by which tables and figures group documents, is that of the file's first one, if the file was made
        for a length in tokens or documents.

        The many turns of a long document come one after the other, and short documents fill the engine's batch
        meanwhile. In the opposite order, the engine would end with a few long documents and an almost empty batch.
        """
        longest_first = sorted(
            self.each(), key=lambda each: Path(each[0]).stat().st_size / count(each[0]), reverse=True
        )
        names = shortest_ends(map(absolute, self.files))
        seen: set[tuple[str, str]] = set()
        for file, n in longest_first:
            named = {"file": str(file), "file_name": names[absolute(file)]}
            repeated = chunks = 0
            for example in stream(file, n or None):
                chunks = chunks or math.ceil((example.metadata.get("tokens") or 0) / Budget().chunk_tokens)
                key = (example.task, reading_key(example))
                if key in seen:
                    repeated += 1
                    continue
                seen.add(key)
                length = {"chunks": chunks} if chunks else {}
                yield replace(example, metadata=length | {**example.metadata, **named})
            if repeated:
                _LOG.warning("%s: %s questions are in another file too, and are read once", file, repeated)

    def each(self) -> Iterator[tuple[str | Path, int]]:
        """Return each file and how many of its examples to read (0 for all)."""
        numbers = self.n if len(self.n) == len(self.files) else list(self.n) * len(self.files)
        return zip(self.files, numbers, strict=True)


def evaluate_plan(
    agent: Agent, plan: EvaluationPlan, folder: str | Path | None = None, concurrency: int = 64
) -> list[Result]:
    """Evaluate everything in a plan with one engine, reader by reader. Saves and resumes like :func:`evaluate`."""
    results: list[Result] = []
    with status_line("reading", plan.total * len(plan.readers), "questions") as bar:
        for reader in map(reader_named, plan.readers):
            bar.set_description_str(f"reading with {reader.name}", refresh=False)
            each = replace(agent, reader=reader)
            results += evaluate(each, plan.examples(), concurrency, folder, bar, plan.shared_reading)
    return results


def save_wrong(plan: EvaluationPlan, results: Iterable[Result], path: str | Path) -> int:
    """Save the examples that the plan's first reader did not answer entirely correctly, and return how many were saved.

    The file is training data: the examples that a policy still has to learn. Failed readings are not included. Ids of
    several files begin with the file's name, because two may share an id. If there is nothing to save, no file is
    written.
    """
    first = reader_named(plan.readers[0]).name
    # By the first reader alone, because others are baselines that fail where a policy need not learn.
    scored = (result for result in results if result.reader == first and result.score is not None)
    wrong = {(result.example.task, result.key) for result in scored if not result.correct}
    number = len(wrong)
    names = shortest_ends(map(absolute, plan.files))

    def again() -> Iterator[Example]:
        for file, n in plan.each():
            for example in stream(file, n or None):
                key = (example.task, reading_key(example))
                if key in wrong:
                    wrong.remove(key)  # a question of two files is saved once
                    yield replace(example, id=f"{names[absolute(file)]}/{example.id}") if len(names) > 1 else example

    if wrong:
        save(again(), path)
    return number
