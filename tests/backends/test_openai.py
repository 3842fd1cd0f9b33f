"""The OpenAI-compatible backend against a server that misbehaves in every way we know."""

import asyncio
import base64
import json
import math
import socket
import time
import urllib.request
from dataclasses import replace

import pytest
from hostile import ODD_REPLIES, fates, faults, serving
from hostile import completion as reply_of
from tenacity import AsyncRetrying, RetryCallState

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling, open_backend
from memagent_lib.backends.openai import OpenAICompatible
from memagent_lib.backends.retries import Circuit, RetryableError, RetryPolicy, retrying, seconds_of
from memagent_lib.backends.server_dialect import Dialect
from memagent_lib.backends.server_replies import ATTEMPTS_WITHOUT_TEXT
from memagent_lib.cli import main
from memagent_lib.data import Example
from memagent_lib.documents import read_files
from memagent_lib.driver import Observer, gather
from memagent_lib.evaluation import evaluate, mixtures, to_frame
from memagent_lib.journal import Journal, JournalError
from memagent_lib.prompts import Request
from memagent_lib.readers import READERS
from memagent_lib.thinking import Thoughts
from memagent_lib.trace import Reply, Trace

QUICK = RetryPolicy(attempt_s=60, deadline_s=60, first_wait_s=0.01, longest_wait_s=0.05)
PATIENT = RetryPolicy(attempt_s=60, deadline_s=300, first_wait_s=0.01, longest_wait_s=0.05)
DOCUMENT = " ".join(f"Note {i}: a small boat drifts past the old mill." for i in range(12))


def opened(server, **options) -> OpenAICompatible:
    return open_backend(
        "openai",
        "small",
        options.pop("sampling", Sampling()),
        base_url=server.url,
        **({"retry_policy": QUICK} | options),
    )


async def ask(backend, ids=(1, 2, 3), max_tokens=5) -> Reply:
    try:
        return await backend.complete(Request(tuple(ids), "the words", max_tokens))
    finally:
        await backend.close()


async def test_a_reply_has_the_servers_counts_and_ids_are_sent_as_is():
    with serving() as server:
        backend = opened(server, sampling=Sampling(temperature=0.7, top_p=0.9, seed=3), extra={"min_p": 0.1})
        said = await ask(backend)
        assert backend.window == 4096
    (body,) = server.bodies
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["top_p"], body["min_p"]) == (
        [1, 2, 3],
        5,
        0.7,
        0.9,
        0.1,
    )
    assert isinstance(body["seed"], int)
    assert (said.prompt_tokens, said.reply_tokens, said.cached_tokens, said.finish_reason) == (3, 3, 1, "stop")


