"""Run an agent on examples: bounded concurrency, one error boundary, one record per result, resumable after any turn.

A failed example is an error result with its reason; it is never an empty answer scored as wrong. This module depends on
agents and examples, not on tables.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example, count, save, split_file, stream
from memagent_lib.driver import Clock, Observer, gather
from memagent_lib.errors import MissingFile
from memagent_lib.evaluation.result_files import DOCUMENTS, DocumentStore
from memagent_lib.evaluation.results import Result, Sharing, code_of_replies, code_of_results, reading_key
from memagent_lib.journal import Journal, digest
from memagent_lib.paths import absolute, shortest_ends
from memagent_lib.prompts import BudgetError
from memagent_lib.readers import SHARED_QUESTION, after_reading, before_answer, reader_named
from memagent_lib.scoring import score
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
    progress: bool | StatusLine | Callable[[Result], None] = True,
    total: int | None = None,
    shared_reading: str = "",
) -> list[Result]:
    """Evaluate an agent on examples and return the results. With a ``folder``, the same call resumes after a crash.

    Finished turns and results are saved in the folder under a key of everything that a reply depends on:
    :attr:`Agent.identity`, the reading code, the question and the document. If weights, wording, budgets or code
    change, a new file is started. Failed examples are read again, and all scores are computed again by the current
    judges. ``progress`` is whether to display a progress bar, or a :class:`StatusLine` to advance, or a function to
    call with each result.

    With ``shared_reading``, neighbouring examples of one document share a reading: the document is read once with this
    text instead of the question (:data:`~memagent_lib.readers.SHARED_QUESTION`), then every question is answered from
    where the reading ended. Readers without a memory still answer each question alone.
    """
    shared_reading = usable_shared_reading(agent, shared_reading)
    if total is None and hasattr(examples, "__len__"):
        total = len(examples)
    on_result = progress if callable(progress) else None
    what = f"reading with {agent.reader.name}"
    is_own = not isinstance(progress, StatusLine)
    own = status_line(what, total, "questions", progress is True) if is_own else nullcontext(progress)
    saved = opened(agent, folder, shared_reading) if folder else nullcontext((None, None))
    with own as bar, saved as (journal, documents):
        return run_sync(aevaluate(agent, examples, concurrency, on_result, journal, documents, bar, shared_reading))


async def aevaluate(
    agent: Agent,
    examples: Iterable[Example],
    concurrency: int = 64,
    on_result: Callable[[Result], None] | None = None,
    journal: Journal | None = None,
    documents: DocumentStore | None = None,
    bar: StatusLine | None = None,
    shared_reading: str = "",
) -> list[Result]:
    """Return one result per example, in order. At most ``concurrency`` documents are loaded and read at a time.

    ``shared_reading`` is as in :func:`evaluate`. A ``journal`` saves turns and results, so that they are not computed
    again. With a store of ``documents``, a result drops its document's text if the store has no room for it, so that a
    thousand huge documents fit in memory.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    waiting = _groups(examples, bool(shared_reading))
    results: dict[int, Result] = {}
    room = _Room()
    slots = asyncio.Semaphore(concurrency)

    async def work() -> None:
        while True:
            group = await room.fetch(waiting)
            if group is None:
                return
            document = group.examples[0].document
            on_turn = _shares(group, bar)
            if shared_reading:
                of_group = await _shared_results(agent, group.examples, shared_reading, journal, on_turn, slots)
            else:
                of_group = [await _result(agent, group.examples[0], journal, on_turn)]
            on_turn(None)
            for number, result in enumerate(of_group, group.first):
                stored = documents is None or documents.add(result.document, document)
                results[number] = result if stored else result.lean()
                if on_result:
                    on_result(results[number])
            await room.release(len(document))

    await gather(work() for _ in range(concurrency))
    return [results[number] for number in sorted(results)]


class _Group(NamedTuple):
    """Examples about one document, which are the ``first`` of all examples and those after it."""

    first: int
    examples: tuple[Example, ...]


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


