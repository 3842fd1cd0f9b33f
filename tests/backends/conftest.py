"""A model of 100,000 random parameters, made here: engines are tested with a real one."""

import pytest


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory) -> str:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer.hf),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.hf.eos_token_id,
        pad_token_id=tokenizer.hf.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return str(folder)
