"""Find the evaluations of a store, name them, and choose two that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import pandas as pd

from memagent_lib.errors import nearest
from memagent_lib.evaluation import MixedRowsError, keyed, question_columns, settings_in_words, variant_name
from memagent_lib.tracking.evaluations import ROWS
from memagent_lib.tracking.frames import load_runs
from memagent_lib.tracking.runs import Experiment
from memagent_lib.tracking.store import MissingArtifact, TrackingError

_KIND = ("rule", "code")
"""Columns in which two scores of one document must agree to be comparable."""
_RUNS_TRIED = 30  # bounds how many tables of rows are read to find a pair


def evaluations(experiment: Experiment) -> pd.DataFrame:
    """Return a row per finished run with results, newest first.

    Columns: ``run_id, name, policy, started``, then the other columns of :func:`load_runs`.
    """
    runs = load_runs(experiment, "metrics.scored > 0 and status = 'FINISHED'")
    runs["policy"] = [policy_of(row) for row in runs.to_dict("records")]
    first = ["run_id", "name", "policy", "started"]
    return runs[first + [column for column in runs.columns if column not in first]]


def policy_of(row: Mapping[str, Any]) -> str:
    """Return the policy of an evaluation, from its row of :func:`load_runs`.

    It is the tag ``policy``; of runs without the tag the parameter, and without both the run's name.
    """
    # A sweep logs the notebook's default as the parameter of a point that names no policy, so the tag comes first.
    for column in ("tags.policy", "params.policy"):
        if isinstance(row.get(column), str):  # an empty cell where only other runs have one
            return row[column]
    return row["name"]


def run_names(experiment: Experiment, run_ids: Iterable[str]) -> dict[str, str]:
    """Return a name for each run, no two alike: its policy, as :func:`policy_of` finds it.

    Runs of one policy have the settings that differ beside it (``trained, memory 24``), or else a part of their id.
    Raises :class:`TrackingError` if the store has no such run.
    """
    policies: dict[str, list[str]] = {}
    for run_id in run_ids:
        run = experiment.join(run_id)
        (row,) = load_runs(experiment, f"attributes.run_id = '{run.id}'").to_dict("records")
        policies.setdefault(policy_of(row), []).append(run.id)
    names: dict[str, str] = {}
    for policy, ids in policies.items():
        varied = _settings_apart(experiment, ids) if len(ids) > 1 else {ids[0]: ""}
        names |= {run_id: variant_name(policy, words) for run_id, words in varied.items()}
    return names


def _settings_apart(experiment: Experiment, run_ids: Sequence[str]) -> dict[str, str]:
    """Return words for each run that no other has: settings, or a part of the id where these do not tell them apart."""
    with suppress(TrackingError):  # training logs readings without a table of rows
        tables = [experiment.join(run_id).read_table(ROWS).assign(run_id=run_id) for run_id in run_ids]
        rows = pd.concat(tables, ignore_index=True)
        words = settings_in_words(rows).groupby(rows["run_id"]).first().to_dict()
        if len(set(words.values())) == len(run_ids):
            return words
    return {run_id: f"run {run_id[:6]}" for run_id in run_ids}


def choose(
    experiment: Experiment, left: str = "", right: str = "", reader: str = "overwrite", other_reader: str = ""
) -> pd.DataFrame:
    """Choose the two newest evaluations with a document in common, and return their result rows of ``reader``.

    With ``other_reader``, the right evaluation's rows are those of that reader, as in a sweep over readers. Only scored
    documents count, and only if both were judged by the same rule and read with the same version of the code: scores of
    other pairs are of different kinds. ``left`` and ``right`` restrict the choice to a run (its id or the beginning of
    the id) or to the runs of a policy. Runs without a table of rows are left out. Rows of the left evaluation come
    first. The column ``line`` differs between the two, even if both evaluate the same policy.
    """
    runs = evaluations(experiment)
    without: list[str] = []
    recent = runs.head(_RUNS_TRIED).to_dict("records")
    lefts = _named(runs, left) if left else recent
    rights = _named(runs, right) if right else recent

    @cache  # a run is compared with many others
    def table(run_id: str) -> pd.DataFrame | None:
        with suppress(MissingArtifact):
            return experiment.join(run_id).read_table(ROWS)
        without.append(run_id)
        return None

    def rows(run_id: str, name: str) -> pd.DataFrame:
        frame = table(run_id)
        return frame[frame["reader"] == name]

    @cache
    def questions(run_id: str, name: str, same: tuple[str, ...]) -> frozenset[tuple]:
        return _scored_questions(rows(run_id, name), same)

    def both_read(newer: str, older: str, kind: Sequence[str] = ()) -> bool:
        if newer == older or table(newer) is None or table(older) is None:
            return False
        same = (*question_columns(rows(newer, other_reader), rows(older, reader)), *kind)
        return bool(questions(newer, other_reader, same) & questions(older, reader, same))

    other_reader = other_reader or reader
    for name in dict.fromkeys((reader, other_reader)):
        _require_reader(runs, name)
    _require_two_runs([*lefts, *rights])
    named = f"{left or 'any run'!r} and {right or 'any other'!r}"
    read_with = f"the reader {reader!r}"
    if other_reader != reader:
        read_with = f"the readers {reader!r} and {other_reader!r}"
    for newer, older in product(rights, lefts):
        if both_read(newer["run_id"], older["run_id"], _KIND):
            pair = {older["run_id"]: reader, newer["run_id"]: other_reader}
            return _two_lines({run_id: rows(run_id, name) for run_id, name in pair.items()})
    for newer, older in product(rights, lefts):
        if both_read(newer["run_id"], older["run_id"]):
            kinds = [_kind_in_words(rows(older["run_id"], reader)), _kind_in_words(rows(newer["run_id"], other_reader))]
            raise TrackingError(
                f"{named} have read the same documents with {read_with}, but their scores are of different "
                f"kinds and are not paired: {kinds[0]}, and {kinds[1]}; evaluate the older one again"
            )
    left_out = f" (without a {ROWS}, and so left out: {', '.join(without)})" if without else ""
    fix = "evaluate two policies on the same data with 03_evaluate"
    raise TrackingError(f"{named} have read no document in common with {read_with}{left_out}; {fix}")


def choose_readers(experiment: Experiment, run: str, reader: str, other: str) -> pd.DataFrame:
    """Return the result rows of two readers in one evaluation, those of ``reader`` first.

    The evaluation is the newest in which both have read a document, among those that ``run`` names as in
    :func:`choose`; by default, among all.
    """
    if reader == other:
        raise TrackingError(f"reader and other_reader are both {reader!r}; give two different ones")
    runs = evaluations(experiment)
    for name in (reader, other):
        _require_reader(runs, name)
    for each in _named(runs, run) if run else runs.head(_RUNS_TRIED).to_dict("records"):
        try:
            frame = experiment.join(each["run_id"]).read_table(ROWS)
        except MissingArtifact:
            continue
        of_readers = [frame[frame["reader"] == name] for name in (reader, other)]
        same = question_columns(*of_readers)
        if frozenset.intersection(*(_scored_questions(rows, same) for rows in of_readers)):
            return keyed(pd.concat(of_readers))
    raise TrackingError(
        f"in no evaluation{f' {run!r}' if run else ''} have both {reader!r} and {other!r} read the same document; "
        "give both to 03_evaluate, as readers, or name the evaluation of each, as left and right"
    )


def differing(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the parameters in which the runs of result rows differ: a row per parameter, a column per run."""
    policies = keyed(rows).groupby("run_id", sort=False)["line"].first()
    params = load_runs(experiment).set_index("run_id").loc[policies.index].filter(like="params.").fillna("")
    params = params.rename(columns=lambda name: name.removeprefix("params.")).set_axis(policies.to_list()).T
    return params[params.nunique(axis="columns") > 1].rename_axis("parameter")


