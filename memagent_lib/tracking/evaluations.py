"""Evaluations in MLflow: log results with the agent that read them, load both again, compare and tabulate them.

A run has its results in four forms: files of records (:mod:`memagent_lib.evaluation`), a table, metrics with the length
as their step, and MLflow traces. A server's key or password is never recorded. Scores of different judges, code or
documents are of different kinds. They stand in one table, marked, and those of different judges are never subtracted
from each other.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from memagent_lib.agent import Agent, open_agent
from memagent_lib.backends import Sampling
from memagent_lib.data import data_hash
from memagent_lib.errors import nearest
from memagent_lib.evaluation import (
    ALL_TASKS,
    COLUMNS,
    COSTS,
    RATE,
    STORED_BYTES,
    EvaluationPlan,
    ModelJudge,
    Result,
    by_judge,
    costs,
    evaluate_plan,
    keyed,
    question_columns,
    read_results,
    row_settings,
    save_rows,
    settings_in_words,
    summarise,
    to_frame,
    with_all_tasks,
    with_memory,
    write_results,
)
from memagent_lib.journal import digest
from memagent_lib.paths import absolute, display
from memagent_lib.prompts import Template
from memagent_lib.tracking.runs import Experiment, Run, load_runs, policy_name
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

RESULTS_FOLDER = "results"
ROWS = "results.parquet"
AGENT = "agent.json"
_MOST_NAME_CHARS = 60  # a character may take four of the 255 bytes that file systems have room for
_DATA = ["task", "file", "chunks"]
_LINE = ["run_id", "policy", "reader", "settings", "code"]
_GROUP = [*_DATA, "policy", "reader", "settings", "judge", "code", "run_id", "started"]
_COLUMNS = [*_DATA, "policy", "reader", "settings", *RATE, "failed", "unclear", "capture", "retention", *COSTS,
            "judge", "code", "documents", "started", "run_id"]  # fmt: skip
_LOG = logging.getLogger("memagent_lib")


def log_results(
    run: Run,
    results: Sequence[Result],
    model: str = "",
    columns: Mapping[str, Any] | None = None,
    **labels: Any,
) -> pd.DataFrame:
    """Log the rows, metrics and readings of an evaluation; return the rows with the labels as columns.

    ``score`` and ``seconds_per_reading`` are those of the first reader with a memory, or of the first one; the tag
    ``score_of`` names it. Other metrics but the counts are logged per reader, with the length in chunks as MLflow's
    step (0 if it is unknown). The rows get the ``columns``, such as those of :func:`settings_of` that distinguish
    evaluations in tables, the ``labels`` (such as ``policy="trained"``), which traces have too, and the ids of the run
    and of each reading's trace.
    """
    traces = [trace_id_of(run, result) for result in results]
    frame = to_frame(results).assign(**(columns or {}), **labels, run_id=run.id, trace_id=traces)
    if model:
        run.model(model)
    run.table(frame, ROWS)
    run.table(frame, Path(ROWS).with_suffix(".csv").name)  # which MLflow's page previews
    if "policy" in labels:
        run.tags({"policy": labels["policy"]})
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
    log_readings(run, results, **labels)
    return frame


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
    alone = settings_of(agent)
    shared = settings_of(agent, plan.shared_reading)["settings"]
    versions = {str(file): f"{digest(display(absolute(file)))[:8]} {data_hash(file)[:8]}" for file in plan.files}
    columns = alone | {
        "settings": [shared if result.sharing else alone["settings"] for result in results],
        "data": [versions.get(result.example.metadata.get("file")) for result in results],
    }
    if judge:
        columns |= judge.judge(results, readings, concurrency)
        run.tags({"model_judge": judge.name, "model_judge_prompt": judge.prompt_hash})
    rows = log_results(run, results, model, columns, policy=policy)
    rows.attrs["replaced"] = save_rows(rows, folder, rows_file(policy))
    return results, rows


def settings_of(agent: Agent, shared_reading: bool = False) -> dict[str, Any]:
    """Return the columns of result rows that tell evaluations of one policy and reader apart.

    ``settings`` has all settings that change replies; ``weights`` and ``wording`` are hashes of the model and of the
    prompts.
    """
    identity = agent.identity
    model = identity["model"]
    template = asdict(agent.encoder.template)
    settings = identity["budget"] | {"template": template.pop("name")}
    settings |= {name: value for name, value in identity["sampling"].items() if name != "seed"}
    if settings["temperature"]:  # greedy replies do not depend on the seed
        settings["sampling_seed"] = identity["sampling"]["seed"]
    for name in ("chat_template", "extra", "on_bad_memory"):
        if name in identity:
            settings[name] = identity[name]
    if shared_reading:
        settings["shared_reading"] = "once for all"
    return {
        "settings": row_settings(settings),
        "chunk_tokens": agent.encoder.budget.chunk_tokens,
        # Names of models often begin alike.
        "weights": (model if re.fullmatch("[0-9a-f]{16}", model) else digest(model))[:8],
        "wording": digest(json.dumps(template, sort_keys=True))[:8],
    }


def rows_file(policy: str) -> str:
    """Return the name of the file with the rows of ``policy``, without its suffix; no two policies share one."""
    name = "".join(c if c.isalnum() or c in "-_. " else "-" for c in policy)[:_MOST_NAME_CHARS]
    return name if name == policy else f"{name}-{digest(policy)[:6]}"


def log_readings(run: Run, results: Iterable[Result], limit_bytes: int = STORED_BYTES, **tags: Any) -> None:
    """Log readings to a run, as files of complete records and as MLflow traces, which may lack turns.

    The files take up at most ``limit_bytes`` in total; wrong and right readings alternate, so that both are present.
    Metrics count the readings and turns that were left out.
    """
    results = list(results)
    with tempfile.TemporaryDirectory() as folder:
        left_out = write_results(results, folder, limit_bytes)
        run.file(folder, RESULTS_FOLDER)
    traces, turns = log_traces(run, results, **tags)
    if left_out or traces:
        lacks = "of %s readings the MLflow run lacks the records of %s, and the traces of %s, which no search finds"
        _LOG.warning(lacks, len(results), left_out, traces)
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
        for variant, found in _by_variant(load_results(experiment.join(run_id, deleted=True)), of_run).items():
            readings[variant] += found
    empty = [variant for variant, found in readings.items() if not found]
    if empty and (reader or chunks):
        known = {name: rows[name].dropna().unique().tolist() for name in ("reader", "chunks")}
        raise TrackingError(f"no readings of {empty[0]!r} with reader {reader!r} and chunks {chunks}; there is {known}")
    return readings


def _by_variant(results: Iterable[Result], rows: pd.DataFrame) -> dict[str, list[Result]]:
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
    opening = {
        "template": encoder.template.saved,
        "budget": asdict(encoder.budget),
        "reader": agent.reader.source,
        "chat_template": encoder.tokenizer.chat_arguments,
        "on_bad_memory": agent.on_bad_memory,
        "model": str(model),
        "backend": backend,
        "sampling": agent.identity["sampling"],
    }
    own = {name: getattr(agent.backend, name, None) for name in ("base_url", "extra", "window", "threads")}
    opening |= {name: value for name, value in (own | options).items() if value}
    run.text(json.dumps({"weights": agent.weights, "opening": opening}, indent=1, default=str), AGENT)


def agent_openers(experiment: Experiment, runs: Mapping[str, str]) -> dict[str, Callable[[], Agent]]:
    """Return a function for each name that opens the agent of its run, with the settings with which the run read.

    ``runs`` maps names to ids of runs. A run without ``agent.json``, such as one of training, has no function; a
    warning says so. The functions raise :class:`TrackingError` if the model has other weights now.
    """
    openers = {}
    for name, run_id in runs.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                text = experiment.join(run_id).fetch(AGENT, folder).read_text(encoding="utf-8")
        except TrackingError:
            _LOG.warning("the run %s of %s does not record its agent: no memory of it can be edited", run_id, name)
            continue
        openers[name] = partial(_open, **json.loads(text))
    return openers


def _open(weights: str, opening: Mapping[str, Any]) -> Agent:
    sampling = Sampling(**opening["sampling"])
    agent = open_agent(**(opening | {"template": Template.of(opening["template"]), "sampling": sampling}))
    if agent.weights != weights:
        agent.close()
        raise TrackingError(f"{opening['model']} has other weights now ({agent.weights}) than this run read with")
    return agent


def run_names(experiment: Experiment, run_ids: Iterable[str]) -> dict[str, str]:
    """Return a name for each run, no two alike: its policy, and a part of the id if several runs have it.

    Raises :class:`TrackingError` if the store has no such run.
    """
    policies = {run_id: experiment.join(run_id).policy for run_id in run_ids}
    runs = Counter(policies.values())
    return {
        run_id: f"{policy}, run {run_id[:6]}" if runs[policy] > 1 else policy for run_id, policy in policies.items()
    }


def choose(
    experiment: Experiment, left: str, right: str = "", reader: str = "overwrite", other_reader: str = ""
) -> pd.DataFrame:
    """Return the result rows of two evaluations, those of ``reader`` in the left one and ``other_reader`` in the right.

    ``left`` and ``right`` name a run by the beginning of its id, or a policy or variant, of which the newest
    evaluations with a question in common are taken. Without ``right``, two readers of the left evaluation are compared;
    without ``other_reader``, one reader of two evaluations. The column ``line`` differs between the two, even if both
    evaluate the same policy.
    """
    rows, _ = evaluation_rows(experiment)
    other_reader = other_reader or reader
    for newer, older in product(*(_named(rows, name, experiment.uri) for name in (right or left, left))):
        pair = [rows[(rows["run_id"] == older) & (rows["reader"] == reader)]]
        pair.append(rows[(rows["run_id"] == newer) & (rows["reader"] == other_reader)])
        same = question_columns(*pair)
        if (newer, other_reader) != (older, reader) and len(pair[0].merge(pair[1][same], on=same)):
            both = pd.concat(pair, ignore_index=True)
            lines = [keyed(part)["line"].iloc[0] for part in pair]
            if lines[0] == lines[1] and not settings_in_words(both).any():  # nothing but the run tells them apart
                both["policy"] += " " + both["run_id"].str[:6]
            return keyed(both)
    unknown = [each for each in (reader, other_reader) if each not in set(rows["reader"])]
    near = nearest(unknown[0], rows["reader"].unique()) if unknown else ""
    readers = " and ".join(dict.fromkeys((reader, other_reader)))
    raise TrackingError(f"{left!r} and {right or left!r} have no question in common that {readers} has read{near}")


def _named(rows: pd.DataFrame, name: str, uri: str) -> list[str]:
    """Return the ids of the runs of a policy or variant, or that begin with ``name``, newest first."""
    runs = rows.drop_duplicates(["run_id", "policy"])
    found = runs[runs["policy"] == name]
    if found.empty and len(runs):
        variants = (runs["policy"] + ", " + settings_in_words(runs)).str.split(", ")
        found = runs[[name.startswith(parts[0]) and {*name.split(", ")} <= {*parts} for parts in variants]]
    if found.empty and name:  # a policy called "a" is not every run whose id begins so
        found = runs[runs["run_id"].str.startswith(name)]
    if found.empty:
        known = runs["policy"].unique()
        raise TrackingError(f"no evaluation {name!r} in {uri}; there are {list(known)}{nearest(name, known)}")
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
    rows = rows.assign(settings=settings_in_words(rows), code=rows["code"].str[:8])  # without the reader's own file
    rows = by_judge(with_all_tasks(rows, _LINE, ["file", "chunks"]))
    grouped = rows.groupby(_GROUP, dropna=False)
    documents = grouped[question_columns(rows)].apply(_hash_of_documents).rename("documents").reset_index()
    board = summarise(rows, _GROUP).drop(columns="turns")
    board = board.merge(costs(rows, _GROUP).drop(columns="n"), on=_GROUP, how="left").merge(documents, on=_GROUP)
    board = board.reindex(columns=[name for name in _COLUMNS if name in board]).assign(own=board["task"] != ALL_TASKS)
    order = ["own", "task", "chunks", "file", "documents", "judge", "code", "accuracy"]
    board = board.sort_values(order, ascending=[True] * 7 + [False], ignore_index=True).drop(columns="own")
    board.attrs["without_rows"] = without
    return board


def evaluation_rows(experiment: Experiment) -> tuple[pd.DataFrame, list[str]]:
    """Return the result rows of all evaluations, with ``policy``, ``run_id`` and ``started``; newest runs first.

    The second value has the ids of runs that have no table of rows.
    """
    frames = []
    without = []
    for run in load_runs(experiment, "metrics.scored > 0 and status = 'FINISHED'").to_dict("records"):
        found = experiment.join(run["run_id"])
        try:
            frames.append(found.read_table(ROWS).assign(run_id=found.id, policy=found.policy, started=run["started"]))
        except (ValueError, OSError):  # it is missing, or damaged
            without.append(found.id)
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run_id", "policy"])), without


def _hash_of_documents(rows: pd.DataFrame) -> str:
    pairs: list[tuple[Any, ...]] = sorted(set(rows.itertuples(index=False, name=None)))
    return digest("\0".join(map(str, pairs)))[:6]