async def test_chat_sends_text_and_sets_thinking_apart():
    with serving() as server:
        server.reply = lambda body: {
            "choices": [{"message": {"content": "42", "reasoning_content": "hm"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        }
        said = await ask(opened(server, api="chat"))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "the words"}]
    assert (said.text, said.thinking, said.finish_reason, said.prompt_tokens) == ("42", "hm", "length", 9)


def test_a_seed_follows_from_the_prompt_alone():
    one, other = Request((1, 2), "", 5), Request((1, 3), "", 5)
    sampling = Sampling(temperature=1, seed=7)
    assert sampling.seed_for(one) == sampling.seed_for(Request((1, 2), "x", 9)) != sampling.seed_for(other)
    assert Sampling().seed_for(one) is None


@pytest.mark.parametrize("fault", ["429", "408", "409", "500", "503", "drop", "half"])
async def test_what_may_pass_is_tried_again(fault):
    with serving(fault=lambda n: fault if n < 2 else None) as server:
        said = await ask(opened(server))
    assert said.text.startswith("note ")
    assert server.posts == 3


async def test_an_attempt_that_hangs_is_abandoned_and_tried_again():
    with serving(fault=lambda n: "hang" if n < 2 else None, hang_s=60) as server:
        said = await ask(opened(server, retry_policy=replace(PATIENT, attempt_s=0.4)))
    assert said.text.startswith("note ")
    assert server.posts >= 3 and server.hangs_ended == 0  # on a busy machine the reply itself may be late


@pytest.mark.parametrize("status", ["400", "413", "422"])
async def test_what_will_not_change_is_sent_once(status):
    with (
        serving(fault=lambda n: status) as server,
        pytest.raises(BackendError, match=rf"\(status {status}\): fault {status}"),
    ):
        await ask(opened(server))
    assert server.posts == 1


async def test_retry_after_is_honoured():
    with serving(fault=lambda n: "429/1" if n == 0 else None) as server:
        await ask(opened(server))
    assert server.times[1] - server.times[0] >= 1


async def test_a_request_is_tried_until_its_deadline_and_names_why():
    policy = RetryPolicy(deadline_s=1.5, first_wait_s=0.01, longest_wait_s=0.05)
    with (
        serving(fault=lambda n: "503") as server,
        pytest.raises(BackendError, match=r"no reply after \d+ attempts within 1.5 s; the last: status 503: fault 503"),
    ):
        await ask(opened(server, retry_policy=policy))
    assert server.posts > 8


async def test_a_server_away_for_less_than_the_deadline_loses_nothing(encoder):
    with serving() as server:
        away_until = time.monotonic() + 1.5  # at these waits over twenty attempts long
        server.fault = lambda n: "drop" if time.monotonic() < away_until else None
        policy = RetryPolicy(deadline_s=60, first_wait_s=0.01, longest_wait_s=0.05)
        traces = await _read_all(encoder, opened(server, retry_policy=policy), 40)
    assert len(traces) == 40 and set(server.answered.values()) == {1}


async def test_a_pause_past_the_deadline_stops_the_run_with_its_end():
    with serving(fault=lambda n: "429/3600") as server:
        backend = opened(server)
        for _ in range(3):
            with pytest.raises(
                BackendUnavailable, match=r"left alone until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(status 429"
            ):
                await backend.complete(Request((1,), "", 1))
        await backend.close()
    assert server.posts == 1


async def test_a_bill_or_the_same_refusal_for_all_stops_the_run():
    with serving(fault=lambda n: "402") as server:
        with pytest.raises(BackendUnavailable, match="wants to be paid first"):
            await ask(opened(server))
        server.fault = lambda n: "400"
        backend, failures = opened(server), []
        for number in range(30):
            with pytest.raises((BackendError, BackendUnavailable)) as failure:
                await backend.complete(Request((number,), "", 1))
            failures.append(failure.type)
        await backend.close()
        assert failures == [BackendError] * 9 + [BackendUnavailable] * 21
        assert "10 requests in a row met the same refusal" in str(failure.value)
    assert server.posts == 1 + 10


async def test_refusals_that_differ_or_are_interrupted_stop_nothing():
    with serving(fault=lambda n: "400" if n % 5 else None) as server:
        backend = opened(server, retry_policy=PATIENT)
        for number in range(40):
            try:
                await backend.complete(Request((number,), "", 1))
            except BackendError:
                continue
        await backend.close()
    assert server.posts == 40


WITHOUT_TEXT = {
    "null content": (
        {"message": {"content": None}, "finish_reason": "stop"},
        "no text in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "null text": ({"text": None, "finish_reason": "stop"}, "no text in the reply", ATTEMPTS_WITHOUT_TEXT),
    "tool calls": (
        {"message": {"content": None, "tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"},
        "a tool call in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "filtered": ({"message": {"content": "So"}, "finish_reason": "content_filter"}, "content filter took", 1),
    "no message": ({"finish_reason": "stop"}, "no text in the reply", ATTEMPTS_WITHOUT_TEXT),
    "empty text": ({"text": "", "finish_reason": "stop"}, "no text in the reply", ATTEMPTS_WITHOUT_TEXT),
    "empty content": (
        {"message": {"content": ""}, "finish_reason": "stop"},
        "no text in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "white space": (
        {"message": {"content": " \n\u2003"}, "finish_reason": "stop"},
        "no text in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "a thought, then nothing": (
        {"message": {"content": "", "reasoning_content": "it could be 7"}, "finish_reason": "stop"},
        "no text in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "a thought in the text, then nothing": (
        {"text": "<think>it could be 7</think>\n", "finish_reason": "stop"},
        "no text in the reply",
        ATTEMPTS_WITHOUT_TEXT,
    ),
    "a hidden thought that was cut": (
        {"message": {"content": ""}, "finish_reason": "length"},
        "if the model thinks first, raise thinking_tokens, or switch",
        1,
    ),
}


@pytest.mark.parametrize("name", sorted(WITHOUT_TEXT))
async def test_a_reply_without_text_is_retried_and_never_a_memory(encoder, name):
    choice, says, posts = WITHOUT_TEXT[name]
    with serving() as server:
        server.reply = lambda body: {"choices": [choice]}
        backend = opened(server, retry_policy=PATIENT)
        with pytest.raises(BackendError, match=says):
            await Agent(encoder, backend).aread(DOCUMENT, "Which note?")
        await backend.close()
    assert server.posts == posts


@pytest.mark.parametrize("asked", ["Write the new memory", "Write the answer"])
async def test_a_single_empty_reply_is_retried_in_any_turn(encoder, asked):
    with serving() as server:
        silent = []

        def reply(body):
            said = reply_of(body)
            if asked in body["messages"][0]["content"] and not silent:
                silent.append(said["choices"][0]["message"].update(content=""))
            return said

        server.reply = reply
        backend = opened(server, api="chat", retry_policy=PATIENT)
        trace = await Agent(encoder, backend).aread(DOCUMENT, "Which note?")
        await backend.close()
    assert silent and server.posts == len(trace.turns) + 1
    assert all(turn.reply.text.startswith("note ") for turn in trace.turns)


THINKS = Thoughts.of("<think> </think>", frozenset(), "<think>\n")


@pytest.mark.parametrize(
    ("content", "finish_reason", "thinking", "text"),
    [
        ("The code is 4711.", "stop", "", "The code is 4711."),  # llama.cpp --reasoning-budget 0
        ("The code is 4711.", None, "", "The code is 4711."),
        ("hm</think>The code is 4711.", "stop", "hm", "The code is 4711."),
        ("<think>hm</think>The code is 4711.", "stop", "<think>hm", "The code is 4711."),
        ("The code", "length", "The code", None),
        ("<think>The code", "stop", "<think>The code", None),
    ],
)
async def test_a_chat_reply_without_marks_is_text_unless_cut(content, finish_reason, thinking, text):
    with serving() as server:
        server.reply = lambda body: chat_choice(finish_reason, content)
        backend = opened(server, api="chat", retry_policy=PATIENT)
        reply = await backend.complete(Request((1,), "the words", 5, thoughts=THINKS))
        await backend.close()
    parts = THINKS.split(reply.text, separated=bool(reply.thinking))
    assert (parts.thinking, parts.text or None, parts.finished) == (thinking, text, text is not None)


async def test_a_completion_without_marks_is_an_unfinished_thought():
    with serving() as server:
        server.reply = lambda body: {"choices": [{"text": "The code is 4711.", "finish_reason": "stop"}]}
        backend = opened(server)
        reply = await backend.complete(Request((1,), "the words", 5, thoughts=THINKS))
        await backend.close()
    assert not THINKS.split(reply.text).finished


async def test_an_empty_chat_reply_is_retried_though_it_may_think():
    with serving() as server:
        server.reply = lambda body: chat_choice("stop", "" if server.posts == 1 else "The code is 4711.")
        backend = opened(server, api="chat", retry_policy=PATIENT)
        await backend.complete(Request((1,), "the words", 5, thoughts=THINKS))
        await backend.close()
    assert server.posts == 2


async def test_a_thought_cut_by_the_server_is_an_error_never_a_memory(encoder):
    with serving() as server:
        cut = {"message": {"content": None, "reasoning_content": "hm, let me"}, "finish_reason": "length"}
        server.reply = lambda body: {"choices": [cut]}
        backend = opened(server, api="chat")
        with pytest.raises(BackendError, match="still thinking"):
            await Agent(encoder, backend).aread(DOCUMENT, "Which note?")
        await backend.close()


@pytest.mark.parametrize("key", ["secret\nX-Evil: 1", "secret key", "s\u00e9cret"])
def test_a_key_that_is_none_is_refused_and_not_printed(key):
    with pytest.raises(ValueError, match="the API key has a line break") as refusal:
        OpenAICompatible("small", Sampling(), api_key=key)
    assert "secret" not in str(refusal.value) and "cret" not in str(refusal.value)


async def test_no_secret_is_printed_by_any_error():
    with serving(key="hunter2") as server:
        address = server.url.replace("http://", "http://me:pass%20word@")
        with pytest.raises(BackendUnavailable) as failure:
            OpenAICompatible("small", Sampling(), base_url=address)
        assert "pass" not in str(failure.value) and "me:" not in str(failure.value)
        assert base64.b64decode(server.authorizations[-1].removeprefix("Basic ")) == b"me:pass word"
        server.key = None
        backend = opened(server, api_key="hunter2")
        server.fault = lambda n: "400"
        server.refusal = "Incorrect API key provided: hunter2"
        with pytest.raises(BackendError, match=r"Incorrect API key provided: \*\*\*"):
            await ask(backend)
    for wrong in (
        "user:pw@host",
        "file:///etc/passwd",
        "",
        "http://me:pw@host:port/v1",
        "http://host/v1?key=pw",
        "http://h\n",
    ):
        with pytest.raises(ValueError, match="base_url must be an address such as http") as refusal:
            OpenAICompatible("small", Sampling(), base_url=wrong)
        assert "pw" not in str(refusal.value)


@pytest.mark.parametrize("key", ["hunter2", None])
async def test_passwords_of_netrc_are_never_sent(key, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(key=key) as server:
        assert (await ask(opened(server, api_key=key))).text
    assert server.authorizations == [f"Bearer {key}" if key else ""] * len(server.authorizations)
    assert server.posts == 1


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_lists_and_replies_come_through_one_proxy(scheme, monkeypatch):
    with serving() as server:
        host = server.url.removeprefix("http://").removesuffix("/v1")
        monkeypatch.setenv("http_proxy", f"{scheme}me:pass%20word@{host}")
        monkeypatch.setenv("no_proxy", "other.invalid:8000")
        monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first request
        address = "http://model.invalid:8000/v1"
        backend = OpenAICompatible("small", Sampling(), base_url=address, retry_policy=RetryPolicy(deadline_s=5))
        assert (await ask(backend)).text
    credentials = base64.b64encode(b"me:pass word").decode()
    assert server.posts == 1
    assert set(server.proxy_authorizations) == {f"Basic {credentials}"}


async def test_a_server_in_no_proxy_is_reached_directly(monkeypatch):
    with serving() as server:
        monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
        monkeypatch.setenv("no_proxy", server.url.removeprefix("http://").removesuffix("/v1"))
        assert (await ask(opened(server, retry_policy=RetryPolicy(deadline_s=5)))).text


async def test_a_request_that_hangs_ends_at_its_deadline():
    with serving(fault=lambda n: "hang", hang_s=60) as server:
        with pytest.raises(BackendError, match=r"within 0\.5 s"):
            await ask(opened(server, retry_policy=RetryPolicy(attempt_s=600, deadline_s=0.5)))
        assert server.hangs_ended == 0  # it did not wait for the server


@pytest.mark.parametrize(
    ("status", "says"), [("401", "refuses the API key"), ("403", "refuses the API key"), ("404", "need the chat API")]
)
async def test_what_is_wrong_for_every_request_stops_the_run(status, says):
    with serving(fault=lambda n: status) as server:
        backend = opened(server)
        with pytest.raises(BackendUnavailable, match=says):
            await backend.complete(Request((1,), "", 1))
        with pytest.raises(BackendUnavailable, match=says):
            await ask(backend)
    assert server.posts == 1, "the second request was not sent"


def test_a_wrong_key_model_or_address_is_found_before_any_turn():
    with serving(key="right") as server:
        with pytest.raises(BackendUnavailable, match=r"refuses the API key \(status 401\): bad key"):
            opened(server, api_key="wrong")
        assert opened(server, api_key="right").window == 4096
        with pytest.raises(BackendUnavailable, match="has no model 'large'; it has small"):
            OpenAICompatible("large", Sampling(), base_url=server.url, api_key="right")
    refused = r"no server answers at http://127.0.0.1:\d+/v1 \(ConnectionRefusedError"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen; no other process can take the port meanwhile
        with pytest.raises(BackendUnavailable, match=refused):
            OpenAICompatible("small", Sampling(), base_url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    with pytest.raises(ValueError, match="no api 'telepathy'; choose from completions, chat"):
        OpenAICompatible("small", Sampling(), api="telepathy")


def test_a_server_without_a_reported_window_needs_one():
    with serving(window=None) as server:
        with pytest.raises(ValueError, match="does not report the window of 'small'; give it in tokens"):
            opened(server)
        assert opened(server, window=512).window == 512


def listed(**card) -> dict:
    return {"data": [{"id": "small"} | card]}


PROPS = {"/props": {"default_generation_settings": {"n_ctx": 4096}}}
WINDOWS = {
    "a bare list": ([{"id": "small", "context_length": 32768}], {}, 32768),  # Together
    "gemini's own form": ({"models": [{"name": "models/small", "inputTokenLimit": 1 << 20}]}, {}, 1 << 20),
    "a text": (listed(max_model_len="8192"), {}, 8192),
    "a float": (listed(context_window=8192.0), {}, 8192),
    "the smaller of two": (listed(context_length=262144, top_provider={"context_length": 32768}), {}, 32768),
    "an adapter's parent": (
        {"data": [{"id": "base", "max_model_len": 8192}, {"id": "small", "parent": "base", "max_model_len": None}]},
        {},
        8192,
    ),
    "llama.cpp's slot": (listed(meta={"n_ctx_train": 131072}), PROPS, 4096),  # hermes-agent#1987
    "llama.cpp while it loads": (listed(meta=None), PROPS, 4096),
    "llama.cpp's newer list": (listed(meta={"n_ctx": 2048, "n_ctx_train": 131072}), PROPS, 2048),  # llama-swap#984
    "trained, and nothing else": (listed(meta={"n_ctx_train": 131072}), {}, 131072),
    "ollama, loaded": (  # ollama#17889
        {"data": [{"id": "small:latest", "owned_by": "library"}]},
        {"/api/ps": {"models": [{"name": "small:latest", "context_length": 4096}]}},
        4096,
    ),
    "ollama, num_ctx": (  # ollama#17417: another client's options made it load with a larger one
        {"data": [{"id": "small:latest", "owned_by": "library"}]},
        {
            "/api/ps": {"models": [{"name": "small:latest", "context_length": 65536}]},
            "/api/show": {"parameters": 'stop "x"\nnum_ctx                        8192\ntop_k 20'},
        },
        8192,
    ),
    "ollama, num_ctx past the model": (
        listed(),
        {
            "/api/ps": {"models": []},
            "/api/show": {"parameters": "num_ctx 65536", "model_info": {"qwen3.context_length": 40960}},
        },
        40960,
    ),
    "lm studio": (  # lmstudio-bug-tracker#2139
        listed(),
        {"/api/v0/models": {"data": [{"id": "small", "loaded_context_length": 6000, "max_context_length": 9000}]}},
        6000,
    ),
}


@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_the_window_is_the_one_that_the_server_serves(name):
    cards, pages, window = WINDOWS[name]
    with serving() as server:
        server.cards = cards
        server.pages = pages
        assert opened(server).window == window


@pytest.mark.parametrize(
    ("cards", "name"),
    [
        ([{"id": "models/small"}, {"id": "models/smaller"}], "models/small"),  # zeph#1688
        ([{"id": "small:latest"}], "small:latest"),
        ([{"id": "../models/any.gguf", "owned_by": "llamacpp"}], "../models/any.gguf"),
    ],
)
async def test_a_model_is_known_by_the_end_of_its_listed_name(cards, name):
    with serving() as server:
        server.cards = {"data": cards}
        await ask(opened(server, window=4096))
    assert server.bodies[0]["model"] == name


@pytest.mark.parametrize("cards", [{"data": [{"id": "a/small"}, {"id": "b/small"}]}, [], {"data": None}])
def test_a_model_that_is_not_listed_or_twice_is_named(cards):
    with serving() as server:
        server.cards = cards
        with pytest.raises(BackendUnavailable, match=r"has no model 'small'; it has (a/small, b/small|none)"):
            opened(server)


@pytest.mark.parametrize("cards", ["busy", 7, {"object": "list"}, {"data": [7]}, {"data": [{}]}])
def test_a_list_of_another_form_is_one_line(cards):
    with serving() as server:
        server.cards = cards
        with pytest.raises(BackendUnavailable, match="is not an OpenAI-compatible server's list of models"):
            opened(server)


async def test_a_prompt_that_the_window_cannot_hold_is_never_sent():
    with (
        serving(window=6) as server,
        pytest.raises(
            BackendError, match="the prompt is 3 tokens with a reply of up to 5, and the model's window is 6"
        ),
    ):
        await ask(opened(server))
    assert server.posts == 0


async def test_connections_are_reused():
    with serving() as server:
        backend = opened(server)
        at_start = server.connections
        for number in range(20):
            await backend.complete(Request((number,), "", 5))
        await backend.close()
    assert server.connections - at_start == 1


async def test_a_lost_server_stops_a_run_after_a_few_requests():
    policy = RetryPolicy(deadline_s=60, first_wait_s=0.01, longest_wait_s=0.02, gone_after_s=0.2, gone_after_failures=5)
    with serving(fault=lambda n: "drop" if n >= 10 else None) as server:
        backend = opened(server, retry_policy=policy)
        done, gone = 0, 0
        for number in range(10_000):
            try:
                await backend.complete(Request((number,), "", 1))
                done += 1
            except BackendError:
                continue
            except BackendUnavailable as failure:
                gone, said = gone + 1, str(failure)
                break
        await backend.close()
    assert (done, gone) == (10, 1)
    assert "is gone" in said
    assert "run the same command" in said
    assert server.posts < 200


class Calm:
    """Says what the server says, without a server."""

    window = 4096

    async def complete(self, request: Request) -> Reply:
        said = reply_of({"prompt": list(request.ids)})
        return Reply(said["choices"][0]["text"], "stop", len(request.ids), 3, 1)

    async def close(self) -> None:
        return None


async def test_a_hostile_server_loses_and_doubles_no_turn(encoder):
    # The server, not our deadline, ends a hang here: a busy machine's late reply would else be asked for twice, and
    # rightly so.
    with serving(fault=faults(0.3, ["429", "500", "drop", "half", "hang"]), hang_s=1) as server:
        traces = await _read_all(encoder, opened(server, retry_policy=PATIENT), 200)
    assert traces == await _read_all(encoder, Calm(), 200)
    turns = sum(len(trace.turns) for trace in traces)
    assert server.posts > 1.2 * turns, "faults did happen"
    assert len(server.answered) == turns
    assert set(server.answered.values()) == {1}, "no turn was answered twice"


async def _read_all(encoder, backend, n):
    """``n`` readings, each with a question of its own, so that no two of them ask the same."""
    agent = Agent(encoder, backend)
    try:
        return await gather(agent.aread(DOCUMENT[: len(DOCUMENT) // 2], f"Which note is {i}?") for i in range(n))
    finally:
        await backend.close()


async def test_cancelling_leaves_no_request_behind(encoder):
    with serving(fault=lambda n: "hang", hang_s=60) as server:
        backend = opened(server, retry_policy=RetryPolicy(attempt_s=600))
        work = asyncio.create_task(_read_all(encoder, backend, 20))
        while server.posts < 20:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await asyncio.sleep(0.3)
        assert server.posts == 20
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


def test_the_command_reads_through_a_chat_server_with_a_key(tokenizer, tmp_path, capsys):
    tokenizer.hf.save_pretrained(tmp_path / "words")
    (tmp_path / "a.txt").write_text(DOCUMENT)
    (tmp_path / "key").write_text("right\n")
    small = [
        "--template",
        "short",
        "--chunk-tokens",
        "48",
        "--memory-tokens",
        "24",
        "--answer-tokens",
        "12",
        "--question-tokens",
        "32",
    ]
    with serving(key="right", window=None) as server:
        asked = [
            "read",
            str(tmp_path / "a.txt"),
            "--question",
            "Which note?",
            "--model",
            "small",
            "--backend",
            "openai",
            *small,
        ]
        asked += ["--base-url", server.url, "--tokenizer", str(tmp_path / "words")]
        assert main(asked) == 2
        assert "refuses the API key (status 401)" in capsys.readouterr().err
        asked += ["--api-key-file", str(tmp_path / "key")]
        assert main(asked) == 2
        assert "does not report the window of 'small'" in capsys.readouterr().err
        assert main([*asked, "--window", "4096", "--api", "chat", "--journal", str(tmp_path / "j.jsonl")]) == 0
        assert capsys.readouterr().out.startswith("note ")
        posts = server.posts
        assert all("Which note?" in body["messages"][0]["content"] for body in server.bodies)
        assert main([*asked, "--window", "4096", "--api", "chat", "--journal", str(tmp_path / "j.jsonl")]) == 0
        assert server.posts == posts, "what the journal holds is not asked again"
        drawn = ["--window", "4096", "--api", "chat", "--temperature", "0.7", "--top-p", "0.9", "--extra", "top_k=20"]
        drawn += ["--extra", 'chat_template_kwargs={"enable_thinking": false}', "--extra", "service_tier=flex"]
        assert main([*asked, *drawn]) == 0
        body = server.bodies[-1]
        assert (body["temperature"], body["top_p"], body["top_k"], body["service_tier"]) == (0.7, 0.9, 20, "flex")
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        for wrong, says in [(["--extra", "top_k"], "--extra takes KEY=VALUE"), (["--top-p", "0"], "top_p must be")]:
            assert main([*asked, "--window", "4096", *wrong]) == 2
            assert says in capsys.readouterr().err


def test_another_served_model_or_api_continues_no_journal(encoder, tmp_path):
    (tmp_path / "a.txt").write_text(DOCUMENT)
    journal = tmp_path / "j.jsonl"

    def answers(server, api: str = "completions") -> dict[str, str]:
        agent = Agent(encoder, opened(server, api=api), weights="small")
        try:
            return read_files(agent, [tmp_path / "a.txt"], ["Which note?"], journal=journal).answers
        finally:
            agent.close()

    def listing(model: str) -> list:
        return [{"id": model, "owned_by": "llamacpp", "context_length": 4096}]

    with serving() as first, serving() as second:
        first.cards = second.cards = listing("a.gguf")
        answered = answers(first)
        assert answers(second) == answered, "another address of the same model"
        second.cards = listing("b.gguf")
        with pytest.raises(JournalError, match=r"server\.model was 'a\.gguf' and is 'b\.gguf'"):
            answers(second)
        with pytest.raises(JournalError, match=r"server\.api was 'completions' and is 'chat'"):
            answers(first, "chat")
        header, turns = journal.read_text().split("\n", 1)
        older = json.loads(header)
        del older["identity"]["server"]
        journal.write_text(f"{json.dumps(older)}\n{turns}")
        assert answers(second) == answered, "a journal of an older version"
        assert second.posts == 0


# The prompt as the server read it, and replies of other forms.


@pytest.mark.parametrize(
    ("sent", "api", "usage"),
    [
        (7_900, "completions", {"prompt_tokens": 2_050}),  # ollama#17889: num_ctx/2 + 2 of a longer prompt
        (2_150, "chat", {"prompt_tokens": 96, "completion_tokens": 4_000}),  # TradingAgents#168
        (7_900, "chat", {"prompt_tokens": 4_096}),  # ollama#7043
        (8_100, "completions", {"prompt_tokens": 7_993}),  # MEDS_EIC_AR#172: SGLang cuts the tail at the window - 7
        (200, "completions", {"prompt_tokens": 120, "prompt_tokens_details": {"cached_tokens": 64}}),
    ],
)
async def test_a_prompt_cut_by_the_server_names_both_numbers(sent, api, usage):
    with serving(window=20_000) as server:
        server.reply = lambda body: reply_of(body) | {"usage": usage}
        says = rf"cut the prompt: {sent:,} tokens were sent and it read {usage['prompt_tokens']:,}; .*num_ctx"
        with pytest.raises(BackendError, match=says):
            await ask(opened(server, api=api), range(sent))
    assert server.posts == 1


@pytest.mark.parametrize(
    ("sent", "api", "usage"),
    [
        (200, "completions", {"prompt_tokens": 199}),  # without the first token
        (200, "completions", {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 160}}),  # cache left out
        (200, "completions", {"prompt_tokens": 200, "prompt_tokens_details": {"cached_tokens": 160}}),
        (200, "completions", {"prompt_tokens": 0}),
        (200, "completions", None),
        (200, "chat", {"prompt_tokens": 230}),  # its chat template
        (200, "chat", {"prompt_tokens": 130}),  # another tokenizer
        (40, "chat", {"prompt_tokens": 12}),
    ],
)
async def test_a_whole_prompt_is_no_cut_however_it_is_counted(sent, api, usage):
    with serving() as server:
        server.reply = lambda body: reply_of(body) | {"usage": usage}
        assert (await ask(opened(server, api=api), range(sent))).text.startswith("note ")


@pytest.mark.parametrize(
    ("body", "says", "posts"),
    [
        (  # textgen#7257: an error under the status 200
            {"error": {"code": 400, "message": "the request exceeds the available context size", "n_ctx": 8192}},
            r"\(status 400\): the request exceeds the available context size",
            1,
        ),
        ({"choices": None}, "a reply of another form", ATTEMPTS_WITHOUT_TEXT),  # langchain#35236
        ({"choices": []}, "a reply of another form", ATTEMPTS_WITHOUT_TEXT),
        ("busy", "a reply of another form", ATTEMPTS_WITHOUT_TEXT),  # inspect_ai#3687: a bare string
        ({"choices": [{"message": {"content": None, "refusal": "I cannot."}}]}, "refuses to reply: I cannot", 1),
    ],
)
async def test_an_error_under_the_status_200_has_the_servers_words(body, says, posts):
    with serving() as server:
        server.reply = lambda _: body
        with pytest.raises(BackendError, match=says):
            await ask(opened(server, retry_policy=PATIENT))
    assert server.posts == posts


FAULTS = ["429", "500", "503", "drop", "half", *ODD_REPLIES]


async def read_at_thirty_percent(encoder, n: int, kinds: list[str], seed: int = 4):
    """Read ``n`` documents with four readers through a server that fails on 30 % of requests; return both traces."""
    readers = [READERS[name] for name in ("overwrite", "gated", "map_merge", "truncated")]
    document = DOCUMENT[: len(DOCUMENT) // 2]
    with serving() as server:
        server.fate = fates(0.3, kinds, seed)
        policy = RetryPolicy(attempt_s=60, deadline_s=300, first_wait_s=0.002, longest_wait_s=0.01)
        found = []
        for backend in (opened(server, retry_policy=policy), Calm()):
            agents = [Agent(encoder, backend, reader) for reader in readers]
            work = (agents[i % 4].aread(document, f"Which note is {i}?") for i in range(n))
            found.append(await gather(work))
            await backend.close()
    return server, *found


@pytest.mark.parametrize("kinds", [FAULTS, ["empty"]])
async def test_readings_survive_thirty_percent_of_faults(encoder, kinds):
    server, traces, calm = await read_at_thirty_percent(encoder, 40, kinds)
    assert traces == calm
    assert server.posts > 1.2 * sum(len(trace.turns) for trace in calm), "faults did happen"


@pytest.mark.parametrize(
    "text", ["the closing tag is </think>", "</think>", "<think> and </think> are its tags </think>"]
)
async def test_text_that_ends_in_a_literal_tag_is_no_empty_reply(encoder, text):
    with serving() as server:
        server.reply = lambda body: {"choices": [{"text": text, "finish_reason": "stop"}]}
        assert (await ask(opened(server))).text == text
    assert server.posts == 1


async def test_what_follows_a_thought_decides_whether_a_reply_is_empty():
    thinks = Thoughts.of("<think> </think>", frozenset(), "<think>\n")
    closed = Thoughts.of("<think> </think>", frozenset(), "<think>\n\n</think>\n\n")
    for thoughts, text, posts in [
        (thinks, "hm</think>", 2),
        (thinks, "hm</think>7</think>", 1),
        (closed, "x</think>", 1),
    ]:
        with serving() as server:
            server.reply = lambda _, text=text, server=server: {
                "choices": [{"text": text if server.posts == 1 else "7", "finish_reason": "stop"}]
            }
            backend = opened(server, retry_policy=PATIENT)
            await backend.complete(Request((1,), "", 5, thoughts=thoughts))
            await backend.close()
        assert server.posts == posts, text


# Statuses, reasons and errors as other servers and proxies write them.


def chat_choice(finish_reason: str | None = "stop", content: object = "the code") -> dict:
    return {"choices": [{"message": {"content": content}, "finish_reason": finish_reason}], "usage": {}}


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"])
async def test_every_name_of_a_cut_reply_marks_it(reason):  # Gemini, Mistral and proxies
    with serving() as server:
        server.reply = lambda body: chat_choice(reason)
        assert (await ask(opened(server, api="chat"))).cut


@pytest.mark.parametrize("reason", ["SAFETY", "recitation", "content_filter", "sensitive"])
async def test_every_name_of_a_filter_ends_the_reading(reason):
    with serving() as server:
        server.reply = lambda body: chat_choice(reason)
        with pytest.raises(BackendError, match="content filter took the reply"):
            await ask(opened(server, api="chat"))
    assert server.posts == 1


@pytest.mark.parametrize("reason", ["abort", "network_error", "insufficient_system_resource", "cancelled"])
async def test_a_reply_that_broke_off_is_tried_again(reason):  # vLLM, GLM, DeepSeek
    with serving() as server:
        server.reply = lambda body: chat_choice(reason if server.posts == 1 else "stop")
        assert (await ask(opened(server, api="chat", retry_policy=PATIENT))).text == "the code"
    assert server.posts == 2


@pytest.mark.parametrize("content", [{"type": "text", "text": "the code"}, ["the ", {"text": "code"}]])
async def test_a_content_in_another_form_is_its_text(content):
    with serving() as server:
        server.reply = lambda body: chat_choice(content=content)
        assert (await ask(opened(server, api="chat"))).text == "the code"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "Field required"}]}, "body.messages: Field required"),
        (400, {"detail": "bad thing"}, r"\(status 400\): bad thing"),
        (400, [{"error": {"message": "API key not valid"}}], r"\(status 400\): API key not valid"),  # Google
        (501, {"error": "Not Implemented"}, r"\(status 501\): Not Implemented"),
        (200, {"error": {"code": "context_length_exceeded", "message": "too long"}}, "too long"),
    ],
)
async def test_a_refusal_has_the_servers_words_and_is_not_repeated(status, body, says):
    with serving() as server:
        server.refuse = lambda _: (status, body)
        with pytest.raises(BackendError, match=says):
            await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert server.posts == 1


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            429,
            {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}},
            "no credit left",
        ),
        (429, {"error": {"message": "You exceeded your current quota, please check your plan"}}, "no credit left"),
        (301, {}, r"redirects requests to an address that it does not name \(status 301\); give that base_url"),
    ],
)
async def test_what_no_wait_changes_stops_the_run(status, body, says):
    with serving() as server:
        server.refuse = lambda _: (status, body)
        with pytest.raises(BackendUnavailable, match=says):
            await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert server.posts == 1


