"""The pocket policy's network: a small Qwen2, initialised at random or with the beginnings of a look-up circuit."""

from __future__ import annotations

from itertools import product
from typing import Any

ROTARY_PAIRS = 6
"""The pairs of dimensions, from the fastest on, by which a head of the first layer knows a distance."""
POSITION_STRENGTH = 6.0
"""The size of planted queries and keys, on which the sharpness of a head's attention to one position depends."""
COPY_STRENGTH = 0.15
"""The size of the projection by which a head of the first layer copies a word into its subspace."""
MATCH_STRENGTH = 1.6
"""The size of the projections by which words are compared."""
COMPARING_HEADS = 3


def build_model(tokenizer: Any, seed: int = 0, *, planted: bool = True) -> Any:
    """Return a network of 0.8M parameters, initialised from ``seed``. With ``planted``, it has the look-up circuit."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
        # Planted heads compare words at any distance, for which they need many dimensions that hardly rotate; a random
        # start needs dimensions that do.
        rope_parameters={"rope_type": "default", "rope_theta": 1e8 if planted else 1e5},
        initializer_range=0.04,
    )
    model = Qwen2ForCausalLM(config)
    if planted:
        with torch.no_grad():
            look_back(model)
            compare_words(model, seed)
    return model


def look_back(model: Any) -> None:
    """Initialise head h of the first layer to attend to the token h + 1 positions back.

    Rotary embeddings rotate a query at position q and a key at position k by the angle (q - k) f relative to each
    other, where f is a dimension's frequency. A constant key and a constant query that is rotated by -(h + 1) f
    therefore agree best at a distance of h + 1. All weights remain trainable.
    """
    import torch

    attention = model.model.layers[0].self_attn
    config = model.config
    size = attention.head_dim
    rates = config.rope_parameters["rope_theta"] ** (-torch.arange(ROTARY_PAIRS) / (size // 2))
    q = attention.q_proj.bias.view(-1, size)
    k = attention.k_proj.bias.view(-1, size)
    for head in range(config.num_attention_heads):
        q[head, :ROTARY_PAIRS] = POSITION_STRENGTH * torch.cos((head + 1) * rates)
        q[head, size // 2 : size // 2 + ROTARY_PAIRS] = -POSITION_STRENGTH * torch.sin((head + 1) * rates)
        k[head, :ROTARY_PAIRS] = POSITION_STRENGTH


def compare_words(model: Any, seed: int) -> None:
    """Initialise heads of the second layer as induction heads: they attend to earlier uses of the last two words.

    This finds a key of two words before a verb (Olsson et al. 2022, arXiv 2209.11895). A head compares the words one
    and two positions back with the words two and three positions back from every earlier position. For this purpose,
    each head of the first layer copies the word it attends to into its own subspace. A head compares words in only a
    few dimensions, in which some pairs look alike, so each of the :data:`COMPARING_HEADS` uses different dimensions.
    """
    import torch

    config = model.config
    width = config.hidden_size
    size = model.model.layers[0].self_attn.head_dim
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    read = torch.linalg.qr(torch.randn(width, size, generator=generator))[0].T
    first = model.model.layers[0].self_attn
    second = model.model.layers[1].self_attn
    for head in range(config.num_attention_heads):
        rows = slice(head * size, (head + 1) * size)
        first.v_proj.weight[rows] = read
        first.o_proj.weight[:, rows] = COPY_STRENGTH * basis[:, rows]
    slow = list(range(5, size // 2))  # rotary pairs that hardly rotate within a prompt
    for head, (shift, back) in product(range(COMPARING_HEADS), ((0, 1), (size // 2, 2))):
        dimensions = [head * size + shift + i for i in slow]
        turn = torch.linalg.qr(torch.randn(size, len(dimensions), generator=generator))[0].T
        query_words = basis[:, (back - 1) * size : back * size]
        key_words = basis[:, back * size : (back + 1) * size]
        second.q_proj.weight[dimensions] = MATCH_STRENGTH * turn @ query_words.T
        second.k_proj.weight[dimensions] = MATCH_STRENGTH * turn @ key_words.T
