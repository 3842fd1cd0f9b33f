"""MLflow: one explicit store, its experiments and runs, and the results in them.

This package does not depend on notebooks or widgets.
"""

from memagent_lib.tracking.evaluations import (
    agent_openers,
    choose,
    differing,
    evaluate_files,
    evaluation_rows,
    leaderboard,
    load_readings,
    load_results,
    log_agent,
    log_readings,
    log_results,
    run_names,
    settings_of,
)
from memagent_lib.tracking.runs import PARENT_TAG, Experiment, Run, RunStatus, load_runs, policy_name
from memagent_lib.tracking.store import MissingArtifact, TrackingError, store_uri

__all__ = [
    "PARENT_TAG",
    "Experiment",
    "MissingArtifact",
    "Run",
    "RunStatus",
    "TrackingError",
    "agent_openers",
    "choose",
    "differing",
    "evaluate_files",
    "evaluation_rows",
    "leaderboard",
    "load_readings",
    "load_results",
    "load_runs",
    "log_agent",
    "log_readings",
    "log_results",
    "policy_name",
    "run_names",
    "settings_of",
    "store_uri",
]
