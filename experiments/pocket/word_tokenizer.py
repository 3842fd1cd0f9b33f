"""The pocket tokenizer: byte-level BPE like Qwen2's, in which every word of the pocket world is one token."""

from __future__ import annotations

import json
import re
from typing import Any

from experiments.pocket import world
from memagent_lib.prompts import Template
from memagent_lib.readers import reader_named
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt

_OWN = (kind for name in ("gated", "recall") for kind in reader_named(name).prompts if kind.reads)
KINDS = (Kind.READ, Kind.ANSWER, Kind.DIRECT, Kind.BLIND, *_OWN, Kind.MERGE)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> Any:
    """Train and return the tokenizer. Every word of the world, with the space before it, is one token."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as RawTokenizer
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    raw = RawTokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=4096, min_frequency=2, show_progress=False, initial_alphabet=alphabet, special_tokens=SPECIAL
    )
    raw.train_from_iterator(_corpus() * 4, trainer)  # a word that occurs once would not be merged
    state = json.loads(raw.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=state["vocab"],
        merges=[tuple(merge) for merge in state["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def _corpus() -> list[str]:
    """Return every word that a prompt or a document can contain, to train the tokenizer on."""
    template = Template.load("short")
    chunk = Chunk(0, "", 0, 0, 0)
    questions = [world.question_text(kind, ["bold owl", "bold owl"]) for kind in world.QuestionKind]
    prompts = [template.render(Prompt(kind, question, chunk=chunk)) for kind in KINDS for question in questions]
    words = (*world.WORDS, world.UNKNOWN, "keeper", "friend", "code", "of", "is", "The", *world.FILLER)
    spaced = [f" {word}" for word in words]
    text = "\n".join([*spaced, *world.FILLER, *prompts, rf"\boxed{{ {world.UNKNOWN}}}", "user assistant system The"])
    return re.findall(r"[^\s\w]?\w+| \w+", text) + re.findall(r" \w+", text) + ["via", " \\", "boxed", "\\boxed"] * 4
