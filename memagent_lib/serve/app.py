"""The web application: chat completions, answered by reading with memory. Knows an agent and OpenAI's forms.

A client that goes away ends its reading. Sampling belongs to the server, so a request's own is told back as ignored.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from memagent_lib.agent import Agent, Observer
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling
from memagent_lib.prompts import BudgetError, Encoder
from memagent_lib.readers import reader_named
from memagent_lib.serve import wire
from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask, require_split, task_of
from memagent_lib.settings import require_at_least
from memagent_lib.trace import Trace, Turn

HOSTS = ["localhost", "127.0.0.1"]
QUIET_S = 15.0  # after so long without a turn, a comment keeps the connection open
EXPECTED = (BudgetError, BackendError, BackendUnavailable)
KEPT_TRACES = 64
CLIENT_GONE = 499  # nginx's word for it; nobody is there to see it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How a server answers. ``readings`` run side by side, ``waiting`` more may wait, others are told to come back."""

    name: str
    split: str = "last_paragraph"
    readings: int = 8
    waiting: int = 64
    body_mb: int = 1024

    def __post_init__(self) -> None:
        require_at_least(self, 1, "readings", "body_mb")
        require_split(self.split)


def make_app(agent: Agent, settings: ServeSettings, sampling: Sampling | None = None) -> Starlette:
    """The application; closing it closes the agent's backend. It answers requests for this machine's own names only."""
    server = ReadingServer(agent, settings, sampling or Sampling())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await agent.backend.close()

    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/v1/traces/{trace_id}", server.trace),
        Route("/health", server.health),
    ]
    handlers = dict.fromkeys((ChatError, HTTPException, *EXPECTED, Exception), _failed) | {ClientDisconnect: _gone}
    guard = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=guard, lifespan=lifespan)


