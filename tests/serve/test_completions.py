"""``/v1/completions``, in the bodies that lm-eval's ``local-completions`` sends, against the app in this process."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.prompts import Encoder
from memagent_lib.serve import ServeSettings, make_app

LOG = "".join(f"Line {i} of the old log says nothing new.\n" for i in range(60))
QUESTION = "What is the code of the bold owl?"


def log(code: int) -> str:
    return f"{LOG}The code of the bold owl is {code}."


def noting(text: str) -> str:
    return "\nThe code is 4711." if "4711" in text else "The code is 5822." if "5822" in text else "nothing yet"


def post(encoder: Encoder, body: dict[str, Any], path: str = "/v1/completions", **settings: int) -> httpx.Response:
    async def send() -> httpx.Response:
        app = make_app(Agent(encoder, Scripted(noting)), ServeSettings(name="reader", **settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post(path, json={"model": "reader", **body})

    return asyncio.run(send())


def test_each_prompt_of_a_request_has_its_reply_in_order(encoder: Encoder) -> None:
    prompts = [f"{log(code)}\n\nQuestion: {QUESTION}\nAnswer:" for code in (4711, 5822)]
    # lm-eval's generate_until; "until" of LongBench's few-shot tasks is a line break, before which there is an answer.
    options = {"max_tokens": 12, "temperature": 1, "stop": ["\n"], "seed": 1234}
    reply = post(encoder, {"prompt": prompts, **options}).json()
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-")
    assert [(c["index"], c["text"], c["finish_reason"], c["logprobs"]) for c in reply["choices"]] == [
        (0, "The code is 4711.", "stop", None),
        (1, "The code is 5822.", "stop", None),
    ]
    metadata = [choice["memagent"] for choice in reply["choices"]]
    assert [m["question"] for m in metadata] == [QUESTION, QUESTION]
    assert [m["ignored"] for m in metadata] == [["seed", "temperature"]] * 2
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] > 2 * len(LOG) // 10


def test_the_id_of_a_reply_finds_its_trace(encoder: Encoder) -> None:
    async def send() -> tuple[str, dict[str, Any]]:
        app = make_app(Agent(encoder, Scripted(noting)), ServeSettings(name="reader"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            body = {"model": "reader", "prompt": f"{log(4711)}\n\n{QUESTION}"}
            reply = (await client.post("/v1/completions", json=body)).json()
            return reply["id"], (await client.get(f"/v1/traces/{reply['id']}")).json()

    name, found = asyncio.run(send())
    assert (name, found["document_chars"]) == (f"cmpl-{found['id']}", len(log(4711)))


@pytest.mark.parametrize("nested", [False, True])
def test_token_ids_are_read_as_their_text(encoder: Encoder, nested: bool) -> None:
    # lm-eval's default is tokenized_requests=True.
    ids = encoder.tokenizer.encode(f"{log(4711)}\n\n{QUESTION}")
    reply = post(encoder, {"prompt": [ids] if nested else ids}).json()
    assert reply["choices"][0]["text"].strip() == "The code is 4711."
    assert reply["choices"][0]["memagent"]["document_chars"] == len(log(4711))


def test_an_echo_is_the_prompt_before_the_reply(encoder: Encoder) -> None:
    prompt = f"{log(5822)}\n\n{QUESTION}"
    assert post(encoder, {"prompt": prompt, "echo": True}).json()["choices"][0]["text"] == f"{prompt}The code is 5822."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # lm-evaluation-harness#3275, #1437: log-likelihood requests to servers that generate only.
        (
            {"prompt": [[1]], "max_tokens": 1, "logprobs": 1, "echo": True},
            "no log-probabilities: a document is read in .* --from longbench_v2",
        ),
        ({"prompt": "x", "logprobs": 0}, "no log-probabilities"),
        ({"prompt": [1 << 40]}, "no token has the id 1099511627776; .* tokenized_requests=False"),
        ({"prompt": "x", "suffix": "y"}, "no insertion before a suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of is 3"),
        ({"prompt": "x", "n": 2}, "n is 2"),
        ({"prompt": "x", "stream": True}, "/v1/chat/completions has"),
        ({"prompt": "x", "document": 5}, "document: Input should be a valid string"),
        ({"prompt": []}, "there is no prompt"),
        ({"prompt": "  "}, "there is no question"),
        ({"prompt": {"text": "x"}}, "^prompt"),
        ({}, "prompt: Field required"),
    ],
)
def test_what_no_text_completion_has_is_refused_in_a_line(encoder: Encoder, body, message) -> None:
    reply = post(encoder, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    assert re.search(message, error["message"])


def test_more_prompts_than_may_wait_are_refused_together(encoder: Encoder) -> None:
    reply = post(encoder, {"prompt": [QUESTION] * 9}, readings=2, waiting=3)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "9 prompts in one request, and this server takes 5; send fewer"
