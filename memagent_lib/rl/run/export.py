"""A trained policy as one folder that transformers, vLLM and :func:`~memagent_lib.agent.open_agent` load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from memagent_lib.agent import AgentSettings
from memagent_lib.files import write_atomically
from memagent_lib.prompts import Template
from memagent_lib.rl.config import ReadingConfig

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)
ADAPTER_NOTE = "lora_train_meta.json"  # written by verl where a model has adapters
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def export_model(trained: Path, original: Path, target: Path, reading: ReadingConfig | None = None) -> None:
    """Copy a trained Hugging Face folder to ``target``, in one step, with its adapters folded into its weights.

    The tokenizer's files are the original's, byte for byte. ``reading``, how the policy was trained to read, is kept as
    ``memagent.json``.
    """
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(trained, part)
    for name in TOKENIZER_FILES:
        if (original / name).is_file():
            shutil.copyfile(original / name, part / name)
    _fold_adapters(part, trained.parent / ADAPTER_NOTE)
    _name_dtype(part)
    if reading is not None:
        AgentSettings.of(Template.load(reading.template), reading.budget, reading.reader).save(part)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def _fold_adapters(model: Path, note: Path) -> None:
    """verl saves a model with LoRA by peft's names, which neither transformers nor vLLM loads as that model."""
    if not note.is_file():
        return
    from safetensors.torch import load_file, save_file

    from memagent_lib.rl.lora import merged

    files = sorted(model.glob("*.safetensors"))
    weights = {name: weight for file in files for name, weight in load_file(file).items()}
    adapter = json.loads(note.read_text(encoding="utf-8"))
    for file in (*files, *model.glob("*.safetensors.index.json")):
        file.unlink()
    plain = merged(weights, adapter["lora_alpha"] / adapter["r"])
    save_file(plain, model / "model.safetensors", metadata={"format": "pt"})


def _name_dtype(model: Path) -> None:
    """Let ``config.json`` say what the weights are stored in: verl writes bfloat16 whatever it saved."""
    from safetensors import safe_open

    with safe_open(sorted(model.glob("*.safetensors"))[0], "pt") as weights:
        stored = weights.get_slice(next(iter(weights.keys()))).get_dtype()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = _DTYPES[stored]
    write_atomically(model / "config.json", json.dumps(config, indent=2) + "\n")
