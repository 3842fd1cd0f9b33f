"""Sweeps: run notebooks with papermill over a grid, a list of points or stages, and continue after any interruption.

Every point has its own MLflow run. A sweep uses only a notebook's parameters, whatever the notebook computes.
"""

from memagent_lib.sweeps.runner import gather_sweep, is_sweep, run_sweep, store_of_sweep, sweep_frame
from memagent_lib.sweeps.specification import SweepError, SweepSpec, SweepStage

__all__ = [
    "SweepError",
    "SweepSpec",
    "SweepStage",
    "gather_sweep",
    "is_sweep",
    "run_sweep",
    "store_of_sweep",
    "sweep_frame",
]
