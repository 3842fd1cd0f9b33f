"""Sweeps: papermill runs of notebooks over a grid, a list of points or stages; resumable, and one MLflow run per point.

Knows notebooks by their parameters only: what they compute and where their results go is theirs.
"""

from memagent_lib.sweeps.runner import (
    gather_sweep,
    is_sweep,
    run_sweep,
    show_sweep,
    unfinished_points,
)
from memagent_lib.sweeps.specification import SweepError, SweepSpec, SweepStage

__all__ = [
    "SweepError",
    "SweepSpec",
    "SweepStage",
    "gather_sweep",
    "is_sweep",
    "run_sweep",
    "show_sweep",
    "unfinished_points",
]
