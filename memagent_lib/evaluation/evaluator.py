"""Run an agent on examples: bounded concurrency, one error boundary, one record per result, resumable after any turn.

A failed example is an error result with its reason; it is never an empty answer scored as wrong. This module depends on
agents and examples, not on tables.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example
from memagent_lib.driver import Clock, Observer, gather
from memagent_lib.evaluation.result_code import code_of_replies, code_of_results
from memagent_lib.evaluation.result_files import DOCUMENTS, DocumentStore
from memagent_lib.evaluation.results import Result, Sharing, reading_key
from memagent_lib.journal import Journal, digest
from memagent_lib.paths import absolute
from memagent_lib.prompts import BudgetError
from memagent_lib.readers import after_reading, before_answer
from memagent_lib.scoring import score
from memagent_lib.status_line import StatusLine, status_line
from memagent_lib.system import machine_bytes
from memagent_lib.trace import Turn

CHARS_IN_FLIGHT = 1 << 26
BYTES_PER_CHAR = 64
"""How much of the machine's memory is reserved per character. A document with its trace takes some 30 bytes per
character, so that all documents in flight fill about half of the memory."""


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
            share = _Share(agent, group, bar)
            if shared_reading:
                of_group = await _shared_results(agent, group.examples, shared_reading, journal, share.turn, slots)
            else:
                of_group = [await _result(agent, group.examples[0], journal, share.turn)]
            share.over()
            document = group.examples[0].document
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
        """Return the next group once there is room for its document; ``None`` after the last one.

        Only one of the callers that wait for room has a document in memory.
        """
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
    judges. ``progress`` is whether to display a progress bar, a :class:`StatusLine` to advance, or a function to
    call with each result.

    With ``shared_reading``, neighbouring examples of one document share a reading: the document is read once with this
    text in place of the question (:data:`~memagent_lib.readers.SHARED_QUESTION`), then every question is answered from
    where the reading ended. Readers without a memory still answer each question alone.
    """
    shared_reading = usable_shared_reading(agent, shared_reading)
    if total is None and hasattr(examples, "__len__"):
        total = len(examples)
    on_result = progress if callable(progress) else None
    what = f"reading with {agent.reader.name}"
    is_own = not isinstance(progress, StatusLine)
    own = status_line(what, total, "questions", progress is True) if is_own else nullcontext(progress)
    with own as bar:
        if folder is None:
            return run_sync(aevaluate(agent, examples, concurrency, on_result, bar=bar, shared_reading=shared_reading))
        with opened(agent, folder, shared_reading) as (journal, documents):
            return run_sync(aevaluate(agent, examples, concurrency, on_result, journal, documents, bar, shared_reading))


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


class _Share:
    """Counts the examples of a document as done turn by turn, because a long document takes hours."""

    def __init__(self, agent: Agent, group: _Group, bar: StatusLine | None) -> None:
        first = group.examples[0]
        self._characters = max(1, len(first.document))
        self._examples = len(group.examples)
        self._bar = bar
        self._counted = 0.0

    def turn(self, turn: Turn) -> None:
        chunk = turn.prompt.chunk if turn.prompt.kind.reads else None
        if chunk:
            self._count(min((chunk.end - chunk.start) / self._characters, 1.0 - self._counted))

    def over(self) -> None:
        self._count(1.0 - self._counted)

    def _count(self, share: float) -> None:
        self._counted += share
        if self._bar:
            self._bar.advance(share * self._examples)


async def _result(agent: Agent, example: Example, journal: Journal | None, on_turn: Callable[[Turn], None]) -> Result:
    key = reading_key(example)
    if journal:
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
    finished = [_finished(journal, agent, each) if journal else None for each in examples]
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
    except (BackendError, BudgetError) as failed:
        failure = _in_words(failed)
    else:
        answering = replace(agent, reader=after_reading(agent.reader, reading))
    seconds = clock.seconds / len(examples)

    async def answered(example: Example, found: Result | None, sharing: Sharing) -> Result:
        if found:
            return replace(found, sharing=sharing)
        if failure:
            code = code_of_results(example.rule, agent.reader.file)
            result = Result(example, agent.reader.name, seconds, error=failure, sharing=sharing, code=code)
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
    reader = agent.reader
    code = code_of_results(example.rule, reader.file)
    observer = Observer(store=clock, on_turn=on_turn)
    try:
        trace = (await agent.aread(document, example.question, observer=observer)).without_ids()
    except (BackendError, BudgetError) as failed:  # anything else is a bug and stops the evaluation
        return Result(example, reader.name, clock.seconds, error=_in_words(failed), code=code)
    verdict = score(example.rule, trace.answer, example.answers)
    return Result(example, reader.name, clock.seconds, trace, verdict, code=code)


def _in_words(failed: Exception) -> str:
    return f"{type(failed).__name__}: {failed}"


async def _save(journal: Journal | None, key: str, result: Result) -> None:
    if journal:  # in a thread: the record of a long document takes a while to encode
        await asyncio.to_thread(journal.finish, key, result.to_record(stored=True), result.error is not None)


def _finished(journal: Journal, agent: Agent, example: Example) -> Result | None:
    """Return a result that a previous call has finished, judged again; ``None`` if there is none or it failed."""
    key = reading_key(example)
    code = code_of_results(example.rule, agent.reader.file)
    record = journal.record(key)
    if record is None:
        return None
    try:
        if record["trace"] is None:
            return None
        found = Result.from_record(record, example.document)
    except (KeyError, TypeError, ValueError, AttributeError) as odd:
        raise journal.damage(key, f"a record of another form, {type(odd).__name__}: {odd}") from odd
    verdict = score(example.rule, found.trace.answer, example.answers)
    judged = replace(found, example=example, score=verdict, code=code)
    # Saved, because reports read the scores from the file.
    if judged != found or judged.code != found.code:
        journal.finish(key, judged.to_record(stored=True))
    return judged
