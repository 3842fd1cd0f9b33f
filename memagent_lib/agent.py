"""An agent: a reader, a model and a prompt template. :func:`open_agent` opens an agent, :func:`drive` runs a reading.

The evaluator, the command line, the notebooks, the inspector and the verl rollout all read through :func:`drive`.
Chunking and tokenisation run in worker threads, so a long document never delays other readings. This module depends on
readers, encoders and backends, not on examples or scores.
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
from memagent_lib.models import find_model
from memagent_lib.plugins import plugin_hash
from memagent_lib.prompts import Budget, Encoder, Request, Template
from memagent_lib.readers import READERS, Reader, ReaderSession, reader_named
from memagent_lib.settings import parse
from memagent_lib.status_line import status_line
from memagent_lib.text import Chunk, Tokenizer, chunk_stream
from memagent_lib.trace import Prompt, Reply, Trace, Turn

T = TypeVar("T")
SETTINGS_FILE = "memagent.json"
_TOKENIZERS = ThreadPoolExecutor(4, thread_name_prefix="memagent-tokens")  # its threads start with its first work
_LOOP_LOCK = threading.Lock()


class UnfinishedThought(BackendError):
    """A reply ended inside a thought, so it has no text that could be a memory or an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings with which a model was trained, saved as ``memagent.json`` in the model's folder.

    :func:`open_agent` takes its defaults from them. ``template`` is the name of a template that ships with the library,
    or a table of a template's entries.
    """

    template: str | dict[str, str | dict[str, str]] = "chunk_first"
    budget: Budget = field(default_factory=Budget)
    reader: str = "overwrite"
    chat_template: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's chat template, such as ``{"enable_thinking": False}``."""

    @classmethod
    def load(cls, model: str | Path) -> AgentSettings:
        """Load the settings from a model folder, or return the paper's if it has no ``memagent.json``."""
        path = paths.absolute(model) / SETTINGS_FILE
        if not path.is_file():
            return cls()
        try:
            return parse(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
        except json.JSONDecodeError as broken:
            raise ValueError(f"{path} is not JSON: {broken}") from broken

    @classmethod
    def of(
        cls, template: Template, budget: Budget, reader: str, chat_template: Mapping[str, Any] | None = None
    ) -> AgentSettings:
        shipped = template.name in Template.shipped() and Template.load(template.name) == template
        words = template.name if shipped else asdict(template)
        return cls(template=words, budget=budget, reader=reader, chat_template=dict(chat_template or {}))

    def save(self, model: str | Path) -> Path:
        table = asdict(self) | {"budget": self.budget.sizes}
        if not self.chat_template:
            del table["chat_template"]
        return paths.write_atomically(Path(model) / SETTINGS_FILE, json.dumps(table, indent=2) + "\n")


def open_agent(
    model: str | Path = "",
    backend: str | Backend = "vllm",
    *,
    reader: str | Reader | None = None,
    template: str | Path | Template | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    sampling: Sampling | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    chat_template: Mapping[str, Any] | None = None,
    **options: Any,
) -> Agent:
    """Open an agent from names or objects.

    Arguments that are not set come from the model's ``memagent.json``, or else from the paper's settings. ``model`` is
    a folder, a hub name, or a server's name for its model; in the last case ``tokenizer`` names a folder or hub model
    with the same tokenizer. ``reader`` is a name or ``FILE.py:NAME``. ``budget`` may set only some sizes
    (``{"chunk_tokens": 2000}``). ``chat_template`` sets arguments of the model's chat template
    (``{"enable_thinking": False}``); an argument that the template does not use is refused. ``options`` are passed to
    the backend: ``base_url``, ``api_key`` and ``api`` to ``openai``, ``threads`` to ``vllm`` and ``transformers``,
    ``drafts`` to ``transformers``, and ``window`` to any of them. ``None``, 0 and empty values mean the default.
    """
    remote = backend == "openai"
    # A server has its own names for models, even some that end in .gguf.
    path = paths.model_path(str(model)) if remote else find_model(str(model))
    trained = AgentSettings.load(path)
    if not isinstance(budget, Budget):
        budget = replace(trained.budget, **(budget or {}))
    reader = reader or trained.reader
    if isinstance(reader, str):
        reader = reader_named(reader)
    template = Template.of(template or trained.template)
    _require_known_kinds(template, reader)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = _tokenizer(str(tokenizer or path), named=bool(tokenizer))
    arguments = trained.chat_template | dict(chat_template or {})
    encoder = Encoder(tokenizer.with_chat_arguments(arguments), template, budget)
    if isinstance(backend, str):
        # False counts as set although it is empty: it switches an option off (drafts=False).
        set_options = {name: value for name, value in options.items() if value is False or value}
        if arguments and set_options.get("api") == "chat":  # the server renders its own chat template
            set_options["extra"] = {"chat_template_kwargs": arguments} | dict(set_options.get("extra", {}))
        with status_line(f"loading {Path(model).name} with {backend}"):
            backend = open_backend(backend, path, sampling, **set_options)
    return Agent(encoder, backend, reader, provenance.model_hash(path))


def _require_known_kinds(template: Template, reader: Reader) -> None:
    """Raise :class:`ValueError` for an entry of ``template.kinds`` that no reader uses, such as a misspelt one."""
    # A template serves several readers, so a kind of another reader is no mistake.
    known = {kind.name for each in (*READERS.values(), reader) for kind in each.prompts}
    unknown = sorted(set(template.kinds) - known)
    if unknown:
        raise ValueError(
            f"template {template.name!r} words the kind {', '.join(unknown)}, which no reader has; the kinds are "
            f"{', '.join(sorted(known))}"
        )


def _tokenizer(model: str, named: bool) -> Tokenizer:
    try:
        return Tokenizer.load(find_model(model))
    except OSError as unknown:
        if isinstance(unknown, FileNotFoundError) and not model.lower().endswith(".gguf"):
            raise
        # A server's own name for its model is no hub name, so its tokenizer cannot be found by it.
        hint = ""
        if not named:
            hint = ", or name the tokenizer (--tokenizer) of a model that only a server has a name for"
        raise OSError(f"{unknown}{hint}") from unknown


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

    ``store`` supplies the replies it already has, and receives each new turn as soon as it finishes; ``on_turn`` is
    called with the turns in order. With ``lean``, the text of chunks and the data that only training needs are dropped
    after each turn, so that a gigabyte can be read in little memory.
    """

    store: TurnStore | None = None
    on_turn: Callable[[Turn], None] | None = None
    lean: bool = False


@dataclass(slots=True)
class _Pending:
    """A prompt on its way to a reply. ``request`` is ``None`` if the store already had the reply."""

    prompt: Prompt
    request: Request | None = None
    received: Reply | None = None
    reply: Reply | None = None


class _Session:
    """The synchronous half of :func:`drive`: turns prompts into requests, and the backend's replies into turns."""

    def __init__(self, session: ReaderSession, encoder: Encoder, observer: Observer):
        self._session = session
        self._encoder = encoder
        self._observer = observer
        self._parallel = False

    def advance(self, finished: list[_Pending]) -> Trace | list[_Pending]:
        """Send finished turns to the reader; return its next prompts, or its trace."""
        # Prompts answered concurrently are settled already; a single one is settled here, in the same thread.
        turns = tuple(self._observe(one.prompt, self.settle(one)) for one in finished)
        sent = turns if self._parallel else next(iter(turns), None)  # a generator is started with None
        try:
            prompts = self._session.send(sent)
        except StopIteration as done:
            return done.value
        self._parallel = isinstance(prompts, tuple)
        if not self._parallel:
            prompts = (prompts,)
        return [self._prepare(prompt) for prompt in prompts]

    def settle(self, pending: _Pending) -> Reply:
        """Interpret what the backend returned, store the reply and return it. A second call returns the same reply."""
        if pending.reply is None:
            self._require_finished_thought(pending)
            pending.reply = self._encoder.interpret(pending.prompt, pending.request, pending.received)
            if self._observer.store:
                self._observer.store.append(pending.prompt, pending.reply)
        return pending.reply

    def _require_finished_thought(self, pending: _Pending) -> None:
        """Raise an error if the reply is an unfinished thought, because that is neither a memory nor an answer."""
        received = pending.received
        parts = self._encoder.tokenizer.thoughts.split(received.text, separated=bool(received.thinking))
        if not parts.finished:
            raise UnfinishedThought(
                f"the model was still thinking when its reply ended ({received.reply_tokens:,} tokens, at "
                f"most {pending.request.max_tokens:,}); raise thinking_tokens, or switch its thinking off"
            )

    def _prepare(self, prompt: Prompt) -> _Pending:
        if self._observer.store:
            stored = self._observer.store.find(prompt)
            if stored is not None:
                return _Pending(prompt, reply=stored)
        return _Pending(prompt, self._encoder.encode(prompt))

    def _observe(self, prompt: Prompt, reply: Reply) -> Turn:
        turn = Turn(prompt, reply)
        if self._observer.on_turn:
            self._observer.on_turn(turn)
        return turn.lean() if self._observer.lean else turn


async def drive(session: ReaderSession, encoder: Encoder, backend: Backend, observer: Observer | None = None) -> Trace:
    """Answer a reader's prompts until it returns its trace.

    If the reader yields a tuple of prompts, they are answered concurrently.
    """
    reading = _Session(session, encoder, observer or Observer())

    async def complete(pending: _Pending) -> None:
        if pending.reply is not None:
            return
        started = time.time()
        clock = time.perf_counter()
        reply = await backend.complete(pending.request)
        pending.received = replace(reply, started=started, seconds=time.perf_counter() - clock)

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


@dataclass(frozen=True)
class Agent:
    """A model that reads documents: an encoder, a backend and a reader.

    Use :meth:`read` in synchronous code and :meth:`aread` in asynchronous code.
    """

    encoder: Encoder
    backend: Backend
    reader: Reader = READERS["overwrite"]
    weights: str = ""
    """What identifies the model: the hash of its folder's weights, or its name."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that a reply depends on, except the document and the question; the key of journals and caches."""
        template = self.encoder.template
        words = {kind.name: template.words(kind) for kind in self.reader.prompts}
        reader = {"reader": self.reader.name}
        if self.reader.file:
            # The name alone would reuse replies of an older version of the file.
            reader["reader_file"] = plugin_hash(self.reader.file)
        if self.encoder.tokenizer.chat_arguments:
            reader["chat_template"] = self.encoder.tokenizer.chat_arguments
        extra = getattr(self.backend, "extra", None)
        if extra:  # fields of a server's requests, which may change its replies
            reader["extra"] = extra
        return reader | {
            "template": {"name": template.name, "empty_memory": template.empty_memory} | words,
            "budget": self.encoder.budget.sizes,
            "sampling": asdict(getattr(self.backend, "sampling", Sampling())),
            "model": self.weights or type(self.backend).__name__,
        }

    def __post_init__(self) -> None:
        self.encoder.template.require(self.reader.prompts)
        # Checked when the agent is made, not after hours at the first prompt that is too long.
        self.encoder.require_window(self.backend.window, "the model's window", self.reader.prompts)

    async def aread(
        self,
        document: str | Iterable[str],
        question: str,
        previous: Trace | None = None,
        observer: Observer | None = None,
    ) -> Trace:
        """Read a document and return its trace.

        With ``previous``, continue that reading with this document.
        """
        if previous is not None and not self.reader.continues:
            able = ", ".join(name for name, reader in READERS.items() if reader.continues)
            raise ValueError(f"the reader {self.reader.name!r} cannot continue a reading; choose from {able}")
        blocks = [document] if isinstance(document, str) else document
        chunks = chunk_stream(blocks, self.encoder.tokenizer, self.encoder.budget.chunk_tokens)
        if previous is not None:
            chunks = chunks_after(previous, chunks)
        session = self.reader(question, chunks, previous)
        return await drive(session, self.encoder, self.backend, observer)

    def read(self, document: str | Iterable[str], question: str, **options: Any) -> Trace:
        """Read a document from synchronous code, with the options of :meth:`aread`."""
        return run_sync(self.aread(document, question, **options))

    def close(self) -> None:
        run_sync(self.backend.close())


def chunks_after(previous: Trace, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Renumber ``chunks`` and shift their offsets, so that they follow the chunks that ``previous`` has read."""
    read = [turn.prompt.chunk for turn in previous.reads if turn.prompt.chunk]
    index = max((chunk.index for chunk in read), default=-1) + 1
    end = max((chunk.end for chunk in read), default=0)
    for chunk in chunks:
        yield replace(chunk, index=chunk.index + index, start=chunk.start + end, end=chunk.end + end)


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


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even if an event loop is already running (in a notebook cell).

    All calls share one background loop, because an engine belongs to the loop that first used it. An interrupt (Ctrl-C,
    a notebook's stop button) cancels the work.
    """
    running = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return running.result()
    except BaseException:
        running.cancel()
        raise


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_TOKENIZERS, work, *arguments)


def _loop() -> asyncio.AbstractEventLoop:
    with _LOOP_LOCK:  # lru_cache alone lets threads that meet here start a loop each
        return background_loop()


@lru_cache(maxsize=1)
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop shared by all synchronous calls; it runs in its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent-loop", daemon=True).start()
    return loop
