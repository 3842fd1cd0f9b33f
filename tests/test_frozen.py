"""What no simplification may change: prompt ids, chunks, cut memories, and the scores of saved replies.

The digests were computed from the code before the library was made thin. A change here changes what a trained policy
reads, or what a published table says.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.text import Chunk, Tokenizer, chunks
from memagent_lib.trace import Kind, Prompt, Reply

CHECKOUT = Path(__file__).parent.parent
WORDS = [
    "the",
    "code",
    "of",
    "violet",
    "otter",
    "is",
    "harbour",
    "and",
    "pillow",
    "stone",
    "4821",
    "unknown",
    "key",
    "in",
    "a",
    "shop",
    "lantern",
    "maple",
    "boat",
]
ODD = (
    "Straße",
    "naïve",
    "e\u0301te\u0301",
    "里斯本",
    "🦉🏽",
    "<|im_end|>",
    "<think>",
    "\u00a0",
    "don't",
    "x=1;\n\ty+=2",
    "Ωμέγα",
)
QUESTIONS = ("What is the code of the violet otter?", "Who said <|im_start|>? Ответ: 里斯本", "  the key \n")
READERS = ("overwrite", "map_merge", "multislot", "gated", "recall", "retrieving", "full", "blind")
IDS = {
    "bpe": "0fe351a9abc1bdb1",
    "pocket": "09c0da8a01d6a92e",
    "smollm2": "d11a0cfc92f80759",
}
SCORES = {
    "boxed": "f2f0696b99044d8f",
    "sub_em": "1493efe4fdd701ab",
    "match_all": "5674fe8dc22cb8ea",
    "match_part": "9ad27baab64ecc15",
}


def text_of(words: int, seed: int) -> str:
    draw = random.Random(seed)
    parts = []
    for number in range(words):
        parts.append(draw.choice(ODD) if draw.random() < 0.04 else draw.choice(WORDS))
        parts.append("\n\n" if number % 31 == 30 else ". " if number % 11 == 10 else " ")
    return "".join(parts)


def digest_of(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def tokenizer_named(name: str, bpe: Tokenizer) -> Tokenizer:
    if name == "bpe":
        return bpe
    if name == "pocket":
        return Tokenizer.load(CHECKOUT / "experiments/pocket/trained")
    from memagent_lib.models import PUBLISHED

    folder = PUBLISHED["smollm2"].folder
    if not folder.is_dir():
        pytest.skip("memagent model smollm2 fetches this tokenizer")
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", IDS)
def test_prompts_chunks_and_cut_memories_are_those_of_every_release(name, tokenizer):
    tokenizer = tokenizer_named(name, tokenizer)
    budget = Budget(chunk_tokens=12_000, memory_tokens=6_000, question_tokens=200)
    # Twice the same text, and memories within chunks: what an encoder remembers must not show.
    texts = [text_of(words, seed) for words, seed in ((3, 1), (60, 2), (700, 3), (2_000, 4), (700, 3))]
    memories = ["", "the code is 4821", text_of(300, 3), text_of(300, 3), text_of(900, 5)]
    kinds = {kind.name: (kind, most) for reader in READERS for kind, most in reader_named(reader).prompts.items()}
    requests = []
    for template in Template.shipped():
        for kind, most in kinds.values():
            encoder = Encoder(tokenizer, Template.load(template), budget, {kind: most})
            for question, text, memory in zip((*QUESTIONS, *QUESTIONS), texts, memories, strict=False):
                chunk = Chunk(0, text, 0, len(text), 1) if "chunk" in kind.parts else None
                prompt = Prompt(kind, question, memory if "memory" in kind.parts else "", chunk)
                request = encoder.encode(prompt)
                # These digests are from when a request had a draft of its reply: the memory that this replaces.
                draft = tokenizer.encode(prompt.memory) if prompt.memory and not kind.answers else []
                requests.append([kind.name, request.ids, request.text, request.max_tokens, tuple(draft)])
    prompt = Prompt(Kind.READ, QUESTIONS[0], "", Chunk(0, texts[0], 0, len(texts[0]), 1))
    encoder = Encoder(tokenizer, Template.load("short"), Budget(memory_tokens=1_000))
    reply = encoder.interpret(prompt, encoder.encode(prompt), Reply(text_of(3_000, 6)))
    assert reply.cut
    document = text_of(4_000, 8)
    cut = [
        (chunk.start, chunk.end, chunk.tokens) for size in (7, 96, 500) for chunk in chunks(document, tokenizer, size)
    ]
    assert digest_of([requests, cut, reply.text]) == IDS[name]


@pytest.mark.parametrize("judge", SCORES)
def test_saved_replies_have_the_scores_of_every_release(judge):
    saved = pd.read_parquet(
        CHECKOUT / "experiments/studies/length/scores/scores.parquet", columns=["answer", "answers"]
    )
    pairs = saved.dropna().drop_duplicates().sort_values(["answers", "answer"]).itertuples(index=False)
    forms = ("{}", "\\boxed{{{}}}", "The answer is {}.")
    values = [
        score(judge, form.format(answer), tuple(answers.split(" | "))).value
        for answer, answers in pairs
        for form in forms
    ]
    assert digest_of(values) == SCORES[judge]
