"""MLflow: one explicit store, its experiments and runs, and the results in them.

This package does not depend on notebooks or widgets.
"""

from memagent_lib.tracking.all_evaluations import (
    choose,
    different_kinds,
    differing,
    evaluation_rows,
    leaderboard,
    run_names,
)
from memagent_lib.tracking.evaluations import (
    agent_openers,
    by_variant,
    evaluate_files,
    load_readings,
    load_results,
    log_agent,
    log_readings,
    log_results,
    rows_file,
    settings_of,
)
from memagent_lib.tracking.runs import (
    KIND_TAG,
    PARENT_TAG,
    Experiment,
    Run,
    RunStatus,
    load_curve,
    load_runs,
    mlflow_page,
    policy_name,
)
from memagent_lib.tracking.store import MissingArtifact, TrackingError, sqlite_file, store_uri
from memagent_lib.tracking.traces import log_traces

__all__ = [
    "KIND_TAG", "PARENT_TAG", "Experiment", "MissingArtifact", "Run", "RunStatus", "TrackingError", "agent_openers",
    "by_variant", "choose", "different_kinds", "differing", "evaluate_files", "evaluation_rows",
    "leaderboard", "load_curve", "load_readings", "load_results", "load_runs", "log_agent",
    "log_readings", "log_results", "log_traces", "mlflow_page", "policy_name", "rows_file", "run_names",
    "settings_of", "sqlite_file", "store_uri",
]  # fmt: skip
