"""Export a trained policy to one folder that transformers, vLLM and :func:`~memagent_lib.agent.open_agent` load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memagent_lib.agent import AgentSettings
from memagent_lib.errors import UserError
from memagent_lib.models import TOKENIZER_FILES, merged_weights, name_of, record_base, save_adapter, weight_files
from memagent_lib.paths import absolute, apply_umask, display, write_atomically
from memagent_lib.prompts import Template
from memagent_lib.rl.config import ReadingConfig, Recipe
from memagent_lib.rl.run_folder import Checkpoint, RunFolder

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class ExportError(UserError, ValueError):
    """A run has no such checkpoint, or the folder to export to is taken."""


def export_checkpoint(run: str | Path, step: int | None = None, target: str | Path = "") -> Path:
    """Export a checkpoint of the run in the folder ``run``, which may be stopped or still training; return its folder.

    ``step`` is by default that of the last checkpoint, and ``target`` is ``step_N/model`` in the run's folder. Raises
    :class:`ExportError` if the run has no such checkpoint, or if ``target`` or the folder of its adapters exists.
    """
    folder = RunFolder(absolute(run))
    if not folder.config.is_file():
        state = f"it has no {folder.config.name}" if folder.path.is_dir() else "there is no such folder"
        raise ExportError(f"no training run at {display(folder.path)}: {state}")
    checkpoint = _chosen(folder, step)
    to = folder.path / f"step_{checkpoint.step}" / "model"
    if target:
        to = absolute(target)
    made = [to]
    if _adapter_note(checkpoint.huggingface).is_file():
        made.append(adapter_beside(to))
    for path in made:
        if path.exists():
            raise ExportError(f"{display(path)} exists; remove it, or export to another folder with --out")
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_policy(checkpoint, folder.recipe()[0], to)
    except (OSError, IndexError) as failure:
        if checkpoint.huggingface.is_dir():
            raise
        raise ExportError(
            f"the run has deleted its checkpoint of step {checkpoint.step} meanwhile; export a newer one, or retain "
            "more of them with train.keep_checkpoints"
        ) from failure
    return to


def _chosen(folder: RunFolder, step: int | None) -> Checkpoint:
    found = {checkpoint.step: checkpoint for checkpoint in folder.whole_checkpoints()}
    if not found:
        raise ExportError(f"{display(folder.path)} has no checkpoint yet; trainer.save_freq says when one is made")
    if step is None:
        return found[max(found)]
    if step not in found:
        steps = ", ".join(map(str, found))
        raise ExportError(f"{display(folder.path)} has no checkpoint of step {step}; it has those of steps {steps}")
    return found[step]


def save_policy(checkpoint: Checkpoint, recipe: Recipe, target: Path) -> None:
    """Export ``checkpoint`` to the folder ``target`` as ``recipe`` asks for, with the original model's tokenizer."""
    export_model(
        checkpoint.huggingface,
        Path(recipe.model.path),
        target,
        recipe.reading,
        average_with=recipe.model.average_with,
        average_share=recipe.model.average_share,
        chat_template=recipe.chat_template,
    )


def adapter_beside(model: Path) -> Path:
    """Return the folder of a model's adapters alone: ``adapter`` beside ``model``, and ``X-adapter`` beside ``X``."""
    return model.with_name("adapter" if model.name == "model" else f"{model.name}-adapter")


