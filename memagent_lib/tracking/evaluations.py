"""Evaluations in MLflow: log results with the agent that read them, and load both again.

A run has its results in four forms: files of records (:mod:`memagent_lib.evaluation`), a table, metrics with the length
as their step, and MLflow traces. A server's key or password is never recorded.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from memagent_lib.agent import Agent, AgentSettings, open_agent
from memagent_lib.backends import Sampling, shape_of
from memagent_lib.evaluation import (
    COLUMNS,
    EvaluationPlan,
    Judgement,
    ModelJudge,
    Result,
    evaluate_plan,
    keyed,
    mixtures,
    question_columns,
    read_results,
    row_settings,
    save_rows,
    summarise,
    to_frame,
    with_memory,
    write_results,
)
from memagent_lib.journal import digest
from memagent_lib.paths import absolute
from memagent_lib.prompts import Template
from memagent_lib.readers import SHARED_QUESTION
from memagent_lib.tracking.runs import Experiment, Run, policy_name
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

RESULTS_FOLDER = "results"
ROWS = "results.parquet"
AGENT = "agent.json"
_MOST_NAME_CHARS = 60  # a character may take four of the 255 bytes that file systems have room for
_LOG = logging.getLogger("memagent_lib")


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
    step (0 if it is unknown). The rows get columns for the ``labels`` (such as ``policy="trained"``), the ids of the
    run and of each reading's trace, and for the ``settings`` (:func:`settings_of`) that distinguish evaluations in
    tables. The column ``flops`` is filled if the shape of ``model`` is known. A ``judgement`` adds its columns, its
    numbers as metrics, and its summary as ``attrs["model_judge"]`` of the rows.
    """
    traces = [trace_id_of(run, result) for result in results]
    columns = {**(settings or {}), **labels, "run_id": run.id, "trace_id": traces, "flops": _flops(results, model)}
    frame = to_frame(results).assign(**columns)
    if judgement:
        frame = frame.assign(**judgement.columns)
        run.tags({"model_judge": judgement.judge, "model_judge_prompt": judgement.prompt_hash})
        run.metrics({f"model_judge/{name}": value for name, value in judgement.metrics(results).items()})
    if model:
        run.model(model)
    run.table(frame, ROWS)
    run.table(frame, Path(ROWS).with_suffix(".csv").name)  # which MLflow's page previews
    readers = ", ".join(frame["reader"].unique())
    run.tags({"readers": readers} | ({"policy": labels["policy"]} if "policy" in labels else {}))
    scored = frame[frame["score"].notna()]
    # With the baselines in its mean, the score would depend on how many there are.
    main = next(iter(pd.concat([with_memory(frame), frame])["reader"]), "")
    own = scored[scored["reader"] == main]
    if len(own):
        run.tags({"score_of": main})
        run.metrics({"score": own["score"].mean(), "seconds_per_reading": own["seconds"].mean()})
    run.metrics({"scored": len(scored), "failed": int(frame["error"].notna().sum())})
    # MLflow's steps are numbers, so 0 stands for documents whose length in chunks is unknown.
    by_length = frame.assign(chunks=frame["chunks"].astype(float).fillna(0))
    for row in summarise(by_length).to_dict("records"):
        names = ("accuracy", "low", "high", *(name for name, column in COLUMNS.items() if column.mean))
        metrics = {f"{row['reader']}/{name}": row[name] for name in names if not pd.isna(row[name])}
        run.metrics(metrics, int(row["chunks"]))
    warnings = mixtures(frame)
    if warnings:
        run.tags({"mixed": "; ".join(warnings)})
    log_readings(run, results, **labels)
    frame.attrs["model_judge"] = judgement.summary(results) if judgement else ""
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
    compare several policies; ``attrs["replaced"]`` of the rows has notes on earlier rows that they replace
    (:func:`~memagent_lib.evaluation.save_rows`). A ``judge`` gives its verdicts after all readings, in columns of their
    own.
    """
    policy = policy or policy_name(model)
    run.data(*plan.files)
    readings = absolute(folder) / "readings"
    results = evaluate_plan(agent, plan, readings, concurrency)
    judgement = judge and judge.judge(results, readings, concurrency)
    alone = settings_of(agent)
    shared = settings_of(agent, plan.shared_reading)["settings"]
    settings = alone | {"settings": [shared if result.sharing else alone["settings"] for result in results]}
    rows = log_results(run, results, model, judgement, settings, policy=policy, chunk_tokens=settings["chunk_tokens"])
    rows.attrs["replaced"] = save_rows(rows, folder, rows_file(policy))
    if rows.attrs["replaced"]:
        run.tags({"replaced": "; ".join(rows.attrs["replaced"])})
    return results, rows


def settings_of(agent: Agent, shared_reading: str = "") -> dict[str, Any]:
    """Return the columns of result rows that tell evaluations of one policy and reader apart.

    ``settings`` has all settings that change replies; ``weights`` and ``wording`` are hashes of the model and of the
    prompts.
    """
    identity = agent.identity
    template = asdict(agent.encoder.template)
    settings = identity["budget"] | {"template": template.pop("name")}
    settings |= {name: value for name, value in identity["sampling"].items() if name != "seed"}
    if settings["temperature"]:  # greedy replies do not depend on the seed
        settings["sampling_seed"] = identity["sampling"]["seed"]
    for name in ("chat_template", "extra", "on_bad_memory"):
        if name in identity:
            settings[name] = identity[name]
    if shared_reading:
        settings["shared_reading"] = "once for all" if shared_reading == SHARED_QUESTION else shared_reading
    return {
        "settings": row_settings(settings),
        "chunk_tokens": agent.encoder.budget.chunk_tokens,
        "weights": identity["model"][:8],
        "wording": digest(json.dumps(template, sort_keys=True))[:8],
    }


def rows_file(policy: str) -> str:
    """Return the name of the file with the rows of ``policy``, without its suffix; no two policies share one."""
    name = "".join(c if c.isalnum() or c in "-_. " else "-" for c in policy)[:_MOST_NAME_CHARS]
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
    traces, turns = log_traces(run, results, **tags)
    run.metrics({"results_left_out": left_out, "mlflow_traces_left_out": traces, "mlflow_turns_left_out": turns})


def load_results(run: Run) -> list[Result]:
    """Return the results that a run has logged, with their examples. Raises :class:`TrackingError` if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        return read_results(run.fetch(RESULTS_FOLDER, folder))


