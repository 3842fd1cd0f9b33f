"""Measure the processor time per turn of our client and of a bare loop, with a server that replies at once.

The bare loop posts the same bodies with aiohttp alone and reads the text of the replies, without chunks, prompts or a
trace. No engine is involved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from experiments.studies.speed.material import QUESTION, document, recorded
from experiments.studies.speed.results import Measured, Ratio, alternating
from memagent_lib.agent import open_agent, run_sync
from memagent_lib.driver import gather
from memagent_lib.prompts import Request
from memagent_lib.text import Tokenizer

CLAIMS_MS = {128: 1.5, 5000: 6.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBench:
    """Sizes of the measurement: ``readings`` at a time, each of ``chunks`` chunks. ``model`` provides the tokenizer.

    A memory has a fifth of a chunk's length, as in the paper.
    """

    chunk_tokens: tuple[int, ...] = (128, 5000)
    chunks: tuple[int, ...] = (16, 4)
    readings: int = 64
    rounds: int = 3
    seed: int = 0
    model: str = "experiments/pocket/warm_start"

    def __post_init__(self) -> None:
        if len(self.chunks) != len(self.chunk_tokens):
            raise ValueError(f"chunks has {len(self.chunks)} values for {len(self.chunk_tokens)} chunk_tokens")


def bench_client(settings: ClientBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Measure milliseconds of processor time per turn, for our client and for the bare loop."""
    s = settings
    rows = []
    ratios = []
    tokenizer = Tokenizer.load(s.model)
    for size, chunks in zip(s.chunk_tokens, s.chunks, strict=True):
        report(f"chunks of {size:,} tokens")
        texts = [document(1000 * s.seed + i, chunks, tokenizer, size) for i in range(s.readings)]
        memory = max(8, size // 5)
        words = tokenizer.decode(tokenizer.encode(texts[0])[: memory // 2])
        with instant_server("small", 3 * size + 2000, words) as url:
            budget = {"chunk_tokens": size, "memory_tokens": memory, "answer_tokens": memory, "question_tokens": 64}
            options = {"tokenizer": tokenizer, "template": "short", "budget": budget, "base_url": url}
            made = [run_sync(_round(texts, options, round_)) for round_ in range(s.rounds)]
        rows += [{"chunk_tokens": size, **row} for both in made for row in both]
        for driver, most in (("memagent", CLAIMS_MS.get(size)), ("bare loop", None)):
            spent = tuple(row["cpu_ms"] for both in made for row in both if row["driver"] == driver)
            ratios.append(Ratio("client", f"{driver}, chunks of {size:,} tokens", spent, at_most=most, unit=" ms"))
    return {"client": Measured(ratios, rows, f"processor time of the client per turn, {s.readings} readings at a time")}


async def _round(texts: list[str], options: dict[str, Any], round_: int) -> list[dict[str, Any]]:
    agent = open_agent("small", "openai", **options)
    try:
        sent = await recorded(agent, texts)  # also opens the connections
        turns = sum(map(len, sent))
        sides = {
            "memagent": lambda: gather(agent.aread(text, QUESTION) for text in texts),
            "bare loop": lambda: _post_all(agent.backend, sent),
        }
        return [
            {"driver": name, "round": round_, "turns": turns, "cpu_ms": await _spent(work, turns)}
            for name, work in alternating(sides, round_).items()
        ]
    finally:
        await agent.backend.close()


async def _spent(work: Callable[[], Awaitable[Any]], turns: int) -> float:
    before = time.process_time()
    await work()
    return 1000 * (time.process_time() - before) / turns


async def _post_all(backend: Any, readings: list[list[Request]]) -> None:
    async with aiohttp.ClientSession() as session:
        await gather(_post(backend, session, requests) for requests in readings)


async def _post(backend: Any, session: aiohttp.ClientSession, requests: list[Request]) -> None:
    for request in requests:
        # The same bodies that our client sends, so that only the work around the request differs.
        data = json.dumps(backend._body(request)).encode()
        async with session.post(f"{backend.base_url}/completions", data=data) as answer:
            json.loads(await answer.read())["choices"][0]["text"]


@contextmanager
def instant_server(model: str, window: int, words: str) -> Iterator[str]:
    """Start a server that replies to every request at once with ``words``, and yield its address."""
    command = [sys.executable, str(Path(__file__).with_name("instant_server.py")), model, str(window), words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.stdin.close()
