"""All evaluations of a store: find them, name them, take two for a comparison, and tabulate them in the leaderboard.

Scores of different judges, code or documents are of different kinds. They stand in one table, marked, and those of
different judges are never subtracted from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pandas as pd

from memagent_lib.evaluation import (
    ALL_TASKS,
    COSTS,
    RATE,
    by_judge,
    costs,
    keyed,
    question_columns,
    settings_in_words,
    summarise,
    with_all_tasks,
)
from memagent_lib.journal import digest
from memagent_lib.tracking.evaluations import ROWS
from memagent_lib.tracking.runs import Experiment, load_runs
from memagent_lib.tracking.store import TrackingError

KINDS = {"judge": "judges", "code": "versions of the code", "documents": "sets of questions"}
"""Columns in which two rows must agree before their scores can be compared, and their names in words."""
_DATA = ["task", "file", "chunks"]
_LINE = ["run_id", "policy", "reader", "settings", "code"]
_GROUP = [*_DATA, "policy", "reader", "settings", "judge", "code", "run_id", "started"]
_COLUMNS = [*_DATA, "policy", "reader", "settings", *RATE, "failed", "unclear", "capture", "retention", *COSTS,
            "judge", "code", "documents", "started", "run_id"]  # fmt: skip


def evaluations(experiment: Experiment) -> pd.DataFrame:
    """Return a row per finished run with results, newest first.

    Columns: ``run_id, name, policy, started``, then the other columns of :func:`load_runs`.
    """
    runs = load_runs(experiment, "metrics.scored > 0 and status = 'FINISHED'")
    policies = [policy_of(row) for row in runs.to_dict("records")]
    first = runs[["run_id", "name"]].assign(policy=policies, started=runs["started"])
    return first.join(runs.drop(columns=["run_id", "name", "started"]))


def policy_of(row: Mapping[str, Any]) -> str:
    """Return the policy of an evaluation, its tag or else the run's name, from its row of :func:`load_runs`."""
    tag = row.get("tags.policy")
    return tag if isinstance(tag, str) else row["name"]


def run_names(experiment: Experiment, run_ids: Iterable[str]) -> dict[str, str]:
    """Return a name for each run, no two alike: its policy, and a part of the id if several runs have it.

    Raises :class:`TrackingError` if the store has no such run.
    """
    policies = {}
    for run_id in run_ids:
        run = experiment.join(run_id)
        policies[run_id] = policy_of(load_runs(experiment, f"attributes.run_id = '{run.id}'").iloc[0].to_dict())
    several = [policy for policy in policies.values() if list(policies.values()).count(policy) > 1]
    return {
        run_id: f"{policy}, run {run_id[:6]}" if policy in several else policy for run_id, policy in policies.items()
    }


def choose(
    experiment: Experiment, left: str, right: str = "", reader: str = "overwrite", other_reader: str = ""
) -> pd.DataFrame:
    """Return the result rows of two evaluations, those of ``reader`` in the left one and ``other_reader`` in the right.

    ``left`` and ``right`` name a run by the beginning of its id, or a policy, of which the newest evaluations with a
    question in common are taken. Without ``right``, two readers of the left evaluation are compared; without
    ``other_reader``, one reader of two evaluations. The column ``line`` differs between the two, even if both evaluate
    the same policy.
    """
    rows, _ = evaluation_rows(experiment)
    other_reader = other_reader or reader
    for newer, older in product(_named(rows, right or left), _named(rows, left)):
        pair = [rows[(rows["run_id"] == older) & (rows["reader"] == reader)]]
        pair.append(rows[(rows["run_id"] == newer) & (rows["reader"] == other_reader)])
        same = question_columns(*pair)
        if (newer, other_reader) != (older, reader) and len(pair[0].merge(pair[1][same], on=same)):
            both = pd.concat(pair, ignore_index=True)
            lines = [keyed(part)["line"].iloc[0] for part in pair]
            if lines[0] == lines[1] and not settings_in_words(both).any():  # nothing but the run tells them apart
                both["policy"] += " " + both["run_id"].str[:6]
            return keyed(both)
    readers = " and ".join(dict.fromkeys((reader, other_reader)))
    raise TrackingError(f"{left!r} and {right or left!r} have no question in common that {readers} has read")


