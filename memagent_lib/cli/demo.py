"""``memagent demo``: run the main notebooks as one sweep, and print the table and the files to open."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from memagent_lib.cli.arguments import Verbs, add_verb, option
from memagent_lib.errors import MissingFile
from memagent_lib.paths import clone, display, existing_parent, free_disk, root

SWEEP = "experiments/demo.toml"
NEEDED_GB = 3
CLOSING = """
Exact-answer accuracy by document length, with 95 % intervals:

{table}

figure      {folder}/accuracy.png
memories    {folder}/memory.html
policy      {folder}/train/model
notebooks   {folder}

MLflow and JupyterLab on it:   {lab}
MLflow alone:                  {mlflow} server --backend-store-uri sqlite:///{tracking}/mlflow.db"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(
        verbs, "demo", run, "make data, train by RL, evaluate before and after, draw the figure, log it all"
    )
    out = "the folder for results; parts that have finished there are not run again"
    option(verb, "--out", "FOLDER", out, default="runs/demo")


def run(a: argparse.Namespace) -> int:
    """Run the parts of the demo that have not finished; return 0 if all of them finish, else 1."""
    import pandas as pd

    from memagent_lib import sweeps
    from memagent_lib.rl import require_training

    if not (root() / SWEEP).is_file():
        fix = f"cd {clone()}" if clone() else "memagent init FOLDER, then cd FOLDER"
        raise MissingFile(f"the demo runs in a folder with its notebooks, and {Path.cwd()} is in none: {fix}")
    require_training()
    spec = replace(sweeps.SweepSpec.load(root() / SWEEP), folder=a.out)
    _require_space(spec.path)
    if not sweeps.run_sweep(spec, retry=True).ok:  # the same command must also repeat what failed
        print(
            f"the demo did not finish; the notebooks in {display(spec.path)} show the error. "
            "the same command continues from there.",
            file=sys.stderr,
        )
        return 1
    table = pd.read_csv(spec.path / "accuracy.csv").to_string(index=False)
    commands = {"lab": "memagent lab", "mlflow": "mlflow"}
    if (root() / "Makefile").is_file():
        commands = {"lab": "make lab", "mlflow": ".venv/bin/mlflow"}
    print(CLOSING.format(table=table, folder=display(spec.path), tracking=spec.tracking, **commands))
    return 0


def _require_space(folder: Path) -> None:
    free = free_disk(folder) / (1 << 30)
    if free < NEEDED_GB:
        fix = "free some space, or give another --out"
        raise OSError(f"{free:.1f} GB are free at {existing_parent(folder)} and the demo needs {NEEDED_GB}; {fix}")
