"""The numbers of a model that decide what it costs to train and to run. Loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a decoder that decide its cost."""

    parameters: int
    layers: int
    hidden: int
    kv_width: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """From a Hugging Face configuration; the parameters are counted without allocating any."""
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        parameters = sum(weight.numel() for weight in model.parameters())
        return cls(parameters, config.num_hidden_layers, config.hidden_size, heads * width, config.vocab_size)

    def forward_flops(self, tokens: float, length: float) -> float:
        """Of ``tokens`` in rows of ``length``: two per parameter and token, and causal attention."""
        return tokens * (2 * self.parameters + 2 * self.layers * self.hidden * length)

    @property
    def kv_bytes(self) -> int:
        """Of one token in bf16."""
        return 4 * self.layers * self.kv_width


@lru_cache(maxsize=8)
def shape_of(model: str) -> ModelShape:
    """Of a model folder or hub name; a large model's parameters take seconds to count."""
    from transformers import AutoConfig

    return ModelShape.of(AutoConfig.from_pretrained(model))