def _named(rows: pd.DataFrame, name: str) -> list[str]:
    """Return the ids of the runs of a policy, or that begin with ``name``, newest first."""
    runs = rows[["run_id", "policy"]].drop_duplicates()
    found = runs[runs["policy"] == name]
    if found.empty and name:  # a policy called "a" is not every run whose id begins so
        found = runs[runs["run_id"].str.startswith(name)]
    if found.empty:
        known = ", ".join(map(repr, runs["policy"].unique())) or "none"
        raise TrackingError(f"no evaluation {name!r}; there are {known}; 03_evaluate makes one")
    return found["run_id"].tolist()


def differing(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the parameters in which the runs of result rows differ: a row per parameter, a column per run."""
    policies = keyed(rows).groupby("run_id", sort=False)["line"].first()
    params = load_runs(experiment).set_index("run_id").loc[policies.index].filter(like="params.").fillna("")
    params = params.rename(columns=lambda name: name.removeprefix("params.")).set_axis(policies.to_list()).T
    return params[params.nunique(axis="columns") > 1].rename_axis("parameter")


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
        named = f"; without their {ROWS}: {', '.join(without)}" if without else ""
        raise TrackingError(f"no evaluation in {experiment.uri}; memagent evaluate makes one{named}")
    rows = by_judge(with_all_tasks(rows.assign(settings=settings_in_words(rows)), _LINE, ["file", "chunks"]))
    grouped = rows.groupby(_GROUP, dropna=False)
    documents = grouped[question_columns(rows)].apply(_hash_of_documents).rename("documents").reset_index()
    board = summarise(rows, _GROUP).drop(columns="turns")
    board = board.merge(costs(rows, _GROUP).drop(columns="n"), on=_GROUP, how="left").merge(documents, on=_GROUP)
    board = board.reindex(columns=[name for name in _COLUMNS if name in board]).assign(own=board["task"] != ALL_TASKS)
    order = ["own", "task", "chunks", "file", "accuracy"]
    board = board.sort_values(order, ascending=[True] * 4 + [False], ignore_index=True).drop(columns="own")
    board.attrs["without_rows"] = without
    return board


def evaluation_rows(experiment: Experiment) -> tuple[pd.DataFrame, list[str]]:
    """Return the result rows of all evaluations, with ``policy``, ``run_id`` and ``started``; newest runs first.

    The second value has the ids of runs that have no table of rows.
    """
    frames = []
    without = []
    for run in evaluations(experiment)[["run_id", "policy", "started"]].to_dict("records"):
        try:
            rows = experiment.join(run["run_id"]).read_table(ROWS)
        except (ValueError, OSError):  # it is missing, or damaged
            without.append(run["run_id"])
            continue
        frames.append(rows.assign(**run))
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run_id", "policy"])), without


def different_kinds(board: pd.DataFrame) -> list[str]:
    """Return a sentence for each task, data file and length whose rows cannot all be compared, with the reason."""
    notes = []
    for names, group in board.groupby(_DATA, sort=False, dropna=False):
        reasons = [f"{group[name].nunique()} {words}" for name, words in KINDS.items() if group[name].nunique() > 1]
        if reasons:
            where = ", ".join(f"{part:g} chunks" if isinstance(part, float) else str(part) for part in names)
            notes.append(f"{where}: rows of {', '.join(reasons)} are not compared with each other")
    return notes


def _hash_of_documents(rows: pd.DataFrame) -> str:
    pairs: list[tuple[Any, ...]] = sorted(set(rows.itertuples(index=False, name=None)))
    return digest("\0".join(map(str, pairs)))[:6]
