"""The folder of converted models: each appears whole or not at all, and is made by one process at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from memagent_lib.errors import UserError
from memagent_lib.paths import apply_umask, lock_beside, write_atomically

SOURCE_FILE = "source.json"
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""Patterns of files with weights; transformers loads the first format that a folder has."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "generation_config.json",
)
"""What a folder made from another model takes over unchanged."""


class ModelError(UserError, ValueError):
    """A model file cannot be used."""


def cache_folder() -> Path:
    """Return the folder of converted models; ``XDG_CACHE_HOME`` moves it, as for other programs."""
    return platformdirs.user_cache_path("memagent") / "models"


def source_of(folder: Path) -> dict[str, str]:
    """Return the record of what a folder in the cache was made from; empty for any other folder.

    It has ``file`` and ``sha256``, and ``adapter`` (its folder) for a merged adapter.
    """
    record = folder / SOURCE_FILE
    return json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}


def write_source(folder: Path, **source: Any) -> None:
    write_atomically(folder / SOURCE_FILE, json.dumps(source, indent=2) + "\n")


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``. If it does not exist, ``make`` first fills an empty folder, which then gets its name.

    Two processes that need the same folder make it once. What a killed process left is made again.
    """
    if folder.is_dir():
        return folder
    with lock_beside(folder):
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            apply_umask(part)
            part.rename(folder)
    return folder


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits.

    It is saved with the file's size and time, so that an unchanged file of gigabytes is read once and not by every
    command.
    """
    status = file.stat()
    state = f"{file} {status.st_size} {status.st_mtime_ns}"
    note = cache_folder() / "hashes" / hashlib.sha256(state.encode()).hexdigest()[:16]
    if note.is_file():
        return note.read_text(encoding="utf-8")
    with open(file, "rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    write_atomically(note, sha256)
    return sha256
