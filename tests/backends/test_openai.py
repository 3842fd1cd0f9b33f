"""The OpenAI-compatible backend against a server that misbehaves in every way we know."""

import asyncio
import base64
import json
import socket

import pytest
from hostile import ODD_REPLIES, fates, serving
from hostile import completion as reply_of

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, BackendUnavailable, Sampling, open_backend
from memagent_lib.backends.openai import SAME_REFUSALS, USELESS_REPLIES, OpenAICompatible
from memagent_lib.driver import Observer, gather
from memagent_lib.journal import Journal
from memagent_lib.prompts import Request
from memagent_lib.readers import reader_named
from memagent_lib.thinking import Thoughts
from memagent_lib.trace import Reply, Trace

DOCUMENT = " ".join(f"Note {i}: a small boat drifts past the old mill." for i in range(12))
THINKS = Thoughts.of("<think> </think>", frozenset(), "<think>\n")


def opened(server, **options) -> OpenAICompatible:
    sampling = options.pop("sampling", Sampling())
    return open_backend("openai", "small", sampling, base_url=server.url, **options)


async def ask(backend, ids=(1, 2, 3), max_tokens=5, **request) -> Reply:
    try:
        return await backend.complete(Request(tuple(ids), "the words", max_tokens, **request))
    finally:
        await backend.close()


def chat_choice(finish_reason: str | None = "stop", content: object = "the code", **message: object) -> dict:
    return {"choices": [{"message": {"content": content} | message, "finish_reason": finish_reason}], "usage": {}}


def error(message: str, **more: object) -> dict:
    return {"error": {"message": message} | more}


def events(*chunks: object, end: str = "data: [DONE]\n\n") -> bytes:
    """Return a stream of server-sent events with a sign of life between its chunks."""
    return ": alive\n\n".join([*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), end]).encode()


def delta(finish_reason: str | None = None, **parts: object) -> dict:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish_reason}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STREAMS = {
    "chat": events(delta(role="assistant", content=""), delta(content="the "), delta("stop", content="code"), USAGE),
    "thoughts": events(delta(reasoning_content="h"), delta(reasoning_content="m"), delta("stop", content="the code")),
    "named events": b"event: message\r\ndata: " + events(delta("stop", content="the code"))[6:].replace(b"\n", b"\r\n"),
}


