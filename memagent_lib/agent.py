"""An agent: a reader, a model and a prompt template. :func:`open_agent` opens one.

This module depends on readers, encoders and backends, not on examples or scores.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from memagent_lib import paths, provenance
from memagent_lib.backends import Backend, Sampling, backend_for_one_reading, open_backend, require_backend
from memagent_lib.bad_memory import OnBadMemory
from memagent_lib.driver import Observer, drive
from memagent_lib.models import HUB_NAME, find_model, hub_file, load_tokenizer
from memagent_lib.plugins import plugin_hash
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import READERS, Reader, reader_named, require_continues
from memagent_lib.settings import parse
from memagent_lib.status_line import status_line
from memagent_lib.text import Chunk, Tokenizer, chunk_stream
from memagent_lib.tokenizer import looks_like_path
from memagent_lib.trace import Trace

T = TypeVar("T")
SETTINGS_FILE = "memagent.json"
SIGNALS_S = 0.5  # how often to wake, so that Python runs its signal handlers
_LOOP_LOCK = threading.Lock()
_LOG = logging.getLogger("memagent_lib")


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
    on_bad_memory: str = OnBadMemory.TAKE
    """What happens to a reply that is not a memory: ``take``, ``keep`` or ``retry``."""

    def __post_init__(self) -> None:
        OnBadMemory.of(self.on_bad_memory)

    @staticmethod
    def are_saved(model: str | Path) -> bool:
        """Return whether a model folder or hub model has settings, and so was trained by this project."""
        try:
            return _settings_file(model) is not None
        except OSError:
            return False

    @classmethod
    def load(cls, model: str | Path) -> AgentSettings:
        """Load the settings of a model folder or hub name, or return the defaults if it has no ``memagent.json``.

        A hub that cannot be reached is a warning, and the defaults are returned.
        """
        try:
            path = _settings_file(model)
        except OSError as failure:
            _LOG.warning("no %s of %s from the hub (%s); reading with default settings", SETTINGS_FILE, model, failure)
            return cls()
        if path is None:
            return cls()
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as broken:
            raise ValueError(f"{path} is not JSON ({broken})") from broken
        return parse(cls, table, str(path))

    def save(self, model: str | Path) -> Path:
        return paths.write_atomically(Path(model) / SETTINGS_FILE, json.dumps(asdict(self), indent=2) + "\n")


def _settings_file(model: str | Path) -> Path | None:
    """Return the path of a model's settings, or ``None`` if it has none.

    Raises :class:`OSError` if that is not known, because the hub cannot be reached and the file is not in its cache.
    """
    path = Path(paths.model_path(str(model))) / SETTINGS_FILE
    if path.is_file():
        return path
    if looks_like_path(model) or not HUB_NAME.fullmatch(str(model)):
        return None
    return hub_file(str(model), SETTINGS_FILE)


def chat_arguments(model: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model's chat template for training: a recipe's ``own``, else ``memagent.json``'s."""
    return AgentSettings.load(model).chat_template | dict(own)


def tokenizer_to_train(model: str, own: Mapping[str, Any]) -> Tokenizer:
    """Return a model's tokenizer with the :func:`chat_arguments` of its training."""
    return load_tokenizer(model).with_chat_arguments(chat_arguments(model, own))


def open_agent(
    model: str | Path = "",
    backend: str | Backend | None = None,
    *,
    reader: str | Reader | None = None,
    template: str | Path | Template | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    sampling: Sampling | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    chat_template: Mapping[str, Any] | None = None,
    on_bad_memory: str | None = None,
    **options: Any,
) -> Agent:
    """Open an agent from names or objects.

    The reader, template, budget, arguments of the chat template and ``on_bad_memory`` that are not set come from the
    model's ``memagent.json``, in its folder or on the hub, or else from the defaults of :class:`AgentSettings`.
    ``model`` is a folder, a GGUF file, a hub name, or a server's name for its model; in the last case ``tokenizer``
    names a folder or hub model with the same tokenizer. ``backend`` is a name or an object; the default is that of
    ``memagent read`` (:func:`~memagent_lib.backends.backend_for_one_reading`), or ``vllm`` with ``engines``. Name
    ``vllm`` to read many documents. ``reader`` is a name or ``FILE.py:NAME``. ``budget`` may set only some sizes
    (``{"chunk_tokens": 2000}``). ``chat_template`` sets arguments of the model's chat template
    (``{"enable_thinking": False}``); an argument that the template does not use is refused. ``on_bad_memory`` is what
    happens to a reply that is not a memory (:class:`~memagent_lib.bad_memory.OnBadMemory`). ``options`` go to the
    backend: ``base_url``, ``api_key``, ``api`` and ``extra`` to ``openai``, ``threads`` to ``vllm`` and
    ``transformers``, further options of its ``EngineArgs`` to ``vllm``, and ``window`` to any of them; ``engines``
    opens several, on a Ray ``cluster``. ``None``, 0 and empty values mean the default.
    """
    if backend is None or isinstance(backend, str):
        engines = options.get("engines") or 0
        if not backend:
            with status_line(f"choosing a backend for {Path(model).name}"):  # it may import torch
                backend = "vllm" if engines else backend_for_one_reading(str(model))
        require_backend(backend, engines, options.get("cluster") or "")  # before a tokenizer is downloaded
    remote = backend == "openai"
    # A server has its own names for models, even some that end in .gguf.
    path = paths.model_path(str(model)) if remote else find_model(str(model))
    trained = AgentSettings.load(path)
    if not isinstance(budget, Budget):
        budget = parse(Budget, asdict(trained.budget) | dict(budget or {}), "budget")
    action = OnBadMemory.of(on_bad_memory or trained.on_bad_memory)
    reader = reader or trained.reader
    if isinstance(reader, str):
        reader = reader_named(reader)
    template = Template.of(template or trained.template)
    if not isinstance(tokenizer, Tokenizer):
        with status_line(f"loading the tokenizer of {Path(tokenizer or model).name}"):
            tokenizer = load_tokenizer(str(tokenizer or path))
    if not tokenizer.source.chat_template and options.get("api") != "chat":
        _LOG.warning("%s has no chat template, so its prompts are plain text", Path(model).name)
    arguments = trained.chat_template | dict(chat_template or {})
    encoder = Encoder(tokenizer.with_chat_arguments(arguments), template, budget)
    if isinstance(backend, str):
        set_options = _set_options(backend, options, arguments)
        if backend == "vllm":  # an evaluation reads with several readers
            set_options["needed_window"] = max(encoder.window_of(each.prompts) for each in (reader, *READERS.values()))
        with status_line(f"loading {Path(model).name} with {backend}"):
            backend = open_backend(backend, path, sampling, **set_options)
    return Agent(encoder, backend, reader, provenance.model_hash(path), action, tokenizer.digest)


