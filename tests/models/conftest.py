"""A small Llama model, and the GGUF files made of it."""

import json
from pathlib import Path

import pytest
from gguf_models import CONTROL, NORMAL, write_gguf


@pytest.fixture(scope="module")
def llama(tokenizer):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer.hf),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=320,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.hf.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).to(torch.float32)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "memagent" / "models"


@pytest.fixture
def gguf(llama, tokenizer, tmp_path):
    """Write the model and the tokenizer of these tests as a GGUF file, with what a test changes in it."""
    table = json.loads(tokenizer.backend.to_str())
    size = len(tokenizer.hf)
    tokens = [tokenizer.backend.id_to_token(number) for number in range(size)]
    added = {token["id"] for token in table["added_tokens"]}
    kinds = [CONTROL if number in added else NORMAL for number in range(size)]
    merges = [" ".join(merge) for merge in table["model"]["merges"]]
    special = {"eos": tokenizer.hf.eos_token_id, "padding": tokenizer.hf.pad_token_id}

    def write(name: str = "tiny.gguf", model=llama, **changed) -> Path:
        settings = {"merges": merges, "special": special, "chat_template": tokenizer.hf.chat_template} | changed
        return write_gguf(tmp_path / name, model, tokens, settings.pop("kinds", kinds), **settings)

    return write
