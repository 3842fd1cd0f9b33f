"""The evaluations of exactly one policy, found by the hash of its weights. Rows of any other policy are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from memagent_lib.evaluation import (
    ALL_TASKS,
    Rate,
    bad_memory_notes,
    by_task,
    mixtures,
    read_rows,
    settings_in_words,
    summarise,
    with_all_tasks,
)
from memagent_lib.publishing.policy import PublishingError
from memagent_lib.publishing.training_record import public_path
from memagent_lib.tracking import Experiment, evaluation_rows

_GROUP = ["task", "file", "chunks", "reader", "settings", "judge", "code", "run_id"]
_LINE = ["reader", "settings", "code"]
_READING = ["run_id", "task", "file", "reader", "example"]
_HASH_CHARS = 8  # of the column `weights`


class ScoreRow(NamedTuple):
    """The score of one evaluation on one task, file and length, with its 95 % interval.

    A row over all tasks has no file and no length, and counts the evaluations in ``run_id`` if there are several.
    """

    task: str
    file: str
    chunks: int | None
    reader: str
    settings: str
    score: Rate
    failed: int
    judge: str
    run_id: str


class Scores(NamedTuple):
    """The rows of a policy's evaluations, what a reader of them has to know, and the rows that were refused."""

    rows: Sequence[ScoreRow] = ()
    notes: Sequence[str] = ()
    refused: Sequence[str] = ()


def scores_in_folders(weights: str, folders: Sequence[str | Path]) -> Scores:
    """Return the scores of the policy ``weights`` from folders of ``memagent evaluate --out``.

    Rows of other policies are named in ``refused``. Raises :class:`PublishingError` if there are no others.
    """
    mine = []
    refused = []
    for folder in dict.fromkeys(map(str, folders)):
        rows = read_rows(folder)
        of_policy = _of(rows, weights)
        mine.append(rows[of_policy])
        refused += _named(rows[~of_policy], folder)
    found = pd.concat(mine, ignore_index=True)
    if found.empty:
        raise PublishingError(
            f"no row is of the policy with the weights {weights[:_HASH_CHARS]}: {'; '.join(refused)}; evaluate the "
            "policy, or leave --evaluation out"
        )
    return _scores(found, refused)


def scores_in_store(weights: str, store: Experiment) -> Scores:
    """Return the scores of the policy ``weights`` from all evaluations of an MLflow store."""
    rows, _ = evaluation_rows(store)
    mine = rows[_of(rows, weights)] if len(rows) else rows
    return _scores(mine, []) if len(mine) else Scores()


def _of(rows: pd.DataFrame, weights: str) -> pd.Series:
    """Return which rows are of the policy; rows of an older version, without a hash, are of none."""
    if "weights" not in rows:
        return pd.Series(False, index=rows.index)
    return rows["weights"] == weights[:_HASH_CHARS]


def _named(rows: pd.DataFrame, folder: str) -> list[str]:
    """Return a sentence per policy whose rows are refused."""
    hashes = rows.get("weights", pd.Series(None, index=rows.index, dtype=object)).fillna("not recorded")
    counts = rows.assign(weights=hashes).groupby(["policy", "weights"], sort=False).size()
    return [f"{count:,} rows of {policy!r} in {folder} (weights {hash_})" for (policy, hash_), count in counts.items()]


def _scores(rows: pd.DataFrame, refused: Sequence[str]) -> Scores:
    # A folder that is named twice, directly and as a point of a sweep, has each reading twice.
    rows = rows.drop_duplicates(_READING, ignore_index=True)
    rows = rows.assign(settings=settings_in_words(rows), rule=rows["rule"].map(public_path, na_action="ignore"))
    notes = [*mixtures(rows), *bad_memory_notes(rows)]
    if "model_judge" in rows and rows["model_judge"].notna().any():
        notes.append("a model has judged the answers too; the scores here are those of the rules alone")
    counted = with_all_tasks(rows, _LINE, ["file", "chunks"])
    over_all = counted["task"] == ALL_TASKS
    runs = counted[over_all].groupby(_LINE, dropna=False)["run_id"].transform(_in_a_cell)
    counted["run_id"] = counted["run_id"].where(~over_all, runs)
    summary = by_task(summarise(counted, _GROUP), rows, ["task", "reader", "file"])
    return Scores([_row(row) for row in summary.to_dict("records")], notes, refused)


def _in_a_cell(run_ids: pd.Series) -> str:
    runs = list(run_ids.unique())
    return runs[0] if len(runs) == 1 else f"{len(runs)} runs"


def _row(row: dict[str, Any]) -> ScoreRow:
    return ScoreRow(
        task=row["task"],
        file="" if pd.isna(row["file"]) else row["file"],
        chunks=None if pd.isna(row["chunks"]) else int(row["chunks"]),
        reader=row["reader"],
        settings=row["settings"],
        score=Rate.of(row),
        failed=row["failed"],
        judge=row["judge"],
        run_id=row["run_id"],
    )
