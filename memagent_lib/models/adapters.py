"""LoRA adapters as peft saves them, merged once into their base model so that every backend and the trainer load them.

An adapter's base may itself be a folder with an adapter. This project's own adapters record the hash of their base's
weights; those of others are checked by the names and shapes of their weights only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memagent_lib import paths
from memagent_lib.errors import MissingFile
from memagent_lib.models.hub_files import HUB_NAME, cached_folder, cached_name
from memagent_lib.models.lora import DOWN, PREFIX, UP, WEIGHTS_FILE, saved_name
from memagent_lib.models.model_cache import (
    PROCESS_BYTES,
    SOURCE_FILE,
    TOKENIZER_FILES,
    ModelError,
    cache_folder,
    file_hash,
    made_once,
    require_disk,
    require_memory,
    source_of,
    weight_files,
)

CONFIG_FILE = "adapter_config.json"
# What peft calls the adapters that training and merging here know, with the values of each key that are theirs.
PLAIN = {
    "peft_type": ("LORA",),
    "use_rslora": (),
    "use_dora": (),
    "rank_pattern": (),
    "alpha_pattern": (),
    "modules_to_save": (),
    "bias": ("none",),
}
BASE_FILE = "base.json"
"""Beside an adapter of this project: the name and the hash of the base model."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter and no whole model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def base_hash(base: Path) -> str:
    """Return 16 hex digits of the content of a base model's weights, the same on every machine.

    Raises :class:`MissingFile` for a folder without weights.
    """
    source = source_of(base)
    if source:
        return source["sha256"][:16]
    files = weight_files(base)
    if not files:
        raise MissingFile(f"no weights (*.safetensors) in {base}, the base model of an adapter")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file_hash(file).encode())
    return digest.hexdigest()[:16]


def record_base(adapter: Path, name: str, base: Path) -> None:
    """Write into an adapter's folder which base it belongs to: ``name``, and the hash of the weights in ``base``.

    ``base`` is what :func:`~memagent_lib.models.find_model` returns for the name; a hub name has no hash. peft's own
    configuration gets the name too. The path of a folder or file is made relative to the adapter, so that both can be
    moved together.
    """
    named = paths.absolute(name)
    if named.exists():
        name = os.path.relpath(named, adapter)
    on_hub = HUB_NAME.fullmatch(str(base)) and not base.exists()
    sha256 = "" if on_hub else base_hash(base)
    config_file = adapter / CONFIG_FILE
    config = _table(config_file) | {"base_model_name_or_path": name}
    paths.write_atomically(config_file, json.dumps(config, indent=2, sort_keys=True) + "\n")
    paths.write_atomically(adapter / BASE_FILE, json.dumps({"model": name, "sha256": sha256}, indent=2) + "\n")


def require_adapter_of(base: Path, adapter: Path) -> dict[str, Any]:
    """Return peft's configuration of a LoRA adapter of the plain form: ``W + alpha / rank B A`` for whole modules.

    Raises :class:`ModelError` unless ``adapter`` is the folder of one, with weights, and fits ``base``: by the hash
    that it records, or else by that of the folder that it names, and by the shapes of its weights. A ``base`` that is a
    hub name is not compared.
    """
    config_file = adapter / CONFIG_FILE
    if not is_adapter(adapter) or not (adapter / WEIGHTS_FILE).is_file():
        raise ModelError(f"no adapter in {adapter}; it needs {CONFIG_FILE} and {WEIGHTS_FILE}")
    config = _table(config_file)
    for key, plain in PLAIN.items():
        if config.get(key) not in (None, False, {}, [], *plain):
            raise ModelError(
                f"the adapter {adapter} has {key} = {config[key]!r}; only plain LoRA adapters can be trained further"
            )
    if base.is_dir():
        if (adapter / BASE_FILE).is_file():
            _require_base(adapter, base)
        else:
            _require_named_base(adapter, config.get("base_model_name_or_path") or "", base)
        _require_shapes(adapter, base)
    return config


