"""Sweeps: papermill runs of notebooks over a grid, a list of points or stages; resumable, and one MLflow run per point.

Knows notebooks by their parameters only: what they compute and where their results go is theirs.
"""

from memagent_lib.workbench.sweep.runner import (
    SweepResult,
    gather_sweep,
    is_sweep,
    run_sweep,
    show_sweep,
    unfinished_points,
)
from memagent_lib.workbench.sweep.specification import SweepError, SweepPoint, SweepSpec, SweepStage

__all__ = [
    "SweepError",
    "SweepPoint",
    "SweepResult",
    "SweepSpec",
    "SweepStage",
    "gather_sweep",
    "is_sweep",
    "run_sweep",
    "show_sweep",
    "unfinished_points",
]
