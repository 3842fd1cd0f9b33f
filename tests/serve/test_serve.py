"""The endpoint, called by the real ``openai`` client over a real socket; a scripted model reads."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import pytest
import uvicorn
from waiting import wait_for

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling, Scripted
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.serve import make_app
from memagent_lib.trace import Reply

DOCUMENT = (
    "".join(f"Line {i} of the old log says nothing new. " for i in range(60)) + "The code of the bold owl is 4711. "
)
QUESTION = "What is the code of the bold owl?"


def noting(text: str) -> str:
    """A model that notes the code once it has seen it."""
    if "4711" in text:
        return "The code is 4711."
    return "nothing yet" if "Line" in text or "nothing yet" in text else "I have no document."


@contextmanager
def serving(agent: Agent, **settings) -> Iterator[openai.OpenAI]:
    app = make_app(agent, "reader", Sampling(), **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def agent(encoder: Encoder) -> Agent:
    return Agent(encoder, Scripted(noting))


def ask(client: openai.OpenAI, *messages: tuple[str, str], **options):
    chat = [{"role": role, "content": text} for role, text in messages]
    return client.chat.completions.create(model="reader", messages=chat, **options)


def test_a_long_document_is_answered_with_usage_and_a_trace(agent: Agent) -> None:
    with serving(agent) as client:
        reply = ask(client, ("user", DOCUMENT), ("user", QUESTION))
        metadata = reply.memagent
        stored = client.get(f"/traces/{metadata['trace_id']}", cast_to=object)
        assert [model.id for model in client.models.list()] == ["reader"]
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("The code is 4711.", "stop")
    assert metadata["rule"] == "last message" and metadata["turns"] == len(agent.backend.requests) > 5
    assert reply.usage.prompt_tokens == sum(len(request.ids) for request in agent.backend.requests)
    assert reply.id == f"chatcmpl-{metadata['trace_id']}"
    assert len(stored["trace"]["turns"]) == metadata["turns"] and stored["trace"]["question"] == QUESTION


def test_a_stream_has_progress_answer_finish_reason_and_usage(agent: Agent) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with serving(agent) as client:
        pieces = list(ask(client, ("user", QUESTION), extra_body={"document": DOCUMENT}, **options))
    progress = [p.memagent for p in pieces if getattr(p, "memagent", None) and "rule" not in p.memagent]
    read = [event["read_chars"] for event in progress]
    assert len(read) == len(agent.backend.requests) and read[-1] == 0  # the answer's turn
    assert read[:-1] == sorted(read[:-1]) and read[-2] == len(DOCUMENT) == progress[0]["document_chars"]
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "The code is 4711."
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == "stop"
    assert pieces[-1].choices == [] and pieces[-1].usage.total_tokens > pieces[-1].usage.completion_tokens
    assert len({p.id for p in pieces}) == 1


@pytest.mark.parametrize(
    ("messages", "body", "rule", "question", "answer"),
    [
        ([("user", "Who is there?")], {}, "last message", "Who is there?", "I have no document."),
        ([("user", f"{DOCUMENT}\n\n{QUESTION}")], {}, "split auto", QUESTION, "The code is 4711."),
        ([("user", DOCUMENT)], {"question": QUESTION}, "field question", QUESTION, "The code is 4711."),
    ],
)
def test_document_and_question_follow_the_stated_rule(agent, messages, body, rule, question, answer) -> None:
    with serving(agent) as client:
        reply = ask(client, *messages, extra_body=body)
    assert (reply.memagent["rule"], reply.memagent["question"]) == (rule, question)
    assert reply.choices[0].message.content == answer


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"extra_body": {"split": "middle"}}, openai.BadRequestError, "split"),
        ({"extra_body": {"document": 5}}, openai.BadRequestError, "document"),
        ({"extra_body": {"messages": []}}, openai.BadRequestError, "messages"),
        ({"extra_body": {"model": "other"}}, openai.NotFoundError, "model"),
        ({"extra_body": {"question": "why? " * 50}}, openai.BadRequestError, None),
    ],
)
def test_a_wrong_request_is_refused_before_the_model_is_called(agent, options, error, param) -> None:
    with serving(agent) as client, pytest.raises(error) as refused:
        ask(client, ("user", DOCUMENT), **options)
    assert set(refused.value.body) == {"message", "type", "param", "code"} and refused.value.body["param"] == param
    assert agent.backend.requests == []


def test_ignored_sampling_is_reported_and_limits_apply(agent: Agent) -> None:
    with serving(agent) as client:
        options = {"temperature": 0.9, "seed": 3, "top_p": 1.0, "user": "me", "stop": ["4711"], "max_tokens": 5}
        reply = ask(client, ("user", DOCUMENT), ("user", QUESTION), **options)
    assert reply.memagent["ignored"] == ["seed", "temperature"]
    assert reply.choices[0].message.content == "The code is "
    assert [r.max_tokens for r in agent.backend.requests[-2:]] == [24, 5]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status"), [(BackendError("the engine said no"), 502), (BackendUnavailable("the engine is gone"), 503)]
)
def test_a_failed_model_is_an_error_and_never_an_empty_answer(encoder, failure, status, stream) -> None:
    calls = []

    def fail(text: str) -> str:
        calls.append(text)
        raise failure

    with (
        serving(Agent(encoder, Scripted(fail))) as client,
        pytest.raises(openai.APIError, match=str(failure)) as raised,
    ):
        list(ask(client.with_options(max_retries=1), ("user", DOCUMENT), ("user", QUESTION), stream=stream))
    assert stream or raised.value.status_code == status
    assert stream or len(calls) == (2 if status == 503 else 1), "a reading is repeated only where that may help"


def test_a_bug_reaches_the_client_without_its_message(encoder: Encoder) -> None:
    def bug(_: str) -> str:
        raise ZeroDivisionError("secret")

    with serving(Agent(encoder, Scripted(bug))) as client:
        with pytest.raises(openai.InternalServerError, match="an error of this server") as raised:
            ask(client, ("user", DOCUMENT), ("user", QUESTION))
        assert "secret" not in str(raised.value)


class Pausing(Scripted):
    """A model that answers two requests, and the others once it may go on."""

    def __init__(self, script: Callable[[str], str]) -> None:
        super().__init__(script)
        self.may_go_on = threading.Event()

    async def complete(self, request):
        reply = await super().complete(request)
        while len(self.requests) > 2 and not self.may_go_on.is_set():
            await asyncio.sleep(0.01)
        return reply


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_reading(encoder: Encoder, stream: bool) -> None:
    pausing = Pausing(noting)
    with serving(Agent(encoder, pausing)) as client:
        body = {
            "model": "reader",
            "document": DOCUMENT,
            "question": QUESTION,
            "messages": [{"role": "user"}],
            "stream": stream,
        }
        connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        while len(pausing.requests) < 3:
            time.sleep(0.01)
        if stream:
            with connection.getresponse() as begun:
                assert begun.read(5) == b"data:"
        connection.close()
        wait_for(lambda: not client.get("/../health", cast_to=object)["requests"])
    assert len(pausing.requests) == 3  # of eighteen


def test_health_tells_the_last_failure_until_a_reading_succeeds(encoder: Encoder) -> None:
    """The status stays 200, because whoever routes by it would never send the request that shows a recovery."""
    away = threading.Event()

    def model(text: str) -> str:
        if away.is_set():
            raise BackendUnavailable("the engine is gone")
        return noting(text)

    with serving(Agent(encoder, Scripted(model))) as client:
        away.set()
        with pytest.raises(openai.InternalServerError):
            ask(client, ("user", DOCUMENT), ("user", QUESTION))
        assert client.get("/../health", cast_to=object)["last_failure"] == "the engine is gone"
        away.clear()
        ask(client, ("user", DOCUMENT), ("user", QUESTION))
        assert client.get("/../health", cast_to=object)["last_failure"] == ""


def raw(client: openai.OpenAI, body: str, headers: dict[str, str]) -> int:
    """Send a request as no client library would; return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port)
    connection.request("POST", "/v1/chat/completions", body.encode(), headers)
    status = connection.getresponse().status
    connection.close()
    return status


