"""``memagent sweep`` and ``demo``: notebooks over a grid, a list of points or stages."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from memagent_lib.cli.options import continues, file_of, look_next
from memagent_lib.errors import MissingFile
from memagent_lib.paths import clone, display, root

DEMO = "experiments/demo.toml"
CLOSING = """
Exact-answer accuracy by document length, with 95 % intervals:

{table}

figure      {folder}/accuracy.png
memories    {folder}/memory.html
policy      {folder}/train/model
report      memagent report {folder}/results --first "warm start"

MLflow and JupyterLab on it:   {lab}"""


@click.command()
@click.argument("file", metavar="FILE.toml")
@click.option("--workers", metavar="N", type=int, help="Points run at the same time.  [default: the file's number]")
def sweep(file: str, workers: int | None) -> int:
    """Run the notebooks of FILE.toml over a grid, a list of points or stages.

    \b
    notebooks/README.md has a grid to copy; experiments/demo.toml has stages.
      memagent sweep FILE.toml                     run what is not finished; the same command continues after any stop
    """
    from memagent_lib import sweeps

    with continues("the same command continues with what is not finished"):
        result = sweeps.run_sweep(file_of(file), workers=workers)
    report = f"memagent report {shlex.quote(display(result.folder))}"
    again = f"memagent sweep {shlex.quote(file)} runs again what failed"
    look_next(result.folder / "notebooks", result.mlflow, report if result.ok else again)
    return int(not result.ok)


@click.command()
@click.option("--out", metavar="FOLDER", default="runs/demo", help="The folder for results; what finished there stays.")
def demo(out: str) -> int:
    """Make data, train by RL, evaluate before and after, draw the figure, log it all."""
    import pandas as pd

    from memagent_lib import sweeps
    from memagent_lib.rl import require_training

    if not (root() / DEMO).is_file():
        fix = f"cd {clone()}" if clone() else "memagent init FOLDER, then cd FOLDER"
        raise MissingFile(f"the demo runs in a folder with its notebooks, and {Path.cwd()} is in none: {fix}")
    require_training()
    spec = replace(sweeps.SweepSpec.load(root() / DEMO), folder=out)
    with continues("the same command continues with what is not finished"):
        finished = sweeps.run_sweep(spec).ok
    if not finished:
        where = display(spec.path)
        print(f"unfinished; the notebooks in {where} show why, and the same command continues", file=sys.stderr)
        return 1
    table = pd.read_csv(spec.path / "accuracy.csv").to_string(index=False)
    lab = "make lab" if (root() / "Makefile").is_file() else "memagent lab"
    print(CLOSING.format(table=table, folder=display(spec.path), lab=lab))
    return 0
