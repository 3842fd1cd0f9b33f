"""Warm, train, evaluate and tabulate the readers: ``python -m experiments.studies.readers [FOLDER]``.

The command prints its plan first, and continues after any stop.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from experiments.studies.readers.study import HERE, SEEDS, TESTED, Step, form_of, missing, objectives, plan, steps
from experiments.studies.readers.table import form_table, forms, tables
from memagent_lib.evaluation import gather_rows, read_results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.readers", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/readers"), help="default: runs/readers")
    parser.add_argument("--readers", nargs="+", metavar="NAME", default=[], help="default: those of objectives.toml")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=list(SEEDS), help="default: 0 1")
    parser.add_argument("--train-steps", type=int, metavar="N", help="steps of each training (default: the recipe's)")
    lengths = f"default: {' '.join(map(str, TESTED))}"
    parser.add_argument("--lengths", nargs="+", type=int, metavar="CHUNKS", default=[], help=lengths)
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--warm-only", action="store_true", help="stop after the form of the warm starts' replies")
    parser.add_argument("--table", action="store_true", help="print the tables of what there is, and stop")
    options = parser.parse_args()
    try:
        todo = steps(options.folder, options.readers, options.seeds, options.train_steps, options.lengths)
        if options.warm_only:
            todo = [step for step in todo if step.name.split()[0] in ("data", "warm", "form")]
        if not options.table:
            print("\n".join(plan(todo)), flush=True)
    except ValueError as error:
        parser.error(str(error))
    if options.plan:
        return
    if not options.table:
        for step in todo:
            run(step)
    print_tables(options.folder)
    print("\n".join(["", *missing(todo)]))


def run(step: Step) -> None:
    """Run a step that is not done, and mark it; end the command if it fails."""
    if step.done:
        return
    print(f"{step.name}: memagent {' '.join(step.arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "memagent_lib.cli", *step.arguments], check=False).returncode
    if code:
        sys.exit(f"{step.name} ended with {code}; the same command continues with this step")
    step.mark.parent.mkdir(parents=True, exist_ok=True)
    step.mark.touch()


def print_tables(folder: Path) -> None:
    """Print the forms of the warm starts' replies, and the scores in ``folder``, or else the saved ones."""
    counts = {}
    for reader in objectives():
        readings = form_of(folder, reader) / "readings"
        if readings.is_dir():
            counts[reader] = forms(read_results(readings))
    if counts:
        print(f"\n{form_table(counts)}")
    results = folder / "results"
    print(f"\n{tables(gather_rows(results if results.is_dir() else HERE / 'scores'))}")


if __name__ == "__main__":
    main()
