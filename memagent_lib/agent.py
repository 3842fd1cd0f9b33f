"""An agent: a reader, a model and a wording; :func:`open_agent` builds one, and one loop drives it everywhere.

The evaluator, the command line, the notebooks, the inspector and the verl rollout all read through :func:`drive`. Knows
readers, encoders and backends; knows no examples and no scores. Chunking and tokenisation run in worker threads, so a
long document never holds up the other readings.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from memagent_lib import paths, provenance
from memagent_lib.backends import Backend, BackendError, Sampling, open_backend
from memagent_lib.prompts import Budget, Completion, Encoder, Request, Template
from memagent_lib.readers import READERS, Reader, ReaderSession, continues, reader_named, shows
from memagent_lib.settings import parse
from memagent_lib.text import Chunk, Tokenizer, chunk_stream, drop_text
from memagent_lib.trace import Prompt, Reply, Trace, Turn

T = TypeVar("T")
SETTINGS_FILE = "memagent.json"
_TOKENIZERS = ThreadPoolExecutor(4, thread_name_prefix="memagent-tokens")  # its threads start with its first work
_LOOP_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How a model was trained to read. A model folder keeps it as ``memagent.json``; :func:`open_agent` takes its
    defaults there.

    ``template`` is the name of one that ships with the library, or the words themselves.
    """

    template: str | dict[str, str] = "chunk_first"
    budget: Budget = field(default_factory=Budget)
    reader: str = "overwrite"

    @classmethod
    def load(cls, model: str | Path) -> AgentSettings:
        """The settings in a model folder; the published ones where it has none or ``model`` is no folder."""
        path = paths.absolute(model) / SETTINGS_FILE
        if not path.is_file():
            return cls()
        try:
            return parse(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
        except json.JSONDecodeError as broken:
            raise ValueError(f"{path} is not JSON: {broken}") from broken

    @classmethod
    def of(cls, template: Template, budget: Budget, reader: str) -> AgentSettings:
        shipped = template.name in Template.shipped() and Template.load(template.name) == template
        return cls(template=template.name if shipped else asdict(template), budget=budget, reader=reader)

    def save(self, model: str | Path) -> Path:
        return paths.write_atomically(Path(model) / SETTINGS_FILE, json.dumps(asdict(self), indent=2) + "\n")


def open_agent(
    model: str | Path = "",
    backend: str | Backend = "vllm",
    *,
    reader: str | Reader | None = None,
    template: str | Path | Template | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    sampling: Sampling | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    **options: Any,
) -> Agent:
    """An agent, from names or from objects. What is not given comes from the model's ``memagent.json``, else from the
    paper.

    ``model`` is a folder, a hub name, or a server's name for its model; then ``tokenizer`` says whose tokenizer counts.
    ``budget`` may name single sizes (``{"chunk_tokens": 2000}``). ``options`` are the backend's own: ``base_url``,
    ``api_key`` and ``api`` of ``openai``, ``threads`` of ``vllm`` and ``transformers``, ``drafts`` of ``transformers``,
    ``window`` of all; those that are ``None``, empty or 0 are left out.
    """
    path = paths.model_path(str(model))
    trained = AgentSettings.load(path)
    if not isinstance(budget, Budget):
        budget = replace(trained.budget, **(budget or {}))
    reader = reader or trained.reader
    reader = reader_named(reader) if isinstance(reader, str) else reader
    template = Template.of(template or trained.template)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = _tokenizer(paths.model_path(str(tokenizer or model)), told=bool(tokenizer))
    encoder = Encoder(tokenizer, template, budget)
    if isinstance(backend, str):
        given = {name: value for name, value in options.items() if value is False or value not in (None, "", 0)}
        backend = open_backend(backend, path, sampling, **given)
    return Agent(encoder, backend, reader, provenance.model_hash(str(model)))


def _tokenizer(model: str, told: bool) -> Tokenizer:
    try:
        return Tokenizer.load(model)
    except FileNotFoundError:
        raise
    except OSError as unknown:
        hint = "" if told else ", or name the tokenizer (--tokenizer) of a model that only a server has a name for"
        raise OSError(f"{unknown}{hint}") from unknown


class Keeper(Protocol):
    """Where finished turns are kept and found again by a later try (:class:`memagent_lib.journal.Journal`)."""

    def found(self, prompt: Prompt) -> Reply | None: ...

    def keep(self, prompt: Prompt, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """What happens beside a reading, in worker threads: ``keeper`` keeps each turn as it finishes, ``on_turn`` sees
    them in order.

    ``lean`` drops what only training needs (token ids) and the text of chunks that have been read, after ``on_turn``
    saw it.
    """

    keeper: Keeper | None = None
    on_turn: Callable[[Turn], None] | None = None
    lean: bool = False


@dataclass(slots=True)
class _Asked:
    """A prompt on its way: its request and what the backend gave for it, until it has its reply."""

    prompt: Prompt
    request: Request | None = None
    completion: Completion | None = None
    started: float = 0.0
    seconds: float = 0.0
    reply: Reply | None = None


class _Session:
    """The synchronous half of driving: what a reader asks, in the form a backend takes, and its replies read."""

    def __init__(self, session: ReaderSession, encoder: Encoder, observer: Observer):
        self._session, self._encoder, self._observer = session, encoder, observer
        self._several = False

    def advance(self, finished: list[_Asked]) -> Trace | list[_Asked]:
        """Hand finished prompts to the reader; the prompts that it asks next, or its trace."""
        replies = tuple(self._observe(asked.prompt, self.read(asked)) for asked in finished)
        sent = None if not finished else replies if self._several else replies[0]
        try:
            move = self._session.send(sent)
        except StopIteration as done:
            return done.value
        self._several = isinstance(move, tuple)
        return [self._prepared(prompt) for prompt in (move if self._several else (move,))]

    def read(self, asked: _Asked) -> Reply:
        """Read a completion as the reply, and keep it. An unfinished thought is no reply: neither memory nor answer."""
        if asked.reply is None:
            if self._encoder.tokenizer.still_thinking(asked.completion.text):
                raise BackendError(
                    f"the model was still thinking when its reply ended ({asked.completion.reply_tokens:,} tokens, at "
                    f"most {asked.request.max_tokens:,}); raise memory_tokens and answer_tokens, or switch its "
                    "thinking off"
                )
            reply = self._encoder.reply(asked.prompt, asked.request, asked.completion)
            asked.reply = replace(reply, started=asked.started, seconds=asked.seconds)
            if self._observer.keeper:
                self._observer.keeper.keep(asked.prompt, asked.reply)
        return asked.reply

    def _prepared(self, prompt: Prompt) -> _Asked:
        if self._observer.keeper and (kept := self._observer.keeper.found(prompt)) is not None:
            return _Asked(prompt, reply=kept)
        return _Asked(prompt, self._encoder.encode(prompt))

    def _observe(self, prompt: Prompt, reply: Reply) -> Reply:
        if self._observer.on_turn:
            self._observer.on_turn(Turn(prompt, reply))
        if not self._observer.lean:
            return reply
        if prompt.chunk is not None:
            drop_text(prompt.chunk)
        return replace(reply, prompt_ids=(), token_ids=())


async def drive(session: ReaderSession, encoder: Encoder, backend: Backend, observer: Observer | None = None) -> Trace:
    """Answer a reader's prompts until it returns its trace. Prompts yielded as a tuple are asked side by side."""
    reading = _Session(session, encoder, observer or Observer())

    async def complete(asked: _Asked) -> None:
        if asked.reply is None:
            asked.started = time.time()
            began = time.perf_counter()
            asked.completion = await backend.complete(asked.request)
            asked.seconds = time.perf_counter() - began

    async def complete_and_keep(asked: _Asked) -> None:
        await complete(asked)
        await _in_thread(reading.read, asked)  # kept as it ends, while others are still under way

    asked: list[_Asked] = []
    while not isinstance(found := await _in_thread(reading.advance, asked), Trace):
        asked = found
        if len(asked) == 1:
            await complete(asked[0])
        else:
            await gather(map(complete_and_keep, asked))
    return found


@dataclass(frozen=True)
class Agent:
    """A model that reads documents: encoder + backend + reader; ``aread`` for asynchronous code, else ``read``."""

    encoder: Encoder
    backend: Backend
    reader: Reader = READERS["overwrite"]
    weights: str = ""
    """Whose replies they are: the hash of a model folder's weights, or a model's name."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that a reply depends on beside document and question: what a journal or a cache is keyed by."""
        return {
            "reader": self.reader.__name__,
            "template": asdict(self.encoder.template),
            "budget": asdict(self.encoder.budget),
            "sampling": asdict(getattr(self.backend, "sampling", Sampling())),
            "model": self.weights or type(self.backend).__name__,
        }

    def __post_init__(self) -> None:
        self.encoder.require_window(self.backend.window, "the model's window", shows(self.reader))

    async def aread(
        self,
        document: str | Iterable[str],
        question: str,
        earlier: Trace | None = None,
        observer: Observer | None = None,
    ) -> Trace:
        """Read a document, or continue ``earlier`` with a document that follows what it has read."""
        if earlier is not None and not continues(self.reader):
            able = ", ".join(name for name in READERS if continues(READERS[name]))
            raise ValueError(f"the reader {self.reader.__name__!r} cannot continue a reading; choose from {able}")
        blocks = [document] if isinstance(document, str) else document
        chunks = chunk_stream(blocks, self.encoder.tokenizer, self.encoder.budget.chunk_tokens)
        if earlier is None:
            session = self.reader(question, chunks)
        else:
            session = self.reader(question, chunks_after(earlier, chunks), earlier=earlier)
        return await drive(session, self.encoder, self.backend, observer)

    def read(self, document: str | Iterable[str], question: str, **options: Any) -> Trace:
        """:meth:`aread` with its options, from synchronous code."""
        return run_sync(self.aread(document, question, **options))

    def close(self) -> None:
        run_sync(self.backend.close())


def chunks_after(earlier: Trace, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """``chunks`` numbered and placed as what follows the chunks that ``earlier`` has read."""
    read = [turn.prompt.chunk for turn in earlier.reads if turn.prompt.chunk]
    index = max((chunk.index for chunk in read), default=-1) + 1
    end = max((chunk.end for chunk in read), default=0)
    for chunk in chunks:
        yield replace(chunk, index=chunk.index + index, start=chunk.start + end, end=chunk.end + end)


async def gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines that run side by side. The first error cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also where an event loop is already running (a notebook cell).

    All such work shares one background loop, because engines belong to the loop that first used them. An interrupt
    (Ctrl-C, a notebook's stop button) cancels the work.
    """
    running = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_TOKENIZERS, work, *given)


def _loop() -> asyncio.AbstractEventLoop:
    with _LOOP_LOCK:  # lru_cache alone lets threads that meet here start a loop each
        return _started_loop()


@lru_cache(maxsize=1)
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent-loop", daemon=True).start()
    return loop