def quota_of_google(*quotas: str, after: str = "0.2s") -> list:
    """Google's error at the end of a quota, in the form that it sends."""
    message = "You exceeded your current quota, please check your plan and billing details."
    help_page = {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"description": "quotas " * 400}]}
    violations = [{"quotaMetric": "generate_content", "quotaId": quota, "quotaValue": "5"} for quota in quotas]
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": after}
    return [{"error": {"code": 429, "message": message, "details": [help_page, failure, retry]}}]


MINUTE = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"


@pytest.mark.parametrize(
    "body",
    [
        quota_of_google(MINUTE),
        {"error": {"message": "You exceeded your current quota, please check your plan. Please retry in 200.5ms."}},
        {"error": {"message": f"RateLimitError: {json.dumps(quota_of_google(MINUTE))}"}},  # a proxy quotes Google
    ],
)
async def test_a_limit_per_minute_is_waited_for_as_named(body):
    with serving() as server:
        server.refuse = lambda _: (429, body) if server.posts == 1 else None
        assert (await ask(opened(server, api="chat"))).text
    assert server.posts == 2
    assert server.times[1] - server.times[0] >= 0.2


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (quota_of_google(MINUTE, DAY, after="27s"), "no quota left for today .*; try again tomorrow, or give a key"),
        (quota_of_google(MINUTE, after="25200s"), r"left alone until \d{4}-"),
        ({"error": {"message": "Quota exceeded. Please retry in 7h1m12.5s."}}, r"left alone until \d{4}-"),
    ],
)
async def test_a_quota_that_is_spent_for_hours_stops_the_run(body, says):
    with serving() as server:
        server.refuse = lambda _: (429, body)
        with pytest.raises(BackendUnavailable, match=says):
            await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert server.posts == 1


