"""Evaluations in MLflow: what is logged of results, reading it back, and choosing two evaluations that can be compared.

A run keeps its results as the file of records that an evaluation writes (:mod:`memagent_lib.evaluation`), as a table,
as metrics with the length as their step, and as MLflow traces. Knows runs and results; knows no notebook.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from memagent_lib.agent import Agent
from memagent_lib.backends import shape_of
from memagent_lib.evaluation import (
    SAME,
    EvaluationPlan,
    Result,
    evaluate_plan,
    mixtures,
    read_results,
    save_rows,
    summarise,
    to_frame,
    write_results,
)  # fmt: skip
from memagent_lib.paths import absolute
from memagent_lib.tracking.frames import load_runs
from memagent_lib.tracking.runs import Experiment, Run, policy_name
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

RESULTS_FOLDER, ROWS = "results", "results.parquet"
_TRIED = 30
_METRICS = ("accuracy", "low", "high", "capture", "retention")


def log_results(run: Run, results: Sequence[Result], model: str = "", **labels: Any) -> pd.DataFrame:
    """Log an evaluation: its rows, a metric per reader with the length as its step, its readings. Returns the rows,
    labelled.

    With ``model`` the metrics are also those of the MLflow model with its weights. The step counts chunks, and is 0 for
    documents whose length was not asked for in chunks. ``labels`` become columns (``policy="trained"``), and ``run_id``
    is one of them, so a table of many runs says where each row is from; ``flops`` are those of each reading, where the
    model's shape is known.
    """
    traces = [trace_id_of(run, result) for result in results]
    frame = to_frame(results).assign(**labels, run_id=run.id, trace_id=traces, flops=_flops(results, model))
    run.table(frame, ROWS)
    used = run.uses(model) if model else None
    scored = frame["score"].dropna()
    if len(scored):
        run.metrics({"score": scored.mean()}, model=used)  # the first, on which MLflow's comparison of runs opens
    run.metrics({"scored": len(scored), "failed": int(frame["error"].notna().sum())})
    for row in summarise(frame.assign(chunks=frame["chunks"].astype(float).fillna(0))).to_dict("records"):
        known = {f"{row['reader']}/{name}": row[name] for name in _METRICS if row[name] == row[name]}
        run.metrics(known, int(row["chunks"]), used)
    if notes := mixtures(frame):
        run.tags({"mixed": "; ".join(notes)})
    log_readings(run, results, **labels)
    return frame


def _flops(results: Sequence[Result], model: str) -> list[float | None]:
    """Of each reading; none where it failed, or where a server or an unknown architecture hides the model's shape.

    The hub is not asked: an engine here has the model's files, and a server's name for its model may be anything.
    """
    try:
        shape = shape_of(model, download=False) if model else None
    except (OSError, ValueError):
        shape = None
    return [shape.reading_flops(result.trace) if shape and result.trace else None for result in results]


def evaluate_files(
    run: Run,
    agent: Agent,
    plan: EvaluationPlan,
    folder: str | Path,
    model: str = "",
    policy: str = "",
    concurrency: int = 64,
    add: bool = False,
) -> tuple[list[Result], pd.DataFrame]:
    """Evaluate an agent on data files of any length and log it: what ``memagent evaluate`` and 03_evaluate do.

    Finished turns and results are kept below ``folder`` and found there by the same call after a crash; the rows are
    kept as ``POLICY.parquet`` in it, for figures over several policies. With ``add``, rows that are there of other
    readers and files stay.
    """
    policy = policy or policy_name(model)
    run.data(*plan.files)
    results = evaluate_plan(agent, plan, absolute(folder) / "readings", concurrency)
    rows = log_results(run, results, model, policy=policy, chunk_tokens=agent.encoder.budget.chunk_tokens)
    save_rows(rows, folder, rows_file(policy), add)
    return results, rows


def rows_file(policy: str) -> str:
    """The name under which a policy's rows are kept, without its ending."""
    return "".join(c if c.isalnum() or c in "-_. " else "-" for c in policy)


def log_readings(run: Run, results: Iterable[Result], limit_bytes: int = 64 << 20, **tags: Any) -> None:
    """Log readings: whole, as the file of their records, wrong and right ones in turn until the limit; and as MLflow
    traces, thinned. What was left out of each is a metric.
    """
    results = list(results)
    with tempfile.TemporaryDirectory() as folder:
        left_out = write_results(results, folder, limit_bytes)
        run.file(folder, RESULTS_FOLDER)
    thinned = log_traces(run, results, **tags)
    counts = {"mlflow_traces_left_out": thinned.traces, "mlflow_turns_left_out": thinned.turns}
    run.metrics({"results_left_out": left_out} | counts)


