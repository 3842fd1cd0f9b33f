"""The accuracy table of the length study as Markdown, from one row per document read."""

from __future__ import annotations

from itertools import product

import pandas as pd

from memagent_lib.evaluation import Rate, summarise

TASKS = ("needle", "multikey", "update", "bridge", "multivalue", "chain")
POLICIES = ("warm start", "trained", "trained, seed 0", "trained, seed 1", "trained, seed 2", "upper bound")
READERS = {"overwrite": "", "retrieved": ", passages retrieved", "full": ", whole document at once"}
"""The readers in the table, each with the words that its lines add to the policy's name."""
DECOY = "_decoy"
"""What the name of a task ends in if its questions are about a decoy."""


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table with a line per task, policy and reader, and a column per length in chunks.

    Questions about a decoy of the same documents (tasks whose name ends in ``_decoy``) have columns of their own, after
    the others. A cell has the mean score in percent with its 95 % interval. It is empty if nothing was read.
    """
    summary = summarise(rows[rows["reader"].isin(READERS)], by=("task", "policy", "reader", "chunks"))
    cells = {
        (row.task.removesuffix(DECOY), row.policy, row.reader, row.task.endswith(DECOY), int(row.chunks)): Rate.of(
            row._asdict()
        ).short
        for row in summary.itertuples(index=False)
    }
    columns = sorted({(about_decoy, chunks) for *_, about_decoy, chunks in cells})
    names = [_column(*column) for column in columns]
    lines = [f"| score in % (95 % interval) | {' | '.join(names)} |", "|---" * (len(columns) + 1) + "|"]

    # Policies in a user's own results come after those of the study.
    others = [name for name in rows["policy"].unique() if name not in POLICIES]
    for task, reader, policy in product(TASKS, READERS, [*POLICIES, *others]):
        values = [cells.get((f"pocket_{task}", policy, reader, *column), "") for column in columns]
        if any(values):
            lines.append(f"| {task}, {policy}{READERS[reader]} | {' | '.join(values)} |")
    return "\n".join(lines)


def _column(about_decoy: bool, chunks: int) -> str:
    name = f"{chunks:,} chunk{'s' * (chunks > 1)}"
    return f"{name}, about a decoy" if about_decoy else name
