"""A multimodal model reads text by its text model's sizes, which its configuration has in a table of their own."""

from __future__ import annotations

import shutil

import pytest

from memagent_lib.agent import run_sync
from memagent_lib.backends import Sampling, open_backend, shape_of
from memagent_lib.prompts import Request

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 600}
TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
VISION |= {"image_size": 28, "patch_size": 14}


@pytest.fixture(scope="module")
def gemma3(tokenizer_folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Gemma 3 that sees pictures, with a window of 512 tokens."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    folder = tmp_path_factory.mktemp("multimodal") / "gemma3"
    shutil.copytree(tokenizer_folder, folder)
    torch.manual_seed(0)
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)
    Gemma3ForConditionalGeneration(config).to(torch.float32).save_pretrained(folder)
    return str(folder)


def test_transformers_reads_with_its_text_models_window(gemma3: str) -> None:
    backend = open_backend("transformers", gemma3, Sampling(), threads=1)
    reply = run_sync(backend.complete(Request((5, 6, 7), "", 4)))
    run_sync(backend.close())
    assert (backend.window, reply.reply_tokens) == (512, 4)


def test_its_shape_is_its_text_models(gemma3: str) -> None:
    shape = shape_of(gemma3)
    assert (shape.layers, shape.hidden, shape.kv_width, shape.attention, shape.ffn) == (2, 32, 16, 32, 48)
    assert shape.vocabulary == 600
    assert shape.parameters - shape.body == 600 * 32
