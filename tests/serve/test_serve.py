"""The endpoint, called by the real ``openai`` client over a real socket; a scripted model reads."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import uvicorn
from hostile import Server
from hostile import serving as model_server
from waiting import wait_for

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling, Scripted, open_backend
from memagent_lib.backends.retries import RetryPolicy
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.serve import ServeSettings, make_app
from memagent_lib.text import Chunk
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
    app = make_app(agent, ServeSettings(name="reader", **settings), Sampling())
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
        assert client.models.retrieve("reader").max_model_len == 1 << 30
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("The code is 4711.", "stop")
    assert metadata["rule"] == "earlier messages" and metadata["turns"] == len(agent.backend.requests) > 5
    assert reply.usage.prompt_tokens == sum(len(request.ids) for request in agent.backend.requests)
    assert reply.id == f"chatcmpl-{metadata['trace_id']}"
    assert len(stored["trace"]["turns"]) == metadata["turns"] and stored["trace"]["question"] == QUESTION


def test_a_stream_has_progress_answer_finish_reason_and_usage(agent: Agent) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with serving(agent) as client:
        pieces = list(ask(client, ("user", QUESTION), extra_body={"document": DOCUMENT}, **options))
    progress = [p.memagent for p in pieces if getattr(p, "memagent", None) and "rule" not in p.memagent]
    assert [event["turns"] for event in progress] == list(range(1, len(agent.backend.requests) + 1))
    read = [event["read_chars"] for event in progress if "read_chars" in event]
    assert read == sorted(read) and read[-1] == len(DOCUMENT) == progress[0]["document_chars"]
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "The code is 4711."
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == "stop"
    assert pieces[-1].choices == [] and pieces[-1].usage.total_tokens > pieces[-1].usage.completion_tokens
    assert len({p.id for p in pieces}) == 1


def test_a_request_without_a_stream_has_few_chunk_texts(encoder: Encoder) -> None:
    in_memory = []

    def count(_: str) -> str:
        gc.collect()
        chunks = (each for each in gc.get_objects() if type(each) is Chunk)
        in_memory.append(sum("\u2042" in chunk.text for chunk in chunks))
        return "nothing yet"

    marked = DOCUMENT.replace(" ", " \u2042")  # in every chunk, and in none of other tests
    with serving(Agent(encoder, Scripted(count))) as client:
        gc.freeze()  # the objects of a process with torch are not visited at every turn
        try:
            ask(client, ("user", marked), ("user", QUESTION))
        finally:
            gc.unfreeze()
    assert len(in_memory) > 20
    # Threads at work hold some more texts for a moment, so the least number shows whether texts stay.
    assert min(in_memory[len(in_memory) // 2 :]) <= 3


@pytest.mark.parametrize(
    ("messages", "body", "rule", "question", "answer"),
    [
        ([("user", "Who is there?")], {}, "question without a document", "Who is there?", "I have no document."),
        ([("user", f"{DOCUMENT}\n\n{QUESTION}")], {}, "split last_paragraph", QUESTION, "The code is 4711."),
        (
            [("user", f"{QUESTION}\n{DOCUMENT}")],
            {"split": "first_line"},
            "split first_line",
            QUESTION,
            "The code is 4711.",
        ),
        (
            [("user", f"{DOCUMENT}Question: {QUESTION}")],
            {"split": "mark:Question:"},
            "split mark:Question:",
            f"Question: {QUESTION}",
            "The code is 4711.",
        ),
        ([("user", DOCUMENT)], {"question": QUESTION}, "field question", QUESTION, "The code is 4711."),
        (
            [("system", "Be brief."), ("user", DOCUMENT), ("assistant", "Thanks."), ("user", QUESTION)],
            {},
            "earlier messages",
            f"Be brief.\n\n{QUESTION}",
            "The code is 4711.",
        ),
        (
            [("system", DOCUMENT), ("user", QUESTION)],
            {},
            "question without a document, system messages before the document",
            QUESTION,
            "The code is 4711.",
        ),
    ],
)
def test_document_and_question_follow_the_stated_rule(agent, messages, body, rule, question, answer) -> None:
    with serving(agent) as client:
        reply = ask(client, *messages, extra_body=body)
    assert (reply.memagent["rule"], reply.memagent["question"]) == (rule, question)
    assert reply.choices[0].message.content == answer


def test_earlier_messages_are_read_before_a_documents_field(agent: Agent) -> None:
    history = [("user", "Who wrote the log?"), ("assistant", "The keeper, Ada.")]
    with serving(agent) as client:
        reply = ask(client, *history, ("user", QUESTION), extra_body={"document": DOCUMENT})
        stored = client.get(f"/traces/{reply.memagent['trace_id']}", cast_to=object)
    read = "user: Who wrote the log?\n\nassistant: The keeper, Ada.\n\n" + DOCUMENT
    assert reply.memagent["rule"] == "field document, earlier messages before it"
    assert (reply.memagent["question"], stored["document_chars"]) == (QUESTION, len(read))
    first = agent.encoder.tokenizer.decode(agent.backend.requests[0].ids)
    assert "assistant: The keeper, Ada." in first


def test_a_null_for_stream_is_no_stream(agent: Agent) -> None:
    with serving(agent) as client:
        reply = ask(client, ("user", DOCUMENT), ("user", QUESTION), extra_body={"stream": None})
    assert reply.choices[0].message.content == "The code is 4711."


def test_parts_of_text_are_joined_and_a_picture_is_refused(agent: Agent) -> None:
    with serving(agent) as client:
        parts = [{"type": "text", "text": DOCUMENT}, {"type": "text", "text": f"\n\n{QUESTION}"}]
        assert ask(client, ("user", parts)).choices[0].message.content == "The code is 4711."
        with pytest.raises(openai.BadRequestError, match="a document is text, and this part is 'image_url'"):
            ask(client, ("user", [{"type": "image_url", "image_url": {"url": "http://x"}}]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n": 2}, openai.BadRequestError, "one reply per request, and n is 2"),
        ({"logprobs": True}, openai.BadRequestError, "this server has no log-probabilities"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "replies are text"),
        ({"extra_body": {"split": "middle"}}, openai.BadRequestError, "no split 'middle'; choose from last_paragraph"),
        ({"extra_body": {"messages": []}}, openai.BadRequestError, "messages: List should have at least 1 item"),
        ({"extra_body": {"model": "other"}}, openai.NotFoundError, "no model 'other'; this server has reader"),
        ({"extra_body": {"question": "why? " * 50}}, openai.BadRequestError, "longer than question_tokens allows"),
        ({"extra_body": {"split": "none"}}, openai.BadRequestError, "cannot be divided by the split 'none'"),
    ],
)
def test_a_wrong_request_is_refused_before_the_model_is_called(agent, options, error, message) -> None:
    with serving(agent) as client, pytest.raises(error, match=message) as refused:
        ask(client, ("user", DOCUMENT), **options)
    assert set(refused.value.body) == {"message", "type", "param", "code"}
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
    def fail(_: str) -> str:
        raise failure

    with (
        serving(Agent(encoder, Scripted(fail))) as client,
        pytest.raises(openai.APIError, match=str(failure)) as raised,
    ):
        list(ask(client, ("user", DOCUMENT), ("user", QUESTION), stream=stream))
    assert stream or raised.value.status_code == status


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


def test_a_full_queue_and_a_long_body_are_refused(encoder: Encoder) -> None:
    pausing = Pausing(noting)
    with serving(Agent(encoder, pausing), readings=1, waiting=0, body_mb=1) as client:
        first = threading.Thread(target=lambda: ask(client, ("user", DOCUMENT), ("user", QUESTION)))
        first.start()
        while not client.get("/../health", cast_to=object)["requests"]:
            time.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="try again later") as refused:
            ask(client, ("user", "Who is there?"))
        assert refused.value.response.headers["retry-after"] == "10"
        pausing.may_go_on.set()
        first.join()
        with pytest.raises(openai.APIStatusError, match="the request is over 1 MB") as refused:
            ask(client, ("user", "x" * (2 << 20)))
        assert refused.value.status_code == 413


def raw(client: openai.OpenAI, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
    """Send a request as no client library would; return its status and the error's message."""
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port)
    method, path = ("GET", "/v1/models") if body is None else ("POST", "/v1/chat/completions")
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    content = json.loads(reply.read())
    connection.close()
    return reply.status, content.get("error", {}).get("message", "")


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:8000", True),
        ("LOCALHOST:8000", True),
        ("localhost.", True),
        ("[::1]:8000", True),
        ("box.example:8000", True),  # allowed by name
        ("evil.example:8642", False),  # hermes-agent#21939
        ("localhost.evil.example", False),  # deepclaude#16: a prefix is no match
        ("127.0.0.1@evil.example", False),
        ("[::1", False),
    ],
)
def test_only_this_machines_own_names_are_answered(agent: Agent, host: str, answered: bool) -> None:
    with serving(agent, allowed_hosts=("Box.example",)) as client:
        status, message = raw(client, None, {"Host": host})
    assert (status == 200) is answered
    assert answered or (status == 400 and "start the server with --allow-host" in message)


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Content-Type": "text/plain"}, 415, "must be application/json, got 'text/plain'"),  # sent without asking
        ({}, 415, "must be application/json, got 'none'"),
        ({"Origin": "https://evil.example"}, 403, "a page of 'https://evil.example' may not"),  # llama.cpp#25606
        ({"Origin": "null"}, 403, "a page of 'null' may not use this server"),
        ({"Origin": "http://localhost:3000", "Content-Type": "application/json; charset=utf-8"}, 200, ""),
    ],
)
def test_a_page_of_another_site_starts_no_reading(agent: Agent, headers, status, says) -> None:
    body = json.dumps({"model": "reader", "messages": [{"role": "user", "content": "Who is there?"}]}).encode()
    with serving(agent) as client:
        got, message = raw(client, body, headers)
    assert (got, bool(agent.backend.requests)) == (status, status == 200)
    assert says in message


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ('"n": null', 200, ""),
        ('"response_format": null', 200, ""),
        ('"response_format": "json"', 400, "response_format is 'json'"),
        ('"response_format": 3', 400, "response_format is 3"),
        ('"stop": "\\ud83d"', 400, "the body is not JSON in UTF-8"),
        ('"stop": "\\ud83e\\uddea"', 200, ""),
        ('"x": ' + "[" * 100_000 + "]" * 100_000, 400, "nested too deep"),
    ],
)
def test_an_odd_body_is_no_error_of_the_server(agent: Agent, more: str, status: int, says: str) -> None:
    body = f'{{"model": "reader", "messages": [{{"role": "user", "content": "Who is there?"}}], {more}}}'
    with serving(agent) as client:
        got, message = raw(client, body.encode(), {"Content-Type": "application/json"})
    assert got == status and says in message


