"""Sweeps: papermill runs notebooks over a grid, a list of points or stages, one MLflow run per point, resumable.

Knows a notebook's parameters. Knows nothing of what it computes or where its results go.
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
