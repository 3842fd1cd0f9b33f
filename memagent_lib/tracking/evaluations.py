"""Evaluations in MLflow: log results, load them again, and choose two evaluations that can be compared.

A run has its results in four forms: files of records (:mod:`memagent_lib.evaluation`), a table, metrics with the length
as their step, and MLflow traces.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from memagent_lib.agent import Agent
from memagent_lib.backends import EnginePool, shape_of
from memagent_lib.errors import nearest
from memagent_lib.evaluation import (
    COLUMNS,
    EvaluationPlan,
    Judgement,
    MixedRowsError,
    ModelJudge,
    Result,
    evaluate_plan,
    in_several_files,
    keyed,
    mean_columns,
    mixtures,
    question_columns,
    read_results,
    save_rows,
    settings_in_words,
    summarise,
    to_frame,
    variant_name,
    write_results,
)  # fmt: skip
from memagent_lib.journal import digest
from memagent_lib.paths import absolute
from memagent_lib.readers import SHARED_QUESTION
from memagent_lib.tracking.frames import load_runs
from memagent_lib.tracking.runs import Experiment, Run, policy_name
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

RESULTS_FOLDER = "results"
ROWS = "results.parquet"
_KIND = ("rule", "code")
"""Columns in which two scores of one document must agree to be comparable."""
_RUNS_TRIED = 30  # bounds how many tables of rows are read to find a pair


def log_results(
    run: Run,
    results: Sequence[Result],
    model: str = "",
    judgement: Judgement | None = None,
    settings: Mapping[str, Any] | None = None,
    **labels: Any,
) -> pd.DataFrame:
    """Log the rows, metrics and readings of an evaluation; return the rows with the labels as columns.

    Besides the overall score, the seconds per scored reading and counts, metrics are logged per reader, with the length
    in chunks as MLflow's step (0 if it is unknown). If ``model`` is set, all but the counts are also attached to that
    model. The rows get columns for the ``labels`` (such as ``policy="trained"``), for the ids of the run and of each
    reading's trace, and for the ``settings`` (:func:`settings_of`) that distinguish evaluations in tables. The column
    ``flops`` is filled if the model's shape is known. A ``judgement`` adds its columns, its numbers as metrics, and its
    summary as ``attrs["model_judge"]`` of the rows.
    """
    traces = [trace_id_of(run, result) for result in results]
    columns = {**(settings or {}), **labels, "run_id": run.id, "trace_id": traces, "flops": _flops(results, model)}
    frame = to_frame(results).assign(**columns)
    if judgement:
        frame = frame.assign(**judgement.columns)
        run.tags({"model_judge": judgement.judge, "model_judge_prompt": judgement.prompt_hash})
    run.table(frame, ROWS)
    run.table(frame, Path(ROWS).with_suffix(".csv").name)  # which MLflow's page previews
    lengths = sorted(frame["chunks"].dropna().astype(int).unique())
    readers = ", ".join(frame["reader"].unique())
    run.tags({"readers": readers, "lengths": ", ".join(map(str, lengths)) or "not in chunks"})
    if "policy" in labels:
        run.tags({"policy": labels["policy"]})
    used = run.uses(model) if model else None
    # A document in several data files has several rows, but counts once.
    counted = frame[~in_several_files(frame)]
    scored = counted["score"].dropna()
    if len(scored):
        # The score is the first metric, on which MLflow's comparison of runs opens.
        seconds = frame.loc[scored.index, "seconds"].mean()
        run.metrics({"score": scored.mean(), "seconds_per_reading": seconds}, model=used)
    run.metrics({"scored": len(scored), "failed": int(counted["error"].notna().sum())})
    # MLflow's steps are numbers, so 0 stands for documents whose length in chunks is unknown.
    by_length = counted.assign(chunks=counted["chunks"].astype(float).fillna(0))
    for row in summarise(by_length).to_dict("records"):
        names = ("accuracy", "low", "high", *mean_columns())
        metrics = {f"{row['reader']}/{name}": row[name] for name in names if not pd.isna(row[name])}
        run.metrics(metrics, int(row["chunks"]), used)
    if judgement:
        run.metrics({f"model_judge/{name}": value for name, value in judgement.metrics(results).items()})
        frame.attrs["model_judge"] = judgement.summary(results)
    warnings = mixtures(frame)
    if warnings:
        run.tags({"mixed": "; ".join(warnings)})
    log_readings(run, results, **labels)
    return frame


def _flops(results: Sequence[Result], model: str) -> list[int | None]:
    """Return the FLOPs of each reading, or None for one that failed; all None if the model's shape is unknown.

    The shape is never downloaded: an engine in this process already has the model's files, and a server's name for its
    model need not be its name on the hub.
    """
    shape = None
    if model:
        with suppress(OSError, ValueError, ImportError):  # without transformers, where a server reads
            shape = shape_of(model, download=False)
    if shape is None:
        return [None] * len(results)
    # Whole numbers, which can be divided among the questions that share a reading.
    return [result.cost(lambda turn: round(shape.flops_of(turn))) if result.trace else None for result in results]


def evaluate_files(
    run: Run,
    agent: Agent,
    plan: EvaluationPlan,
    folder: str | Path,
    model: str = "",
    policy: str = "",
    concurrency: int = 64,
    judge: ModelJudge | None = None,
) -> tuple[list[Result], pd.DataFrame]:
    """Evaluate an agent on data files and log the results; return the results and their rows.

    ``memagent evaluate`` and the notebook 03_evaluate call this. Finished turns and results are saved below ``folder``,
    so the same call continues after a crash. The rows are saved there as ``POLICY.parquet``, so that figures can
    compare several policies. Earlier rows in that file remain, except those with the reader, data file and settings of
    new rows; ``attrs["replaced"]`` of the rows has notes on these. A ``judge`` gives its verdicts after all readings,
    in columns of their own.
    """
    policy = policy or policy_name(model)
    run.data(*plan.files)
    readings = absolute(folder) / "readings"
    results = evaluate_plan(agent, plan, readings, concurrency)
    judgement = judge and judge.judge(results, readings, concurrency)
    settings = settings_of(agent)
    if plan.shared_reading not in ("", SHARED_QUESTION):
        settings["shared_question"] = [plan.shared_reading if result.sharing else "" for result in results]
    labels = {"policy": policy, "chunk_tokens": settings["chunk_tokens"]}
    rows = log_results(run, results, model, judgement, settings, **labels)
    ended = engines_ended(agent)
    if ended:
        run.tags({"engines_ended": "; ".join(ended)})
    rows.attrs["replaced"] = save_rows(rows, folder, rows_file(policy))
    if rows.attrs["replaced"]:
        run.tags({"replaced": "; ".join(rows.attrs["replaced"])})
    return results, rows


def engines_ended(agent: Agent) -> list[str]:
    """Return a sentence for each of an agent's several engines that has ended early; their turns went to the others."""
    if not isinstance(agent.backend, EnginePool):
        return []
    return [f"{ended}; its turns went to the other engines" for ended in agent.backend.ended]


