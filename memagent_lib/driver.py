"""The driver: turn a reader's prompts into requests and the backend's replies into turns, until the trace is finished.

A reply that should be a memory is judged here (:mod:`memagent_lib.bad_memory`), for every reader, in training as in
evaluation. Chunking and tokenisation run in worker threads, so a long document never delays other readings. This module
depends on readers, encoders and backends, not on examples or scores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from memagent_lib.backends import Backend, BackendError
from memagent_lib.bad_memory import Fault, OnBadMemory, PromptParts, fault_of
from memagent_lib.prompts import Encoder, Request
from memagent_lib.readers import ReaderError, ReaderSession
from memagent_lib.trace import BadMemory, Prompt, Reply, Trace, Turn

T = TypeVar("T")
_TOKENIZERS = ThreadPoolExecutor(4, thread_name_prefix="memagent-tokens")  # its threads start with its first work


class UnfinishedThought(BackendError):
    """A reply ended inside a thought, so it has no text that could be a memory or an answer."""


class TurnStore(Protocol):
    """A store of finished turns, so that a repeated reading does not generate them again.

    :meth:`memagent_lib.journal.Journal.reading` returns one.
    """

    def find(self, prompt: Prompt) -> Reply | None:
        """Return the stored reply to ``prompt``, or ``None``.

        If a prompt occurs several times, its replies are returned in the order in which they were stored.
        """

    def append(self, prompt: Prompt, reply: Reply) -> None:
        """Store a finished turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Hooks that worker threads call during a reading.

    ``store`` supplies the replies it already has, and receives each new one as soon as it arrives; ``on_turn`` is
    called with the turns in order. With ``lean``, the text of chunks and the data that only training needs are dropped
    after each turn, so that a gigabyte can be read in little memory.
    """

    store: TurnStore | None = None
    on_turn: Callable[[Turn], None] | None = None
    lean: bool = False


class TimedStore:
    """The store of a reading's turns, if it has one, and how long the reading has taken so far.

    The time of turns that an earlier call has stored is included, so a reading takes as long whether it was interrupted
    or not.
    """

    def __init__(self, store: TurnStore | None):
        self._store = store
        self._started = time.monotonic()
        self._stored: list[tuple[float, float]] = []

    def find(self, prompt: Prompt) -> Reply | None:
        reply = self._store.find(prompt) if self._store else None
        if reply is not None:
            self._stored.append((reply.started, reply.started + reply.seconds))
        return reply

    def append(self, prompt: Prompt, reply: Reply) -> None:
        if self._store:
            self._store.append(prompt, reply)

    @property
    def seconds(self) -> float:
        before = until = 0.0
        for start, end in sorted(self._stored):
            # Replies that were generated at the same time count once.
            before += max(0.0, end - max(start, until))
            until = max(until, end)
        return time.monotonic() - self._started + before


@dataclass(slots=True)
class _Pending:
    """A prompt on its way to a reply. ``request`` is ``None`` if the store already had the reply.

    ``faults`` has a fault for each reply that was not a memory, and ``turned_away`` the replies that were not taken.
    """

    prompt: Prompt
    request: Request | None = None
    received: Reply | None = None
    reply: Reply | None = None
    faults: list[Fault] = field(default_factory=list)
    turned_away: list[Reply] = field(default_factory=list)


class _Session:
    """The synchronous half of :func:`drive`: turns prompts into requests, and the backend's replies into turns.

    The store has replies as they came, so a repeated reading judges them again, with the same result.
    """

    def __init__(self, session: ReaderSession, encoder: Encoder, observer: Observer, on_bad_memory: OnBadMemory):
        self._session = session
        self._encoder = encoder
        self._observer = observer
        self._store = observer.store or TimedStore(None)
        self._on_bad_memory = on_bad_memory
        self._parallel = False
        self._pending: list[_Pending] = []

    def advance(self, finished: list[_Pending]) -> Trace | list[_Pending]:
        """Take finished prompts; return those to send once more, or the reader's next prompts, or its trace."""
        # Prompts answered concurrently are settled already; a single one is settled here, in the same thread.
        for one in finished:
            self.settle(one)
        again = [one for one in finished if self._is_sent_again(one)]
        if again:
            return again
        turns = tuple(self._observe(self._turn(one)) for one in self._pending)
        sent = turns if self._parallel else next(iter(turns), None)  # a generator is started with None
        try:
            prompts = self._session.send(sent)
        except StopIteration as done:
            return done.value
        self._parallel = isinstance(prompts, tuple)
        if not self._parallel:
            prompts = (prompts,)
        if not all(isinstance(prompt, Prompt) for prompt in prompts):
            raise ReaderError(f"a reader yields a Prompt or a tuple of Prompts, got {prompts!r:.80}")
        self._pending = [self._prepare(prompt) for prompt in prompts]
        return self._pending

    def settle(self, pending: _Pending) -> None:
        """Interpret what the backend returned, and store the reply. A second call does nothing."""
        if pending.reply is None:
            self._finish_thought(pending)
            pending.reply = self._encoder.interpret(pending.prompt, pending.request, pending.received)
            self._store.append(pending.prompt, pending.reply)

    def _finish_thought(self, pending: _Pending) -> None:
        """Raise an error if the reply is an unfinished thought, because that is neither a memory nor an answer.

        If bad memories are not taken, a thought instead of a memory becomes an empty reply, and is judged as one.
        """
        received = pending.received
        parts = self._encoder.tokenizer.thoughts.split(received.text, separated=bool(received.thinking))
        if parts.finished:
            return
        if pending.prompt.kind.writes_memory and self._on_bad_memory is not OnBadMemory.TAKE:
            thinking = "\n".join(filter(None, (received.thinking, parts.thinking)))
            pending.received = replace(received, text="", thinking=thinking)
            return
        raise UnfinishedThought(
            f"the model was still thinking when its reply ended ({received.reply_tokens:,} tokens, at "
            f"most {pending.request.max_tokens:,}); raise thinking_tokens, or switch its thinking off"
        )

    def _prepare(self, prompt: Prompt) -> _Pending:
        stored = self._store.find(prompt)
        return _Pending(prompt, None if stored else self._encoder.encode(prompt), reply=stored)

    def _is_sent_again(self, pending: _Pending) -> bool:
        """Judge a settled reply, and prepare the second attempt if there is to be one."""
        fault = self._fault(pending.prompt, pending.reply)
        if fault is None:
            return False
        pending.faults.append(fault)
        if self._on_bad_memory is OnBadMemory.TAKE:
            return False
        pending.turned_away.append(pending.reply)
        if self._on_bad_memory is OnBadMemory.KEEP or len(pending.turned_away) > 1:
            return False
        pending.reply = self._store.find(pending.prompt)
        if pending.reply is None:
            pending.request = replace(pending.request or self._encoder.encode(pending.prompt), attempt=1)
        return True

    def _fault(self, prompt: Prompt, reply: Reply) -> Fault | None:
        if not prompt.kind.writes_memory:
            return None
        if reply.thinking and reply.cut and not reply.text:
            return Fault.UNFINISHED
        opened = prompt.opened(reply)
        if opened.text == prompt.old_memory:
            return None
        if prompt.kind.malformed and prompt.kind.malformed(opened.text):
            return Fault.COMMAND
        template = self._encoder.template
        chunk = prompt.chunk.text if prompt.chunk else ""
        wording = template.wording(prompt.kind)
        return fault_of(opened.text, PromptParts(prompt.memory, chunk, prompt.question, wording, template.empty_memory))

    def _turn(self, pending: _Pending) -> Turn:
        prompt = pending.prompt
        reply = prompt.opened(pending.reply)
        if not pending.faults:
            return Turn(prompt, reply)
        action = self._on_bad_memory
        if action is OnBadMemory.RETRY and len(pending.turned_away) == len(pending.faults) > 1:
            action = OnBadMemory.KEEP
        if action is OnBadMemory.KEEP:
            # Only the reply that was turned away may have been truncated, not the memory that stays.
            reply = replace(reply, text=prompt.old_memory, finish_reason="stop")
        return Turn(prompt, reply, BadMemory(pending.faults[0], action, tuple(pending.turned_away)))

    def _observe(self, turn: Turn) -> Turn:
        if self._observer.on_turn:
            self._observer.on_turn(turn)
        return turn.lean() if self._observer.lean else turn