FLAGGED = {"code": 403, "message": "Your chosen model requires moderation and your input was flagged"}


@pytest.mark.parametrize("status", [403, 200])
@pytest.mark.parametrize(
    "failure",
    [  # OpenRouter's
        FLAGGED,
        FLAGGED | {"message": "Forbidden", "metadata": {"reasons": ["violence"], "flagged_input": "the old mill"}},
        {"code": 403, "message": "The request violates the provider's content policy"},
    ],
)
async def test_a_flagged_prompt_fails_alone(failure, status):
    with serving() as server:
        server.refuse = lambda body: (status, {"error": failure}) if body["prompt"] == [7] else None
        backend = opened(server, retry_policy=PATIENT)
        says = rf"content filter refuses the prompt \(status 403\): {failure['message']}; read with another model, or"
        with pytest.raises(BackendError, match=says):
            await backend.complete(Request((7,), "", 5))
        assert (await ask(backend)).text
    assert server.posts == 2


async def test_many_flagged_prompts_stop_no_other():
    with serving() as server:
        server.refuse = lambda body: (403, {"error": FLAGGED}) if body["prompt"] != [7] else None
        backend = opened(server, retry_policy=replace(PATIENT, same_refusals=2))
        for number in range(4):
            with pytest.raises(BackendError, match="content filter"):
                await backend.complete(Request((number,), "", 5))
        assert (await ask(backend, [7])).text


