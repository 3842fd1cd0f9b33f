"""Examples x agent: bounded concurrency, one error boundary, one record per result, resumed by turn.

A failed example is an error result that keeps its reason; it is never an empty answer scored as wrong. Knows agents and
examples; knows no table.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from memagent_lib.agent import Agent, Observer, gather, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data import Example
from memagent_lib.evaluation.results import DOCUMENTS, DocumentStore, Result, reading_key
from memagent_lib.journal import Journal, digest
from memagent_lib.paths import absolute
from memagent_lib.processes import in_jupyter
from memagent_lib.prompts import BudgetError
from memagent_lib.scoring import score
from memagent_lib.trace import Trace

CHARS_IN_FLIGHT = 1 << 26
BYTES_PER_CHAR = 64
"""A document with its trace takes some 30 bytes a character, of which at most half of the machine's memory is to be."""
LINE = "{n_fmt} of {total_fmt} documents, {remaining} left\n"
LINE_S = 30.0


async def aevaluate(
    agent: Agent,
    examples: Iterable[Example],
    concurrency: int = 64,
    on_result: Callable[[Result], None] | None = None,
    journal: Journal | None = None,
    documents: DocumentStore | None = None,
) -> list[Result]:
    """A result for every example, in their order; at most ``concurrency`` are fetched and read at a time.

    With a ``journal``, finished results and turns are found there again, and kept. With a store of ``documents``,
    results whose document has no room there go without its text, so that a thousand huge documents fit in memory.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    waiting, results, room = enumerate(examples), {}, _Room()

    async def work() -> None:
        while (taken := await room.fetch(waiting)) is not None:
            number, example = taken
            result = await _result(agent, example, journal)
            stored = documents is None or documents.add(result.document, example.document)
            results[number] = result if stored else result.lean()
            await room.give(len(example.document))
            if on_result:
                on_result(results[number])

    await gather(work() for _ in range(concurrency))
    return [results[number] for number in sorted(results)]


def chars_in_flight() -> int:
    """How much text of documents is read side by side: four documents of 3.5M tokens or 500 of 32K, and more where this
    machine's memory is over 4 GB (some twenty of 3.5M tokens in 24 GB).
    """
    import psutil

    return max(CHARS_IN_FLIGHT, psutil.virtual_memory().total // BYTES_PER_CHAR)


class _Room:
    """Room for :func:`chars_in_flight` of documents at a time, and always for one document."""

    def __init__(self) -> None:
        self._free = self._all = chars_in_flight()
        self._changed, self._one_at_a_time = asyncio.Condition(), asyncio.Lock()

    async def fetch(self, waiting: Iterator[tuple[int, Example]]) -> tuple[int, Example] | None:
        """The next example once there is room for its document; only one waits, so that no others are in memory."""
        async with self._one_at_a_time:
            taken = next(waiting, None)  # may read a file, briefly
            if taken is None:
                return None
            size = min(len(taken[1].document), self._all)
            async with self._changed:
                await self._changed.wait_for(lambda: self._free >= size)
                self._free -= size
        return taken

    async def give(self, size: int) -> None:
        async with self._changed:
            self._free += min(size, self._all)
            self._changed.notify_all()


def evaluate(
    agent: Agent,
    examples: Iterable[Example],
    concurrency: int = 64,
    folder: str | Path | None = None,
    progress: bool | Callable[[Result], None] = True,
    total: int | None = None,
) -> list[Result]:
    """Evaluate an agent. With a ``folder``, every finished turn and result is kept there, and the same call resumes
    after a crash.

    What is kept is found again by all that a reply depends on (:attr:`Agent.identity`, question, document): other
    weights, words or budgets are read in a file of their own beside it. Errors are tried again; scores are derived
    again, by today's judges. ``progress`` is whether a bar is shown, or is told each result.
    """
    total = len(examples) if total is None and hasattr(examples, "__len__") else total
    with nullcontext(progress) if callable(progress) else progress_bar(total, progress) as advance:
        if folder is None:
            return run_sync(aevaluate(agent, examples, concurrency, advance))
        with opened(agent, folder) as (journal, documents):
            return run_sync(aevaluate(agent, examples, concurrency, advance, journal, documents))


@contextmanager
def opened(agent: Agent, folder: str | Path) -> Iterator[tuple[Journal, DocumentStore]]:
    """An agent's journal in a folder of results, and the folder's documents."""
    identity = agent.identity
    hashed = digest(json.dumps(identity, sort_keys=True, default=str))[:8]
    path = absolute(folder) / f"{identity['reader']}-{hashed}.jsonl"
    with Journal(path, identity) as journal:
        yield journal, DocumentStore(path.parent / DOCUMENTS)


async def _result(agent: Agent, example: Example, journal: Journal | None) -> Result:
    key = reading_key(example)
    if journal and (kept := _kept(journal, key, example)):
        return kept
    reader, started = agent.reader.name, time.monotonic()
    try:
        observer = Observer(store=journal.reading(key)) if journal else None
        trace = _without_ids(await agent.aread(example.document, example.question, observer=observer))
    except (BackendError, BudgetError) as failure:
        seconds = time.monotonic() - started
        result = Result(example, reader, seconds, error=f"{type(failure).__name__}: {failure}")
    else:
        verdict = score(example.rule, trace.answer, example.answers)
        result = Result(example, reader, time.monotonic() - started, trace, verdict)
    if journal:
        await asyncio.to_thread(journal.finish, key, result.to_record(stored=True), result.error is not None)
    return result


def _kept(journal: Journal, key: str, example: Example) -> Result | None:
    """A finished result of an earlier call, judged again; ``None`` where there is none or it failed."""
    record = journal.record(key)
    if record is None or record["trace"] is None:
        return None
    found = Result.from_record(record, example.document)
    judged = replace(found, example=example, score=score(example.rule, found.trace.answer, example.answers))
    if judged != found:
        journal.finish(key, judged.to_record(stored=True))
    return judged


def _without_ids(trace: Trace) -> Trace:
    """Token ids are for training; those of a long document are larger than it."""
    turns = tuple(replace(t, reply=replace(t.reply, prompt_ids=(), token_ids=())) for t in trace.turns)
    return replace(trace, turns=turns)


@contextmanager
def progress_bar(total: int | None, wanted: bool = True) -> Iterator[Callable[[Result], None]]:
    """A bar in a terminal or, as plain text that a saved copy keeps, in a notebook that a person has opened; nothing
    under papermill, and elsewhere a line every :data:`LINE_S` seconds.
    """
    from tqdm import tqdm

    if in_jupyter():
        shown = {"file": sys.stdout, "ncols": 80}
    elif sys.stderr.isatty():
        shown = {}
    else:
        shown = {
            "bar_format": LINE,
            "mininterval": LINE_S,
            "maxinterval": LINE_S,
            "disable": "ipykernel" in sys.modules,
        }
    with tqdm(total=total, unit="document", **(shown if wanted else {"disable": True})) as bar:
        yield lambda _: bar.update()
