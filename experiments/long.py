"""The long tables of the two READMEs, from the scores of every reading that ``long.toml``, beside this file, makes."""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import pandas as pd

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import gather_rows, summarise

KEPT = Path(__file__).parent / "results" / "long"
TASKS = ("needle", "multikey", "update", "bridge", "multivalue", "chain")
POLICIES = ("warm start", "trained", "trained, seed 0", "trained, seed 1", "trained, seed 2", "upper bound")
READERS = {"overwrite": "", "retrieved": ", passages retrieved", "full": ", whole document at once"}
"""Those with rows of their own, and what a row says of them."""
SHORT = {
    "policy": ("warm start", "trained", "upper bound"),
    "reader": ("overwrite",),
    "chunks": (1, 16, 64, 256, 1024, 6400, 36459),
}
"""What the front page shows."""


def short(rows: pd.DataFrame) -> pd.DataFrame:
    """The readings that the front page's table is of."""
    return rows[rows[list(SHORT)].isin(SHORT).all(axis=1)]


def table(rows: pd.DataFrame) -> str:
    """Markdown: a line for each task, policy and reader with results; a column for each length in chunks. Scores in
    percent with their 95 % Wilson intervals.
    """
    summary = summarise(rows[rows["reader"].isin(READERS)], by=("task", "policy", "reader", "chunks"))
    cells = {
        (task, policy, reader, int(chunks)): f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        for task, policy, reader, chunks, value, low, high, *_ in summary.itertuples(index=False)
    }
    lengths, with_results = sorted({key[-1] for key in cells}), {key[:-1] for key in cells}
    names = [f"{chunks:,} chunk{'s' * (chunks > 1)}" for chunks in lengths]
    lines = [f"| score in % (95 % interval) | {' | '.join(names)} |", "|---" * (len(lengths) + 1) + "|"]
    policies = [*POLICIES, *(name for name in rows["policy"].unique() if name not in POLICIES)]
    for task, reader, policy in product(TASKS, READERS, policies):
        line = f"pocket_{task}", policy, reader
        if line in with_results:
            values = [cells.get((*line, chunks), "") for chunks in lengths]
            lines.append(f"| {task}, {policy}{READERS[reader]} | {' | '.join(values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.long", description="print a long table of the READMEs")
    parser.add_argument("folder", nargs="?", default=str(KEPT), help="of results; the kept ones unless given")
    parser.add_argument(
        "--short", action="store_true", help="the front page's: fewer policies and lengths, no baselines"
    )
    options = parser.parse_args()
    try:
        found = gather_rows(options.folder)
    except (MissingFile, ValueError) as error:
        parser.error(str(error))
    print(table(short(found) if options.short else found))
