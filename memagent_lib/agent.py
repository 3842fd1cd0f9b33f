"""Driving a reader with a backend: the one loop behind the evaluator, the command line, the notebooks and the inspector.

Knows readers, encoders and backends; knows no examples and no scores. Chunking and tokenisation run in worker threads, so a
long document never holds up the other readings.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from memagent_lib.backends import Backend, BackendError
from memagent_lib.prompts import Completion, Encoder, Request
from memagent_lib.readers import CONTINUING, Move, Reader, Reading, overwrite, shows
from memagent_lib.text import Chunk, chunk_stream, forget
from memagent_lib.trace import Prompt, Reply, Trace, Turn

T = TypeVar("T")
TOKENIZING_THREADS = 4
SLICE_TOKENS = 256


class Keeper(Protocol):
    """Where finished turns are kept as they finish, and found again by a later try (:class:`memagent_lib.journal.Journal`)."""

    def found(self, prompt: Prompt) -> Reply | None: ...

    def keep(self, prompt: Prompt, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a driver does beside driving; all of it happens in worker threads, in the order in which turns finish.

    ``lean`` drops what only training needs (token ids) and the text of chunks that have been read, after ``on_turn`` saw it.
    """

    keeper: Keeper | None = None
    on_turn: Callable[[Turn], None] | None = None
    lean: bool = False

    def finished(self, prompt: Prompt, reply: Reply, fresh: bool) -> Reply:
        if fresh and self.keeper:
            self.keeper.keep(prompt, reply)
        if self.on_turn:
            self.on_turn(Turn(prompt, reply))
        if not self.lean:
            return reply
        if prompt.chunk is not None:
            forget(prompt.chunk)
        return replace(reply, prompt_ids=(), token_ids=())


async def drive(
    reading: Reading,
    encoder: Encoder,
    backend: Backend,
    watch: Watch | None = None,
    upcoming: Callable[[], Chunk | None] | None = None,
) -> Trace:
    """Answer a reader's prompts until it returns its trace. Prompts yielded as a tuple are asked side by side.

    ``upcoming`` gives the chunk after the one being read: its prefix is then prefilled while the memory is being written.
    """
    watch, ahead, answers = watch or Watch(), _Prefetch(encoder, backend, upcoming), None
    try:
        while True:
            move = await _off_loop(_advance, reading, answers)
            if isinstance(move, Trace):
                return move
            await ahead.arrive()
            if isinstance(move, tuple):
                answers = tuple(await gather(_ask(prompt, encoder, backend, watch) for prompt in move))
            else:
                await ahead.start(move)
                answers = await _ask(move, encoder, backend, watch)
    finally:
        ahead.cancel()


def _advance(reading: Reading, answers: Reply | tuple[Reply, ...] | None) -> Move | Trace:
    try:
        return next(reading) if answers is None else reading.send(answers)
    except StopIteration as done:
        return done.value


async def _ask(prompt: Prompt, encoder: Encoder, backend: Backend, watch: Watch) -> Reply:
    if watch.keeper is not None and (kept := await _off_loop(watch.keeper.found, prompt)) is not None:
        return await _off_loop(watch.finished, prompt, kept, False)

    def read(completion: Completion) -> Reply:
        return watch.finished(prompt, encoder.reply(prompt, request, completion), True)

    request = await _off_loop(encoder.encode, prompt)
    return await _off_loop(read, await backend.complete(request))


