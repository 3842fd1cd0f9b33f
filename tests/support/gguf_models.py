"""Small GGUF files, written as llama.cpp's own converter writes them: the tensors of queries and keys permuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFWriter

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def write_gguf(
    file: Path,
    model: Any,
    tokens: list[str],
    kinds: list[int],
    *,
    pre: str = "qwen2",
    merges: list[str],
    special: dict[str, int],
    chat_template: str,
    more: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """Write a transformers Llama model and a tokenizer. ``special`` maps ``bos``, ``eos`` and so on to ids."""
    config = model.config
    writer = GGUFWriter(file, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for name, number in special.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
    writer.add_chat_template(chat_template)
    for name, value in (more or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint16, str: writer.add_string}[type(value)]
        add(name, value)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_name(name), _permuted(name, weight.numpy(), config))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _name(name: str) -> str:
    words = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in words.items():
        name = name.replace(theirs, ours)
    return name


def _permuted(name: str, weight: Any, config: Any) -> Any:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = next((count for part, count in heads.items() if part in name), None)
    if found is None:
        return weight
    rows, width = weight.shape
    return weight.reshape(found, 2, rows // found // 2, width).swapaxes(1, 2).reshape(rows, width)
