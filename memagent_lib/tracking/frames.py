"""Runs read back as tidy frames: a row per run, a row per measured number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memagent_lib.tracking.runs import PARENT_TAG, Experiment, Run, metric_name
from memagent_lib.tracking.store import with_retries

if TYPE_CHECKING:
    import pandas as pd


def load_runs(experiment: Experiment, where: str = "") -> pd.DataFrame:
    """One row per run, newest first: ``run_id, name, status, started, seconds, parent``, then every ``data.*`` (a
    file's hash), ``metrics.*``, ``params.*`` and ``tags.*``.

    ``where`` is MLflow's filter language, as in ``"params.model = 'x' and metrics.score > 0.5"``.
    """
    import pandas as pd

    rows, token = [], None
    while True:
        page = with_retries(
            experiment.client.search_runs,
            [experiment.experiment_id],
            where,
            max_results=1000,
            order_by=["start_time DESC"],
            page_token=token,
        )
        rows += [_run_row(run) for run in page]
        if not (token := page.token):
            break
    first = ["run_id", "name", "status", "started", "seconds", "parent"]
    frame = pd.DataFrame(rows)
    return frame[first + sorted(set(frame.columns) - set(first))] if rows else pd.DataFrame(columns=first)


def load_curve(run: Run, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """A run's metrics over its steps, long form: ``run_id, metric, step, value, seconds`` since the run began."""
    import pandas as pd

    client = run.experiment.client
    stored = with_retries(client.get_run, run.id)
    rows = []
    for name in metrics or sorted(stored.data.metrics):
        history = with_retries(client.get_metric_history, run.id, metric_name(name))
        rows += [(run.id, m.key, m.step, m.value, (m.timestamp - stored.info.start_time) / 1000) for m in history]
    frame = pd.DataFrame(rows, columns=["run_id", "metric", "step", "value", "seconds"])
    return frame.sort_values(["metric", "step", "seconds"], ignore_index=True)


def _run_row(run: Any) -> dict[str, Any]:
    import pandas as pd

    info, data = run.info, run.data
    row = {
        "run_id": info.run_id,
        "name": info.run_name,
        "status": info.status,
        "started": pd.Timestamp(info.start_time, unit="ms", tz="UTC"),
        "seconds": (info.end_time - info.start_time) / 1000 if info.end_time else None,
        "parent": data.tags.get(PARENT_TAG),
    }
    tags = {f"tags.{k}": v for k, v in data.tags.items() if not k.startswith("mlflow.")}
    row |= {f"data.{seen.dataset.name}": seen.dataset.digest for seen in run.inputs.dataset_inputs}
    return (
        row
        | {f"params.{k}": v for k, v in data.params.items()}
        | {f"metrics.{k}": v for k, v in data.metrics.items()}
        | tags
    )
