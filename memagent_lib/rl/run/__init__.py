"""A training run as processes: launcher, supervisor, and the process that trains. Knows no algorithm.

``supervisor`` and ``training_process`` are programs of their own: nothing imports them.
"""

from memagent_lib.rl.run.checks import window_checked
from memagent_lib.rl.run.export import weights_of, whole_weights
from memagent_lib.rl.run.launcher import chosen_device, launch, resolved
from memagent_lib.rl.run.training_run import RunError, TrainingRun, attach

__all__ = [
    "RunError",
    "TrainingRun",
    "attach",
    "chosen_device",
    "launch",
    "resolved",
    "weights_of",
    "whole_weights",
    "window_checked",
]