# A model behind a server that fails.


def health(client: openai.OpenAI) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port)
    connection.request("GET", "/health")
    reply = connection.getresponse()
    state = json.loads(reply.read()) | {"code": reply.status}
    connection.close()
    return state


@contextmanager
def behind(encoder: Encoder, fault) -> Iterator[tuple[openai.OpenAI, Server]]:
    """An endpoint whose model is on a server with faults."""
    with model_server(fault=fault) as server:
        policy = RetryPolicy(deadline_s=20, first_wait_s=0.01, longest_wait_s=0.02, first_pause_s=0.05)
        backend = open_backend("openai", "small", base_url=server.url, retry_policy=policy)
        with serving(Agent(encoder, backend)) as client:
            yield client, server


@pytest.mark.parametrize("fault", ["404", "401", "402"])
def test_one_refusal_of_the_models_server_ends_no_service(encoder: Encoder, fault: str) -> None:
    with behind(encoder, lambda n: fault if n == 0 else None) as (client, server):
        assert health(client)["status"] == "ok"
        with pytest.raises(openai.APIStatusError, match=f"status {fault}") as refused:
            ask(client, ("user", "Who is there?"))
        assert refused.value.status_code == 503
        state = health(client)
        assert (state["code"], state["status"]) == (503, "unavailable") and f"status {fault}" in state["error"]
        assert ask(client, ("user", "Who is there?")).choices[0].message.content.startswith("note ")
        assert (health(client)["code"], health(client)["status"]) == (200, "ok")
    assert server.posts == 2


