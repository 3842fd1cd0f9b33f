"""Evaluations in MLflow: log results, and load them again.

A run has its results in four forms: files of records (:mod:`memagent_lib.evaluation`), a table, metrics with the length
as their step, and MLflow traces.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from memagent_lib.agent import Agent
from memagent_lib.backends import shape_of
from memagent_lib.evaluation import (
    COLUMNS,
    EvaluationPlan,
    Judgement,
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
    summarise,
    to_frame,
    with_memory,
    write_results,
)  # fmt: skip
from memagent_lib.journal import digest
from memagent_lib.paths import absolute
from memagent_lib.readers import SHARED_QUESTION
from memagent_lib.tracking.runs import Experiment, Run, policy_name
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

RESULTS_FOLDER = "results"
ROWS = "results.parquet"
_MOST_NAME_BYTES = 200  # file systems have room for 255, with what a file has around its name while it is written


def log_results(
    run: Run,
    results: Sequence[Result],
    model: str = "",
    judgement: Judgement | None = None,
    settings: Mapping[str, Any] | None = None,
    **labels: Any,
) -> pd.DataFrame:
    """Log the rows, metrics and readings of an evaluation; return the rows with the labels as columns.

    ``score`` and ``seconds_per_reading`` are those of the first reader with a memory, or of the first one; the tag
    ``score_of`` names it. Other metrics but the counts are logged per reader, with the length in chunks as MLflow's
    step (0 if it is unknown). If ``model`` is set, all but the counts are also attached to that model. The rows get
    columns for the ``labels`` (such as ``policy="trained"``), for the ids of the run and of each reading's trace, and
    for the ``settings`` (:func:`settings_of`) that distinguish evaluations in tables. The column ``flops`` is filled if
    the model's shape is known. A ``judgement`` adds its columns, its numbers as metrics, and its summary as
    ``attrs["model_judge"]`` of the rows.
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
    scored = counted[counted["score"].notna()]
    if len(scored):
        # The score is the first metric, on which MLflow's comparison of runs opens. With the baselines in its mean, it
        # would depend on how many there are.
        memories = with_memory(counted)
        main = (memories if len(memories) else counted)["reader"].iloc[0]
        own = scored[scored["reader"] == main]
        if len(own):
            run.tags({"score_of": main})
            run.metrics({"score": own["score"].mean(), "seconds_per_reading": own["seconds"].mean()}, model=used)
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
    rows.attrs["replaced"] = save_rows(rows, folder, rows_file(policy))
    if rows.attrs["replaced"]:
        run.tags({"replaced": "; ".join(rows.attrs["replaced"])})
    return results, rows


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
    if len(name.encode()) > _MOST_NAME_BYTES:
        name = name[:50]
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
            lengths = ", ".join(map(str, sorted(there["chunks"].dropna().astype(int).unique()))) or "no set number of"
            readers = ", ".join(sorted(there["reader"].unique()))
            where = (f" at {chunks} chunks" if chunks else "") + (f" with the reader {reader!r}" if reader else "")
            raise TrackingError(
                f"no readings of {variant!r}{where}; there are results at {lengths} chunks with {readers}"
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