def load_readings(
    experiment: Experiment, rows: pd.DataFrame, reader: str = "", chunks: int = 0
) -> dict[str, list[Result]]:
    """Load the readings that result rows describe, from the runs that the rows name.

    They are returned by the name of their policy, with the settings that varied. ``reader`` and ``chunks`` (the length)
    select rows; raises :class:`TrackingError` if none of a policy's readings is selected. Readings that did not fit
    into their run (:func:`log_readings`) are missing.
    """
    rows = keyed(rows)
    readings: dict[str, list[Result]] = {variant: [] for variant in rows["variant"].unique()}
    selected = rows[(rows["reader"] == reader) | (not reader)]
    selected = selected[(selected["chunks"] == chunks) | (not chunks)]
    for run_id, of_run in selected.groupby("run_id", sort=False):
        for variant, found in by_variant(load_results(experiment.join(run_id, deleted=True)), of_run).items():
            readings[variant] += found
    empty = [variant for variant, found in readings.items() if not found]
    if empty and (reader or chunks):
        errors = selected.loc[selected["variant"] == empty[0], "error"].dropna()
        why = f"the first of {len(errors):,} failed with: {errors.iloc[0]}" if len(errors) else "there are no such rows"
        raise TrackingError(f"no readings of {empty[0]!r} with reader {reader!r} and chunks {chunks}: {why}")
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


def log_agent(run: Run, agent: Agent, model: str, backend: str, **options: Any) -> None:
    """Log how to open an agent again, for :func:`agent_openers`, as the artifact ``agent.json``.

    ``model``, ``backend`` and ``options`` (such as ``tokenizer`` and ``api``) are what :func:`open_agent` was called
    with; prompts, sizes, sampling, and the server's address and request fields come from the agent itself.
    """
    encoder = agent.encoder
    arguments = encoder.tokenizer.chat_arguments
    settings = AgentSettings.of(encoder.template, encoder.budget, agent.reader.source, arguments, agent.on_bad_memory)
    opening = asdict(settings) | {"model": str(model), "backend": backend, "sampling": agent.identity["sampling"]}
    own = {name: getattr(agent.backend, name, None) for name in ("base_url", "extra", "window")}
    opening |= {name: value for name, value in (own | options).items() if value}
    run.text(json.dumps({"weights": agent.weights, "opening": opening}, indent=1, default=str), AGENT)


def agent_openers(experiment: Experiment, runs: Mapping[str, str]) -> dict[str, Callable[[], Agent]]:
    """Return a function for each name that opens the agent of its run, with the settings with which the run read.

    ``runs`` maps names to ids of runs. A run without ``agent.json``, of training or of an earlier version, has no
    function; a warning says so. The functions raise :class:`TrackingError` if the model has other weights now.
    """
    openers = {}
    for name, run_id in runs.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                text = experiment.join(run_id).fetch(AGENT, folder).read_text(encoding="utf-8")
        except TrackingError:
            _LOG.warning(
                "the run %s of %s does not record its agent, so its memories cannot be edited and read on; evaluate "
                "again, or give show(..., agents={%r: OPENER}) a function that opens one", run_id, name, name
            )  # fmt: skip
            continue
        openers[name] = partial(_open, **json.loads(text))
    return openers


def _open(weights: str, opening: Mapping[str, Any]) -> Agent:
    sampling = Sampling(**opening["sampling"])
    agent = open_agent(**(opening | {"template": Template.of(opening["template"]), "sampling": sampling}))
    if agent.weights != weights:
        agent.close()
        raise TrackingError(
            f"{opening['model']} has other weights now ({agent.weights}) than this run read with ({weights}); put them "
            "back, or evaluate again"
        )
    return agent