async def drive(
    session: ReaderSession,
    encoder: Encoder,
    backend: Backend,
    observer: Observer | None = None,
    on_bad_memory: OnBadMemory = OnBadMemory.TAKE,
) -> Trace:
    """Answer a reader's prompts until it returns its trace.

    The evaluator, the command line, the notebooks, the inspector and the verl rollout all read through this function.
    If the reader yields a tuple of prompts, they are answered concurrently. Raises :class:`BackendError` if the backend
    fails, and :class:`UnfinishedThought` for a reply that is needed and has only a thought.
    """
    reading = _Session(session, encoder, observer or Observer(), on_bad_memory)

    async def complete(pending: _Pending) -> None:
        if pending.reply is not None:
            return
        started = time.time()
        begun = time.perf_counter()
        reply = await backend.complete(pending.request)
        pending.received = replace(reply, started=started, seconds=time.perf_counter() - begun)

    async def complete_and_settle(pending: _Pending) -> None:
        await complete(pending)
        await _in_thread(reading.settle, pending)  # stored as it ends, while others are still under way

    pending: list[_Pending] = []
    while True:
        move = await _in_thread(reading.advance, pending)
        if isinstance(move, Trace):
            return move
        pending = move
        if len(pending) == 1:
            await complete(pending[0])
        else:
            await gather(map(complete_and_settle, pending))


async def gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results.

    The first error cancels the other coroutines and is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failed:
        # Callers catch single errors such as BackendError, never a group.
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_TOKENIZERS, work, *arguments)
