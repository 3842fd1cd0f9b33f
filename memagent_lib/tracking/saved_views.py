"""Saved views of an experiment in MLflow's pages: evaluations, trainings and readings apart, useful columns first.

MLflow stores a view as a tag of the experiment, lists it under *Views*, and opens it from a link. A view is a filter
with columns, so it also covers runs that earlier versions have logged. MLflow 3.17 defines the format in its
JavaScript alone.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memagent_lib.paths import absolute
from memagent_lib.tracking.store import client_of, store_uri

if TYPE_CHECKING:
    from mlflow.entities import Experiment as StoredExperiment

KIND_TAG = "memagent.kind"
"""The tag of runs that change a model: ``train`` or ``sft``."""
EVALUATIONS = "runs?viewStateShareKey=memagent-evaluations"
# A link to a view of traces needs its period too, because MLflow's default is the last seven days.
READINGS = "traces?startTimeLabel=ALL&traceViewShareKey=memagent-readings"
_CREATED_MS = 1_767_225_600_000  # 2026-01-01; with the current time, every process would write the tags again


def save_views(uri: str, stored: StoredExperiment) -> None:
    """Add the views to an experiment, or update them; change nothing if they are up to date.

    Without permission to change the experiment, it remains without views.
    """
    from mlflow.exceptions import MlflowException

    for tag, view in _views().items():
        if stored.tags.get(tag) != view:
            with suppress(MlflowException):  # a view is no reason to refuse a store
                client_of(uri).set_experiment_tag(stored.experiment_id, tag, view)


def mlflow_page(uri: str, page: str) -> str:
    """Return where a person opens a page of MLflow, such as ``runs``: its address, and the command that serves it.

    A store behind a server needs no command.
    """
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/#/{page}"
    served_by = f"mlflow server --backend-store-uri {shlex.quote(uri)}"
    if uri == store_uri(absolute("runs")):
        served_by = "memagent lab"
    return f"http://127.0.0.1:5000/#/{page} while `{served_by}` runs"


def _views() -> dict[str, str]:
    """Return MLflow's tags for the views."""
    evaluations = _runs_state(
        "metrics.scored >= 0",
        {
            "metrics.`score`": 100,
            "tags.`policy`": 130,
            "tags.`readers`": 110,
            "tags.`lengths`": 90,
            "metrics.`seconds_per_reading`": 180,
            "metrics.`scored`": 80,
            "metrics.`failed`": 75,
        },
    )
    trainings = _runs_state(
        f"tags.`{KIND_TAG}` != ''",
        {
            "metrics.`critic/score/mean`": 140,
            "params.`model.path`": 240,
            "params.`reading.reader`": 130,
            "metrics.`actor/entropy`": 120,
            "metrics.`loss`": 100,
        },
    )
    readings = {
        "single": {
            "cols": "assessment:score,run_name,input,output,duration,tokens,start_time",
            "startTimeLabel": "ALL",
        },
        "multi": {},
        "assessmentColumns": {"answer": False},
    }
    return {
        "mlflow.sharedViewState.memagent-evaluations": _view("Evaluations", evaluations),
        "mlflow.sharedViewState.memagent-trainings": _view("Trainings", trainings),
        "mlflow.tracesV4ViewState.memagent-readings": _view("Readings", readings),
    }


def _runs_state(where: str, columns: Mapping[str, int]) -> dict[str, Any]:
    """Return a view of the table of runs, newest first. The columns have their widths in pixels."""
    return {
        "searchFilter": where,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": dict(columns),
    }


def _view(title: str, state: Mapping[str, Any]) -> str:
    times = {"createdAt": _CREATED_MS, "updatedAt": _CREATED_MS}
    return json.dumps({"name": title, **times, "state": json.dumps(state)})
