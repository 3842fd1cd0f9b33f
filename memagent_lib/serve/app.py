"""The web application: it answers chat completion requests by reading their documents with a memory.

If a client disconnects, its reading ends. The server sets the sampling, so settings in a request that differ are
reported back as ignored.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from openai.types import CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling
from memagent_lib.driver import Observer
from memagent_lib.prompts import BudgetError, Encoder
from memagent_lib.readers import reader_named
from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask, task_of
from memagent_lib.trace import Trace, Turn

# 499 is nginx's code for a client that is gone; only a log sees it.
STATUS = {ChatError: 400, BudgetError: 400, BackendError: 502, BackendUnavailable: 503, ClientDisconnect: 499}
READINGS = 8
"""Requests that are answered at the same time; others wait in order of arrival."""
STORED_TRACES = 64
OWN_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")
# Fields that would change a reply, with the values that they may have.
SUPPORTED = {
    "n": (1,),
    "response_format": ("text", {"type": "text"}),
    "logprobs": (False,),
    **dict.fromkeys(("tools", "functions"), ([],)),
}
# Fields that never change a reply, here or at OpenAI, so they are not worth reporting as ignored.
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "stream_options", "safety_identifier")


def make_app(
    agent: Agent, name: str, sampling: Sampling, split: str = "auto", allowed_hosts: Sequence[str] = ()
) -> Starlette:
    """Create the application. When it shuts down, it closes the agent's backend.

    ``name`` is the model's for clients, and ``split`` the default for a message (one of ``conversation.SPLITS``).
    ``allowed_hosts`` are names of this machine besides localhost, such as a proxy's. Requests for other hosts are
    refused, and bodies must be declared as JSON, so that no web page can start a reading through the browser.
    """
    server = ReadingServer(agent, name, sampling, split)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await agent.backend.close()

    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/traces/{trace_id}", server.trace),
        Route("/health", server.health),
    ]
    # Starlette looks up the handlers of an exception's base classes too, so the one for Exception gets bugs.
    handlers = dict.fromkeys((*STATUS, Exception), _failed)
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[*OWN_NAMES, *allowed_hosts])
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[hosts], lifespan=lifespan)


class ReadingServer:
    """The endpoints and their shared state: the agent, the queue of readings, and the latest traces."""

    def __init__(self, agent: Agent, name: str, sampling: Sampling, split: str):
        self._agent = agent
        self._name = name
        self._sampling = sampling
        self._split = split
        self._slots = asyncio.Semaphore(READINGS)
        self._requests = 0
        self._last_failure = ""
        self._traces: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def chat(self, request: Request) -> Response:
        chat = await self._parsed(request)
        task = task_of(chat, self._fits, self._split)
        reading = _Reading(uuid.uuid4().hex, chat, task, asyncio.Queue())
        if chat.stream:
            return StreamingResponse(self._events(reading), media_type="text/event-stream")
        work = asyncio.create_task(self._read(reading))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=1)
                if await request.is_disconnected():
                    raise ClientDisconnect
        finally:
            work.cancel()
        trace = work.result()
        text = _cut_at(trace.answer, chat.stop)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(trace, text), "logprobs": None}
        more = {"usage": _usage(trace), "memagent": self._metadata(reading, trace)}
        return JSONResponse(self._reply(ChatCompletion, reading, choice, **more))

    async def models(self, _: Request) -> Response:
        model = Model(id=self._name, object="model", created=0, owned_by="memagent")
        return JSONResponse({"object": "list", "data": [model.model_dump()]})

    async def trace(self, request: Request) -> Response:
        found = self._traces.get(request.path_params["trace_id"].removeprefix("chatcmpl-"))
        if found is None:
            raise ChatError(f"no such trace; the server stores the last {STORED_TRACES}", status=404)
        return JSONResponse(found)

    async def health(self, _: Request) -> Response:
        """Report that this server answers, and how the latest reading has failed, if it has.

        The status is 200 in any case: only a new reading shows that a backend answers again.
        """
        state = {"status": "ok", "requests": self._requests, "readings": READINGS}
        return JSONResponse(state | {"last_failure": self._last_failure})

    async def _parsed(self, request: Request) -> ChatRequest:
        # A page of another site can send any other type without the browser asking this server first.
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            raise ChatError("the Content-Type must be application/json", status=415)
        try:
            chat = ChatRequest.model_validate_json(await request.body())
        except ValidationError as wrong:
            first = wrong.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ChatError(f"{where or 'the body'}: {first['msg']}", where or None) from wrong
        if chat.model != self._name:
            raise ChatError(f"no model {chat.model!r}; this server has {self._name}", "model", 404)
        for name, supported in SUPPORTED.items():
            value = chat.model_extra.get(name)
            if value is not None and value not in supported:
                raise ChatError(f"{name} = {value!r} is not supported", name)
        return chat

    def _fits(self, text: str) -> bool:
        encoder = self._agent.encoder
        most = encoder.budget.question_tokens
        if len(text) > 32 * most:  # far too long, so tokenising it would only take time
            return False
        return encoder.tokenizer.count(text) <= most

    async def _read(self, reading: _Reading) -> Trace:
        loop = asyncio.get_running_loop()

        def note(turn: Turn) -> None:  # a backend may report its turns from another thread
            loop.call_soon_threadsafe(reading.ends.put_nowait, turn.prompt.chunk.end if turn.prompt.chunk else 0)

        self._requests += 1
        try:
            async with self._slots:
                observer = Observer(on_turn=note, lean=True)
                agent = self._agent_for(reading)
                trace = await agent.aread(reading.task.document or "", reading.task.prompt, observer=observer)
            self._last_failure = ""
        except (BackendError, BackendUnavailable) as failure:
            self._last_failure = str(failure)
            raise
        finally:
            self._requests -= 1
        # Without the document: 64 of them could take gigabytes.
        self._traces[reading.id] = {"id": reading.id, "rule": reading.task.rule, "trace": trace.to_record()}
        while len(self._traces) > STORED_TRACES:
            self._traces.popitem(last=False)
        return trace

    def _agent_for(self, reading: _Reading) -> Agent:
        """Return the server's agent, with the request's limit on the answer, and ``blind`` without a document."""
        encoder = self._agent.encoder
        most = reading.chat.max_completion_tokens or reading.chat.max_tokens
        if most is not None and most < encoder.budget.answer_tokens:
            encoder = Encoder(encoder.tokenizer, encoder.template, replace(encoder.budget, answer_tokens=most))
        reader = reader_named("blind") if reading.task.document is None else self._agent.reader
        return replace(self._agent, encoder=encoder, reader=reader)

    def _metadata(self, reading: _Reading, trace: Trace) -> dict[str, Any]:
        """Return the ``memagent`` field of a reply: what was read, by which rule, and what was ignored."""
        sent = {k: v for k, v in reading.chat.model_extra.items() if k not in (*WITHOUT_EFFECT, *SUPPORTED)}
        own = asdict(self._sampling)
        return reading.facts | {
            "turns": len(trace.turns),
            "rule": reading.task.rule,
            "question": reading.task.question,
            "instructions": reading.task.instructions,
            "cut_memories": trace.cut_memories,
            "bad_memories": trace.bad_memories,
            "bad_memory_kinds": trace.bad_memory_kinds,
            "sampling_left_out": trace.sampling_left_out,
            "ignored": sorted(name for name, value in sent.items() if value not in (None, own.get(name))),
        }

    def _reply(self, form: type, reading: _Reading, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        kind = "chat.completion" if form is ChatCompletion else "chat.completion.chunk"
        head = {"id": f"chatcmpl-{reading.id}", "object": kind, "created": int(time.time())}
        return form(**head, model=self._name, choices=choices, **more).model_dump(mode="json")

    async def _events(self, reading: _Reading) -> AsyncIterator[str]:
        """Yield the events of a streamed reply: one without text per turn, the answer, its end and the usage."""

        def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return _event(self._reply(ChatCompletionChunk, reading, choice, **more))

        work = asyncio.create_task(self._read(reading))
        work.add_done_callback(lambda _: reading.ends.put_nowait(None))
        try:
            yield event({"role": "assistant", "content": ""})
            while (end := await reading.ends.get()) is not None:
                yield event({}, memagent=reading.facts | {"read_chars": end})
            trace = work.result()
            text = _cut_at(trace.answer, reading.chat.stop)
            yield event({"content": text})
            yield event({}, _finish_reason(trace, text), memagent=self._metadata(reading, trace))
            if (reading.chat.model_extra.get("stream_options") or {}).get("include_usage"):
                yield _event(self._reply(ChatCompletionChunk, reading, usage=_usage(trace)))
        except Exception as failure:
            yield _event(_error(failure)[0])  # the status line is sent already, so the error is an event
            if not isinstance(failure, tuple(STATUS)):
                raise
        finally:
            work.cancel()
        yield "data: [DONE]\n\n"


class _Reading(NamedTuple):
    """A request. ``ends`` gets the position up to which the document is read at each turn, and None at the end."""

    id: str
    chat: ChatRequest
    task: ReadingTask
    ends: asyncio.Queue[int | None]

    @property
    def facts(self) -> dict[str, Any]:
        return {"trace_id": self.id, "document_chars": len(self.task.document or "")}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _cut_at(text: str, stop: str | list[str] | None) -> str:
    """Return the text up to the first stop word. White space at the beginning does not count as one."""
    if not stop:
        return text
    text = text.lstrip()
    found = [text.find(word) for word in ([stop] if isinstance(stop, str) else stop) if word and word in text]
    return text[: min(found, default=len(text))]


def _finish_reason(trace: Trace, text: str) -> str:
    """Return ``length`` if the token limit ended ``text``, and ``stop`` if the model or a stop word did."""
    is_whole = text.endswith(trace.answer.lstrip())
    return "length" if trace.turns[-1].reply.cut and is_whole else "stop"


def _usage(trace: Trace) -> CompletionUsage:
    """Return the engine's token counts, summed over all turns."""
    prompts, replies = trace.prompt_tokens, trace.reply_tokens
    return CompletionUsage(prompt_tokens=prompts, completion_tokens=replies, total_tokens=prompts + replies)


def _error(failure: Exception) -> tuple[dict[str, Any], int]:
    """Return an error in OpenAI's format, and its HTTP status. A bug's message is not sent; it is in the log."""
    status = next((code for kind, code in STATUS.items() if isinstance(failure, kind)), 500)
    message = "an error of this server, which its log describes" if status == 500 else str(failure)
    status = getattr(failure, "status", status)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": getattr(failure, "param", None), "code": None}
    return {"error": error}, status


def _failed(_: Request, failure: Exception) -> Response:
    # Else OpenAI's client has the whole document read twice more; the backend has tried again where that may help.
    again = {} if isinstance(failure, BackendUnavailable) else {"x-should-retry": "false"}
    return JSONResponse(*_error(failure), headers=again)
