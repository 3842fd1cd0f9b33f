"""What reading is measured with: a model that costs what a real one costs and knows nothing, and text without end.

Speed does not depend on what a model knows, so its weights are random; its size decides the engine's share of a turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from memagent_lib.data.tasks.words import prose_stock
from memagent_lib.prompts import Template
from memagent_lib.text import Tokenizer, chunk_stream

QUESTION = "Which of the codes above belongs to the violet otter, and where was it last seen?"
_BLOCK_SENTENCES = 400


def random_model(tokenizer: str | Path, folder: str | Path, width: int, layers: int, window: int, seed: int) -> None:
    """Write a random Qwen2 model (heads of 64, two query heads to a key head) and a tokenizer to ``folder``."""
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