@pytest.mark.parametrize(
    "body", [{"error": {"message": "Key has no access"}}, {"error": "Your account was flagged"}, b"content policy"]
)
async def test_a_forbidden_key_or_account_stops_the_run(body):
    with serving() as server:
        server.refuse = lambda _: (403, body)
        with pytest.raises(BackendUnavailable, match=r"refuses the API key \(status 403\)"):
            await ask(opened(server, retry_policy=PATIENT))


FIELD = "struct field CompletionRequest.prompt"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": f"json: cannot unmarshal array into Go {FIELD} of type string"}}),  # Ollama
        (  # TGI
            422,
            b"Failed to deserialize the JSON body into the target type: prompt: data did not match any variant of "
            b"untagged enum Prompt at line 1 column 35",
        ),
        (
            422,
            {"detail": [{"loc": ["body", "prompt"], "msg": "Input should be a valid string", "type": "string_type"}]},
        ),
        (400, {"error": "'prompt' must be a string"}),
        (  # litellm#17118
            500,
            {
                "error": {
                    "message": "litellm.APIConnectionError: OpenAIException - Unmapped prompt format. Your prompt is "
                    "neither a list of strings nor a string. prompt=[1, 2, 3]",
                    "code": "500",
                }
            },
        ),
    ],
)
async def test_a_server_without_token_prompts_names_the_chat_api(status, body):
    with serving() as server:
        server.refuse = lambda sent: (status, body) if "prompt" in sent else None
        says = rf"takes no token ids as a prompt \(status {status}\): .*rompt.*need the chat API"
        with pytest.raises(BackendUnavailable, match=says):
            await ask(opened(server, retry_policy=PATIENT))
        assert server.posts == 1
        assert (await ask(opened(server, api="chat"))).text


