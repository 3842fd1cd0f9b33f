"""A model folder of two bytes of weights, and what a run of it would record."""

from __future__ import annotations

import json
from pathlib import Path

from memagent_lib.prompts import Budget

BUDGET = Budget(chunk_tokens=200, memory_tokens=40, answer_tokens=16, question_tokens=64)


def write_model(folder: Path, value: int = 1) -> Path:
    """Write a model folder with two bytes of weights, whose hash follows ``value``."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [2, 1], "data_offsets": [0, 2]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes([value, value]))
    return folder