class ReadingServer:
    """The endpoints, and what they share: the agent, places for readings, and the last traces."""

    def __init__(self, agent: Agent, settings: ServeSettings, sampling: Sampling):
        self._agent, self._settings, self._sampling = agent, settings, sampling
        self._places, self._asked = asyncio.Semaphore(settings.readings), 0
        self._traces: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def chat(self, request: Request) -> Response:
        chat = await self._parsed(request)
        wire.require_supported(chat)
        task = task_of(chat, self._fits, self._settings.split)
        if self._asked >= self._settings.readings + self._settings.waiting:
            raise ChatError(f"{self._asked} requests are being read or waiting; try again later", status=429)
        reading = _Reading(self, self._agent_for(chat, task), task)
        if chat.stream:
            return StreamingResponse(self._events(chat, reading), media_type="text/event-stream")
        return await self._whole(request, chat, reading)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._require_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def trace(self, request: Request) -> Response:
        found = self._traces.get(request.path_params["trace_id"].removeprefix("chatcmpl-"))
        if found is None:
            raise ChatError(f"no such trace; the last {KEPT_TRACES} are kept", status=404)
        return JSONResponse(found)

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "requests": self._asked})

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place to read in, waited for in order."""
        self._asked += 1
        try:
            async with self._places:
                yield
        finally:
            self._asked -= 1

    def keep(self, trace_id: str, task: ReadingTask, trace: Trace) -> None:
        facts = {"id": trace_id, "rule": task.rule, "document_chars": len(task.document or "")}
        self._traces[trace_id] = facts | {"trace": trace.to_record()}
        while len(self._traces) > KEPT_TRACES:
            self._traces.popitem(last=False)

    async def _parsed(self, request: Request) -> ChatRequest:
        body, limit = bytearray(), self._settings.body_mb << 20
        async for block in request.stream():
            body += block
            if len(body) > limit:
                raise ChatError(f"the request is over {self._settings.body_mb:,} MB", status=413)
        try:
            chat = ChatRequest.model_validate(json.loads(bytes(body)))
        except ValidationError as wrong:
            first = wrong.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ChatError(f"{where or 'the body'}: {first['msg']}", where or None) from wrong
        except ValueError as wrong:
            raise ChatError(f"the body is not JSON: {wrong}") from wrong
        self._require_name(chat.model)
        return chat

    def _require_name(self, name: str) -> None:
        if name != (own := self._settings.name):
            raise ChatError(f"no model {name!r}; this server has {own}", "model", 404, "model_not_found")

    def _card(self) -> dict[str, Any]:
        """``max_model_len`` is what clients go by: a document of any length that a body holds."""
        own = {"owned_by": "memagent", "max_model_len": self._settings.body_mb << 20}
        return {"id": self._settings.name, "object": "model", "created": 0, **own}

    def _fits(self, text: str) -> bool:
        encoder = self._agent.encoder
        short = len(text) <= encoder.budget.question_tokens * 32  # a long document is not tokenised to learn that
        return short and encoder.tokenizer.count(text) <= encoder.budget.question_tokens

    def _agent_for(self, chat: ChatRequest, task: ReadingTask) -> Agent:
        """The server's agent, with the request's limit of the answer."""
        encoder, most = self._agent.encoder, chat.max_completion_tokens or chat.max_tokens
        if most is not None and most < encoder.budget.answer_tokens:
            encoder = Encoder(encoder.tokenizer, encoder.template, replace(encoder.budget, answer_tokens=most))
        reader = self._agent.reader if task.document is not None else reader_named("blind")
        return replace(self._agent, encoder=encoder, reader=reader)

    def _facts(self, chat: ChatRequest, reading: _Reading, trace: Trace) -> dict[str, Any]:
        sampling = {"temperature": self._sampling.temperature, "top_p": self._sampling.top_p}
        left_out = wire.ignored(chat, sampling | {"seed": self._sampling.seed})
        return wire.reading_facts(reading.id, reading.task, trace, left_out)

    async def _whole(self, request: Request, chat: ChatRequest, reading: _Reading) -> Response:
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({gone, reading.work}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.work.done():
                return Response(status_code=CLIENT_GONE)
            trace = reading.work.result()
        finally:
            gone.cancel()
            reading.work.cancel()
        text = wire.cut_at(trace.answer, chat.stop)
        facts = self._facts(chat, reading, trace)
        return JSONResponse(wire.completion(reading.id, self._settings.name, text, trace, facts))

    async def _events(self, chat: ChatRequest, reading: _Reading) -> AsyncIterator[str]:
        """The stream: who speaks, a piece without text per turn, the answer, why it ended, the usage."""
        of = (reading.id, self._settings.name)
        try:
            yield wire.piece(*of, {"role": "assistant", "content": ""})
            async for facts in reading.progress():
                yield wire.piece(*of, {}, memagent=facts) if facts else ": reading\n\n"
            trace = reading.work.result()
            yield wire.piece(*of, {"content": wire.cut_at(trace.answer, chat.stop)})
            yield wire.piece(*of, {}, wire.finish_reason(trace), memagent=self._facts(chat, reading, trace))
            if (chat.stream_options or {}).get("include_usage"):
                yield wire.usage_piece(*of, trace)
        except Exception as failure:
            yield wire.event(_said(failure)[0])
            if not isinstance(failure, EXPECTED):
                raise
        finally:
            reading.work.cancel()
        yield "data: [DONE]\n\n"


class _Reading:
    """One reading on its way: its task, and its turns as they finish."""

    def __init__(self, server: ReadingServer, agent: Agent, task: ReadingTask):
        self.id, self.task, self._server, self._agent = uuid.uuid4().hex, task, server, agent
        self._turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        self.work = asyncio.create_task(self._read())

    async def _read(self) -> Trace:
        loop = asyncio.get_running_loop()
        observer = Observer(on_turn=lambda turn: loop.call_soon_threadsafe(self._turns.put_nowait, turn), lean=True)
        try:
            async with self._server.place():
                trace = await self._agent.aread(self.task.document or "", self.task.question, observer=observer)
        finally:
            self._turns.put_nowait(None)
        self._server.keep(self.id, self.task, trace)
        return trace

    async def progress(self) -> AsyncIterator[dict[str, Any] | None]:
        """The facts of each finished turn; ``None`` where nothing has happened for a while."""
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
            yield wire.progress_facts(self.id, self.task, count, turn)
        await asyncio.wait({self.work})


async def _disconnected(request: Request) -> None:
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _said(failure: Exception) -> tuple[dict[str, Any], int]:
    """An error in OpenAI's form, and its status."""
    match failure:
        case ChatError():
            told = str(failure), failure.status, failure.param, failure.code
        case HTTPException():
            told = str(failure.detail), failure.status_code
        case BudgetError():
            told = str(failure), 400, None, "context_length_exceeded"
        case BackendUnavailable():
            told = str(failure), 503
        case BackendError():
            told = str(failure), 502
        case _:
            told = "an error of this server, which its log describes", 500
    return wire.error(*told), told[1]


def _failed(_: Request, failure: Exception) -> Response:
    body, status = _said(failure)
    return JSONResponse(body, status, {"Retry-After": "10"} if status == 429 else None)


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
