"""What reading is measured with: prompts in both orders, and text without end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from memagent_lib.data.tasks.words import prose_stock
from memagent_lib.prompts import Template
from memagent_lib.text import Tokenizer, chunk_stream

QUESTION = "Which of the codes above belongs to the violet otter, and where was it last seen?"
_BLOCK_SENTENCES = 400


def orders() -> dict[str, Template]:
    """One wording in both orders: the pocket one, because words must shrink with the chunks to keep the ratio."""
    chunk_first = Template.load("pocket")
    question, chunk, memory, *rest = chunk_first.read.split("\n")
    memory_first = replace(chunk_first, name="memory_first", read="\n".join((question, memory, chunk, *rest)))
    return {"memory_first": memory_first, "chunk_first": chunk_first}


def prose(seed: int) -> Iterator[str]:
    """Blocks of sentences, each with a number of its own, for ever; different for every seed."""
    rng, stock = random.Random(seed), prose_stock()
    while True:
        yield "".join(f"{rng.choice(stock)} Entry {rng.randrange(10**7)}. " for _ in range(_BLOCK_SENTENCES))


def document(seed: int, pieces: int, tokenizer: Tokenizer, chunk_tokens: int) -> str:
    """Text of exactly ``pieces`` chunks."""
    found = chunk_stream(prose(seed), tokenizer, chunk_tokens)
    return "".join(next(found).text for _ in range(pieces))