class _Prefetch:
    """Prefills the prefix of the next turn, slice by slice, with requests for one token. Where one fails, only time is lost.

    A slice rides along on the engine's decoding steps, which leave arithmetic unused; the whole prefix in one step would hold
    the memory up for as long as it saves. How much rides along for nothing is the engine's ``slice_tokens``, or
    :data:`SLICE_TOKENS`. When the memory is there, no further slice is begun.
    """

    def __init__(self, encoder: Encoder, backend: Backend, upcoming: Callable[[], Chunk | None] | None):
        self._encoder, self._backend = encoder, backend
        self._upcoming = upcoming if encoder.template.chunk_first else None
        self._task: asyncio.Task | None = None
        self._due = False

    async def start(self, prompt: Prompt) -> None:
        """Begin with the chunk after ``prompt``'s; chunking and encoding happen beside the turn too."""
        if self._upcoming is not None and prompt.kind.reads:
            self._due = False
            self._task = asyncio.create_task(self._prefill(prompt))
            await asyncio.sleep(0)

    async def _prefill(self, prompt: Prompt) -> None:
        chunk = await _off_loop(self._upcoming)
        if chunk is None:
            return
        ids = await _off_loop(self._encoder.shared_prefix, prompt.kind, prompt.question, chunk)
        size = getattr(self._backend, "slice_tokens", SLICE_TOKENS)
        for end in (*range(size, len(ids), size), len(ids)):
            if self._due:
                return
            try:
                await self._backend.complete(Request(ids[:end], "", 1))
            except BackendError:
                return

    async def arrive(self) -> None:
        """Wait for the slice that was begun: the turn would otherwise prefill the same tokens beside it."""
        self._due = True
        if self._task is not None:
            await self._task
            self._task = None

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


@dataclass(frozen=True)
class Agent:
    """A model that reads documents: encoder + backend + reader.

    ``aread`` for asynchronous code, ``read`` for everything else, notebooks included. ``prefetch`` lowers the latency of one
    long document on an engine with room to spare; with many readings at once it only adds requests.
    """

    encoder: Encoder
    backend: Backend
    reader: Reader = overwrite
    prefetch: bool = False

    def __post_init__(self) -> None:
        self.encoder.require_window(self.backend.window, "the model's window", shows(self.reader))

    async def aread(
        self, document: str | Iterable[str], question: str, earlier: Trace | None = None, watch: Watch | None = None
    ) -> Trace:
        """Read a document, or go on from ``earlier`` with a document that follows what it has read."""
        name = getattr(self.reader, "__name__", "reader")
        if earlier is not None and name not in CONTINUING:
            raise ValueError(f"the reader {name!r} cannot continue a reading; choose from {', '.join(CONTINUING)}")
        blocks = [document] if isinstance(document, str) else document
        pieces = Lookahead(
            chunks_after(earlier, chunk_stream(blocks, self.encoder.tokenizer, self.encoder.budget.chunk_tokens))
        )
        reading = self.reader(question, pieces) if earlier is None else self.reader(question, pieces, earlier=earlier)
        return await drive(reading, self.encoder, self.backend, watch, pieces.peek if self.prefetch else None)

    def read(
        self, document: str | Iterable[str], question: str, earlier: Trace | None = None, watch: Watch | None = None
    ) -> Trace:
        return run_sync(self.aread(document, question, earlier, watch))

    def close(self) -> None:
        run_sync(self.backend.close())


class Lookahead(Iterator[Chunk]):
    """Chunks one by one, with a look at the next. Safe to use from several threads."""

    def __init__(self, chunks: Iterable[Chunk]):
        self._chunks, self._ahead, self._lock = iter(chunks), [], threading.Lock()

    def __next__(self) -> Chunk:
        with self._lock:
            return self._ahead.pop() if self._ahead else next(self._chunks)

    def peek(self) -> Chunk | None:
        with self._lock:
            if not self._ahead:
                self._ahead = [chunk] if (chunk := next(self._chunks, None)) is not None else []
            return self._ahead[0] if self._ahead else None


def chunks_after(earlier: Trace | None, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """``chunks`` numbered and placed as what follows the chunks that ``earlier`` has read."""
    last = (
        max((t.prompt.chunk for t in earlier.reads if t.prompt.chunk), key=lambda c: c.end, default=None)
        if earlier
        else None
    )
    if last is None:
        yield from chunks
        return
    for chunk in chunks:
        yield replace(chunk, index=chunk.index + last.index + 1, start=chunk.start + last.end, end=chunk.end + last.end)


async def gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """Like ``asyncio.gather``, and when one fails or the caller is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also where an event loop is already running (a notebook cell).

    All such work shares one background loop, because engines belong to the loop that first used them. An interrupt (Ctrl-C,
    a notebook's stop button) cancels the work.
    """
    running = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


async def _off_loop(work: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_tokenizers(), work, *given)


@lru_cache(maxsize=1)
def _tokenizers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(TOKENIZING_THREADS, thread_name_prefix="memagent-tokens")


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent-loop", daemon=True).start()
    return loop
