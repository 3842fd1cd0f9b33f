"""MLflow: one explicit store, its experiments and runs, what an evaluation leaves. Knows no notebook, no widget."""

from memagent_lib.tracking.evaluations import (
    Pair,
    choose,
    evaluate_files,
    evaluations,
    load_readings,
    load_results,
    load_turns,
    log_readings,
    log_results,
    policy_name,
    rows_file,
)
from memagent_lib.tracking.frames import load_curve, load_runs
from memagent_lib.tracking.runs import PARENT_TAG, Experiment, Run, RunStatus, flatten
from memagent_lib.tracking.store import TrackingError, store_uri
from memagent_lib.tracking.traces import log_traces, search_traces

__all__ = [
    "PARENT_TAG",
    "Experiment",
    "Pair",
    "Run",
    "RunStatus",
    "TrackingError",
    "choose",
    "evaluate_files",
    "evaluations",
    "flatten",
    "load_curve",
    "load_readings",
    "load_results",
    "load_runs",
    "load_turns",
    "log_readings",
    "log_results",
    "log_traces",
    "policy_name",
    "rows_file",
    "search_traces",
    "store_uri",
]  # fmt: skip
