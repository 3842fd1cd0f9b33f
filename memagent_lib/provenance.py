"""Record the origin of a result: weights, code and environment, in a form that can be compared later.

This module depends on git, the package's own files and the installed packages, not on runs.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memagent_lib.errors import MissingPackage, PackageConflict
from memagent_lib.models import WEIGHT_FILES, source_hash
from memagent_lib.paths import PACKAGE, absolute, clone

VIEW_ROOMS = ("cli", "inspector", "pages", "plots", "publishing", "serve")
"""Packages that display or publish results and never change one. ``panel`` starts training runs, so it is not here."""
BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that load into torch, and end every engine at its start if they were built for another torch."""
_HASHED_WHOLE_BYTES = 64 << 20


def model_hash(model: str | Path) -> str:
    """Return 16 hex digits that identify the weights in a model folder; return a hub name unchanged.

    A model made from a GGUF file has the first digits of that file's SHA-256. Large files are hashed by name, size and
    modification time instead of content, because reading 28 GB would delay every command.
    """
    of_source = source_hash(model)
    if of_source:
        return of_source
    folder = absolute(model)
    if not folder.is_dir():
        return str(model)
    digest = hashlib.sha256()
    formats = [sorted(folder.glob(pattern)) for pattern in WEIGHT_FILES]
    for path in next(filter(None, formats), []):
        status = path.stat()
        if status.st_size <= _HASHED_WHOLE_BYTES:
            digest.update(path.read_bytes())
        else:
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def code_hash() -> str:
    """Return 16 hex digits that change with every source file or prompt template that can change a result.

    Sweeps are keyed by this hash. JavaScript, CSS and :data:`VIEW_ROOMS` do not affect it, so that a new colour does
    not cause a sweep to run again.
    """
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        name = path.relative_to(PACKAGE)
        if path.suffix in {".py", ".toml"} and name.parts[0] not in VIEW_ROOMS:
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


def cores() -> int:
    """Return how many cores this process may use, or the number of all cores if that is unknown (on macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def install_command() -> str:
    """Return the command that installs the engines on Linux, and where to run it."""
    if clone():
        return "`make install` in a clone of the repository"
    pins = shlex.quote(str(PACKAGE / "constraints" / "cpu.txt"))
    # Without --torch-backend, the public index has no torch for a CPU; uv knows the address of torch's own index.
    # Without --python, uv would install into another environment than the one that runs this command.
    return (
        f"`uv pip install --python {shlex.quote(sys.executable)} --torch-backend cpu --no-deps --requirement {pins}` "
        "(`pip install uv` brings uv; for CUDA: gpu.txt, no --torch-backend)"
    )


def torch_conflicts() -> dict[str, str]:
    """Map each of :data:`BUILT_FOR_TORCH` that was built for another torch than the installed one to what is wrong."""
    torch = installed_version("torch")
    conflicts = {}
    for name in BUILT_FOR_TORCH:
        found = installed_version(name)
        if not (torch and found):
            continue
        pins = [re.match(r"torch\s*\(?==\s*([\d.]+)", line) for line in metadata.requires(name) or []]
        other = [pin.group(1) for pin in pins if pin and pin.group(1) != torch.partition("+")[0]]
        if other:
            conflicts[name] = f"{name} {found} is for torch {other[0]}, and torch {torch} is installed"
        elif torch.endswith("+cpu") and not found.endswith("+cpu"):
            # An index has only CUDA builds of these packages, and nothing in their metadata says so.
            conflicts[name] = f"{name} {found} is built for CUDA, and torch {torch} for a CPU"
    return conflicts


def out_of_range() -> dict[str, str]:
    """Map the requirement of each installed package that this version does not work with to what is wrong.

    An upgrade of the library alone, or of another package, leaves these behind. The ranges are the installed library's,
    with those of the engines for CUDA if vLLM's CUDA build is installed.
    """
    from packaging.requirements import Requirement

    if not installed_version("memagent-lib"):  # a copy of the files alone
        return {}
    engines = {"extra": "gpu" if installed_version("vllm") else "cpu"}
    wrong = {}
    for line in metadata.requires("memagent-lib") or ():
        needed = Requirement(line)
        found = installed_version(needed.name)
        if not found or (needed.marker and not needed.marker.evaluate(engines)):
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong[f"{needed.name}{needed.specifier}"] = f"{needed.name} {found}"
    return wrong


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package, or ``None`` if it is not installed."""
    try:
        # Not metadata.version(): on a CPU verl's platform makes it answer for vllm, which is not installed.
        return metadata.distribution(distribution).version
    except metadata.PackageNotFoundError:
        return None


def require_packages(what: str, *modules: str, otherwise: str = "") -> None:
    """Raise :class:`MissingPackage` if ``what`` needs a module that is not installed.

    ``otherwise`` is appended to the message, to name another way. The modules are not imported. If torch is among them,
    :class:`PackageConflict` is raised if a package that loads into it was built for another one.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingPackage(
            f"{what} needs {', '.join(missing)}, which {verb} not installed; "
            f"run {install_command()}, on Linux{otherwise}"
        )
    conflicts = torch_conflicts() if "torch" in modules else {}
    if conflicts:
        names = " ".join(conflicts)
        raise PackageConflict(
            f"{what} would fail at its start: {'; '.join(conflicts.values())}; remove {names} with `{uninstall(names)}`"
        )


def uninstall(names: str) -> str:
    """Return the command that removes packages from this installation."""
    return f"{_installer()} uninstall {names}"


def install(*requirements: str) -> str:
    """Return the command that installs packages into this installation."""
    return f"{_installer()} install {shlex.join(requirements)}"


def _installer() -> str:
    uv = Path(sys.executable).with_name("uv")  # where `make` has made the environment, which has pip too
    return f"{shlex.quote(str(uv))} pip" if uv.exists() else "pip"