def load_results(run: Run) -> list[Result]:
    """The results that a run kept, with examples and documents."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return read_results(run.fetch(RESULTS_FOLDER, folder))
        except TrackingError as failure:
            raise TrackingError(f"run {run.id} kept no results; runs of 03_evaluate and of training do") from failure


def load_readings(
    experiment: Experiment, rows: pd.DataFrame, reader: str = "", chunks: int = 0
) -> dict[str, list[Result]]:
    """The readings behind result rows, by policy, from the runs that the rows name; of one reader or length only where
    those are given.
    """
    readings: dict[str, list[Result]] = {policy: [] for policy in rows["policy"].unique()}
    wanted = rows[rows["reader"] == reader] if reader else rows
    wanted = wanted[wanted["chunks"] == chunks] if chunks else wanted
    for (policy, run_id), of_run in wanted.groupby(["policy", "run_id"], sort=False):
        told = set(of_run[["reader", *SAME]].itertuples(index=False, name=None))
        kept = [r for r in load_results(experiment.join(run_id)) if r.trace is not None]
        readings[policy] += [r for r in kept if (r.reader, r.example.id, r.document) in told]
    for policy, found in readings.items():
        if (reader or chunks) and not found:
            there = rows[rows["policy"] == policy]
            lengths = ", ".join(map(str, sorted(there["chunks"].unique())))
            readers = ", ".join(sorted(there["reader"].unique()))
            raise TrackingError(
                f"no readings of {policy!r} at {chunks} chunks with the reader {reader!r}; "
                f"there are results at {lengths} chunks with {readers}"
            )
    return readings


def evaluations(experiment: Experiment) -> pd.DataFrame:
    """The runs that kept results, newest first: ``run_id, name, policy, started`` and the rest of :func:`load_runs`."""
    runs = load_runs(experiment, "metrics.scored > 0 and status = 'FINISHED'")
    runs = runs.assign(policy=runs.get("params.policy", runs["name"]))
    first = ["run_id", "name", "policy", "started"]
    return runs[first + [column for column in runs.columns if column not in first]]


def choose(experiment: Experiment, left: str = "", right: str = "", reader: str = "overwrite") -> pd.DataFrame:
    """The result rows of the two newest evaluations that have read documents, of a length in chunks, in common.

    ``left`` and ``right`` narrow the choice to a run (its id or the beginning of it) or to the runs of a policy. Rows
    of the left one come first; ``policy`` tells the two apart, also where both are of one policy.
    """
    runs = evaluations(experiment)
    recent = runs.head(_TRIED).to_dict("records")
    lefts = _named(runs, left) if left else recent
    rights = _named(runs, right) if right else recent
    rows = cache(lambda run_id: experiment.join(run_id).read_table(ROWS))

    @cache
    def read(run_id: str) -> frozenset[tuple]:
        told = rows(run_id)[lambda of: (of["reader"] == reader) & of["score"].notna() & of["chunks"].notna()]
        return frozenset(told[SAME].itertuples(index=False, name=None))

    for b, a in product(rights, lefts):
        if a["run_id"] != b["run_id"] and read(a["run_id"]) & read(b["run_id"]):
            return pd.concat([rows(run_id).assign(policy=name) for run_id, name in _names(a, b).items()])
    named = f"{left or 'any run'!r} and {right or 'any other'!r}"
    fix = "evaluate two policies on the same data with 03_evaluate"
    raise TrackingError(f"{named} have read no document in common with the reader {reader!r}; {fix}")


def differing(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
    """The parameters in which the runs behind result rows differ: a row each, a column per policy."""
    policies = rows.groupby("run_id", sort=False)["policy"].first()
    params = load_runs(experiment).set_index("run_id").loc[policies.index].filter(like="params.").fillna("")
    params = params.rename(columns=lambda name: name.removeprefix("params.")).set_axis(policies.to_list()).T
    return params[params.nunique(axis="columns") > 1].rename_axis("parameter")


def _named(runs: pd.DataFrame, name: str) -> list[dict]:
    found = runs[(runs["policy"] == name) | runs["run_id"].str.startswith(name)]
    if found.empty:
        known = ", ".join(f"{policy!r}" for policy in runs["policy"].unique()) or "none"
        raise TrackingError(
            f"no evaluation {name!r}; there are {known}; run 03_evaluate, or give the id of one of its runs"
        )
    return found.head(_TRIED).to_dict("records")


def _names(left: dict, right: dict) -> dict[str, str]:
    """What tables and figures call two runs: their policies, with the beginning of their ids where those are one."""
    same = left["policy"] == right["policy"]
    return {r["run_id"]: f"{r['policy']} {r['run_id'][:6]}" if same else r["policy"] for r in (left, right)}