def test_a_named_pause_is_passed_on_and_not_disturbed(encoder: Encoder) -> None:
    with behind(encoder, lambda n: "429/3600") as (client, server):
        for _ in range(3):
            with pytest.raises(openai.APIStatusError, match="asks to be left alone until") as refused:
                ask(client, ("user", "Who is there?"))
            assert 3590 < int(refused.value.response.headers["retry-after"]) <= 3600
    assert server.posts == 1


def test_one_clients_bad_requests_close_nobodys_way(encoder: Encoder) -> None:
    with behind(encoder, lambda n: "400" if n < 12 else None) as (client, _):
        for _ in range(12):
            with pytest.raises(openai.APIStatusError, match="status 400"):
                ask(client, ("user", "Who is there?"))
        assert health(client)["status"] == "ok"
        assert ask(client, ("user", "Who is there?")).choices[0].message.content.startswith("note ")


def test_health_reports_the_queue_and_what_is_tried_again(encoder: Encoder) -> None:
    mended = threading.Event()
    with behind(encoder, lambda n: None if mended.is_set() else "500") as (client, _):
        reading = threading.Thread(target=lambda: ask(client, ("user", "Who is there?")))
        reading.start()
        wait_for(lambda: health(client)["status"] != "ok")
        state = health(client)
        mended.set()
        reading.join()
    assert (state["code"], state["status"], state["error"]) == (200, "retrying", "status 500: fault 500")
    assert (state["reading"], state["waiting"]) == ({"now": 1, "most": 8}, {"now": 0, "most": 64})


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


@pytest.mark.slow
def test_the_command_serves_a_real_model_until_it_is_stopped(tmp_path) -> None:
    model = Path(__file__).parents[2] / "experiments" / "pocket" / "warm_start"
    command = [sys.executable, "-m", "memagent_lib.cli", "serve", "--model", str(model), "--backend", "transformers"]
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(
        [*command, "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, **heeds
    ) as process:
        address, name = re.match(r"(\S+) answers as '(.+)';", process.stdout.readline()).groups()
        try:
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                reply = client.chat.completions.create(
                    model=name, messages=[{"role": "user", "content": QUESTION}], extra_body={"document": DOCUMENT}
                )
        finally:
            process.send_signal(signal.SIGINT)
    assert name == "warm_start" and reply.memagent["turns"] > 3 and reply.choices[0].message.content
    assert process.returncode == 130  # as every verb that Ctrl-C ends


def test_fewer_than_no_requests_cannot_wait() -> None:
    with pytest.raises(ValueError, match="waiting must be at least 0, got -8"):
        ServeSettings(name="reader", waiting=-8)
