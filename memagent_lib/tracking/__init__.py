"""MLflow: one explicit store, its experiments and runs, and the results in them.

This package does not depend on notebooks or widgets.
"""

from memagent_lib.tracking.all_evaluations import different_kinds, evaluation_rows, leaderboard
from memagent_lib.tracking.choosing import choose, choose_readers, differing, evaluations, run_names
from memagent_lib.tracking.evaluations import (
    by_variant,
    evaluate_files,
    load_readings,
    load_results,
    log_readings,
    log_results,
    rows_file,
    settings_of,
)
from memagent_lib.tracking.frames import load_curve, load_inputs, load_runs
from memagent_lib.tracking.run_agents import agent_openers, log_agent
from memagent_lib.tracking.runs import PARENT_TAG, Experiment, Run, RunStatus, policy_name
from memagent_lib.tracking.saved_views import EVALUATIONS, KIND_TAG, READINGS, mlflow_page
from memagent_lib.tracking.store import MissingArtifact, TrackingError, sqlite_file, store_uri
from memagent_lib.tracking.traces import log_traces, search_traces

__all__ = [
    "EVALUATIONS",
    "KIND_TAG",
    "PARENT_TAG",
    "READINGS",
    "Experiment",
    "MissingArtifact",
    "Run",
    "RunStatus",
    "TrackingError",
    "agent_openers",
    "by_variant",
    "choose",
    "choose_readers",
    "different_kinds",
    "differing",
    "evaluate_files",
    "evaluation_rows",
    "evaluations",
    "leaderboard",
    "load_curve",
    "load_inputs",
    "load_readings",
    "load_results",
    "load_runs",
    "log_agent",
    "log_readings",
    "log_results",
    "log_traces",
    "mlflow_page",
    "policy_name",
    "rows_file",
    "run_names",
    "search_traces",
    "settings_of",
    "sqlite_file",
    "store_uri",
]  # fmt: skip
