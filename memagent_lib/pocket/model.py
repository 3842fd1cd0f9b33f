"""The pocket policy's network: a small Qwen2, born with or without the beginnings of a lookup circuit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memagent_lib.data import pocket_world as world

if TYPE_CHECKING:
    import torch


def build_model(tokenizer: Any, seed: int = 0, *, planted: bool = True) -> Any:
    """0.8M parameters; a function of the seed."""
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
        # Planted heads compare words wherever they stand, in the many dimensions that hardly turn; a random start needs
        # those that do.
        rope_parameters={"rope_type": "default", "rope_theta": 1e8 if planted else 1e5},
        initializer_range=0.04,
    )
    model = Qwen2ForCausalLM(config)
    if planted:
        with torch.no_grad():
            look_back(model)
            compare_words(model, seed, kinds_of_words(tokenizer))
    return model


def kinds_of_words(tokenizer: Any) -> list[list[int]]:
    """The token ids of the words that keys are made of, those of one kind in a list: they are told apart from each
    other.
    """
    return [
        [tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in kind]
        for kind in (world.ADJECTIVES, world.NOUNS, world.NAMES)
    ]


def look_back(model: Any, strength: float = 6.0, pairs: int = 6) -> None:
    """Make head h of the first layer attend h + 1 tokens back.

    With rotary angles (q - k) f, a constant key and a constant query turned by -(h + 1) f agree best at exactly that
    distance. Everything stays trainable.
    """
    import torch

    attention, config = model.model.layers[0].self_attn, model.config
    size = attention.head_dim
    rates = config.rope_parameters["rope_theta"] ** (-torch.arange(pairs) / (size // 2))
    q, k = attention.q_proj.bias.view(-1, size), attention.k_proj.bias.view(-1, size)
    for head in range(config.num_attention_heads):
        q[head, :pairs] = strength * torch.cos((head + 1) * rates)
        q[head, size // 2 : size // 2 + pairs] = -strength * torch.sin((head + 1) * rates)
        k[head, :pairs] = strength


def compare_words(
    model: Any, seed: int, kinds: Sequence[Sequence[int]], gain: float = 0.15, match: float = 1.6, heads: int = 3
) -> None:
    """Make heads of the second layer look where the words one and two back stand two and three back: induction heads
    (Olsson et al. 2022, arXiv 2209.11895) for keys of two words before a verb. The first layer's heads copy what they
    see into a subspace each.

    A copy has fewer dimensions than there are words of a kind, and at random some of them look alike in it, so the
    words of each of ``kinds`` (token ids) are moved apart there. Each of ``heads`` compares in dimensions of its own.
    """
    import torch

    config = model.config
    width, size = config.hidden_size, model.model.layers[0].self_attn.head_dim
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    read = torch.linalg.qr(torch.randn(width, size, generator=generator))[0].T
    words = model.model.embed_tokens.weight
    for kind in kinds:
        copied = words[kind] @ read.T
        words[kind] += (spread(copied) - copied) @ read
    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    for head in range(config.num_attention_heads):
        rows = slice(head * size, (head + 1) * size)
        first.v_proj.weight[rows] = read
        first.o_proj.weight[:, rows] = gain * basis[:, rows]
    slow = list(range(5, size // 2))  # rotary pairs that hardly turn within a prompt
    for shift, back in ((0, 1), (size // 2, 2)):
        turns = torch.linalg.qr(torch.randn(size, size, generator=generator))[0].chunk(heads)
        for head, turn in zip(range(heads), turns, strict=True):
            dimensions = [head * size + shift + i for i in slow[: len(turn)]]
            seen = [basis[:, (b - 1) * size : b * size] for b in (back, back + 1)]
            second.q_proj.weight[dimensions] = match * turn @ seen[0].T
            second.k_proj.weight[dimensions] = match * turn @ seen[1].T


def spread(rows: torch.Tensor, rounds: int = 30) -> torch.Tensor:
    """``rows`` (n, d), as long as each other on average and turned until no two look more alike than they need to.

    Alternates between the nearest tight frame and rows of one length (Tropp et al. 2005, doi:10.1109/TIT.2004.839492).
    """
    import torch

    length = rows.norm(dim=1).mean()
    for _ in range(rounds):
        left, _, right = torch.linalg.svd(rows, full_matrices=False)
        rows = torch.nn.functional.normalize(left @ right, dim=1)
    return length * rows