ASKS = '"model": "reader", "messages": [{"role": "user", "content": "Who is there?"}]'
JSON = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("", JSON | {"Host": "LOCALHOST:8000"}, 200),
        ("", JSON | {"Host": "box.example"}, 200),  # allowed by name
        ("", JSON | {"Host": "localhost.evil.example"}, 400),  # deepclaude#16: a prefix is not a match
        ("", {"Content-Type": "text/plain"}, 415),  # browsers send it for any page without asking first
        ("", {}, 415),
        (', "n": null, "response_format": null, "stop": "\\ud83e\\uddea"', JSON, 200),
        (', "stop": "\\ud83d"', JSON, 400),
        (', "x": ' + "[" * 100_000 + "]" * 100_000, JSON, 400),
    ],
)
def test_foreign_hosts_pages_and_odd_bodies_start_no_reading(agent: Agent, body: str, headers, status: int) -> None:
    with serving(agent, allowed_hosts=("box.example",)) as client:
        assert raw(client, f"{{{ASKS}{body}}}", headers) == status
    assert bool(agent.backend.requests) is (status == 200)


def test_a_cut_answer_has_the_finish_reason_length(tokenizer) -> None:
    budget = Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32)
    cut = Scripted(lambda _: Reply("The code", "length"))
    with serving(Agent(Encoder(tokenizer, Template.load("short"), budget), cut)) as client:
        reply = ask(client, ("user", DOCUMENT), ("user", QUESTION))
    assert reply.choices[0].finish_reason == "length"
    assert reply.memagent["cut_memories"] == reply.memagent["turns"] - 1


def test_a_stop_word_ends_an_answer_before_the_token_limit(encoder: Encoder) -> None:
    cut = Agent(encoder, Scripted(lambda _: Reply("The code is 4711. Question: and", "length")))
    with serving(cut) as client:
        reply = ask(client, ("user", DOCUMENT), ("user", QUESTION), stop=["Question:"]).choices[0]
        options = {"stop": ["Question:"], "stream": True}
        pieces = list(ask(client, ("user", DOCUMENT), ("user", QUESTION), **options))
    assert (reply.message.content, reply.finish_reason) == ("The code is 4711. ", "stop")
    assert pieces[-1].choices[0].finish_reason == "stop"
