"""LoRA adapters as peft saves them: saved by training, and merged into the weights of their model.

This project's own adapters record the hash of their base's weights. Weights have the names that peft gives them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib import paths
from memagent_lib.models.cache import TOKENIZER_FILES, ModelError, file_hash, source_of, write_source

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
"""Beside an adapter of this project: the name and the hash of the base model."""
PREFIX = "base_model.model."
BASE = ".base_layer."
DOWN = ".lora_A.default.weight"
UP = ".lora_B.default.weight"
VARIANTS = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter and no whole model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def base_hash(base: Path) -> str:
    """Return 16 hex digits of the content of a base model's weights, the same on every machine."""
    source = source_of(base)
    if source:
        return source["sha256"][:16]
    # PyTorch's files only without safetensors, as transformers chooses.
    files = sorted(base.glob("*.safetensors")) or sorted(base.glob("pytorch_model*.bin"))
    return hashlib.sha256("".join(map(file_hash, files)).encode()).hexdigest()[:16]


def record_base(adapter: Path, name: str, base: Path) -> None:
    """Write into an adapter's folder which base it belongs to: ``name``, and the hash of the weights in ``base``.

    The path of a folder or file is made relative to the adapter, so that both can be moved together. A ``base`` that
    is a hub name has no hash.
    """
    named = paths.absolute(name)
    if named.exists():
        name = os.path.relpath(named, adapter)
    sha256 = base_hash(base) if base.exists() else ""
    config = _table(adapter / CONFIG_FILE) | {"base_model_name_or_path": name}
    paths.write_atomically(adapter / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")
    paths.write_atomically(adapter / BASE_FILE, json.dumps({"model": name, "sha256": sha256}, indent=2) + "\n")


def require_adapter_of(base: Path, adapter: Path) -> dict[str, Any]:
    """Return peft's configuration of a LoRA adapter of the plain form: ``W + alpha / rank B A`` for whole modules.

    Raises :class:`ModelError` for another form, for an adapter that records another base, and for one whose weights do
    not fit the weights of ``base``. A ``base`` that is a hub name is not compared.
    """
    if not is_adapter(adapter):
        raise ModelError(f"no adapter in {adapter}; it needs {CONFIG_FILE} and {WEIGHTS_FILE}")
    config = _table(adapter / CONFIG_FILE)
    variant = next((name for name in VARIANTS if config.get(name)), None)
    if variant or config.get("peft_type", "LORA") != "LORA":
        raise ModelError(f"{adapter} is not a plain LoRA adapter ({variant or 'peft_type'}); it cannot be trained")
    if base.is_dir():
        _require_base(adapter, base)
        of_base = shapes_of(base)
        for name, shape in shapes_of(adapter).items():
            weight = name.removeprefix(PREFIX).partition(".lora_A")[0] + ".weight"
            if ".lora_A" in name and of_base.get(weight, [0])[-1] != shape[-1]:
                raise ModelError(f"the adapter {adapter} does not fit {weight} of {base}; give it its own base")
    return config


def _table(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def _require_base(adapter: Path, base: Path) -> None:
    """Raise :class:`ModelError` if the adapter records the hash of another base."""
    record = adapter / BASE_FILE
    trained = _table(record) if record.is_file() else {}
    if trained.get("sha256") and trained["sha256"] != base_hash(base):
        raise ModelError(
            f"the adapter {adapter} was trained on {trained['model']} with weights {trained['sha256']}, and {base} has "
            f"{base_hash(base)}; name its own base in {CONFIG_FILE} (base_model_name_or_path)"
        )


def shapes_of(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of the weights in a folder's safetensors files by name."""
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as weights:
            shapes |= {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    return shapes


def merged_hash(adapter: Path, base: Path) -> str:
    """Return a hash of base, adapter and scale, 64 hex digits. Raises :class:`ModelError` if ``base`` is not its base.

    The base counts by its hash, not by its name, which may be a path of this machine.
    """
    _require_base(adapter, base)
    config = _table(adapter / CONFIG_FILE)
    scale = {key: value for key, value in config.items() if key != "base_model_name_or_path"}
    parts = (base_hash(base), file_hash(adapter / WEIGHTS_FILE), json.dumps(scale, sort_keys=True))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def merge(adapter: Path, base: Path, part: Path) -> None:
    """Save the model that an adapter and its base make into the folder ``part``.

    Raises :class:`ModelError` if the saved model does not have the logits that peft computes without merging, as with
    an adapter on weights that are tied to others. Rounding moves logits too: those of SmolLM2-135M in float32 by as
    much as 0.2 % of the largest, of models in bfloat16 by more.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    print(f"merging the adapter in {adapter} into {base.name} once", file=sys.stderr, flush=True)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto").eval()
    ids = torch.arange(min(64, model.config.get_text_config().vocab_size))[None]
    try:
        adapted = PeftModel.from_pretrained(model, adapter)
    except (RuntimeError, ValueError, KeyError) as wrong:
        raise ModelError(f"the adapter {adapter} does not fit its base {base}: {wrong}") from wrong
    with torch.no_grad():
        expected = adapted(ids).logits.float()
        adapted.merge_and_unload().save_pretrained(part)
        saved = AutoModelForCausalLM.from_pretrained(part, dtype="auto").eval()
        difference = (saved(ids).logits.float() - expected).abs().max()
    if difference > 0.02 * expected.abs().max():
        raise ModelError(f"the adapter {adapter} cannot be merged: its logits would change by {difference:.2g}")
    for name in (*TOKENIZER_FILES, "memagent.json"):
        for folder in (base, adapter):  # an adapter's own tokenizer, with its added tokens, replaces the base's
            if (folder / name).is_file():
                shutil.copyfile(folder / name, part / name)
    write_source(part, file=adapter.name, sha256=merged_hash(adapter, base), adapter=str(adapter.resolve()))


def merged_weights(
    weights: Mapping[str, torch.Tensor], scale: float, device: Any = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights by the plain model's names, with each ``W`` that has an adapter replaced by ``W + scale B A``.

    ``scale`` is alpha / rank (arXiv 2106.09685, equation 3). The product is computed in fp32, then rounded to the
    weight's own type. Sharded weights (``DTensor``) are gathered one at a time, on ``device`` if it is given.
    """
    for name, weight in weights.items():
        if name.endswith((DOWN, UP)):
            continue
        weight = _whole(weight, device)
        stem = name.removesuffix(f"{BASE}weight")
        if stem != name:
            change = _whole(weights[stem + UP], device).float() @ _whole(weights[stem + DOWN], device).float()
            weight = (weight.float() + scale * change).to(weight.dtype)
        yield name.removeprefix(PREFIX).replace(BASE, "."), weight


def _whole(weight: torch.Tensor, device: Any) -> torch.Tensor:
    weight = weight if device is None else weight.to(device)
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def save_adapter(weights: Mapping[str, torch.Tensor], rank: int, alpha: float, folder: Path) -> None:
    """Save the adapters among ``weights`` in a new folder that peft, transformers and vLLM load, in bfloat16."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    adapters = {name: weight for name, weight in weights.items() if name.endswith((DOWN, UP))}
    modules = {name.removesuffix(UP).rpartition(".")[2] for name in adapters if name.endswith(UP)}
    folder.mkdir()
    LoraConfig(r=rank, lora_alpha=alpha, target_modules=sorted(modules), task_type="CAUSAL_LM").save_pretrained(folder)
    named = {name.replace(".default.", "."): weight.bfloat16().contiguous() for name, weight in adapters.items()}
    save_file(named, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    paths.apply_umask(folder)