def export_model(
    trained: Path,
    original: Path,
    target: Path,
    reading: ReadingConfig | None = None,
    average_with: str = "",
    average_share: float = 0.0,
    chat_template: Mapping[str, Any] | None = None,
) -> None:
    """Export the checkpoint folder ``trained`` to ``target`` as a plain Hugging Face model, without verl's names.

    Adapters are merged into the weights, which are then averaged with ``average_with`` if it is set. Without averaging,
    they are also saved by themselves, as peft does, in :func:`adapter_beside` ``target``. If ``trained`` has
    no weights (a large model's checkpoint has them only as shards), they are assembled from the ranks' files. The
    tokenizer's files are copied unchanged from ``original``. ``reading``, the reading settings used in training, is
    saved as ``memagent.json`` together with ``chat_template``. ``target`` is replaced last, and is complete or absent
    at every moment.
    """
    part = _empty(target, "part")
    adapter = _empty(adapter_beside(target), "part")
    adapters = _adapters_of(trained)  # first: a run that goes on may delete the checkpoint meanwhile
    shutil.copytree(trained, part)
    for name in TOKENIZER_FILES:
        if (original / name).is_file():
            shutil.copyfile(original / name, part / name)
    if not any(part.glob("*.safetensors")):
        _save(whole_weights(trained.parent), part)
    if adapters:
        _fold_adapters(part, adapters, adapter)
    if average_with:
        _average(part, Path(average_with), average_share)
        shutil.rmtree(adapter, ignore_errors=True)  # it is no longer the difference of target and original
    _name_dtype(part)
    apply_umask(part)
    if reading is not None:
        template = Template.load(reading.template)
        # Relative to the project if its file is in it: the policy may be published, and every command finds it so.
        reader = display(Path(reading.reader))
        settings = AgentSettings.of(template, reading.budget, reader, chat_template, reading.on_bad_memory)
        settings.save(part)
        if adapter.is_dir():
            settings.save(adapter)
    if adapter.is_dir():
        record_base(adapter, name_of(original), original)
        _replace(adapter_beside(target), adapter)
    _replace(target, part)


def _adapter_note(trained: Path) -> Path:
    """Return the file that verl writes beside a checkpoint folder if the model has adapters: their rank and scale."""
    return trained.parent / "lora_train_meta.json"


def _adapters_of(trained: Path) -> dict[str, Any]:
    """Return the rank and scale of a checkpoint's adapters, or nothing if it has none."""
    note = _adapter_note(trained)
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}


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


def _fold_adapters(model: Path, adapter: Mapping[str, Any], apart: Path) -> None:
    """Merge a checkpoint's adapters into its weights, and save them by themselves in the folder ``apart``.

    verl saves both under peft's names, which do not load as a model.
    """
    weights = weights_of(model)
    save_adapter(weights, adapter["r"], adapter["lora_alpha"], apart)
    for file in (*model.glob("*.safetensors"), *model.glob("*.safetensors.index.json")):
        file.unlink()
    _save(_stored(dict(merged_weights(weights, adapter["lora_alpha"] / adapter["r"])), model), model)


def _average(model: Path, other: Path, share: float) -> None:
    """Move the weights of ``model`` by ``share`` of the way to those of ``other``, computed in float32."""
    from safetensors.torch import load_file, save_file

    others = weights_of(other)
    for file in sorted(model.glob("*.safetensors")):
        averaged = {
            name: ((1 - share) * weight.float() + share * others[name].float()).to(weight.dtype)
            for name, weight in load_file(file).items()
        }
        save_file(averaged, file, metadata={"format": "pt"})


def weights_of(model: Path) -> dict[str, Any]:
    """Load all weights from a folder's safetensors files, or from its older files, and return them by name."""
    import torch
    from safetensors.torch import load_file

    weights = {}
    for file in weight_files(model):
        safe = file.suffix == ".safetensors"
        weights |= load_file(file) if safe else torch.load(file, "cpu", weights_only=True)
    return weights


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
    return _stored(weights, actor / "huggingface")


def _stored(weights: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return the weights that belong in a model's files: all but an output head that is tied to the embedding."""
    tied = json.loads((model / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings", False)
    return {name: w for name, w in weights.items() if not (tied and name.endswith("lm_head.weight"))}


def _save(weights: dict[str, Any], model: Path) -> None:
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(weights, model)


def _name_dtype(model: Path) -> None:
    """Correct the type of the weights in ``config.json``, where verl writes bfloat16 whatever type it saved."""
    from safetensors import safe_open

    with safe_open(sorted(model.glob("*.safetensors"))[0], "pt") as weights:
        stored = weights.get_slice(next(iter(weights.keys()))).get_dtype()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = _DTYPES[stored]
    write_atomically(model / "config.json", json.dumps(config, indent=2) + "\n")