def chars_in_flight() -> int:
    """Return how many characters of documents may be read concurrently.

    This is enough for four documents of 3.5M tokens or 500 of 32K. A machine with over 4 GB of memory may read more:
    with 24 GB, some twenty documents of 3.5M tokens.
    """
    return max(CHARS_IN_FLIGHT, int(machine_bytes() // BYTES_PER_CHAR))


class _Room:
    """Limits the documents in memory to :func:`chars_in_flight` characters, but always lets one document in."""

    def __init__(self) -> None:
        self._all = chars_in_flight()
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
            size = min(len(taken.examples[0].document), self._all)
            async with self._changed:
                await self._changed.wait_for(lambda: self._free >= size)
                self._free -= size
        return taken

    async def release(self, size: int) -> None:
        async with self._changed:
            self._free += min(size, self._all)
            self._changed.notify_all()


def _shares(group: _Group, bar: StatusLine | None) -> Callable[[Turn | None], None]:
    """Return a function that counts a group as done turn by turn, because a long document takes hours.

    It is called with each turn, and with ``None`` at the end.
    """
    characters = max(1, len(group.examples[0].document))
    left = float(len(group.examples))

    def count(turn: Turn | None) -> None:
        nonlocal left
        chunk = turn.prompt.chunk if turn and turn.prompt.kind.reads else None
        read = (chunk.end - chunk.start) / characters * len(group.examples) if chunk else 0.0
        share = left if turn is None else min(left, read)
        left -= share
        if bar is not None:  # a bar without a total has no truth value
            bar.advance(share)

    return count


def usable_shared_reading(agent: Agent, shared_reading: str) -> str:
    """Return the text of a shared reading, or "" for a reader without a memory, which cannot share one.

    Raises :class:`BudgetError` if the text has more tokens than a question may have.
    """
    if not agent.reader.has_memory:
        return ""
    agent.encoder.require_question(shared_reading, "the text of the shared reading (shared_question)")
    return shared_reading


@contextmanager
def opened(agent: Agent, folder: str | Path, shared_reading: str = "") -> Iterator[tuple[Journal, DocumentStore]]:
    """Open an agent's journal in a folder of results, and the folder's store of documents."""
    # A finished record is not checked against its prompts, so other code has to be another file.
    identity = agent.identity | {"code": code_of_replies()}
    if shared_reading:
        identity |= {"shared_reading": shared_reading}
    hashed = digest(json.dumps(identity, sort_keys=True, default=str))[:8]
    path = absolute(folder) / f"{agent.reader.name}-{hashed}.jsonl"
    with Journal(path, identity) as journal:
        yield journal, DocumentStore(path.parent / DOCUMENTS)


async def _result(agent: Agent, example: Example, journal: Journal | None, on_turn: Callable[[Turn], None]) -> Result:
    key = reading_key(example)
    finished = _finished(journal, agent, example)
    if finished:
        return finished
    clock = Clock(journal.reading(key) if journal else None)
    result = await _read(agent, example, example.document, clock, on_turn)
    await _save(journal, key, result)
    return result


async def _shared_results(
    agent: Agent,
    examples: Sequence[Example],
    shared_reading: str,
    journal: Journal | None,
    on_turn: Callable[[Turn], None],
    slots: asyncio.Semaphore,
) -> list[Result]:
    """Read a document once and return the results of all its ``examples``. Each slot answers one question at a time."""
    finished = [_finished(journal, agent, each) for each in examples]
    sharings = [Sharing(len(examples), number) for number in range(len(examples))]
    if all(finished):
        return [replace(result, sharing=sharing) for result, sharing in zip(finished, sharings, strict=True)]
    document = examples[0].document
    # A key apart from those of the results: the turns stay until every question has its answer.
    store = journal.reading(f"shared {digest(document)}") if journal else None
    clock = Clock(store)
    failure = None
    try:
        reading = await replace(agent, reader=before_answer(agent.reader)).aread(
            document, shared_reading, observer=Observer(store=clock, on_turn=on_turn)
        )
        answering = replace(agent, reader=after_reading(agent.reader, reading))
    except (BackendError, BudgetError) as failed:
        failure = failed
    seconds = clock.seconds / len(examples)

    async def answered(example: Example, found: Result | None, sharing: Sharing) -> Result:
        if found:
            return replace(found, sharing=sharing)
        if failure:
            result = replace(_failed(agent, example, seconds, failure), sharing=sharing)
        else:
            async with slots:
                alone = await _read(answering, example, "", Clock(store))
            result = replace(alone, seconds=alone.seconds + seconds, sharing=sharing)
        await _save(journal, reading_key(example), result)
        return result

    return await gather(map(answered, examples, finished, sharings))


async def _read(
    agent: Agent, example: Example, document: str, clock: Clock, on_turn: Callable[[Turn], None] | None = None
) -> Result:
    """Read and judge; a failed reading is a result with its error."""
    observer = Observer(store=clock, on_turn=on_turn)
    try:
        trace = (await agent.aread(document, example.question, observer=observer)).without_ids()
    except (BackendError, BudgetError) as failed:  # anything else is a bug and stops the evaluation
        return _failed(agent, example, clock.seconds, failed)
    verdict = score(example.rule, trace.answer, example.answers)
    return Result(example, agent.reader.name, clock.seconds, trace, verdict, code=_code(agent, example))


def _failed(agent: Agent, example: Example, seconds: float, failed: Exception) -> Result:
    error = f"{type(failed).__name__}: {failed}"
    return Result(example, agent.reader.name, seconds, error=error, code=_code(agent, example))


def _code(agent: Agent, example: Example) -> str:
    return code_of_results(example.rule, agent.reader.file)


async def _save(journal: Journal | None, key: str, result: Result) -> None:
    if journal:  # in a thread: the record of a long document takes a while to encode
        await asyncio.to_thread(journal.finish, key, result.to_record(stored=True), result.error is not None)


def _finished(journal: Journal | None, agent: Agent, example: Example) -> Result | None:
    """Return a result that a previous call has finished, judged again; ``None`` if there is none or it failed."""
    key = reading_key(example)
    record = journal.record(key) if journal else None
    if record is None or record["trace"] is None:
        return None
    found = Result.from_record(record, example.document)
    verdict = score(example.rule, found.trace.answer, example.answers)
    judged = replace(found, example=example, score=verdict, code=_code(agent, example))
    # Saved, because reports read the scores from the file.
    if judged != found or judged.code != found.code:
        journal.finish(key, judged.to_record(stored=True))
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
    shared_reading: str = ""

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

        Lengths, numbers and readers may each be a single value.
        """
        lengths = [chunks] if isinstance(chunks, int) else list(chunks)
        numbers = [n] if isinstance(n, int) else list(n)
        files = [split_file(data, "test", length) for length in lengths]
        missing = [file for file in files if not file.is_file()]
        if missing:
            there = sorted(file.name for file in missing[0].parent.glob("test_*.parquet"))
            raise MissingFile(f"no {missing[0]}; 01_make_data makes it; there is {', '.join(there) or 'none'}")
        return cls(files, numbers, [readers] if isinstance(readers, str) else readers, shared_reading)

    @property
    def total(self) -> int:
        """The number of examples that each reader reads."""
        return sum(n or count(file) for file, n in self.each())

    def title(self, policy: str, agent: Agent) -> str:
        """Return a run's name that tells evaluations of one policy apart: data, readers, and sampling unless greedy."""
        names = [Path(file).stem for file in self.files]
        data = " to ".join(dict.fromkeys((names[0], names[-1])))
        readers = "" if list(self.readers) == ["overwrite"] else f", {' and '.join(self.readers)}"
        temperature = agent.identity["sampling"]["temperature"]
        return f"evaluate {policy} on {data}{readers}" + (f", temperature {temperature:g}" if temperature else "")

    def examples(self) -> Iterator[Example]:
        """Yield the examples one at a time, files of long documents first. ``metadata`` has each example's ``file``.

        ``file_name`` is the file in tables: its name, with as many folders as tell it from the plan's other files.

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
            repeated = 0
            for example in stream(file, n or None):
                key = (example.task, reading_key(example))
                if key in seen:
                    repeated += 1
                    continue
                seen.add(key)
                yield replace(example, metadata={**example.metadata, **named})
            if repeated:
                _LOG.warning("%s: %s questions are in another file too, and are read once", file, repeated)

    def each(self) -> Iterator[tuple[str | Path, int]]:
        """Return each file and how many of its examples to read (0 for all)."""
        numbers = self.n if len(self.n) == len(self.files) else list(self.n) * len(self.files)
        return zip(self.files, numbers, strict=True)


def shared_text(shared_reading: bool, shared_question: str = "") -> str:
    """Return the text that stands instead of the question in a shared reading, and "" if readings are not shared.

    Raises ``ValueError`` for a ``shared_question`` without a shared reading.
    """
    if shared_question and not shared_reading:
        raise ValueError("shared_question is the text of a shared reading; set shared_reading too")
    return (shared_question or SHARED_QUESTION) if shared_reading else ""


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
