"""What training on one task does to the others: a table of what the sweep of ``transfer.toml``, beside this file, has
found. The first line is the warm start, read by every run before its first step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from memagent_lib.sweeps import gather_sweep

_SCORE = r"val-core/pocket_(\w+)/acc/mean@1"


def transfer(curves: pd.DataFrame) -> pd.DataFrame:
    """Scores on held-out documents, 0 to 1: a row for what was ``trained on``, a column a task, means over seeds. A
    task that was trained stands on the diagonal.
    """
    scores = curves.assign(task=curves["metric"].str.extract(_SCORE, expand=False)).dropna(subset="task")
    trained_on = scores["train_files"].map(lambda files: Path(files.strip('[]"')).parent.name)
    scores = scores.assign(trained_on=trained_on.where(scores["step"] > 0, "nothing (warm start)"))
    last = scores[scores["step"].isin((0, scores["step"].max()))]
    matrix = last.pivot_table(index="trained_on", columns="task", values="value", aggfunc="mean", sort=False)
    order = ["nothing (warm start)", *matrix.columns, "all_six"]
    return matrix.reindex([name for name in order if name in matrix.index])


def table(matrix: pd.DataFrame) -> str:
    """Markdown, in percent."""
    lines = [f"| trained on | {' | '.join(matrix.columns)} |", "|---" * (len(matrix.columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{100 * v:.1f}' for v in row)} |"
        for name, row in zip(matrix.index, matrix.values, strict=True)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(transfer(gather_sweep(sys.argv[1] if len(sys.argv) > 1 else "runs/transfer", "curve.parquet"))))