def settings_of(agent: Agent) -> dict[str, Any]:
    """Return the settings of an agent that change its replies, as columns of result rows.

    Their names are those of ``SETTINGS`` and ``FINGERPRINTS`` of :mod:`memagent_lib.evaluation.lines`.
    """
    identity = agent.identity
    template = asdict(agent.encoder.template)
    sampling = dict(identity["sampling"])
    found = identity["budget"] | {
        "template": template.pop("name"),
        "wording": digest(json.dumps(template, sort_keys=True))[:8],
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        # Greedy replies do not depend on the seed.
        "sampling_seed": sampling["seed"] if sampling["temperature"] else None,
        "weights": identity["model"][:8],
    }
    for name in ("chat_template", "extra"):
        if name in identity:
            found[name] = json.dumps(identity[name], sort_keys=True)
    if "on_bad_memory" in identity:
        found["on_bad_memory"] = identity["on_bad_memory"]
    return found


def rows_file(policy: str) -> str:
    """Return the name of the file with the rows of ``policy``, without its suffix; no two policies share one."""
    name = "".join(c if c.isalnum() or c in "-_. " else "-" for c in policy)
    return name if name == policy else f"{name}-{digest(policy)[:6]}"


def log_readings(run: Run, results: Iterable[Result], limit_bytes: int = 64 << 20, **tags: Any) -> None:
    """Log readings to a run, as files of complete records and as MLflow traces, which may lack turns.

    The files take up at most ``limit_bytes`` in total; wrong and right readings alternate, so that both are present.
    Metrics count the readings and turns that were left out.
    """
    results = list(results)
    with tempfile.TemporaryDirectory() as folder:
        left_out = write_results(results, folder, limit_bytes)
        run.file(folder, RESULTS_FOLDER)
    thinned = log_traces(run, results, **tags)
    run.metrics(
        {
            "results_left_out": left_out,
            "mlflow_traces_left_out": thinned.traces,
            "mlflow_turns_left_out": thinned.turns,
        }
    )


