"""Record the origin of a result: weights, code and environment, in a form that can be compared later.

This module depends on git, the package's own files and the installed packages, not on runs.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from memagent_lib.models import WEIGHT_FILES, file_hash, source_hash
from memagent_lib.paths import PACKAGE, absolute, clone, model_path
from memagent_lib.system import cores, installed_version

VIEW_ROOMS = ("cli", "inspector", "pages", "plots", "publishing", "serve")
"""Packages that display or publish results and never change one. ``panel`` starts training runs, so it is not here."""
_LARGE_BYTES = 64 << 20


def model_hash(model: str | Path) -> str:
    """Return 16 hex digits that identify the weights in a model folder, with ``rope_scaling`` where ``config.json`` has
    it; return a hub name unchanged.

    A model made from a GGUF file has the first digits of that file's SHA-256. Of large files the hash is saved, because
    reading 28 GB takes half a minute (:func:`~memagent_lib.models.cache.file_hash`).
    """
    of_source = source_hash(model)
    if of_source:
        return of_source
    folder = absolute(model_path(str(model)))
    if not folder.is_dir():
        return str(model)
    digest = hashlib.sha256()
    formats = [sorted(folder.glob(pattern)) for pattern in WEIGHT_FILES]
    for path in next(filter(None, formats), []):
        large = path.stat().st_size > _LARGE_BYTES
        digest.update(file_hash(path).encode() if large else path.read_bytes())
    config = folder / "config.json"
    scaled = json.loads(config.read_text(encoding="utf-8")).get("rope_scaling") if config.is_file() else None
    digest.update(json.dumps(scaled, sort_keys=True).encode() if scaled else b"")
    return digest.hexdigest()[:16]


@lru_cache
def code_hash(left_out: tuple[str, ...] = VIEW_ROOMS) -> str:
    """Return 16 hex digits that change with every source file or prompt template outside the rooms ``left_out``.

    Sweeps are keyed by the default, which changes with all that can change a result. JavaScript and CSS do not affect
    it, so that a new colour does not cause a sweep to run again.
    """
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        name = path.relative_to(PACKAGE)
        if path.suffix in {".py", ".toml"} and name.parts[0].removesuffix(".py") not in left_out:
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def code_version() -> dict[str, str]:
    """Return the git commit, whether a tracked file differs from it, and :func:`code_hash`.

    Without git, the first two are ``unknown``.
    """
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    dirty = "unknown" if changes is None else str(bool(changes)).lower()
    return {"git_commit": commit or "unknown", "git_dirty": dirty, "code_hash": code_hash()}


def library_version() -> str:
    """Return the version: what ``git describe`` prints in a clone, else that of the installed wheel."""
    described = _git("describe", "--tags", "--always", "--dirty") if clone() else None
    return described or installed_version("memagent-lib") or "unknown"


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Return the versions of Python, the system and every installed package, and the number of cores."""
    # All of them, because a result may depend on an indirect dependency.
    packages = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": cores(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _git(*command: str) -> str | None:
    try:
        # An installed package below another repository reports that repository's commit; code_hash is always ours.
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *command], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
