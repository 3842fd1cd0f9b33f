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
from memagent_lib.models.lora import WEIGHTS_FILE
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
)

CONFIG_FILE = "adapter_config.json"
BASE_FILE = "base.json"
"""Beside an adapter of this project: the name and the hash of the base model."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter and no whole model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def base_hash(base: Path) -> str:
    """Return 16 hex digits of the content of a base model's weights, the same on every machine."""
    source = source_of(base)
    if source:
        return source["sha256"][:16]
    digest = hashlib.sha256()
    for file in sorted(base.glob("*.safetensors")):
        digest.update(file_hash(file).encode())
    return digest.hexdigest()[:16]


def record_base(adapter: Path, name: str, base: Path) -> None:
    """Write into an adapter's folder which base it belongs to: ``name``, and the hash of the weights in ``base``.

    ``base`` is the folder that :func:`~memagent_lib.models.find_model` returns for the name. peft's own configuration
    gets the name too. A folder's name is made relative to the adapter, so that both can be moved together.
    """
    named = paths.absolute(name)
    if named.is_dir():
        name = os.path.relpath(named, adapter)
    config_file = adapter / CONFIG_FILE
    config = json.loads(config_file.read_text(encoding="utf-8")) | {"base_model_name_or_path": name}
    paths.write_atomically(config_file, json.dumps(config, indent=2, sort_keys=True) + "\n")
    paths.write_atomically(adapter / BASE_FILE, json.dumps({"model": name, "sha256": base_hash(base)}, indent=2) + "\n")


def require_adapter_of(base: Path, adapter: Path) -> dict[str, Any]:
    """Return peft's configuration of an adapter.

    Raises :class:`ModelError` unless ``adapter`` is the folder of one, with weights, and does not record another base.
    A ``base`` that is a hub name is not compared.
    """
    if not is_adapter(adapter) or not (adapter / WEIGHTS_FILE).is_file():
        raise ModelError(f"no adapter in {adapter}; it needs {CONFIG_FILE} and {WEIGHTS_FILE}")
    if base.is_dir():
        _require_base(adapter, base)
    return json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))


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
    config = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))
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
        base = Path(find_base(str(beside) if beside.is_dir() else name))
    except MissingFile as missing:
        raise MissingFile(f"the adapter {adapter} needs its base model {name!r}: {missing}") from missing
    if not base.is_dir():
        raise MissingFile(
            f"the adapter {adapter} needs its base model {name!r}, of which there is no folder here; fetch it, and "
            f"write its folder as base_model_name_or_path into {adapter / CONFIG_FILE}"
        )
    return base


def _require_base(adapter: Path, base: Path) -> None:
    """Raise :class:`ModelError` if the adapter records the hash of another base."""
    record = adapter / BASE_FILE
    if not record.is_file():
        return
    trained = json.loads(record.read_text(encoding="utf-8"))
    found = base_hash(base)
    if trained["sha256"] != found:
        raise ModelError(
            f"the adapter {adapter} was trained on {trained['model']} with weights {trained['sha256']}, and {base} has "
            f"weights {found}; give it the base that it was trained on (base_model_name_or_path in "
            f"{adapter / CONFIG_FILE})"
        )


def _merge(adapter: Path, base: Path, part: Path, sha256: str) -> None:
    size = sum(file.stat().st_size for file in base.glob("*.safetensors"))
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
    source = {"file": adapter.name, "sha256": sha256, "base": base.name, "licence": licence}
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
