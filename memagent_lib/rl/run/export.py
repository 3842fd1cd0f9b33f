"""Export a trained policy to one folder that transformers, vLLM and :func:`~memagent_lib.agent.open_agent` load."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent_lib.agent import chat_arguments
from memagent_lib.models import TOKENIZER_FILES, merged_weights, name_of, record_base, save_adapter
from memagent_lib.paths import absolute, apply_umask, display, write_atomically
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import Checkpoint, RunError, RunFolder


def export_checkpoint(run: str | Path, step: int | None = None, target: str | Path = "") -> Path:
    """Export a checkpoint of the run in the folder ``run``, which may be stopped or still training; return its folder.

    ``step`` is by default that of the last checkpoint, and ``target`` is ``step_N/model`` in the run's folder. Raises
    :class:`MissingFile` if there is no run, :class:`RunError` if it has no such checkpoint or if ``target`` exists.
    """
    folder = RunFolder(absolute(run))
    found = {checkpoint.step: checkpoint for checkpoint in folder.whole_checkpoints()}
    if not found or (step is not None and step not in found):
        folder.status()  # raises an error if there is no run
        raise RunError(f"no checkpoint of step {step or 'N'} in {display(folder.path)}; there are {list(found)}")
    checkpoint = found[max(found) if step is None else step]
    to = absolute(target) if target else folder.path / f"step_{checkpoint.step}" / "model"
    if to.exists() or adapter_beside(to).exists():
        raise RunError(f"{display(to)} or its adapter exists; export to another folder with --out")
    to.parent.mkdir(parents=True, exist_ok=True)
    save_policy(checkpoint, folder.recipe()[0], to)
    return to


def adapter_beside(model: Path) -> Path:
    """Return the folder of a model's adapters alone: ``adapter`` beside ``model``, and ``X-adapter`` beside ``X``."""
    return model.with_name("adapter" if model.name == "model" else f"{model.name}-adapter")


def save_policy(checkpoint: Checkpoint, recipe: Recipe, target: Path) -> None:
    """Export a checkpoint to ``target`` as a plain Hugging Face model, without verl's names, as ``recipe`` asks for.

    Adapters are merged into the weights, which are then averaged with ``model.average_with`` if it is set. Without
    averaging, they are also saved by themselves, as peft does, in :func:`adapter_beside` ``target``. If the checkpoint
    has no whole weights (those of a large model are only in shards), they are assembled from the ranks' files. The
    tokenizer's files are copied unchanged from the original model. The reading settings used in training are saved as
    ``memagent.json``. ``target`` is replaced last, and is complete or absent at every moment.
    """
    part = _empty(target, "part")
    adapter = _empty(adapter_beside(target), "part")
    original = Path(recipe.model.path)
    shutil.copytree(checkpoint.huggingface, part)
    for name in TOKENIZER_FILES:
        if (original / name).is_file():
            shutil.copyfile(original / name, part / name)
    weights = weights_of(part) or whole_weights(checkpoint.huggingface.parent)
    lora = checkpoint.huggingface.parent / "lora_train_meta.json"  # verl writes it for a model with adapters
    if lora.is_file():
        sizes = json.loads(lora.read_text(encoding="utf-8"))
        if not recipe.model.average_with:
            save_adapter(weights, sizes["r"], sizes["lora_alpha"], adapter)
        weights = dict(merged_weights(weights, sizes["lora_alpha"] / sizes["r"]))
    if recipe.model.average_with:
        weights = averaged(weights, weights_of(Path(recipe.model.average_with)), recipe.model.average_share)
    _save(weights, part)
    apply_umask(part)
    settings = recipe.reading.agent_settings(chat_arguments(str(original), recipe.chat_template))
    # Relative to the project if its file is in it: the policy may be published, and every command finds it so.
    settings = replace(settings, reader=display(Path(settings.reader)))
    settings.save(part)
    if adapter.is_dir():
        settings.save(adapter)
        record_base(adapter, name_of(original), original)
        _replace(adapter_beside(target), adapter)
    _replace(target, part)


def averaged(weights: dict[str, Any], others: dict[str, Any], share: float) -> dict[str, Any]:
    """Move ``weights`` by ``share`` of the way to ``others``, computed in float32.

    A tied output layer, a copy of the embedding, is in shards and not in every model, and is left out.
    """
    return {
        name: ((1 - share) * weight.float() + share * others[name].float()).to(weight.dtype)
        for name, weight in weights.items()
        if name in others or not name.endswith("lm_head.weight")
    }


def _empty(folder: Path, suffix: str) -> Path:
    """Return the path of a hidden folder beside ``folder``, from which what a killed export left is removed."""
    path = folder.with_name(f".{folder.name}.{suffix}")
    shutil.rmtree(path, ignore_errors=True)
    return path


def _replace(folder: Path, new: Path) -> None:
    """Rename ``new`` to ``folder``. What was there is not deleted in its place: a kill would leave half a model."""
    old = _empty(folder, "old")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def weights_of(model: Path) -> dict[str, Any]:
    """Load all weights from a folder's safetensors files and return them by name."""
    from safetensors.torch import load_file

    return {name: weight for file in model.glob("*.safetensors") for name, weight in load_file(file).items()}


def whole_weights(actor: Path) -> dict[str, Any]:
    """Assemble a checkpoint's weights from its ranks' files and return them by name.

    Every file has one shard of every weight (FSDP2). Only the first shard group is assembled, because the others hold
    copies of it. ``verl.model_merger`` is not used, because it rounds the weights to bfloat16.
    """
    import torch
    from torch.distributed.tensor import DTensor

    files = sorted(actor.glob("model_world_size_*_rank_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    # Mapped, so that not all shards are in memory at once; only tensors, so that no file of a run can run code here.
    ranks = [torch.load(file, "cpu", weights_only=True, mmap=True) for file in files]
    weights = {}
    for name, weight in ranks[0].items():
        if isinstance(weight, DTensor):
            *_, cut = weight.placements  # the last dimension of the mesh shards, any before it replicate
            parts = [rank[name].to_local() for rank in ranks[: weight.device_mesh.mesh.shape[-1]]]
            weight = torch.cat(parts, cut.dim) if cut.is_shard() else parts[0]
        weights[name] = weight
    return weights


def _save(weights: dict[str, Any], model: Path) -> None:
    """Replace a folder's weights, and correct their type in ``config.json``, where verl writes bfloat16 in any case."""
    from huggingface_hub import save_torch_state_dict

    for file in (*model.glob("*.safetensors"), *model.glob("*.safetensors.index.json")):
        file.unlink()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("tie_word_embeddings"):
        weights = {name: weight for name, weight in weights.items() if not name.endswith("lm_head.weight")}
    save_torch_state_dict(weights, model)
    config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    write_atomically(model / "config.json", json.dumps(config, indent=2) + "\n")
