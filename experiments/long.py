"""The long tables of the two READMEs, from the scores of every reading that ``long.toml``, beside this file, makes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from memagent_lib.errors import MissingFile
from memagent_lib.evaluation import gather_rows, summarise

KEPT = Path(__file__).parent / "results" / "long"
TASKS = ("needle", "multikey", "update", "bridge", "multivalue", "chain")
POLICIES = ("warm start", "trained", "trained, seed 0", "trained, seed 1", "trained, seed 2", "upper bound")
SHORT = (1, 16, 64, 256, 1024, 6400, 36459)
READERS = {"overwrite": "", "retrieved": ", passages retrieved", "full": ", whole document at once"}
"""Those with rows of their own, and what a row says of them."""


def table(rows: pd.DataFrame, lengths: tuple[int, ...] = (), readers: tuple[str, ...] = tuple(READERS)) -> str:
    """Markdown: a line for each task, policy and reader with results; a column for each of ``lengths`` in chunks, or
    for all. Scores in percent with their 95 % Wilson intervals.
    """
    summary = summarise(rows[rows["reader"].isin(readers)], by=("task", "policy", "reader", "chunks"))
    cells = {
        (task, policy, reader, int(chunks)): f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        for task, policy, reader, chunks, value, low, high, *_ in summary.itertuples(index=False)
    }
    lengths = lengths or tuple(sorted({key[-1] for key in cells}))
    names = [f"{chunks:,} chunk{'s' * (chunks > 1)}" for chunks in lengths]
    lines = [f"| score in % (95 % interval) | {' | '.join(names)} |", "|---" * (len(lengths) + 1) + "|"]
    shown = {key[:-1] for key in cells}
    policies = [*POLICIES, *(name for name in rows["policy"].unique() if name not in POLICIES)]
    for task in TASKS:
        for reader in readers:
            for policy in policies:
                if (f"pocket_{task}", policy, reader) in shown:
                    values = [cells.get((f"pocket_{task}", policy, reader, chunks), "") for chunks in lengths]
                    lines.append(f"| {task}, {policy}{READERS[reader]} | {' | '.join(values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m experiments.long", description="print a long table of the READMEs")
    parser.add_argument("folder", nargs="?", default=str(KEPT), help="of results; the kept ones unless given")
    parser.add_argument("--short", action="store_true", help="the front page's: fewer lengths, no baselines")
    options = parser.parse_args()
    try:
        found = gather_rows(options.folder)
    except (MissingFile, ValueError) as error:
        parser.error(str(error))
    print(table(found, SHORT, ("overwrite",)) if options.short else table(found))