async def test_a_reply_has_the_servers_counts_and_ids_and_sampling_are_sent_as_is():
    with serving() as server:
        backend = opened(server, sampling=Sampling(temperature=0.7, top_p=0.9, seed=3), extra={"min_p": 0.1})
        reply = await ask(backend)
        assert backend.window == 4096
    (body,) = server.bodies
    drawn = {"temperature": 0.7, "top_p": 0.9, "seed": Sampling(seed=3).seed_for(Request((1, 2, 3), "", 5))}
    neutral = {"top_k": -1, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    rest = {"model": "small", "prompt": [1, 2, 3], "max_tokens": 5, "min_p": 0.1}
    assert body == drawn | neutral | rest
    assert (reply.prompt_tokens, reply.reply_tokens, reply.cached_tokens, reply.finish_reason) == (3, 3, 1, "stop")


@pytest.mark.parametrize("fault", ["429", "408", "409", "500", "503", "drop", "half", "torn", *ODD_REPLIES])
async def test_what_may_pass_is_tried_again(fault):
    with serving(fault=lambda n: fault if n < 2 else None) as server:
        assert (await ask(opened(server))).text.startswith("note ")
    assert server.posts == 3


QUOTA = {
    "error": {"code": 429, "message": "You exceeded your current quota", "details": [{"quotaId": "RequestsPerDay"}]}
}
FLAGGED = {"code": 403, "message": "Your chosen model requires moderation and your input was flagged"}
REFUSALS = [
    (400, error("bad thing"), BackendError, r"\(status 400\): bad thing"),
    (422, {"detail": [{"loc": ["body", "x"], "msg": "Field required"}]}, BackendError, "body.x: Field required"),
    (200, error("the request exceeds the context size", code=400), BackendError, "exceeds"),  # textgen#7257
    (200, chat_choice(content=None, refusal="I cannot."), BackendError, "I cannot"),
    (200, chat_choice("content_filter", "So"), BackendError, "content filter"),
    (200, chat_choice("length", ""), BackendError, "thinking_tokens"),
    (403, {"error": FLAGGED}, BackendError, "content filter"),
    (401, error("no"), BackendUnavailable, "API key"),
    (404, error("no"), BackendUnavailable, "set api"),
    (429, QUOTA, BackendUnavailable, "no credit"),
    (422, b"prompt: data did not match any variant of untagged enum Prompt", BackendUnavailable, "set api"),  # TGI
]


@pytest.mark.parametrize(("status", "body", "kind", "says"), REFUSALS)
async def test_what_no_retry_changes_is_sent_once(status, body, kind, says):
    with serving() as server:
        server.refuse = lambda _: (status, body)
        with pytest.raises(kind, match=says):
            await ask(opened(server))
    assert server.posts == 1


async def test_a_named_pause_that_is_too_long_stops_the_run():
    with serving(fault=lambda n: "429/3600") as server, pytest.raises(BackendUnavailable, match="3600"):
        await ask(opened(server))
    assert server.posts == 1


@pytest.mark.parametrize("fault", ["503", "drop", "hang"])
async def test_a_request_is_tried_until_its_deadline_and_then_the_server_may_be_gone(fault, monkeypatch):
    why = "status 503: fault 503" if fault == "503" else "no answer"
    for gone_after_s, kind in ((60, BackendError), (0.1, BackendUnavailable)):
        with serving(fault=lambda n: fault if n else None, hang_s=60) as server:
            backend = opened(server)
            await backend.complete(Request((1,), "", 1))
            with monkeypatch.context() as patch:
                patch.setattr("memagent_lib.backends.openai.DEADLINE_S", 1)
                patch.setattr("memagent_lib.backends.openai.GONE_AFTER_S", gone_after_s)
                with pytest.raises(kind, match=why):
                    await ask(backend)
        assert server.hangs_ended == 0
        assert server.posts > 4 or fault == "hang"


@pytest.mark.parametrize(
    ("refuse", "ends"),
    [
        (lambda body: (400, error("always")), 3),
        (lambda body: (400, error(f"bad {body['prompt']}")), 0),
        (lambda body: (403, {"error": FLAGGED}), 0),
        (lambda body: (400, error("always")) if body["prompt"] != [5] else None, 0),
    ],
)
async def test_equal_refusals_in_a_row_stop_the_run(refuse, ends):
    with serving() as server:
        server.refuse = refuse
        backend = opened(server)
        work = [backend.complete(Request((number,), "", 1)) for number in range(SAME_REFUSALS + 2)]
        kinds = [type((await asyncio.gather(each, return_exceptions=True))[0]) for each in work]
        await backend.close()
    assert kinds.count(BackendUnavailable) == ends


WITHOUT_TEXT = {
    "white space": {"message": {"content": " \n\u2003"}, "finish_reason": "stop"},
    "a thought": {"message": {"content": "", "reasoning_content": "it could be 7"}, "finish_reason": "stop"},
    "a thought in the text": {"text": "<think>it could be 7</think>\n", "finish_reason": "stop"},
    "half a text": {"message": {"content": "the co"}, "error": {"code": 502}, "finish_reason": None},
    "a page": b"<!doctype html><title>Log in</title>",
    "half a stream": events(delta(content="the co"), end=""),
    "an error in a choice of a stream": events({"choices": [{"delta": {"content": "the co"}, "error": {"code": 502}}]}),
    "an error in a stream": events(delta(content="x"), error("overloaded", code=503)),
}


@pytest.mark.parametrize("name", WITHOUT_TEXT)
async def test_half_a_reply_or_none_is_retried_and_never_a_memory(encoder, name):
    choice = WITHOUT_TEXT[name]
    useless = {"choices": [choice]} if isinstance(choice, dict) and "choices" not in choice else choice
    sent = []

    def once_a_turn(body: dict) -> object:
        sent.append(body)
        return useless if sent.count(body) == 1 else reply_of(body)

    with serving() as server:
        backend = opened(server, api="chat")
        agent = Agent(encoder, backend)
        server.reply = once_a_turn
        trace = await agent.aread(DOCUMENT, "Which note?")
        assert all(turn.reply.text.startswith("note ") for turn in trace.turns)
        assert server.posts == 2 * len(trace.turns)
        server.reply = lambda body: useless
        with pytest.raises(BackendError):
            await agent.aread(DOCUMENT, "Which note?")
        assert server.posts == 2 * len(trace.turns) + USELESS_REPLIES
        await backend.close()


async def test_a_thought_cut_by_the_server_is_an_error_never_a_memory(encoder):
    with serving() as server:
        server.reply = lambda body: chat_choice("length", None, reasoning_content="hm, let me")
        backend = opened(server, api="chat")
        with pytest.raises(BackendError, match="still thinking"):
            await Agent(encoder, backend).aread(DOCUMENT, "Which note?")
        await backend.close()


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "otter "}, {"type": "text", "text": "4821?"}]}
CHAT_REPLIES = [
    (chat_choice(), ("the code", "")),
    (chat_choice("MAX_TOKENS", reasoning_content="hm"), ("the code", "hm")),
    (chat_choice(content=[THOUGHT, {"type": "text", "text": "the code"}]), ("the code", "otter 4821?")),  # Mistral's
    *((stream, ("the code", "hm" if name == "thoughts" else "")) for name, stream in STREAMS.items()),
]


