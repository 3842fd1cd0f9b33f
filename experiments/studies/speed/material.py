"""What reading is measured with: prompts in both orders, text without end, and what an agent asks of a model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memagent_lib.agent import Agent, gather
from memagent_lib.backends import Backend
from memagent_lib.data.tasks.words import prose_stock
from memagent_lib.paths import root
from memagent_lib.prompts import Request, Template
from memagent_lib.text import Tokenizer, chunk_stream
from memagent_lib.trace import Reply

QUESTION = "Which of the codes above belongs to the violet otter, and where was it last seen?"
_BLOCK_SENTENCES = 400
_CHUNK_FIRST = root() / "experiments" / "pocket" / "chunk_first.toml"


def orders() -> dict[str, Template]:
    """One wording in both orders: the pocket one, because words must shrink with the chunks to keep the ratio."""
    return {"memory_first": Template.load("short"), "chunk_first": Template.load(_CHUNK_FIRST)}


def prose(seed: int) -> Iterator[str]:
    """Blocks of sentences, each with a number of its own, for ever; different for every seed."""
    rng, stock = random.Random(seed), prose_stock()
    while True:
        yield "".join(f"{rng.choice(stock)} Entry {rng.randrange(10**7)}. " for _ in range(_BLOCK_SENTENCES))


class _Recorder:
    """A backend that remembers what it was asked."""

    def __init__(self, backend: Backend):
        self.backend, self.window = backend, backend.window
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        return await self.backend.complete(request)

    async def close(self) -> None:
        return None


async def recorded(agent: Agent, texts: Sequence[str]) -> list[list[Request]]:
    """What an agent asks its backend while it reads each of ``texts``, side by side."""
    backends = [_Recorder(agent.backend) for _ in texts]
    pairs = zip(texts, backends, strict=True)
    await gather(replace(agent, backend=backend).aread(text, QUESTION) for text, backend in pairs)
    return [backend.requests for backend in backends]


def document(seed: int, pieces: int, tokenizer: Tokenizer, chunk_tokens: int) -> str:
    """Text of exactly ``pieces`` chunks."""
    found = chunk_stream(prose(seed), tokenizer, chunk_tokens)
    return "".join(next(found).text for _ in range(pieces))