async def test_other_words_about_a_prompt_do_not_blame_the_api():
    for message in ("the prompt should be at most 4096 tokens", "Token id 1000000 is out of vocabulary in the prompt"):
        with serving() as server:
            server.refuse = lambda _, message=message: (400, error(message))
            with pytest.raises(BackendError, match="refuses the request"):
                await ask(opened(server, retry_policy=PATIENT))


async def test_a_web_page_instead_of_a_reply_is_named():
    with serving() as server:
        server.reply = lambda body: b"<!doctype html><title>Log in</title>"
        with pytest.raises(BackendError, match=r"a web page instead of a reply: .*Log in"):
            await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert server.posts == ATTEMPTS_WITHOUT_TEXT


@pytest.mark.parametrize("page", ["", "/v1/models", "/v1/chat/completions"])
def test_the_right_base_url_is_named_for_a_wrong_one(page):
    with serving() as server:
        bare = server.url.removesuffix("/v1")
        server.list_paths = ("/v1/models",)
        with pytest.raises(BackendUnavailable, match=f"is not the address of the server's API; give {server.url}$"):
            OpenAICompatible("small", Sampling(), base_url=bare + page)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_not_ready_is_one_line_at_the_start(status):  # llama.cpp while it loads
    with serving() as server:
        server.list_status = status
        with pytest.raises(BackendUnavailable, match=rf"is not ready \(status {status}: Loading model\); try again"):
            opened(server)


# What a server takes of OpenAI's form.

UNKNOWN = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
DEFAULT_ONLY = (
    "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) is supported."
)


def refusing(*refusals: tuple[str, dict], status: int = 400):
    """Refuse each request whose body has a field, with the error of the first such field."""

    def fault(body: dict) -> tuple[int, dict] | None:
        return next(((status, error) for name, error in refusals if name in body), None)

    return fault


def error(message: str, **more: str) -> dict:
    return {"error": {"message": message} | more}


LIMIT_REFUSED = ("max_tokens", error(UNKNOWN, param="max_tokens", code="unsupported_parameter"))
HEAT_REFUSED = ("temperature", error(DEFAULT_ONLY, param="temperature", code="unsupported_value"))


def events(*chunks: object, end: str = "data: [DONE]\n\n") -> bytes:
    """Return a stream of server-sent events with a sign of life between its chunks."""
    return ": alive\n\n".join([*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), end]).encode()


def delta(finish_reason: str | None = None, **parts: object) -> dict:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish_reason}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STREAMS = {
    "chat": events(delta(role="assistant", content=""), delta(content="the "), delta("stop", content="code"), USAGE),
    "no end mark": events(delta(content="the code"), delta("stop"), USAGE, end=""),
    "no reason": events(delta(content="the code"), USAGE),
    "thoughts": events(delta(reasoning_content="h"), delta(reasoning_content="m"), delta("stop", content="the code")),
    "parts": events(delta(content=[{"type": "text", "text": "the "}]), delta("stop", content="code")),
    "completions": events({"choices": [{"text": "the "}]}, {"choices": [{"text": "code", "finish_reason": "stop"}]}),
    "named events": b"event: message\r\ndata: " + events(delta("stop", content="the code"))[6:].replace(b"\n", b"\r\n"),
    "a whole message": events({"choices": [{"message": {"content": "the code"}, "finish_reason": "stop"}]}),
    "two replies": events({"choices": [{"index": 1, "delta": {"content": "no"}}]}, delta("stop", content="the code")),
}


@pytest.mark.parametrize("name", sorted(STREAMS))
async def test_a_stream_that_nobody_requested_is_joined(name):  # unsloth#6570, inspect_ai#2915
    with serving() as server:
        server.reply = lambda body: STREAMS[name]
        reply = await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert (reply.text, reply.finish_reason, server.posts) == ("the code", "stop", 1)
    assert reply.thinking == ("hm" if name == "thoughts" else "")
    assert reply.prompt_tokens == 3


@pytest.mark.parametrize(
    "stream",
    [
        events(delta(content="the co"), end=""),
        events(delta(content="the co"), end="data: {"),
        events(delta(content="x"), {"error": {"message": "overloaded", "code": 503}}),
        events(delta("stop")),
        events("x"),
        b"data: [DONE]\n\n",
    ],
)
async def test_a_broken_stream_is_tried_again(stream):
    with serving() as server:
        server.reply = lambda body: stream if server.posts == 1 else STREAMS["chat"]
        assert (await ask(opened(server, api="chat", retry_policy=PATIENT))).text == "the code"
    assert server.posts == 2


async def test_a_refusal_inside_a_stream_has_the_servers_words():
    with serving() as server:
        server.reply = lambda body: events(delta(content="x"), {"error": {"message": "no such tool", "code": 400}})
        with pytest.raises(BackendError, match=r"\(status 400\): no such tool"):
            await ask(opened(server, api="chat", retry_policy=PATIENT))
    assert server.posts == 1


