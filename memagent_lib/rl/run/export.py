"""A trained policy as one folder that transformers, vLLM and :func:`~memagent_lib.agent.open_agent` load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from memagent_lib.agent import AgentSettings
from memagent_lib.paths import write_atomically
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


def export_model(
    trained: Path,
    original: Path,
    target: Path,
    reading: ReadingConfig | None = None,
    average_with: str = "",
    average_share: float = 0.0,
) -> None:
    """Copy a checkpoint's Hugging Face folder to ``target`` in one step, as the plain model that was trained.

    Adapters are folded into the weights, and these averaged with ``average_with`` if it is set. Weights that the folder
    lacks (a large model's checkpoint has them only once) are put together from the ranks' files. The tokenizer's files
    are the original's, byte for byte. ``reading``, how the policy was trained to read, is saved as ``memagent.json``.
    """
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(trained, part)
    for name in TOKENIZER_FILES:
        if (original / name).is_file():
            shutil.copyfile(original / name, part / name)
    if not any(part.glob("*.safetensors")):
        _save(whole_weights(trained.parent), part)
    _fold_adapters(part, trained.parent / ADAPTER_NOTE)
    if average_with:
        _average(part, Path(average_with), average_share)
    _name_dtype(part)
    if reading is not None:
        AgentSettings.of(Template.load(reading.template), reading.budget, reading.reader).save(part)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def _fold_adapters(model: Path, note: Path) -> None:
    """verl saves a model with LoRA by peft's names, which neither transformers nor vLLM loads as that model."""
    if not note.is_file():
        return
    from memagent_lib.rl.verl.lora import merged

    weights = weights_of(model)
    adapter = json.loads(note.read_text(encoding="utf-8"))
    for file in (*model.glob("*.safetensors"), *model.glob("*.safetensors.index.json")):
        file.unlink()
    _save(_stored(merged(weights, adapter["lora_alpha"] / adapter["r"]), model), model)


def _average(model: Path, other: Path, share: float) -> None:
    """Move ``model`` by ``share`` of the way to ``other``, in float32."""
    from safetensors.torch import load_file, save_file

    others = weights_of(other)
    for file in sorted(model.glob("*.safetensors")):
        averaged = {
            name: ((1 - share) * weight.float() + share * others[name].float()).to(weight.dtype)
            for name, weight in load_file(file).items()
        }
        save_file(averaged, file, metadata={"format": "pt"})


def weights_of(model: Path) -> dict[str, Any]:
    """Return all weights in a folder's files, by name."""
    from safetensors.torch import load_file

    return {name: weight for file in sorted(model.glob("*.safetensors")) for name, weight in load_file(file).items()}


def shapes_of(model: Path) -> dict[str, list[int]]:
    """Return the shapes of a folder's weights, by name, from the headers of its files."""
    from safetensors import safe_open

    shapes = {}
    for file in model.glob("*.safetensors"):
        with safe_open(file, "np") as weights:
            shapes |= {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    return shapes


def whole_weights(actor: Path) -> dict[str, Any]:
    """Put a checkpoint's weights together from its ranks' files, each with one shard of every weight (FSDP2).

    Only the first group of shards is read; further groups repeat it. ``verl.model_merger`` would round to bfloat16.
    """
    import torch
    from torch.distributed.tensor import DTensor

    files = sorted(actor.glob("model_world_size_*_rank_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    ranks = [torch.load(file, "cpu", weights_only=False, mmap=True) for file in files]
    weights = {}
    for name, weight in ranks[0].items():
        if isinstance(weight, DTensor):
            *_, cut = weight.placements
            parts = [rank[name].to_local() for rank in ranks[: weight.device_mesh.mesh.shape[-1]]]
            weight = torch.cat(parts, cut.dim) if cut.is_shard() else parts[0]
        weights[name] = weight
    return _stored(weights, actor / "huggingface")


def _stored(weights: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return the weights that a model's files have: all but an output head that is the embedding."""
    tied = json.loads((model / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings", False)
    return {name: w for name, w in weights.items() if not (tied and name.endswith("lm_head.weight"))}


def _save(weights: dict[str, Any], model: Path) -> None:
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(weights, model)


def _name_dtype(model: Path) -> None:
    """Write the weights' type to ``config.json``: verl writes bfloat16 whatever it saved."""
    from safetensors import safe_open

    with safe_open(sorted(model.glob("*.safetensors"))[0], "pt") as weights:
        stored = weights.get_slice(next(iter(weights.keys()))).get_dtype()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = _DTYPES[stored]
    write_atomically(model / "config.json", json.dumps(config, indent=2) + "\n")