@pytest.mark.parametrize(("body", "text_and_thinking"), CHAT_REPLIES)
async def test_a_chat_reply_in_any_form_is_its_text_and_thoughts(body, text_and_thinking):
    with serving() as server:
        server.reply = lambda _: body
        reply = await ask(opened(server, api="chat"))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "the words"}]
    assert (reply.text, reply.thinking, server.posts) == (*text_and_thinking, 1)
    assert reply.cut == ("MAX_TOKENS" in str(body))


@pytest.mark.parametrize(
    ("api", "content", "finish_reason", "parts"),
    [
        ("chat", "The code is 4711.", "stop", ("", "The code is 4711.", True)),  # llama.cpp --reasoning-budget 0
        ("chat", "hm</think>The code is 4711.", "stop", ("hm", "The code is 4711.", True)),
        ("chat", "The code", "length", ("The code", "", False)),
        ("completions", "The code is 4711.", "stop", ("The code is 4711.", "", False)),
    ],
)
async def test_a_chat_reply_without_marks_is_text_unless_cut(api, content, finish_reason, parts):
    with serving() as server:
        server.reply = lambda body: chat_choice(finish_reason, content)
        reply = await ask(opened(server, api=api), thoughts=THINKS)
    assert THINKS.split(reply.text, separated=bool(reply.thinking)) == parts


# Addresses, keys and the list of models.


@pytest.mark.parametrize("key", ["secret\nX-Evil: 1", "secret key", "s\u00e9cret"])
def test_a_key_that_is_none_is_refused_and_not_printed(key):
    with pytest.raises(ValueError, match="the API key") as refusal:
        OpenAICompatible("small", Sampling(), api_key=key)
    assert "cret" not in str(refusal.value)


@pytest.mark.parametrize("wrong", ["user:pw@host", "file:///pw", "", "http://me:pw@host:port/v1", "http://h/v1?key=pw"])
def test_an_address_that_is_none_is_refused_and_not_printed(wrong):
    with pytest.raises(ValueError, match="base_url") as refusal:
        OpenAICompatible("small", Sampling(), base_url=wrong)
    assert "pw" not in str(refusal.value)