def _named(runs: pd.DataFrame, name: str) -> list[dict]:
    found = runs[runs["policy"] == name]
    if found.empty:  # a policy called "a" is not every run whose id begins so
        found = runs[runs["run_id"].str.startswith(name)]
    if found.empty:
        policies = list(runs["policy"].unique())
        known = ", ".join(map(repr, policies)) or "none"
        raise TrackingError(
            f"no evaluation {name!r}; there are {known}; run 03_evaluate, or give the id of one of its runs"
            f"{nearest(name, policies)}"
        )
    return found.head(_RUNS_TRIED).to_dict("records")


def _require_reader(runs: pd.DataFrame, reader: str) -> None:
    """Raise :class:`TrackingError` if no evaluation has read with ``reader``.

    Runs that earlier versions logged do not name their readers; with one of these, nothing is raised.
    """
    if runs.empty:
        raise TrackingError("the store has no evaluation; 03_evaluate and memagent evaluate make one")
    named = runs.get("tags.readers", pd.Series(dtype=str))
    known = sorted({name for names in named.dropna() for name in names.split(", ")})
    if reader not in known and not named.isna().any():
        raise TrackingError(
            f"no evaluation has read with {reader!r}; there are {', '.join(map(repr, known)) or 'none'}"
            f"{nearest(reader, known)}"
        )


def _require_two_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`TrackingError` if all of ``runs`` are one and the same."""
    if len({run["run_id"] for run in runs}) == 1:
        only = runs[0]
        raise TrackingError(
            f"there is only the run {only['run_id'][:6]} of {only['policy']!r} to choose from; evaluate another policy "
            "on the same data with 03_evaluate, or compare two readers of this run with other_reader"
        )


def _scored_questions(rows: pd.DataFrame, same: Sequence[str]) -> frozenset[tuple]:
    """Return the scored questions of result rows, as their values in the columns ``same``."""
    return frozenset(rows[rows["score"].notna()][list(same)].itertuples(index=False, name=None))


def _kind_in_words(rows: pd.DataFrame) -> str:
    """Return the judges and the versions of the code of result rows."""
    rules = ", ".join(sorted(rows["rule"].dropna().unique()))
    codes = ", ".join(sorted(rows["code"].dropna().unique()))
    return f"judged by {rules} with code {codes}"


def _two_lines(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of two runs, keyed so that each run has lines of its own.

    They differ by policy, reader or the settings that varied; where nothing recorded differs, by a part of the id.
    """
    with suppress(MixedRowsError):
        both = keyed(pd.concat(rows.values()))
        if both.groupby("line")["run_id"].nunique().max() == 1:
            return both
    named = [of_run.assign(policy=of_run["policy"] + f" {run_id[:6]}") for run_id, of_run in rows.items()]
    return keyed(pd.concat(named))
