"""Evaluations in MLflow: what is logged of results, reading it back, and choosing two evaluations that can be compared.

A run keeps its results as the file of records that an evaluation writes (:mod:`memagent_lib.evaluation`), as a table,
as metrics with the length as their step, and as MLflow traces. Knows runs and results; knows no notebook.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import Agent
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
    turns_to_frame,
    write_results,
)  # fmt: skip
from memagent_lib.files import place
from memagent_lib.tracking.frames import load_runs
from memagent_lib.tracking.runs import Experiment, Run
from memagent_lib.tracking.store import TrackingError
from memagent_lib.tracking.traces import log_traces, trace_id_of

if TYPE_CHECKING:
    import pandas as pd

RESULTS_FOLDER, ROWS = "results", "results.parquet"
_TRIED = 30
_METRICS = ("accuracy", "low", "high", "capture", "retention")


def log_results(run: Run, results: Sequence[Result], model: str = "", **labels: Any) -> pd.DataFrame:
    """Log an evaluation: its rows, a metric per reader with the length as its step, its readings. Returns the rows,
    labelled.

    With ``model`` the metrics are also those of the MLflow model with its weights. The step counts chunks, and is 0 for
    documents whose length was not asked for in chunks. ``labels`` become columns (``policy="trained"``), and ``run_id``
    is one of them, so a table of many runs says where each row is from.
    """
    traces = [trace_id_of(run, result) for result in results]
    frame = to_frame(results).assign(**labels, run_id=run.id, trace_id=traces)
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
    results = evaluate_plan(agent, plan, place(folder) / "readings", concurrency)
    rows = log_results(run, results, model, policy=policy, chunk_tokens=agent.encoder.budget.chunk_tokens)
    save_rows(rows, folder, rows_file(policy), add)
    return results, rows


def policy_name(model: str) -> str:
    """What a model is called unless told otherwise: its folder's or hub name's last part. Every training run leaves its
    policy in a folder called ``model``; the run's own two names tell those apart.
    """
    *folders, last = Path(model).parts
    return "/".join(folders[-2:]) if last == "model" and folders else last


def rows_file(policy: str) -> str:
    """The name under which a policy's rows are kept, without its ending."""
    return "".join(c if c.isalnum() or c in "-_. " else "-" for c in policy)


def log_readings(run: Run, results: Iterable[Result], limit_bytes: int = 64 << 20, **tags: Any) -> int:
    """Log readings: whole, as the file of their records, wrong and right ones in turn until the limit; and as MLflow
    traces, thinned.

    What was left out of each is a metric. Returns how many of the whole ones were.
    """
    results = list(results)
    with tempfile.TemporaryDirectory() as folder:
        left_out = write_results(results, folder, limit_bytes)
        run.file(folder, RESULTS_FOLDER)
    thinned = log_traces(run, results, **tags)
    counts = {"mlflow_traces_left_out": thinned.traces, "mlflow_turns_left_out": thinned.turns}
    run.metrics({"results_left_out": left_out} | counts)
    return left_out


def load_results(run: Run) -> list[Result]:
    """The results that a run kept, with examples and documents."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return read_results(run.fetch(RESULTS_FOLDER, folder))
        except TrackingError as failure:
            raise TrackingError(f"run {run.id} kept no results; runs of 03_evaluate and of training do") from failure


def load_turns(run: Run) -> pd.DataFrame:
    """One row per turn of every reading that a run kept; see :func:`memagent_lib.evaluation.turns_to_frame`."""
    return turns_to_frame(load_results(run)).assign(run_id=run.id)


def load_readings(experiment: Experiment, rows: pd.DataFrame, reader: str, chunks: int) -> dict[str, list[Result]]:
    """Each policy's readings of one length with one reader, from the runs that the result rows name."""
    readings = {}
    for policy, of_policy in rows.groupby("policy", sort=False):
        found = [r for run_id in of_policy["run_id"].unique() for r in load_results(experiment.join(run_id))]
        readings[policy] = [r for r in found if _is_of(r, reader, chunks)]
        if not readings[policy]:
            lengths = ", ".join(map(str, sorted(of_policy["chunks"].unique())))
            readers = ", ".join(sorted(of_policy["reader"].unique()))
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


@dataclass(frozen=True)
class Pair:
    """Two runs that read some documents in common, each with the name that tables and figures call it."""

    left: Run
    right: Run
    names: tuple[str, str]

    def rows(self) -> pd.DataFrame:
        """The result rows of both; ``policy`` is the name."""
        import pandas as pd

        return pd.concat([_rows(run).assign(policy=name) for run, name in zip(self, self.names, strict=True)])

    def readings(self, reader: str, chunks: int) -> tuple[list[Result], list[Result]]:
        """The readings of one length that each run kept."""
        left, right = ([r for r in load_results(run) if _is_of(r, reader, chunks)] for run in self)
        return left, right

    def differing(self) -> pd.DataFrame:
        """The parameters in which the runs differ, a row each."""
        runs = load_runs(self.left.experiment).set_index("run_id").loc[[run.id for run in self]]
        params = runs.filter(like="params.").rename(columns=lambda name: name.removeprefix("params.")).fillna("").T
        params.columns = list(self.names)
        return params[params[self.names[0]] != params[self.names[1]]].rename_axis("parameter")

    def __iter__(self):
        return iter((self.left, self.right))


def choose(experiment: Experiment, left: str = "", right: str = "", reader: str = "overwrite") -> Pair:
    """The two newest evaluations that have read documents, of a length in chunks, in common.

    ``left`` and ``right`` narrow the choice to a run (its id or the beginning of it) or to the runs of a policy.
    """
    runs = evaluations(experiment)
    recent = runs.head(_TRIED).to_dict("records")
    lefts = _named(runs, left) if left else recent
    rights = _named(runs, right) if right else recent

    @cache
    def read(run_id: str) -> frozenset[tuple]:
        rows = _rows(experiment.join(run_id))
        told = rows[(rows["reader"] == reader) & rows["score"].notna() & rows["chunks"].notna()]
        return frozenset(told[SAME].itertuples(index=False, name=None))

    for b, a in product(rights, lefts):
        if a["run_id"] != b["run_id"] and read(a["run_id"]) & read(b["run_id"]):
            return _pair(experiment, a, b)
    named = f"{left or 'any run'!r} and {right or 'any other'!r}"
    fix = "evaluate two policies on the same data with 03_evaluate"
    raise TrackingError(f"{named} have read no document in common with the reader {reader!r}; {fix}")


def _is_of(result: Result, reader: str, chunks: int) -> bool:
    return result.trace is not None and result.reader == reader and result.example.metadata.get("chunks") == chunks


def _named(runs: pd.DataFrame, name: str) -> list[dict]:
    found = runs[(runs["policy"] == name) | runs["run_id"].str.startswith(name)]
    if found.empty:
        known = ", ".join(f"{policy!r}" for policy in runs["policy"].unique()) or "none"
        raise TrackingError(
            f"no evaluation {name!r}; there are {known}; run 03_evaluate, or give the id of one of its runs"
        )
    return found.head(_TRIED).to_dict("records")


def _pair(experiment: Experiment, left: dict, right: dict) -> Pair:
    names = [run["policy"] for run in (left, right)]
    if names[0] == names[1]:
        names = [f"{run['policy']} {run['run_id'][:6]}" for run in (left, right)]
    return Pair(experiment.join(left["run_id"]), experiment.join(right["run_id"]), (names[0], names[1]))


def _rows(run: Run) -> pd.DataFrame:
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        return pd.read_parquet(run.fetch(ROWS, folder))
