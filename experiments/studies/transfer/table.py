"""A matrix of scores that shows what training on one task does to the others, on documents that no run trained on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

_SCORE = r"val-core/pocket_(\w+)/acc/mean@1"
_BEFORE = "nothing (warm start)"


def transfer(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per training set and one column per task, with final scores from 0 to 1 averaged over seeds.

    The first row is the warm start, which every run evaluates before its first step. The diagonal has each policy's
    score on the task that it was trained on.
    """
    scores = curves.assign(task=curves["metric"].str.extract(_SCORE, expand=False)).dropna(subset="task")
    # The folder of the training files has the name of their task.
    trained_on = scores["train_files"].map(lambda files: Path(files.strip('[]"')).parent.name)
    scores = scores.assign(trained_on=trained_on.where(scores["step"] > 0, _BEFORE))
    ends = scores[scores["step"].isin((0, scores["step"].max()))]
    matrix = ends.pivot_table(index="trained_on", columns="task", values="value", aggfunc="mean", sort=False)
    order = [_BEFORE, *matrix.columns, "all_six"]
    return matrix.reindex([name for name in order if name in matrix.index])


def table(matrix: pd.DataFrame) -> str:
    """Return the matrix as Markdown, in percent."""
    lines = [f"| trained on | {' | '.join(matrix.columns)} |", "|---" * (len(matrix.columns) + 1) + "|"]
    for name, row in zip(matrix.index, matrix.values, strict=True):
        scores = " | ".join(f"{100 * value:.1f}" for value in row)
        lines.append(f"| {name} | {scores} |")
    return "\n".join(lines)