def load_results(run: Run) -> list[Result]:
    """Return the results that a run has logged, with their examples. Raises :class:`TrackingError` if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return read_results(run.fetch(RESULTS_FOLDER, folder))
        except TrackingError as failure:
            raise TrackingError(
                f"run {run.id} has no results in {run.artifacts}; runs of 03_evaluate and of training do"
            ) from failure


def load_readings(
    experiment: Experiment, rows: pd.DataFrame, reader: str = "", chunks: int = 0
) -> dict[str, list[Result]]:
    """Load the readings that result rows describe, from the runs that the rows name.

    They are returned by the name of their policy, with the settings that varied. ``reader`` and ``chunks`` (the length)
    select rows; raises :class:`TrackingError` if none of a policy's readings is selected. Readings that did not fit
    into their run (:func:`log_readings`) are missing.
    """
    rows = keyed(rows)
    selected = rows
    if reader:
        selected = selected[selected["reader"] == reader]
    if chunks:
        selected = selected[selected["chunks"] == chunks]
    readings: dict[str, list[Result]] = {variant: [] for variant in rows["variant"].unique()}
    for run_id, of_run in selected.groupby("run_id", sort=False):
        for variant, found in by_variant(load_results(experiment.join(run_id, deleted=True)), of_run).items():
            readings[variant] += found
    for variant, found in readings.items():
        if (reader or chunks) and not found:
            errors = selected.loc[selected["variant"] == variant, "error"].dropna()
            if len(errors):
                raise TrackingError(
                    f"all readings of {variant!r} that were selected have failed ({len(errors):,}), the first with: "
                    f"{errors.iloc[0]}"
                )
            there = rows[rows["variant"] == variant]
            lengths = ", ".join(map(str, sorted(there["chunks"].dropna().unique()))) or "no set number of"
            readers = ", ".join(sorted(there["reader"].unique()))
            raise TrackingError(
                f"no readings of {variant!r} at {chunks} chunks with the reader {reader!r}; "
                f"there are results at {lengths} chunks with {readers}"
            )
    return readings


def by_variant(results: Iterable[Result], rows: pd.DataFrame) -> dict[str, list[Result]]:
    """Return the readings of one run that its keyed ``rows`` describe, by variant."""
    same = ["reader", *question_columns(rows)]
    wanted = dict(zip(rows[same].itertuples(index=False, name=None), rows["variant"], strict=True))
    readings: dict[str, list[Result]] = {}
    for result in results:
        variant = wanted.get(tuple(COLUMNS[name].value(result) for name in same))
        if result.trace is not None and variant is not None:
            readings.setdefault(variant, []).append(result)
    return readings


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

    With ``other_reader``, the right evaluation's rows are those of that reader, as in a sweep over readers.

    Only scored documents count, and only if both were judged by the same rule and read with the same version of the
    code: scores of other pairs are of different kinds. ``left`` and ``right`` restrict the choice
    to a run (its id or the beginning of the id) or to the runs of a policy. Rows of the left evaluation come first. The
    column ``line`` differs between the two, even if both evaluate the same policy.
    """
    runs = evaluations(experiment)
    recent = runs.head(_RUNS_TRIED).to_dict("records")
    lefts = _named(runs, left) if left else recent
    rights = _named(runs, right) if right else recent

    @cache  # a run is compared with many others
    def rows(run_id: str, name: str) -> pd.DataFrame:
        frame = experiment.join(run_id).read_table(ROWS)
        return frame[frame["reader"] == name]

    @cache
    def questions(run_id: str, name: str, same: tuple[str, ...]) -> frozenset[tuple]:
        frame = rows(run_id, name)
        return frozenset(frame[frame["score"].notna()][list(same)].itertuples(index=False, name=None))

    def both_read(newer: str, older: str, kind: Sequence[str] = ()) -> bool:
        same = (*question_columns(rows(newer, other_reader), rows(older, reader)), *kind)
        return newer != older and bool(questions(newer, other_reader, same) & questions(older, reader, same))

    other_reader = other_reader or reader
    for name in dict.fromkeys((reader, other_reader)):
        _require_reader(runs, name)
    if len({run["run_id"] for run in (*lefts, *rights)}) == 1:
        only = lefts[0]
        raise TrackingError(
            f"there is only the run {only['run_id'][:6]} of {only['policy']!r} to choose from; evaluate another policy "
            "on the same data with 03_evaluate, or compare two readers of this run with other_reader"
        )
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
    fix = "evaluate two policies on the same data with 03_evaluate"
    raise TrackingError(f"{named} have read no document in common with {read_with}; {fix}")


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
        frame = experiment.join(each["run_id"]).read_table(ROWS)
        of_readers = [frame[frame["reader"] == name] for name in (reader, other)]
        same = question_columns(*of_readers)
        scored = [set(rows[rows["score"].notna()][same].itertuples(index=False, name=None)) for rows in of_readers]
        if scored[0] & scored[1]:
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
