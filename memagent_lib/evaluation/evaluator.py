"""Run an agent on examples: bounded concurrency, one error boundary, one record per result, resumable after any turn.

A failed example is an error result with its reason; it is never an empty answer scored as wrong. This module depends on
agents and examples, not on tables.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from memagent_lib.agent import Agent, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example
from memagent_lib.driver import Observer, gather
from memagent_lib.evaluation.result_code import code_of_replies, code_of_results
from memagent_lib.evaluation.result_files import DOCUMENTS, DocumentStore
from memagent_lib.evaluation.results import Result, reading_key
from memagent_lib.journal import Journal, digest
from memagent_lib.paths import absolute
from memagent_lib.prompts import BudgetError
from memagent_lib.scoring import score
from memagent_lib.status_line import StatusLine, status_line
from memagent_lib.trace import Trace, Turn

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
) -> list[Result]:
    """Return one result per example, in order. At most ``concurrency`` examples are loaded and read at a time.

    A ``journal`` saves turns and results, so that they are not computed again. With a store of ``documents``, a result
    drops its document's text if the store has no room for it, so that a thousand huge documents fit in memory.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    waiting = enumerate(examples)
    results: dict[int, Result] = {}
    room = _Room()

    async def work() -> None:
        while True:
            taken = await room.fetch(waiting)
            if taken is None:
                return
            number, example = taken
            share = _Share(example, bar)
            result = await _result(agent, example, journal, share.turn)
            share.over()
            stored = documents is None or documents.add(result.document, example.document)
            results[number] = result if stored else result.lean()
            await room.release(len(example.document))
            if on_result:
                on_result(results[number])

    await gather(work() for _ in range(concurrency))
    return [results[number] for number in sorted(results)]


def chars_in_flight() -> int:
    """Return how many characters of documents may be read concurrently.

    This is enough for four documents of 3.5M tokens or 500 of 32K. A machine with over 4 GB of memory may read more:
    with 24 GB, some twenty documents of 3.5M tokens.
    """
    import psutil

    return max(CHARS_IN_FLIGHT, psutil.virtual_memory().total // BYTES_PER_CHAR)


class _Room:
    """Limits the documents in memory to :func:`chars_in_flight` characters, but always lets one document in."""

    def __init__(self) -> None:
        self._all = chars_in_flight()
        self._free = self._all
        self._changed = asyncio.Condition()
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, waiting: Iterator[tuple[int, Example]]) -> tuple[int, Example] | None:
        """Return the next example once there is room for its document; ``None`` after the last one.

        Of the callers that wait for room, only one has a document in memory.
        """
        # Else every waiting caller would have a document in memory before there is room.
        async with self._one_at_a_time:
            taken = next(waiting, None)  # may read a file, briefly
            if taken is None:
                return None
            # A document larger than all the room is read too, alone.
            size = min(len(taken[1].document), self._all)
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
) -> list[Result]:
    """Evaluate an agent on examples and return the results. With a ``folder``, the same call resumes after a crash.

    Finished turns and results are saved in the folder under a key of everything that a reply depends on:
    :attr:`Agent.identity`, the reading code, the question and the document. If weights, wording, budgets or code
    change, a new file is started. Failed examples are read again, and all scores are computed again by the current
    judges. ``progress`` is whether to display a progress bar, or a :class:`StatusLine` to advance, or a function to
    call with each result.
    """
    if total is None and hasattr(examples, "__len__"):
        total = len(examples)
    on_result = progress if callable(progress) else None
    what = f"reading with {agent.reader.name}"
    is_own = not isinstance(progress, StatusLine)
    own = status_line(what, total, "documents", progress is True) if is_own else nullcontext(progress)
    with own as bar:
        if folder is None:
            return run_sync(aevaluate(agent, examples, concurrency, on_result, bar=bar))
        with opened(agent, folder) as (journal, documents):
            return run_sync(aevaluate(agent, examples, concurrency, on_result, journal, documents, bar))


@contextmanager
def opened(agent: Agent, folder: str | Path) -> Iterator[tuple[Journal, DocumentStore]]:
    """Open an agent's journal in a folder of results, and the folder's store of documents."""
    # A finished record is not checked against its prompts, so other code has to be another file.
    identity = agent.identity | {"code": code_of_replies()}
    hashed = digest(json.dumps(identity, sort_keys=True, default=str))[:8]
    path = absolute(folder) / f"{agent.reader.name}-{hashed}.jsonl"
    with Journal(path, identity) as journal:
        yield journal, DocumentStore(path.parent / DOCUMENTS)


class _Share:
    """Counts an example as done turn by turn, because a long document takes hours."""

    def __init__(self, example: Example, bar: StatusLine | None) -> None:
        self._characters = max(1, len(example.document))
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
            self._bar.advance(share)


async def _result(agent: Agent, example: Example, journal: Journal | None, on_turn: Callable[[Turn], None]) -> Result:
    key = reading_key(example)
    code = code_of_results(example.rule, agent.reader.file)
    if journal:
        finished = _finished(journal, key, example, code)
        if finished:
            return finished
    reader = agent.reader.name
    started = time.monotonic()
    try:
        observer = Observer(store=journal.reading(key) if journal else None, on_turn=on_turn)
        trace = _without_ids(await agent.aread(example.document, example.question, observer=observer))
    except (BackendError, BudgetError) as failure:  # anything else is a bug and stops the evaluation
        seconds = time.monotonic() - started
        result = Result(example, reader, seconds, error=f"{type(failure).__name__}: {failure}", code=code)
    else:
        verdict = score(example.rule, trace.answer, example.answers)
        result = Result(example, reader, time.monotonic() - started, trace, verdict, code=code)
    if journal:  # in a thread: the record of a long document takes a while to encode
        await asyncio.to_thread(journal.finish, key, result.to_record(stored=True), result.error is not None)
    return result


def _finished(journal: Journal, key: str, example: Example, code: str) -> Result | None:
    """Return a result that a previous call has finished, judged again; ``None`` if there is none or it failed."""
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


def _without_ids(trace: Trace) -> Trace:
    """Return the trace without token ids, which only training needs, and which outweigh the rest of a long trace."""
    turns = tuple(replace(t, reply=replace(t.reply, prompt_ids=(), token_ids=())) for t in trace.turns)
    return replace(trace, turns=turns)
