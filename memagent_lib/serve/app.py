"""The web application: it answers chat and text completion requests by reading their documents with a memory.

If a client disconnects, its reading ends. The server sets the sampling, so settings in a request that differ are
reported back as ignored.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Remote, Sampling
from memagent_lib.driver import Observer
from memagent_lib.prompts import BudgetError, Encoder
from memagent_lib.readers import reader_named
from memagent_lib.serve import wire
from memagent_lib.serve.completions import CompletionRequest
from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask, require_split, task_of
from memagent_lib.serve.guard import Guard
from memagent_lib.settings import require_at_least
from memagent_lib.trace import Trace, Turn

Form = TypeVar("Form", ChatRequest, CompletionRequest)
QUIET_S = 15.0
"""After this long without a turn, a comment is sent in the stream, so that proxies do not close the connection."""
EXPECTED = (BudgetError, BackendError, BackendUnavailable)
STORED_TRACES = 64
CLIENT_GONE = 499  # nginx's code; only a log sees it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How a server answers: ``readings`` requests run concurrently, ``waiting`` more may queue, others get status 429.

    A request has at most ``body_mb`` megabytes. ``split`` is the default rule for dividing a message
    (:data:`~memagent_lib.serve.conversation.SPLITS`). ``allowed_hosts`` are names of this machine besides localhost,
    such as a proxy's.
    """

    name: str
    split: str = "last_paragraph"
    readings: int = 8
    waiting: int = 64
    body_mb: int = 1024
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_at_least(self, 1, "readings", "body_mb")
        require_at_least(self, 0, "waiting")
        require_split(self.split)


def make_app(agent: Agent, settings: ServeSettings, sampling: Sampling | None = None) -> Starlette:
    """Create the application. When it shuts down, it closes the agent's backend.

    It accepts only requests for this machine's own host names and the allowed ones, so that no web page can reach it
    through the browser. After the model's server was unavailable, later requests try it again.
    """
    if isinstance(agent.backend, Remote):
        agent.backend.expect_strangers()
    server = ReadingServer(agent, settings, sampling or Sampling())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await agent.backend.close()

    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/completions", server.text_completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/v1/traces/{trace_id}", server.trace),
        Route("/health", server.health),
    ]
    # Starlette looks up the handlers of an exception's base classes too, so the one for Exception gets bugs.
    handlers = dict.fromkeys((ChatError, HTTPException, *EXPECTED, Exception), _failed) | {ClientDisconnect: _gone}
    guard = [Middleware(Guard, allowed=settings.allowed_hosts)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=guard, lifespan=lifespan)