async def test_no_secret_is_printed_by_any_error():
    with serving(key="hunter2") as server:
        with pytest.raises(BackendUnavailable) as failure:
            open_backend("openai", "small", base_url=server.url.replace("http://", "http://me:pass%20word@"))
        assert "pass" not in str(failure.value) and "me:" not in str(failure.value)
        assert base64.b64decode(server.authorizations[-1].removeprefix("Basic ")) == b"me:pass word"
        backend = opened(server, api_key="hunter2")
        server.refuse = lambda body: (400, error("Incorrect API key provided: hunter2"))
        with pytest.raises(BackendError, match=r"Incorrect API key provided: \*\*\*"):
            await ask(backend)


@pytest.mark.parametrize("key", ["hunter2", None])
async def test_nothing_of_netrc_or_the_environment_is_sent(key, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    with serving(key=key) as server:
        assert (await ask(opened(server, api_key=key))).text
    assert server.authorizations == [f"Bearer {key}" if key else ""] * len(server.authorizations)
    assert not any("secret" in value for headers in server.headers for value in headers.values())


def opening_fails(kind: type[Exception], says: str, **options: object) -> None:
    with pytest.raises(kind, match=says):
        OpenAICompatible(**{"model": "small", "sampling": Sampling()} | options)


async def test_no_proxy_takes_a_loopback_address_and_an_error_names_it(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving() as server:
        await ask(opened(server))
    opening_fails(BackendUnavailable, "sets a proxy for http", base_url=server.url)


def test_a_wrong_setting_key_model_or_address_is_found_before_any_turn():
    opening_fails(ValueError, "'telepathy'", api="telepathy")
    opening_fails(ValueError, "extra may not set messages", extra={"messages": []})
    with serving(key="right") as server:
        opening_fails(BackendUnavailable, r"API key \(status 401\): bad key", base_url=server.url, api_key="wrong")
        opening_fails(BackendUnavailable, "'large'; it has small", model="large", base_url=server.url, api_key="right")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen; no other process can take the port meanwhile
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        opening_fails(BackendUnavailable, f"no server answers at {address}", base_url=address)
    with serving() as server:
        server.list_status = 503  # llama.cpp while it loads
        opening_fails(BackendUnavailable, r"not ready \(status 503: Loading model\)", base_url=server.url)


@pytest.mark.parametrize(
    ("cards", "kind", "says"),
    [
        ({"data": [7]}, BackendUnavailable, "list of models"),
        ({"data": [{"id": "a/small"}, {"id": "b/small"}]}, BackendUnavailable, "it has a/small, b/small"),
        ({"data": [{"id": "small", "meta": {"n_ctx_train": 131072}}]}, ValueError, "set window"),
    ],
)
def test_a_list_without_the_model_or_its_window_is_one_line(cards, kind, says):
    with serving() as server:
        server.cards = cards
        opening_fails(kind, says, base_url=server.url)


def test_an_address_without_v1_is_named_and_one_of_a_page_is_taken():
    with serving() as server:
        server.list_paths = ("/v1/models",)
        with pytest.raises(BackendUnavailable, match=f"give {server.url}$"):
            OpenAICompatible("small", Sampling(), base_url=server.url.removesuffix("/v1"))
        assert OpenAICompatible("small", Sampling(), base_url=f"{server.url}/chat/completions").base_url == server.url


def listed(**card) -> dict:
    return {"data": [{"id": "small"} | card]}


PROPS = {"/props": {"default_generation_settings": {"n_ctx": 4096}}}
OLLAMA = {"data": [{"id": "small:latest", "owned_by": "library"}]}
WINDOWS = {
    "a bare list": ([{"id": "small", "context_length": 32768}], {}, 32768),  # Together
    "the smaller of two": (listed(context_length=262144, top_provider={"context_length": 32768}), {}, 32768),
    "an adapter's parent": (
        {"data": [{"id": "base", "max_model_len": 8192}, {"id": "small", "parent": "base", "max_model_len": None}]},
        {},
        8192,
    ),
    "llama.cpp's slot": (listed(meta={"n_ctx_train": 131072}), PROPS, 4096),  # hermes-agent#1987
    "ollama, loaded": (OLLAMA, {"/api/ps": {"models": [{"name": "small:latest", "context_length": 4096}]}}, 4096),
    "ollama, num_ctx": (  # ollama#17417: another client's options made it load with a larger one
        OLLAMA,
        {
            "/api/ps": {"models": [{"name": "small:latest", "context_length": 65536}]},
            "/api/show": {"parameters": 'stop "x"\nnum_ctx                        8192\ntop_k 20'},
        },
        8192,
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_window_is_the_one_that_the_server_serves(name):
    with serving() as server:
        server.cards, server.pages, window = WINDOWS[name]
        assert opened(server).window == window
        assert opened(server, window=512).window == 512


async def test_a_variant_of_a_listed_model_and_a_server_without_a_list_are_taken_at_their_word():
    with serving() as server:
        backend = OpenAICompatible("small:fast", Sampling(), base_url=server.url)
        await ask(backend)
        server.list_status = 403
        opening_fails(BackendUnavailable, "set window, in tokens", base_url=server.url)
        server.list_status = 405
        await ask(OpenAICompatible("other", Sampling(), base_url=server.url, window=512))
    assert [body["model"] for body in server.bodies] == ["small:fast", "other"] and backend.window == 4096


# The prompt as the server read it.


@pytest.mark.parametrize(
    ("sent", "api", "usage"),
    [
        (7_900, "completions", {"prompt_tokens": 2_050}),  # ollama#17889: num_ctx/2 + 2 of a longer prompt
        (2_150, "chat", {"prompt_tokens": 96, "completion_tokens": 4_000}),  # TradingAgents#168
    ],
)
async def test_a_prompt_cut_by_the_server_names_both_numbers(sent, api, usage):
    with serving(window=20_000) as server:
        server.reply = lambda body: reply_of(body) | {"usage": usage}
        with pytest.raises(BackendError, match=rf"{sent:,} tokens .* {usage['prompt_tokens']:,}; .*num_ctx"):
            await ask(opened(server, api=api), range(sent))
    assert server.posts == 1


@pytest.mark.parametrize(
    ("sent", "api", "usage"),
    [
        (200, "completions", {"prompt_tokens": 199}),  # without the first token
        (200, "completions", {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 160}}),  # cache left out
        (200, "completions", None),
        (200, "chat", {"prompt_tokens": 130}),  # another tokenizer
    ],
)
async def test_a_whole_prompt_is_no_cut_however_it_is_counted(sent, api, usage):
    with serving() as server:
        server.reply = lambda body: reply_of(body) | {"usage": usage}
        assert (await ask(opened(server, api=api), range(sent))).text.startswith("note ")


# Faults at random, and interruptions.


class Calm:
    """Says what the server says, without a server."""

    window = 4096

    async def complete(self, request: Request) -> Reply:
        text = reply_of({"prompt": list(request.ids)})["choices"][0]["text"]
        return Reply(text, "stop", len(request.ids), 3, 1)

    async def close(self) -> None:
        return None


async def read_with_four_readers(encoder, backend, n: int) -> list[Trace]:
    """``n`` readings, each with a question of its own, so that no two of them have the same prompt."""
    agents = [Agent(encoder, backend, reader_named(name)) for name in ("overwrite", "gated", "map_merge", "truncated")]
    document = DOCUMENT[: len(DOCUMENT) // 2]
    try:
        return await gather(agents[i % 4].aread(document, f"Which note is {i}?") for i in range(n))
    finally:
        await backend.close()


@pytest.mark.parametrize("n", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_thirty_percent_of_faults_lose_and_double_no_turn(encoder, n):
    kinds = ["429", "500", "503", "drop", "half", "torn", "hang", *ODD_REPLIES]
    # The server, not our deadline, ends a hang: a busy machine's late reply would rightly be requested twice.
    with serving(hang_s=0.5) as server:
        server.fate = fates(0.3, kinds, seed=4)
        traces = await read_with_four_readers(encoder, opened(server), n)
    assert traces == await read_with_four_readers(encoder, Calm(), n)
    turns = sum(len(trace.turns) for trace in traces)
    assert server.posts > 1.2 * turns, "faults did happen"
    assert len(server.answered) == turns
    assert set(server.answered.values()) == {1}, "no turn was answered twice"


def test_the_served_model_and_the_api_are_part_of_an_identity(encoder):
    with serving() as server:
        server.cards = [{"id": "a.gguf", "owned_by": "llamacpp", "context_length": 4096}]
        found = [Agent(encoder, opened(server, api=api)).identity["server"] for api in ("completions", "chat")]
    assert found == [{"model": "a.gguf", "api": api} for api in ("completions", "chat")]


# What a server takes of OpenAI's form.

LIMIT_REFUSED = (
    "max_tokens",
    400,
    error("'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
)
HEAT_REFUSED = ("temperature", 400, error("'temperature' does not support 0.3 with this model.", param="temperature"))


def refusing(*refusals: tuple[str, int, dict]):
    """Refuse each request whose body has a field, with the error of the first such field."""
    return lambda body: next((refusal[1:] for refusal in refusals if refusal[0] in body), None)


async def test_marks_that_are_special_tokens_are_requested():  # macprovider#743: gpt-oss without its channels
    with serving() as server:
        for api in ("completions", "chat"):
            await ask(opened(server, api=api), thoughts=Thoughts(special=True))
    assert [body.get("skip_special_tokens") for body in server.bodies] == [False, None]


@pytest.mark.parametrize("refusals", [(LIMIT_REFUSED, HEAT_REFUSED), (HEAT_REFUSED, LIMIT_REFUSED)])
async def test_refused_limit_and_temperature_are_learnt_once(refusals, caplog):  # hermes-agent#78273
    with serving() as server:
        server.refuse = refusing(*refusals)
        backend = opened(server, api="chat", sampling=Sampling(temperature=0.3))
        for number in range(3):
            await backend.complete(Request((number,), f"the words {number}", 5))
        await backend.close()
    assert server.posts == 3 + 2, "what was learnt is remembered"
    assert server.bodies[-1]["max_completion_tokens"] == 5
    assert "max_tokens" not in server.bodies[-1] and "temperature" not in server.bodies[-1]
    assert backend.left_out == {"temperature": 0.3} and len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "status", "refusal"),
    [
        ("top_k", 400, error("Unrecognized request argument supplied: top_k")),  # hermes-agent#15633
        ("top_k", 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs"}]}),
        ("presence_penalty", 400, {"code": "invalid argument", "error": "no argument presencePenalty: not supported"}),
    ],
)
async def test_a_refused_neutral_field_is_left_out_in_silence(name, status, refusal, caplog):
    with serving() as server:
        server.refuse = refusing((name, status, refusal))
        backend = opened(server)
        for number in range(3):
            await backend.complete(Request((number,), "", 5))
        await backend.close()
    assert server.posts == 3 + 1
    assert set(server.bodies[0]) - set(server.bodies[-1]) == {name}
    assert backend.left_out == {} and not caplog.records


async def test_refused_sampling_is_in_traces_and_journals(encoder, tmp_path):
    with serving() as server, Journal(tmp_path / "j.jsonl", {}) as journal:
        server.refuse = refusing(HEAT_REFUSED)
        backend = opened(server, sampling=Sampling(temperature=0.3))
        observer = Observer(store=journal.reading())
        trace = await Agent(encoder, backend).aread(DOCUMENT, "Which note?", observer=observer)
        await backend.close()
    with Journal(tmp_path / "j.jsonl", {}) as journal:
        observer = Observer(store=journal.reading())
        again = await Agent(encoder, Calm()).aread(DOCUMENT, "Which note?", observer=observer)
    assert trace.sampling_left_out == again.sampling_left_out == "temperature=0.3"
    assert Trace.from_record(trace.to_record()) == trace
