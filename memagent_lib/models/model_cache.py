"""The folder in which converted models lie: each appears whole or not at all, and is made by one process at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import platformdirs

from memagent_lib.errors import UserError
from memagent_lib.paths import apply_umask, free_disk, lock_beside, write_atomically
from memagent_lib.system import free_bytes

SOURCE_FILE = "source.json"
"""The record in a converted folder of the file that its weights come from."""
PROCESS_BYTES = 600_000_000
"""The memory of torch and transformers themselves, beside a model's weights."""


WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""Patterns of files with weights; transformers loads the first format that a folder has."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)
"""What a folder made from another model takes over unchanged."""


class ModelError(UserError, ValueError):
    """A model file cannot be used, or the machine has too little room for it."""


def cache_folder() -> Path:
    """Return the folder of converted models; ``XDG_CACHE_HOME`` moves it, as for other programs."""
    return platformdirs.user_cache_path("memagent") / "models"


def source_of(folder: Path) -> dict[str, str]:
    """Return the record of what a folder in the cache was made from; empty for any other folder.

    It has ``file``, ``sha256`` and ``licence`` ("" if not known), ``quantization`` for a GGUF file, and ``base`` and
    ``adapter`` (its folder) for a merged adapter.
    """
    record = folder / SOURCE_FILE
    return json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}


def weight_files(folder: Path) -> list[Path]:
    """Return a model folder's files with weights: safetensors, or else PyTorch's, as transformers chooses."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``. If it does not exist, ``make`` first fills an empty folder, which then gets its name.

    Two processes that need the same folder make it once. What a killed process left is made again.
    """
    if folder.is_dir():
        return folder
    with _lock(folder):
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(part)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            apply_umask(part)
            part.rename(folder)
    return folder


def _lock(folder: Path) -> IO[bytes]:
    try:
        return lock_beside(folder)
    except OSError as failure:
        raise ModelError(
            f"{folder.parent} cannot be written ({failure.strerror}); set XDG_CACHE_HOME to a folder of yours"
        ) from failure


def require_disk(needed: int, what: str) -> None:
    """Raise :class:`ModelError` unless the cache's disk has ``needed`` bytes free."""
    folder = cache_folder()
    free = free_disk(folder)
    if free < needed:
        raise ModelError(
            f"{what} needs {_gb(needed)} of disk in {folder}, and {_gb(free)} are free; free some, or set "
            "XDG_CACHE_HOME to a folder on another disk"
        )


def require_memory(needed: int, what: str) -> None:
    """Raise :class:`ModelError` unless ``needed`` bytes of memory are free. ``what`` begins the message."""
    available = free_bytes()
    if available < needed:
        raise ModelError(
            f"{what} needs {_gb(needed)} of memory, and {_gb(available)} are free; close other programs, or use a "
            "larger machine"
        )


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits.

    It is saved with the file's size and time, so that an unchanged file of gigabytes is read once and not by every
    command.
    """
    status = file.stat()
    state = {"file": str(file), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    name = hashlib.sha256(str(file).encode()).hexdigest()[:16]
    note = cache_folder() / "hashes" / f"{name}.json"
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if {key: known.get(key) for key in state} == state:
        return known["sha256"]
    with open(file, "rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    with suppress(OSError, ValueError):  # a cache that cannot be written costs time, not the result
        write_atomically(note, json.dumps(state | {"sha256": sha256}))
    return sha256


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
