"""What a model's configuration states: its size and cost, its window, and the tokens at which its replies end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from memagent_lib.errors import MissingFile
from memagent_lib.models import find_model
from memagent_lib.system import multiplies
from memagent_lib.tokenizer import Tokenizer

HALF_FROM = 30_000_000  # parameters: a smaller model spends its time outside of matrix products


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder that determine its cost. ``body`` counts its parameters without the embedding tables."""

    parameters: int
    body: int
    layers: int
    hidden: int
    kv_width: int
    vocabulary: int
    attention: int
    """The width of all heads together, which may differ from ``hidden`` (Qwen3-0.6B: twice as wide)."""
    ffn: int = 0
    """The width inside the MLP."""

    @property
    def cpu_dtype(self) -> str:
        """The type of numbers in which a CPU samples from the model fastest.

        On two cores with AMX, SmolLM2-135M read 64 documents in 72 s in bfloat16 and 114 in float32, start included.
        """
        return "bfloat16" if self.parameters >= HALF_FROM and multiplies("bfloat16") else "float32"

    def adapter_parameters(self, rank: int) -> int:
        """Return how many parameters LoRA adapters of ``rank`` on all linear layers but the head have (2106.09685).

        Each ``m x n`` weight has two factors, ``m x rank`` and ``rank x n``. A layer is taken to have queries, keys,
        values, the attention's output, and an MLP of three matrices, as in Llama and Qwen.
        """
        queries_and_output = 2 * (self.hidden + self.attention)
        keys_and_values = 2 * (self.hidden + self.kv_width)
        mlp = 3 * (self.hidden + self.ffn)
        return rank * self.layers * (queries_and_output + keys_and_values + mlp)

    @property
    def saved_width(self) -> int:
        """How many numbers a Llama or Qwen layer leaves per token for its backward pass.

        They are the inputs and outputs of norms; queries, keys and values before, inside and after the rotation; the
        attention's output; the gated MLP.
        """
        return 6 * self.hidden + 7 * self.attention + 4 * self.kv_width + 4 * self.ffn


def kv_bytes(config: Any) -> int:
    """Return the size in bytes of one token's keys and values in bf16."""
    heads, width = _kv_heads(config)
    return 4 * config.num_hidden_layers * heads * width


def _kv_heads(config: Any) -> tuple[int, int]:
    # Older configurations lack these two fields; their models have as many key heads as heads.
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return heads, width


@lru_cache(maxsize=8)
def shape_of(model: str) -> ModelShape:
    """Return the shape of a model folder or hub name. Counting the parameters of a large model takes seconds.

    They are counted without being allocated. Raises :class:`MissingFile` if there is no configuration.
    """
    config = config_of(model)  # a missing one is an error before torch is imported, which takes seconds
    import torch
    from transformers import AutoModelForCausalLM

    # On this device tensors have shapes but no storage.
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()  # of a multimodal model, the part that reads text
    heads, width = _kv_heads(text)
    parameters = sum(weight.numel() for weight in empty.parameters())
    words = empty.get_input_embeddings().weight.numel()
    # Tied embeddings are one table, used at both ends.
    body = parameters - (1 if config.tie_word_embeddings else 2) * words
    return ModelShape(
        parameters,
        body,
        text.num_hidden_layers,
        text.hidden_size,
        heads * width,
        text.vocab_size,
        attention=text.num_attention_heads * width,
        ffn=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
    )


def trained_window(model: str) -> int:
    """Return the longest text, in tokens, that a model was trained for, as its configuration says."""
    return config_of(model).get_text_config().max_position_embeddings


def config_of(model: str) -> Any:
    """Return the Hugging Face configuration of a model folder or hub name, or raise :class:`MissingFile`."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(find_model(model))
    except OSError as failure:
        if isinstance(failure, MissingFile) or Path(model).is_dir():
            raise
        raise MissingFile(f"no config.json of {model!r} here or on the hub; give a model folder") from failure


def end_tokens(model: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids at which a reply of ``model`` (a folder or hub name) ends, the likeliest first.

    They are the token after an assistant's text in the chat template, the EOS of the tokenizer, and those that
    ``generation_config.json`` and ``config.json`` state. Published models often state only some of them: with Llama 3's
    base configuration a chat reply would run on after ``<|eot_id|>``.
    """
    return tuple(dict.fromkeys((*tokenizer.end_ids, *_stated(model))))


@lru_cache(maxsize=8)
def _stated(model: str) -> tuple[int, ...]:
    from transformers import GenerationConfig

    config = config_of(model)
    sources = [config.get_text_config(), config]
    with suppress(OSError):  # the file is optional
        sources.insert(0, GenerationConfig.from_pretrained(model))
    stated = [getattr(source, "eos_token_id", None) for source in sources]
    return tuple(token for eos in stated if eos is not None for token in (eos if isinstance(eos, list) else [eos]))