class ReadingServer:
    """The endpoints and their shared state: the agent, the queue of readings, and the latest traces."""

    def __init__(self, agent: Agent, settings: ServeSettings, sampling: Sampling):
        self._agent = agent
        self._settings = settings
        self._sampling = sampling
        self.slots = asyncio.Semaphore(settings.readings)  # in order of arrival
        self.requests: set[asyncio.Task[Trace]] = set()  # waiting or running
        self.unavailable: str | None = None
        self._traces: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def chat(self, request: Request) -> Response:
        chat = await self._parsed(request, ChatRequest)
        reading = self._begin(chat)
        if chat.stream:
            return StreamingResponse(self._events(chat, reading), media_type="text/event-stream")
        traces = await self._finished(request, [reading])
        if traces is None:
            return Response(status_code=CLIENT_GONE)
        text = wire.cut_at(traces[0].answer, chat.stop)
        metadata = self._metadata(chat, reading, traces[0])
        return JSONResponse(wire.completion(reading.id, self._settings.name, text, traces[0], metadata))

    async def text_completions(self, request: Request) -> Response:
        """Read each prompt of a request as a chat with one message, and return all replies together, in order."""
        form = await self._parsed(request, CompletionRequest)
        prompts = form.texts(self._agent.encoder.tokenizer)
        most = self._settings.readings + self._settings.waiting
        if len(prompts) > most:
            raise ChatError(
                f"{len(prompts)} prompts in one request, and this server takes {most}; send fewer", "prompt"
            )
        readings: list[_Reading] = []
        try:
            for prompt in prompts:
                readings.append(self._begin(form.chat(prompt)))
        except ChatError:  # one prompt is refused, so none is answered
            for reading in readings:
                reading.work.cancel()
            raise
        traces = await self._finished(request, readings)
        if traces is None:
            return Response(status_code=CLIENT_GONE)
        choices = []
        for prompt, reading, trace in zip(prompts, readings, traces, strict=True):
            text = wire.cut_at(trace.answer, form.stop)
            if form.echo:
                text = prompt + text
            metadata = self._metadata(form.chat(prompt), reading, trace)
            choices.append(wire.text_choice(len(choices), text, trace, metadata))
        return JSONResponse(wire.text_completion(readings[0].id, self._settings.name, choices, traces))

    def _begin(self, chat: ChatRequest) -> _Reading:
        wire.require_supported(chat)
        task = task_of(chat, self._fits, self._settings.split)
        if len(self.requests) >= self._settings.readings + self._settings.waiting:
            raise ChatError(
                f"{self._settings.readings} requests are being read and {self._settings.waiting} wait, as many as may; "
                "try again later",
                status=429,
            )
        return _Reading(self, self._agent_for(chat, task), task)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._require_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def trace(self, request: Request) -> Response:
        # The id of a reply is accepted too: chatcmpl-ID or cmpl-ID.
        found = self._traces.get(request.path_params["trace_id"].rpartition("-")[2])
        if found is None:
            raise ChatError(f"no such trace; the server stores the last {STORED_TRACES}", status=404)
        return JSONResponse(found)

    async def health(self, _: Request) -> Response:
        """Report the queue and the state of the model: ``ok``, ``retrying``, or ``unavailable`` (with status 503)."""
        settings = self._settings
        requests = len(self.requests)
        reading = min(requests, settings.readings)
        state = {
            "status": "ok",
            "requests": requests,
            "reading": {"now": reading, "most": settings.readings},
            "waiting": {"now": requests - reading, "most": settings.waiting},
        }
        trouble = self._trouble()
        if self.unavailable:
            return JSONResponse(state | {"status": "unavailable", "error": self.unavailable}, 503)
        if trouble:
            state |= {"status": "retrying", "error": trouble}
        return JSONResponse(state)

    def _trouble(self) -> str | None:
        backend = self._agent.backend
        if not isinstance(backend, Remote):
            return self.unavailable
        trouble = backend.trouble()
        if trouble is None:
            self.unavailable = None
        return trouble

    def store(self, trace_id: str, task: ReadingTask, trace: Trace) -> None:
        # Without the document: 64 of them could take gigabytes.
        self._traces[trace_id] = {
            "id": trace_id,
            "rule": task.rule,
            "document_chars": len(task.document or ""),
            "trace": trace.to_record(),
        }
        while len(self._traces) > STORED_TRACES:
            self._traces.popitem(last=False)

    async def _parsed(self, request: Request, form: type[Form]) -> Form:
        body = bytearray()
        limit = self._settings.body_mb << 20
        async for block in request.stream():
            body += block
            if len(body) > limit:  # before the whole of it is in memory
                fix = "send less, or start the server with a larger --body-mb"
                raise ChatError(f"the request is over {self._settings.body_mb:,} MB; {fix}", status=413)
        try:
            chat = form.model_validate(wire.parsed(bytes(body)))
        except ValidationError as wrong:
            first = wrong.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ChatError(f"{where or 'the body'}: {first['msg']}", where or None) from wrong
        except RecursionError as deep:
            raise ChatError("the body is JSON nested too deep") from deep
        except ValueError as wrong:
            raise ChatError(f"the body is not JSON in UTF-8: {wrong}") from wrong
        self._require_name(chat.model)
        return chat

    def _require_name(self, name: str) -> None:
        if name != self._settings.name:
            raise ChatError(
                f"no model {name!r}; this server has {self._settings.name}", "model", 404, "model_not_found"
            )

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._settings.name,
            "object": "model",
            "created": 0,
            "owned_by": "memagent",
            # Clients refuse prompts longer than this, and the size of a body is our only limit.
            "max_model_len": self._settings.body_mb << 20,
        }

    def _fits(self, text: str) -> bool:
        encoder = self._agent.encoder
        most = encoder.budget.question_tokens
        if len(text) > 32 * most:  # far too long, so tokenising it would only take time
            return False
        return encoder.tokenizer.count(text) <= most

    def _agent_for(self, chat: ChatRequest, task: ReadingTask) -> Agent:
        """Return the server's agent, with the request's limit on the answer's length.

        Without a document, its reader is ``blind``.
        """
        encoder = self._agent.encoder
        most = chat.max_completion_tokens or chat.max_tokens
        if most is not None and most < encoder.budget.answer_tokens:
            encoder = Encoder(encoder.tokenizer, encoder.template, replace(encoder.budget, answer_tokens=most))
        reader = self._agent.reader
        if task.document is None:
            reader = reader_named("blind")  # answers from the question alone, in one turn
        return replace(self._agent, encoder=encoder, reader=reader)

    def _metadata(self, chat: ChatRequest, reading: _Reading, trace: Trace) -> dict[str, Any]:
        own = self._sampling
        ignored = wire.ignored(chat, {"temperature": own.temperature, "top_p": own.top_p, "seed": own.seed})
        return wire.reading_metadata(reading.id, reading.task, trace, ignored)

    async def _finished(self, request: Request, readings: list[_Reading]) -> list[Trace] | None:
        """Wait for the readings and return their traces. If the client disconnects first, end them and return None."""
        gone = asyncio.create_task(_disconnected(request))
        finished = asyncio.gather(*(reading.work for reading in readings))
        try:
            await asyncio.wait({gone, finished}, return_when=asyncio.FIRST_COMPLETED)
            return finished.result() if finished.done() else None
        finally:
            gone.cancel()
            for reading in readings:
                reading.work.cancel()

    async def _events(self, chat: ChatRequest, reading: _Reading) -> AsyncIterator[str]:
        """Yield the events of a streamed reply: role, one without text per turn, answer, finish reason, usage."""
        head = (reading.id, self._settings.name)
        try:
            yield wire.chunk_event(*head, {"role": "assistant", "content": ""})
            async for metadata in reading.progress():
                if metadata:
                    yield wire.chunk_event(*head, {}, memagent=metadata)
                else:
                    yield ": reading\n\n"
            trace = reading.work.result()
            text = wire.cut_at(trace.answer, chat.stop)
            yield wire.chunk_event(*head, {"content": text})
            metadata = self._metadata(chat, reading, trace)
            yield wire.chunk_event(*head, {}, wire.finish_reason(trace, text), memagent=metadata)
            if (chat.stream_options or {}).get("include_usage"):
                yield wire.usage_event(*head, trace)
        except Exception as failure:
            body, _ = _error(failure)  # the status line is sent already, so the error is an event
            yield wire.event(body)
            if not isinstance(failure, EXPECTED):
                raise
        finally:
            reading.work.cancel()
        yield "data: [DONE]\n\n"


