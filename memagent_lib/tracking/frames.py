"""Read runs back as tidy frames: a row per run, or a row per measured number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from memagent_lib.tracking.runs import PARENT_TAG, Experiment, Run, allowed_name
from memagent_lib.tracking.store import all_pages, with_retries


def load_runs(experiment: Experiment, where: str = "") -> pd.DataFrame:
    """Return one row per run, newest first.

    Columns: ``run_id, name, status, started, seconds, parent``, then every ``data.*`` (the hashes of the files of that
    name), ``metrics.*``, ``params.*`` and ``tags.*`` (except MLflow's own). ``where`` is in MLflow's filter language,
    such as ``"params.model = 'x'"``.
    """
    query = {"max_results": 1000, "order_by": ["start_time DESC"]}
    found = all_pages(experiment.client.search_runs, [experiment.experiment_id], where, **query)
    rows = [_run_row(run) for run in found]
    first = ["run_id", "name", "status", "started", "seconds", "parent"]
    # Runs have different parameters and metrics, so the columns are those of all runs.
    return pd.DataFrame(rows, columns=first + sorted(set().union(*rows) - set(first)))


def load_curve(run: Run, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Return a run's metrics at each step in long form, one row per value. By default, all metrics are returned.

    Columns: ``run_id, metric, step, value, seconds`` (since the run began).
    """
    client = run.experiment.client
    stored = with_retries(client.get_run, run.id)
    rows = []
    for name in metrics or sorted(stored.data.metrics):
        history = with_retries(client.get_metric_history, run.id, allowed_name(name))
        rows += [(run.id, m.key, m.step, m.value, (m.timestamp - stored.info.start_time) / 1000) for m in history]
    frame = pd.DataFrame(rows, columns=["run_id", "metric", "step", "value", "seconds"])
    return frame.sort_values(["metric", "step", "seconds"], ignore_index=True)


def load_inputs(run: Run) -> pd.DataFrame:
    """Return the data files that a run has logged (:meth:`Run.data`), a row per file and use: ``name, hash, use``."""
    inputs = with_retries(run.experiment.client.get_run, run.id).inputs.dataset_inputs
    rows = [
        (seen.dataset.name, seen.dataset.digest, tag.value)
        for seen in inputs
        for tag in seen.tags
        if tag.key == "mlflow.data.context"
    ]
    return pd.DataFrame(rows, columns=["name", "hash", "use"])


def _run_row(run: Any) -> dict[str, Any]:
    info = run.info
    data = run.data
    row = {
        "run_id": info.run_id,
        "name": info.run_name,
        "status": info.status,
        "started": pd.Timestamp(info.start_time, unit="ms", tz="UTC"),
        "seconds": (info.end_time - info.start_time) / 1000 if info.end_time else None,  # MLflow has milliseconds
        "parent": data.tags.get(PARENT_TAG),
    }
    for dataset in (seen.dataset for seen in run.inputs.dataset_inputs):
        name = f"data.{dataset.name}"  # files of several folders may share it
        row[name] = ", ".join(filter(None, (row.get(name), dataset.digest)))
    row |= {f"params.{name}": value for name, value in data.params.items()}
    row |= {f"metrics.{name}": value for name, value in data.metrics.items()}
    return row | {f"tags.{name}": value for name, value in data.tags.items() if not name.startswith("mlflow.")}
