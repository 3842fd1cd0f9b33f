"""Find out what is installed here, whether its parts fit together, and which commands would mend that.

This module depends on the installed packages alone, not on the commands or engines that ask.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from memagent_lib.errors import MissingPackage, PackageConflict
from memagent_lib.paths import PACKAGE, clone

BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that load into torch, and end every engine at its start if they were built for another torch."""


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
