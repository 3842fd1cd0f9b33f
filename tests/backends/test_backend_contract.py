"""What every backend promises, checked for each entry of BACKENDS.

A new entry fails here until the fixture ``backend`` knows how to open it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hostile import serving

from memagent_lib.agent import run_sync
from memagent_lib.backends import BACKENDS, Backend, BackendError, Sampling, open_backend
from memagent_lib.driver import gather
from memagent_lib.prompts import Request
from memagent_lib.trace import Reply

WINDOW = 256
IN_THIS_PROCESS = ("vllm", "transformers")
PROMPTS = ["The code of the violet otter", "Rain taps", "A small boat drifts past the old mill. " * 3, "Snow"]


@pytest.fixture(scope="module", params=list(BACKENDS))
def backend(request, model_folder) -> Iterator[Backend]:
    """One backend of each kind with the random model; a server's is a stand-in that replies from the prompt alone."""
    if request.param == "openai":
        with serving(window=WINDOW) as server:
            server.reply = _served
            opened = open_backend("openai", "small", Sampling(), base_url=server.url)
            yield opened
            run_sync(opened.close())
        return
    if request.param not in IN_THIS_PROCESS:
        pytest.fail(f"no way to open the backend {request.param!r} in this test; add one to its fixture `backend`")
    pytest.importorskip(request.param)
    opened = open_backend(request.param, model_folder, Sampling(), window=WINDOW)
    yield opened
    run_sync(opened.close())


def _served(body: dict) -> dict:
    drawn = body["seed"] if body["temperature"] else 0
    words = [f"word{drawn + sum(body['prompt'][: n + 1])}" for n in range(body["max_tokens"])]
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(words)}
    return {"choices": [{"text": " ".join(words), "finish_reason": "length"}], "usage": usage}


def _requests(tokenizer, max_tokens: int) -> list[Request]:
    return [Request(tuple(tokenizer.chat(text)), text, max_tokens) for text in PROMPTS]


def _complete(backend: Backend, requests: list[Request]) -> list[Reply]:
    return run_sync(gather(backend.complete(request) for request in requests))


async def test_closing_during_a_batch_leaves_nobody_waiting(model_folder, tokenizer, monkeypatch):
    backend = open_backend("transformers", model_folder)
    running = threading.Event()
    monkeypatch.setattr(backend, "_batch", lambda requests: running.wait(60))
    reply = asyncio.create_task(backend.complete(_requests(tokenizer, 9)[0]))
    await asyncio.sleep(0.1)
    await backend.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reply, 20)
    running.set()


def test_greedy_replies_are_the_same_alone_and_side_by_side(backend, tokenizer):
    requests = _requests(tokenizer, 9)
    alone = [_complete(backend, [request])[0] for request in requests]
    assert [reply.text for reply in _complete(backend, requests)] == [reply.text for reply in alone]


def test_a_second_attempt_is_drawn_repeatably(backend, tokenizer):
    greedy = _requests(tokenizer, 9)
    second = replace(greedy[0], attempt=1)
    drawn = [_complete(backend, [second])[0].text for _ in range(2)]
    replies = [reply.text for reply in _complete(backend, [*greedy, second])]
    assert drawn[0] == drawn[1] != replies[0]
    assert replies[:-1] == [reply.text for reply in _complete(backend, greedy)]


def test_counts_are_the_engines_and_a_cut_reply_is_marked(backend, tokenizer):
    requests = _requests(tokenizer, 2)
    for request, reply in zip(requests, _complete(backend, requests), strict=True):
        assert (reply.prompt_tokens, reply.reply_tokens, reply.finish_reason) == (len(request.ids), 2, "length")
        assert reply.token_ids == () or len(reply.token_ids) == 2


def test_a_prompt_over_the_window_is_refused_and_others_go_on(backend, tokenizer):
    assert backend.window == WINDOW
    with pytest.raises(BackendError, match=f"the prompt is {WINDOW:,} tokens with a reply of up to 1, and"):
        _complete(backend, [Request((5,) * WINDOW, "", 1)])
    assert _complete(backend, _requests(tokenizer, 3))[0].reply_tokens > 0