def _set_options(backend: str, options: Mapping[str, Any], chat_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set and that the backend takes."""
    # False counts as set although it is empty: it switches an option off.
    set_options = {name: value for name, value in options.items() if value is False or value}
    if backend == "openai":  # a server has its own threads, and notebooks set the parameter for every backend
        set_options.pop("threads", None)
    if chat_arguments and set_options.get("api") == "chat":  # the server renders its own chat template
        set_options["extra"] = {"chat_template_kwargs": chat_arguments} | dict(set_options.get("extra", {}))
    return set_options


@dataclass(frozen=True)
class Agent:
    """A model that reads documents: an encoder, a backend and a reader.

    Use :meth:`read` in synchronous code and :meth:`aread` in asynchronous code.
    """

    encoder: Encoder
    backend: Backend
    reader: Reader = READERS["overwrite"]
    weights: str = ""
    """What identifies the model: the hash of its folder's weights or of its GGUF file, or its name."""
    on_bad_memory: OnBadMemory = OnBadMemory.TAKE
    """What happens to a reply that is not a memory."""
    tokenizer_digest: str = ""
    """What identifies the tokenizer and its chat template, which are not part of the weights; "" leaves them out."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that a reply depends on, except the document and the question; the key of journals and caches."""
        template = self.encoder.template
        words = {kind.name: template.words(kind) for kind in self.reader.prompts}
        only_if_set = {
            # The name alone would reuse replies of an older version of the file.
            "reader_file": plugin_hash(self.reader.file) if self.reader.file else "",
            "chat_template": self.encoder.tokenizer.chat_arguments,
            "extra": getattr(self.backend, "extra", None),  # fields of a server's requests may change its replies
            "server": getattr(self.backend, "served", None),  # llama.cpp serves its only model under any name
            "on_bad_memory": "" if self.on_bad_memory is OnBadMemory.TAKE else str(self.on_bad_memory),
            "tokenizer": self.tokenizer_digest,
        }
        return {name: value for name, value in only_if_set.items() if value} | {
            "reader": self.reader.name,
            "template": {"name": template.name, "empty_memory": template.empty_memory} | words,
            "budget": asdict(self.encoder.budget),
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

        ``document`` is a text, or its parts in order. With ``previous``, continue that reading with this document.
        Raises :class:`ValueError` if the reader cannot, and if the question is not a text.
        """
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"the question must be a text, got {question!r}")
        blocks = [document] if isinstance(document, str) else document
        chunks = chunk_stream(blocks, self.encoder.tokenizer, self.encoder.budget.chunk_tokens)
        if previous is not None:
            require_continues(self.reader)
            chunks = chunks_after(previous, chunks)
        session = self.reader(question, chunks, previous)
        return await drive(session, self.encoder, self.backend, observer, self.on_bad_memory)

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


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even if an event loop is already running (in a notebook cell).

    All calls share one background loop, because an engine belongs to the loop that first used it. An interrupt (Ctrl-C,
    a notebook's stop button) cancels the work.
    """
    with _LOOP_LOCK:  # lru_cache alone lets threads that meet here start a loop each
        loop = background_loop()
    running = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        # Python handles a signal that another thread received only when the main thread wakes. Without waking, a job
        # that Ctrl-Z stopped and `kill` ends would go on.
        while not wait([running], timeout=SIGNALS_S).done:
            pass
        return running.result()
    except BaseException:
        running.cancel()
        raise


@lru_cache(maxsize=1)
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop shared by all synchronous calls; it runs in its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent-loop", daemon=True).start()
    return loop
