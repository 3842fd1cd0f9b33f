"""Sweeps: run notebooks with papermill over a grid, a list of points or stages, and continue after any interruption.

Every point has its own MLflow run. Knows a notebook's parameters; does not know what it computes or writes.
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