@pytest.mark.parametrize(
    "refusal",
    [
        {"detail": "Stream must be set to true"},  # llm_wiki#594, chatwise-releases#1338
        error("This model only support stream mode, please enable the stream parameter to access the model."),
        error("parameter.enable_thinking must be set to false for non-streaming calls"),  # DashScope, Qwen3
    ],
)
async def test_a_server_that_only_streams_is_asked_for_a_stream(refusal):
    with serving() as server:
        server.refuse = lambda body: None if body.get("stream") else (400, refusal)
        server.reply = lambda body: STREAMS["chat"]
        backend = opened(server, api="chat", retry_policy=PATIENT)
        replies = [await backend.complete(Request((1, 2, number), "", 5)) for number in range(3)]
        await backend.close()
    assert [reply.text for reply in replies] == ["the code"] * 3
    assert server.posts == 1 + 3, "what was learnt is remembered"
    assert server.bodies[-1]["stream_options"] == {"include_usage": True} and backend.left_out == {}


async def test_stream_options_are_left_out_where_refused():
    with serving() as server:
        stream = ("model", {"detail": "Stream must be set to true"})
        options = ("stream_options", error("Unknown parameter: stream_options"))
        server.refuse = lambda body: refusing(options, *([] if body.get("stream") else [stream]))(body)
        server.reply = lambda body: STREAMS["chat"]
        assert (await ask(opened(server, api="chat", retry_policy=PATIENT))).text == "the code"
    assert server.bodies[-1]["stream"] is True and "stream_options" not in server.bodies[-1]


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_marks_that_are_special_tokens_are_requested(api):  # macprovider#743: gpt-oss without its channels
    thoughts = Thoughts(special=True)
    with serving() as server:
        server.refuse = refusing(("min_p", error("Unknown parameter: min_p")))
        backend = opened(server, api=api, retry_policy=PATIENT)
        for request in (Request((1,), "", 5), Request((2,), "", 5, thoughts=thoughts)):
            await backend.complete(request)
        server.refuse = refusing(("skip_special_tokens", error("Unknown parameter: skip_special_tokens")))
        await backend.complete(Request((3,), "", 5, thoughts=thoughts))
        await backend.close()
    sent = [body.get("skip_special_tokens") for body in server.bodies[-3:]]
    assert sent == ([False, False, None] if api == "completions" else [None, None, None])


def test_a_model_that_ollama_has_not_loaded_is_loaded_first():
    running = []
    with serving() as server:
        server.cards = {"data": [{"id": "small", "owned_by": "library"}]}
        server.pages = {
            "/api/ps": lambda _: {"models": running},
            "/api/show": {"parameters": "top_k 20", "model_info": {"qwen3.context_length": 40960}},
            "/api/generate": lambda body: running.append({"model": body["model"], "context_length": 4096}) or {},
        }
        assert opened(server).window == 4096  # the default, not the 40,960 that it was trained with


async def test_refused_sampling_is_in_replies_traces_and_journals(encoder, tmp_path):
    with serving() as server:
        server.refuse = refusing(HEAT_REFUSED)
        backend = opened(server, sampling=Sampling(temperature=0.3), retry_policy=PATIENT)
        agent = Agent(encoder, backend)
        with Journal(tmp_path / "j.jsonl", {}) as journal:
            trace = await agent.aread(DOCUMENT, "Which note?", observer=Observer(store=journal.reading()))
        await backend.close()
    assert trace.sampling_left_out == "temperature=0.3"
    assert {turn.reply.sampling_left_out for turn in trace.turns} == {"temperature=0.3"}
    assert Trace.from_record(trace.to_record()) == trace
    with Journal(tmp_path / "j.jsonl", {}) as journal:
        again = await Agent(encoder, Calm()).aread(DOCUMENT, "Which note?", observer=Observer(store=journal.reading()))
    assert again.sampling_left_out == "temperature=0.3"
    assert "sampling_left_out" not in Reply("x").to_record()


def test_refused_sampling_is_named_in_pages_rows_and_warnings(encoder, tmp_path):
    (tmp_path / "a.txt").write_text(DOCUMENT)
    with serving() as server:
        server.refuse = refusing(HEAT_REFUSED)
        agent = Agent(encoder, opened(server, sampling=Sampling(temperature=0.3), retry_policy=PATIENT))
        reading = read_files(agent, [tmp_path / "a.txt"], ["Which note?"])
        example = Example(id="1", task="own", question="Which note?", document=DOCUMENT, answers=("note",))
        rows = to_frame(evaluate(agent, [example], progress=False))
        agent.close()
    says = f"the server refused temperature=0.3 in {len(reading.trace.turns)} turns"
    assert says in reading.warnings[0]
    assert says in reading.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert list(rows["sampling_left_out"]) == ["temperature=0.3"]
    assert mixtures(rows) == ["the server refused temperature=0.3 in 1 of 1 readings"]


async def test_all_sampling_is_stated_to_a_server_that_takes_it():
    with serving() as server:
        await ask(opened(server))
    (body,) = server.bodies
    neutral = {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    assert {name: body[name] for name in ("temperature", "top_p", *neutral)} == {"temperature": 0, "top_p": 1} | neutral


def test_hosted_openai_never_gets_a_field_that_is_not_its_own():
    for address in ("https://api.openai.com/v1", "https://me.openai.azure.com/openai/v1"):
        fields = Dialect(Sampling(temperature=0.3), address).fields(Request((1,), "", 5))
        assert fields == {"max_tokens": 5, "temperature": 0.3, "top_p": 1.0}
    assert "top_k" in Dialect(Sampling(), "https://myopenai.com/v1").fields(Request((1,), "", 5))
    assert Dialect(Sampling(), "http://x/v1", "llamacpp").fields(Request((1,), "", 5))["repeat_penalty"] == 1


@pytest.mark.parametrize("refusals", [(LIMIT_REFUSED, HEAT_REFUSED), (HEAT_REFUSED, LIMIT_REFUSED)])
async def test_refused_limit_and_temperature_are_mended_once(refusals, caplog):  # hermes-agent#78273
    with serving() as server:
        server.refuse = refusing(*refusals)
        backend = opened(server, api="chat", sampling=Sampling(temperature=0.3), retry_policy=PATIENT)
        for number in range(3):
            await backend.complete(Request((number,), f"the words {number}", 5))
        await backend.close()
    assert server.posts == 3 + 2, "what was learnt is remembered"
    assert server.bodies[-1]["max_completion_tokens"] == 5
    assert "max_tokens" not in server.bodies[-1] and "temperature" not in server.bodies[-1]
    assert backend.left_out == {"temperature": 0.3}
    assert [record.getMessage().partition(" takes ")[2] for record in caplog.records] == [
        "no temperature; its own is in effect, not 0.3"
    ]


@pytest.mark.parametrize(
    "words", ["cannot both be specified for this model. Please use only one.", "are mutually exclusive"]
)
async def test_of_temperature_and_top_p_temperature_remains(words, caplog):  # Claude 4.5
    def refuse(body: dict) -> tuple[int, dict] | None:
        return (400, error(f"`temperature` and `top_p` {words}")) if {"temperature", "top_p"} <= body.keys() else None

    with serving() as server:
        server.refuse = refuse
        backend = opened(server, sampling=Sampling(temperature=0.7, top_p=0.95), retry_policy=PATIENT)
        for number in range(3):
            await backend.complete(Request((number,), "", 5))
        await backend.close()
    assert server.posts == 3 + 1
    assert server.bodies[-1]["temperature"] == 0.7 and "top_p" not in server.bodies[-1]
    assert backend.left_out == {"top_p": 0.95} and len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "refusal", "status"),
    [
        ("top_k", error("Unrecognized request argument supplied: top_k"), 400),  # hermes-agent#15633
        ("min_p", error("property 'min_p' is unsupported"), 400),
        ("top_k", error('Invalid JSON payload received. Unknown name "top_k": Cannot find field.'), 400),
        ("top_k", {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs"}]}, 422),
        ("top_k", error("Failed to deserialize: top_k: invalid value: integer `-1`, expected u32"), 422),
        ("top_p", error("`temperature` and `top_p` cannot both be specified for this model."), 400),
    ],
)
async def test_a_refused_neutral_field_is_left_out_in_silence(name, refusal, status, caplog):
    with serving() as server:
        server.refuse = refusing((name, refusal), status=status)
        backend = opened(server, retry_policy=PATIENT)
        for number in range(3):
            await backend.complete(Request((number,), "", 5))
        await backend.close()
    assert server.posts == 3 + 1
    assert set(server.bodies[0]) - set(server.bodies[-1]) == {name}
    assert backend.left_out == {} and not caplog.records


async def test_a_prompt_that_is_too_long_or_an_own_field_is_a_refusal():
    # sglang#3642, and vLLM's: max_tokens is named, and no field is refused
    too_long = error(
        "This model's maximum context length is 4096 tokens; reduce the prompt or max_tokens, unsupported."
    )
    own = error("Unknown parameter: min_p")
    for refusals, extra in [(("model", too_long), {}), (("min_p", own), {"min_p": 0.1})]:
        with serving() as server:
            server.refuse = refusing(refusals)
            with pytest.raises(BackendError, match="refuses the request"):
                await ask(opened(server, extra=extra))
        assert server.posts == 1


async def test_parts_are_joined_and_a_broken_reply_is_tried_again():
    parts = [{"type": "text", "text": "the "}, {"type": "image"}, {"type": "text", "text": "code"}]
    broken = {"message": {"content": "the co"}, "finish_reason": "error"}
    with serving() as server:
        server.reply = lambda _: {
            "choices": [broken if server.posts == 1 else {"message": {"content": parts}, "finish_reason": "stop"}]
        }
        assert (await ask(opened(server, api="chat", retry_policy=PATIENT))).text == "the code"
    assert server.posts == 2


async def test_mistrals_parts_of_thinking_are_thoughts():
    # mistralai/client-python: ThinkChunk, whose thoughts are parts themselves
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "otter "}, {"type": "text", "text": "4821?"}]}
    parts = [thought, {"type": "text", "text": "the code"}]
    cut = {"message": {"content": [thought]}, "finish_reason": "length"}
    with serving() as server:
        server.reply = lambda _: {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}
        reply = await ask(opened(server, api="chat"))
        assert (reply.text, reply.thinking) == ("the code", "otter 4821?")
        server.reply = lambda _: {"choices": [cut]}
        assert (await ask(opened(server, api="chat"))).text == "<think>otter 4821?"


