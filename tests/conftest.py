"""Shared fixtures: a small byte-level tokenizer of Qwen2's kind, made here, so that no test needs a download."""

import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.text import Tokenizer

SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "The code of the violet otter is 4821. A small boat drifts past the old mill. Rain taps on the roof all night.",
    "You are reading a long document piece by piece to answer a question. Rewrite the memory so that it serves the question.",
    "Question: What is the code of the bold owl?\nText: nothing\nMemory: nothing yet\nWrite the new memory.\nWrite the answer.",
]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    from tokenizers import decoders

    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    raw.train_from_iterator(CORPUS * 4, trainer)
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=raw,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            additional_special_tokens=special[1:],
            chat_template=CHAT,
        )
    )


@pytest.fixture(scope="session")
def encoder(tokenizer) -> Encoder:
    """The pocket wording with small budgets."""
    return Encoder(tokenizer, Template.load("pocket"), Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32))