class _Reading:
    """A reading in progress. ``work`` is its asyncio task; :meth:`progress` follows its turns."""

    def __init__(self, server: ReadingServer, agent: Agent, task: ReadingTask):
        self.id = uuid.uuid4().hex
        self.task = task
        self._server = server
        self._agent = agent
        self._turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        self.work = asyncio.create_task(self._read())
        server.requests.add(self.work)
        self.work.add_done_callback(server.requests.discard)

    async def _read(self) -> Trace:
        loop = asyncio.get_running_loop()  # a backend may report its turns from another thread
        observer = Observer(on_turn=lambda turn: loop.call_soon_threadsafe(self._turn_done, turn), lean=True)
        try:
            async with self._server.slots:
                trace = await self._agent.aread(self.task.document or "", self.task.prompt, observer=observer)
        except BackendUnavailable as failure:
            self._server.unavailable = str(failure)
            raise
        finally:
            self._turns.put_nowait(None)  # ends progress(), whether the reading succeeded or not
        self._server.store(self.id, self.task, trace)
        return trace

    def _turn_done(self, turn: Turn) -> None:
        self._server.unavailable = None
        # Without its chunk's text: unless the client streams, turns stay here until the reading ends.
        self._turns.put_nowait(turn.lean())

    async def progress(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the metadata of each turn as it finishes, and None whenever none has finished for :data:`QUIET_S`."""
        count = 0
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    turn = await self._turns.get()
            except TimeoutError:
                yield None
                continue
            if turn is None:
                break
            count += 1
            yield wire.progress_metadata(self.id, self.task, count, turn)
        await asyncio.wait({self.work})  # its result is read next, and the last turn came before it ended


async def _disconnected(request: Request) -> None:
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _error(failure: Exception) -> tuple[dict[str, Any], int]:
    """Return an error in OpenAI's format, and its HTTP status. A bug's message is not sent; it is in the log."""
    match failure:
        case ChatError():
            return wire.error(str(failure), failure.status, failure.param, failure.code), failure.status
        case HTTPException():
            return wire.error(str(failure.detail), failure.status_code), failure.status_code
        case BudgetError():
            return wire.error(str(failure), 400, None, "context_length_exceeded"), 400
        case BackendUnavailable():
            return wire.error(str(failure), 503), 503
        case BackendError():
            return wire.error(str(failure), 502), 502
        case _:
            return wire.error("an error of this server, which its log describes", 500), 500


def _failed(_: Request, failure: Exception) -> Response:
    body, status = _error(failure)
    after_s = 10.0 if status == 429 else None
    if isinstance(failure, BackendUnavailable):
        after_s = failure.after_s
    if after_s is None:
        return JSONResponse(body, status)
    return JSONResponse(body, status, {"Retry-After": str(ceil(after_s))})


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