async def test_attempts_without_text_are_counted_by_themselves():
    empty = RetryableError("no text", attempts=2)
    fault = RetryableError("status 500")
    for failures, succeeds in [([fault, fault, fault, empty], True), ([empty, fault, empty], False)]:
        left = iter(failures)

        async def once(left=left):
            for failure in left:
                raise failure
            return "text"

        work = retrying(once, QUICK, Circuit(QUICK, "x"))
        if succeeds:
            assert await work == "text"
        else:
            with pytest.raises(BackendError, match="no reply after 3 attempts within 60 s; the last: no text"):
                await work


@pytest.mark.parametrize("after", ["inf", "1e400", "99999999999999999999"])
async def test_a_pause_without_an_end_is_one_line(after):
    with (
        serving(fault=lambda n: f"429/{after}") as server,
        pytest.raises(BackendUnavailable, match="left alone and names no end"),
    ):
        await ask(opened(server))
    assert server.posts == 1


@pytest.mark.parametrize("name", ["model", "messages", "stream"])
def test_a_field_of_the_backend_itself_is_no_extra(name):
    with pytest.raises(ValueError, match=f"extra may not set {name}"):
        OpenAICompatible("small", Sampling(), extra={name: True})


# RetryPolicy, by itself.


def failed(attempt: int, after: str | None = None) -> RetryCallState:
    """How tenacity tells of a failed attempt."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = attempt
    state.set_exception((RetryableError, RetryableError("dropped", after), None))
    return state


def test_waits_double_up_to_a_bound_and_are_jittered():
    policy = RetryPolicy(first_wait_s=1, longest_wait_s=5)
    for attempt, bound in [(1, 1), (2, 2), (3, 4), (4, 5), (9, 5), (5000, 5)]:
        waits = [policy.wait_s(failed(attempt)) for _ in range(400)]
        assert 0 <= min(waits) < 0.1 * bound
        assert 0.9 * bound < max(waits) <= bound
    assert 7 <= policy.wait_s(failed(1, after="7")) <= 8
    with pytest.raises(ValueError, match="deadline_s must be above 0, got 0"):
        RetryPolicy(deadline_s=0)


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert seconds_of("2.5") == 2.5
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert seconds_of("Wed, 21 Oct 2065 07:28:00 GMT") > 1e8
    assert seconds_of("Wed, 21 Oct 2065 07:28:00") == pytest.approx(seconds_of("Wed, 21 Oct 2065 07:28:00 GMT"), abs=1)
    assert (seconds_of("0.493"), seconds_of("-5"), seconds_of("inf"), seconds_of("1e400")) == (
        0.493,
        0,
        *[math.inf] * 2,
    )
    for no_time in (None, "soon", "nan", "120junk", "5s", "1_0", "\uff11\uff12"):  # openai-agents-python#4558
        assert seconds_of(no_time) is None


def test_a_silent_minute_opens_the_circuit_and_a_burst_does_not():
    now = [0.0]
    circuit = Circuit(RetryPolicy(gone_after_s=60, gone_after_failures=5), "http://x", clock=lambda: now[0])
    for _ in range(500):
        circuit.failed(RetryableError("dropped"))
    circuit.succeeded()
    now[0] = 100
    circuit.failed(RetryableError("dropped"))
    now[0] = 159
    for _ in range(10):
        circuit.failed(RetryableError("dropped"))
    now[0] = 160
    with pytest.raises(BackendUnavailable, match="12 attempts in a row failed over 60 s, the last with dropped"):
        circuit.failed(RetryableError("dropped"))
    with pytest.raises(BackendUnavailable):
        circuit.check()


def test_a_server_that_refuses_requests_is_not_gone():
    now = [0.0]
    circuit = Circuit(RetryPolicy(gone_after_s=60, gone_after_failures=5), "http://x", clock=lambda: now[0])
    for number in range(10):
        now[0] += 100
        circuit.failed(RetryableError("status 429"))
        circuit.refused(BackendError(f"the prompt {number} is refused"))
    assert circuit.trouble is None


def test_an_open_circuit_is_tried_again_after_growing_pauses():
    now = [0.0]
    circuit = Circuit(RetryPolicy(first_pause_s=1, longest_pause_s=3), "http://x", clock=lambda: now[0])
    with pytest.raises(BackendUnavailable, match="no key"):
        circuit.open("no key")
    for pause_s in (1, 2, 3, 3):
        now[0] += pause_s - 0.25
        with pytest.raises(BackendUnavailable, match="no key") as refused:
            circuit.check()
        assert refused.value.after_s == pytest.approx(0.25)
        now[0] += 0.25
        circuit.check()  # one request tries the server again
        with pytest.raises(BackendUnavailable, match="no key"):
            circuit.check()  # while the others wait for it
    circuit.succeeded()
    circuit.check()
    assert circuit.trouble is None and circuit.pause_s == 0


async def test_a_bug_in_the_request_is_not_retried():
    tries = []

    async def once():
        tries.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await retrying(once, QUICK, Circuit(QUICK, "x"))
    assert tries == [1]


async def test_the_last_reason_is_the_one_reported():
    reasons = iter(["first", "second", "third"])

    async def once():
        raise RetryableError(next(reasons), attempts=3)

    with pytest.raises(BackendError, match="no reply after 3 attempts within 60 s; the last: third"):
        await retrying(once, QUICK, Circuit(QUICK, "x"))