def _table(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise :class:`ModelError` if the file has anything else."""
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON: {error}; copy it again") from error
    if not isinstance(table, dict):
        raise ModelError(f"{file} must have a JSON object, got {str(table)[:80]}; copy it again")
    return table


def _require_named_base(adapter: Path, name: str, base: Path) -> None:
    """Raise :class:`ModelError` if the adapter names the folder of a whole model, and it is another than ``base``."""
    named = next((folder for folder in ((adapter / name).resolve(), paths.absolute(name)) if folder.is_dir()), None)
    if not name or named is None or not any(named.glob("*.safetensors")) or is_adapter(named):
        return
    if base_hash(named) != base_hash(base):
        raise ModelError(f"the adapter {adapter} was trained on {named}, whose weights are not those of {base}")


def _require_shapes(adapter: Path, base: Path) -> None:
    """Raise :class:`ModelError` unless each pair of the adapter's weights fits a weight of the base."""
    of_base = shapes_of(base)
    shapes = shapes_of(adapter)
    for name, shape in shapes.items():
        stem = name.removesuffix(saved_name(DOWN))
        if stem == name:
            continue
        inputs = shape[-1]
        outputs = shapes.get(stem + saved_name(UP), [0])[0]
        weight = stem.removeprefix(PREFIX) + ".weight"
        if of_base.get(weight) != [outputs, inputs]:
            raise ModelError(
                f"the adapter {adapter} changes {weight} of shape {[outputs, inputs]}, and in {base} its shape is "
                f"{of_base.get(weight)}; give it the base that it was trained on"
            )


def shapes_of(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of a folder's weights by name, from the headers of its safetensors files or of its older files.

    Raises :class:`ModelError` for a file that is cut or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "np") as weights:
                shapes |= {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ModelError(f"{file} is damaged: {error}; copy it again") from error
    return shapes or _shapes_of_pickles(folder)


def _shapes_of_pickles(folder: Path) -> dict[str, list[int]]:
    import torch

    shapes = {}
    for file in folder.glob("pytorch_model*.bin"):
        try:
            weights = torch.load(file, map_location="meta", weights_only=True)  # on this device they take no memory
        except Exception as error:  # pickle and zip files have many errors
            # Not in torch's words, which advise to run whatever the file contains.
            raise ModelError(f"{file} is damaged, or has more than weights; give it as safetensors") from error
        shapes |= {name: list(weight.shape) for name, weight in weights.items()}
    return shapes


def merged_adapter(adapter: Path, find_base: Callable[[str], str]) -> Path:
    """Return the folder of the model that an adapter and its base make, in the cache under both hashes.

    Raises :class:`ModelError` if the adapter needs more memory or disk than is free, and what :func:`merged_hash`
    raises.
    """
    base, sha256 = merged_hash(adapter, find_base)
    folder = cache_folder() / f"{adapter.name}-{sha256[:12]}"
    return made_once(folder, lambda part: _merge(adapter, base, part, sha256))


def merged_hash(adapter: Path, find_base: Callable[[str], str]) -> tuple[Path, str]:
    """Return the folder of an adapter's base, and a hash of base, adapter and scale: 64 hex digits.

    ``find_base`` returns the folder to load for a base's name. A base given by a relative path is found from the
    adapter's folder first. Raises :class:`ModelError` if the adapter has no weights or belongs to another base, and
    :class:`MissingFile` if the base is not on this machine.
    """
    config = _table(adapter / CONFIG_FILE)
    weights = adapter / WEIGHTS_FILE
    if not weights.is_file():
        raise ModelError(f"{adapter} has {CONFIG_FILE} but no {WEIGHTS_FILE}; copy the adapter's whole folder")
    base = _base_folder(adapter, config.get("base_model_name_or_path") or "", find_base)
    _require_base(adapter, base)
    # Without the base's name, which may be a path of this machine; the base counts by its hash.
    scale = {key: value for key, value in config.items() if key != "base_model_name_or_path"}
    digest = hashlib.sha256(f"{base_hash(base)} {file_hash(weights)} {json.dumps(scale, sort_keys=True)}".encode())
    return base, digest.hexdigest()


def _base_folder(adapter: Path, name: str, find_base: Callable[[str], str]) -> Path:
    if not name:
        raise ModelError(f"{adapter / CONFIG_FILE} names no base_model_name_or_path; write the model's name there")
    beside = (adapter / name).resolve()
    try:
        found = find_base(str(beside) if beside.exists() else name)
    except MissingFile as missing:
        raise MissingFile(f"the adapter {adapter} needs its base model {name!r}: {missing}") from missing
    base = Path(found) if Path(found).is_dir() else cached_folder(found)
    if base is None:
        raise MissingFile(
            f"the adapter {adapter} needs its base model {name!r}, of which there is no folder here; fetch it (hf "
            f"download {name}), or write its folder as base_model_name_or_path into {adapter / CONFIG_FILE}"
        )
    return base


def _require_base(adapter: Path, base: Path) -> None:
    """Raise :class:`ModelError` if the adapter records the hash of another base."""
    record = adapter / BASE_FILE
    if not record.is_file():
        return
    trained = _table(record)
    found = base_hash(base)
    if trained.get("sha256") and trained["sha256"] != found:
        raise ModelError(
            f"the adapter {adapter} was trained on {trained['model']} with weights {trained['sha256']}, and {base} has "
            f"weights {found}; give it the base that it was trained on (base_model_name_or_path in "
            f"{adapter / CONFIG_FILE})"
        )


def _merge(adapter: Path, base: Path, part: Path, sha256: str) -> None:
    size = sum(file.stat().st_size for file in weight_files(base))
    require_disk(size + 20_000_000, adapter.name)
    require_memory(2 * size + PROCESS_BYTES, f"merging the adapter {adapter.name}")
    print(f"merging the adapter in {adapter} into {base.name} once", file=sys.stderr, flush=True)
    model = _loaded(adapter, base)
    model.save_pretrained(part)
    for name in (*TOKENIZER_FILES, "memagent.json"):
        for folder in (adapter, base):  # an adapter's own tokenizer, with its added tokens, comes first
            if (folder / name).is_file():
                shutil.copyfile(folder / name, part / name)
                break
    licence = source_of(base).get("licence", "")
    source = {"file": adapter.name, "sha256": sha256, "base": cached_name(base) or base.name, "licence": licence}
    source["adapter"] = str(adapter.resolve())
    paths.write_atomically(part / SOURCE_FILE, json.dumps(source, indent=2) + "\n")


def _loaded(adapter: Path, base: Path) -> Any:
    """Return the base with the adapter merged, in the type of the base's weights."""
    try:
        from peft import PeftModel
    except ImportError as missing:
        raise ImportError("adapters need the package peft; install it with: pip install peft") from missing
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as wrong:
        first = str(wrong).strip().splitlines()
        raise ModelError(
            f"the adapter {adapter} does not fit its base {base}: {' '.join(first[:2])}; give it the base that it was "
            "trained on"
        ) from wrong
