"""The leaderboard: every evaluation of a store, a row per policy, reader, data and length, with score and costs.

Scores of different judges, code or documents are of different kinds. They stand in one table, marked, and are never
subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from memagent_lib.evaluation import (
    COSTS,
    FINGERPRINTS,
    RATE,
    by_judge,
    costs,
    overall_first,
    question_columns,
    settings_in_words,
    summarise,
    with_all_tasks,
)
from memagent_lib.journal import digest
from memagent_lib.tracking.choosing import evaluations
from memagent_lib.tracking.evaluations import ROWS
from memagent_lib.tracking.runs import Experiment
from memagent_lib.tracking.store import TrackingError

KINDS = {"judge": "judges", "code": "versions of the code", "documents": "sets of questions"}
"""Columns in which two rows must agree before their scores can be compared, and their names in words."""
_GROUP = ["task", "file", "chunks", "policy", "reader", "settings", "judge", "code", "run_id", "started"]
_MOST_NAMED = 10
_DATA = ["task", "file", "chunks"]
_LINE = ["run_id", "policy", "reader", "settings", "code"]
_COLUMNS = [*_DATA, "policy", "reader", "settings", *RATE, "failed", "undecided", "capture", "retention", *COSTS,
            "judge", "code", "documents", "started", "run_id"]  # fmt: skip


def leaderboard(experiment: Experiment) -> pd.DataFrame:
    """Return a row per run, policy, reader, task, data file, length and judge; the best of each length first.

    Evaluations of several tasks have a row over all of them, without a file and a length; these come before the others.
    ``accuracy`` has its 95 % interval ``low, high``; ``documents`` is a hash of the questions that were read,
    and ``settings`` are those that differ between any two evaluations, with hashes where one name means two models.
    Runs that have no table of rows are named in ``attrs["without_rows"]``. Raises :class:`TrackingError` if no
    evaluation has one.
    """
    rows, without = evaluation_rows(experiment)
    if rows.empty:
        raise _without_rows(experiment, without)
    rows = by_judge(with_all_tasks(rows.assign(settings=_settings(rows)), _LINE, ["file", "chunks"]))
    grouped = rows.groupby(_GROUP, dropna=False)
    documents = grouped[question_columns(rows)].apply(_hash_of_documents).rename("documents").reset_index()
    board = summarise(rows, _GROUP).drop(columns="turns")
    board = board.merge(costs(rows, _GROUP).drop(columns="n"), on=_GROUP, how="left").merge(documents, on=_GROUP)
    board = board.reindex(columns=[name for name in _COLUMNS if name in board])
    order = ["task", "chunks", "file", "accuracy"]  # as texts, test_16 would be before test_4
    board = overall_first(board.sort_values(order, ascending=[True, True, True, False]))
    board.attrs["without_rows"] = without
    return board


def _without_rows(experiment: Experiment, run_ids: Sequence[str]) -> TrackingError:
    """Return the error of a store without evaluations, or one in which no evaluation has its table of rows."""
    if not run_ids:
        return TrackingError(
            f"no evaluation in {experiment.uri}; make one with: memagent evaluate DATA --model MODEL --out FOLDER"
        )
    named = ", ".join(run_ids[:_MOST_NAMED])
    where = experiment.join(run_ids[0]).artifacts
    return TrackingError(
        f"{experiment.uri} has {len(run_ids):,} evaluations, and none of them has its {ROWS}: {named}; that of the "
        f"first is expected in {where}; put the artifacts back there, or evaluate again"
    )


def _settings(rows: pd.DataFrame) -> pd.Series:
    """Return the settings that differ between any two rows, and the hashes that do within a policy, in words.

    Two models of one name have the same policy, and two templates of one name the same setting.
    """
    parts = [settings_in_words(rows)]
    for name in (name for name in FINGERPRINTS if name in rows):
        several = rows.groupby("policy")[name].transform("nunique") > 1
        parts.append((f"{name} " + rows[name].astype(str)).where(several & rows[name].notna(), ""))
    return pd.Series([", ".join(filter(None, of_row)) for of_row in zip(*parts, strict=True)], rows.index)


def evaluation_rows(experiment: Experiment) -> tuple[pd.DataFrame, list[str]]:
    """Return the result rows of all evaluations, with ``policy``, ``run_id`` and ``started``; newest runs first.

    The second value has the ids of runs that have no table of rows.
    """
    frames = []
    without = []
    for run in evaluations(experiment)[["run_id", "policy", "started"]].to_dict("records"):
        try:
            rows = experiment.join(run["run_id"]).read_table(ROWS)
        except TrackingError:
            without.append(run["run_id"])
            continue
        policy = rows["policy"] if "policy" in rows else run["policy"]
        frames.append(rows.assign(policy=policy, run_id=run["run_id"], started=run["started"]))
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()), without


def different_kinds(board: pd.DataFrame) -> list[str]:
    """Return a sentence for each task, data file and length whose rows cannot all be compared, with the reason."""
    notes = []
    for names, group in board.groupby(_DATA, sort=False, dropna=False):
        reasons = [f"{group[name].nunique()} {words}" for name, words in KINDS.items() if group[name].nunique() > 1]
        if reasons:
            where = " ".join(str(name) for name in names[:2] if not pd.isna(name))
            length = "" if pd.isna(names[2]) else f" at {int(names[2]):,} chunk{'s' if names[2] != 1 else ''}"
            notes.append(f"{where}{length}: rows of {', '.join(reasons)} are not compared with each other")
    return notes


def _hash_of_documents(rows: pd.DataFrame) -> str:
    pairs: list[tuple[Any, ...]] = sorted(set(rows.itertuples(index=False, name=None)))
    return digest("\0".join(map(str, pairs)))[:6]
