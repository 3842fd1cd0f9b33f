"""Inputs for the measurements: templates in both orders, endless prose, an agent's requests, made-up readings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from memagent_lib.agent import Agent
from memagent_lib.backends import Backend
from memagent_lib.data import Example, Span, prose_stock
from memagent_lib.driver import gather
from memagent_lib.evaluation import Result
from memagent_lib.paths import root
from memagent_lib.prompts import Request, Template
from memagent_lib.scoring import score
from memagent_lib.text import Chunk, Tokenizer, chunk_stream
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn

QUESTION = "Which of the codes above belongs to the violet otter, and where was it last seen?"
_BLOCK_SENTENCES = 400
_CHUNK_FIRST = root() / "experiments" / "pocket" / "chunk_first.toml"


def orders() -> dict[str, Template]:
    """Return one template in both orders: memory before chunk, and chunk before memory.

    It is the template ``short``: chunks are smaller here than published, so instructions must be shorter too.
    """
    return {"memory_first": Template.load("short"), "chunk_first": Template.load(_CHUNK_FIRST)}


def prose(seed: int) -> Iterator[str]:
    """Yield endless blocks of sentences. Each sentence has a random number, and every seed gives a different text."""
    rng = random.Random(seed)
    stock = prose_stock()
    while True:
        yield "".join(f"{rng.choice(stock)} Entry {rng.randrange(10**7)}. " for _ in range(_BLOCK_SENTENCES))


class _Recorder:
    """A backend that records its requests."""

    def __init__(self, backend: Backend):
        self.backend = backend
        self.window = backend.window
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        return await self.backend.complete(request)

    async def close(self) -> None:
        return None


async def recorded(agent: Agent, texts: Sequence[str]) -> list[list[Request]]:
    """Return the requests that an agent sends while it reads each of ``texts``, concurrently."""
    backends = [_Recorder(agent.backend) for _ in texts]
    pairs = zip(texts, backends, strict=True)
    await gather(replace(agent, backend=backend).aread(text, QUESTION) for text, backend in pairs)
    return [backend.requests for backend in backends]


def document(seed: int, pieces: int, tokenizer: Tokenizer, chunk_tokens: int) -> str:
    """Return a text of exactly ``pieces`` chunks."""
    # Measured with the tokenizer, not in characters, because both sides must make the same number of turns.
    found = chunk_stream(prose(seed), tokenizer, chunk_tokens)
    return "".join(next(found).text for _ in range(pieces))


def reading(number: int, turns: int, right: bool = True) -> Result:
    """Return a reading made without a model: its memory has the answer from the first turn on."""
    size = 500
    question = f"What is the code of owl {number}?"
    document = "".join(f"{number} {index} ".ljust(size, ".") for index in range(turns - 1))
    memory = ""
    turns_made = []
    for index in range(turns - 1):
        chunk = Chunk(index, document[index * size : (index + 1) * size], index * size, (index + 1) * size, 128)
        reply = Reply(f"The code of owl {number} is 4711; read {index} chunks.", "stop", 190, 30)
        turns_made.append(Turn(Prompt(Kind.READ, question, memory, chunk), reply))
        memory = reply.text
    turns_made.append(Turn(Prompt(Kind.ANSWER, question, memory), Reply("4711" if right else "9", "stop", 60, 8)))
    truth = {"evidence": (Span(0, 9),), "rule": "contains", "metadata": {"chunks": turns - 1}}
    example = Example(id=str(number), task="bench", question=question, document=document, answers=("4711",), **truth)
    trace = Trace(question, tuple(turns_made))
    return Result(example, "overwrite", 1.0, trace, score(example.rule, trace.answer, example.answers))


def random_policy(
    tokenizer: str | Path, folder: str | Path, width: int, layers: int, window: int, seed: int = 0
) -> None:
    """Write a random Qwen2 model and a tokenizer to ``folder``.

    Attention heads have 64 dimensions, and two query heads share a key head. ``window`` is in tokens.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    words = AutoTokenizer.from_pretrained(str(tokenizer))
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)
