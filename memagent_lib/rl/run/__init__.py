"""A training run as processes: checks and plan before it, launcher, supervisor and trainer during it, export after it.

``supervisor`` and ``training_process`` are programs of their own; nothing imports them. Knows no algorithm.
"""

from memagent_lib.rl.run.launcher import launch, resolved
from memagent_lib.rl.run.self_check import check_training, random_policy
from memagent_lib.rl.run.training_plan import PlanError, TrainingPlan, dry_run
from memagent_lib.rl.run.training_run import RunError, TrainingRun, attach

__all__ = [
    "PlanError",
    "RunError",
    "TrainingPlan",
    "TrainingRun",
    "attach",
    "check_training",
    "dry_run",
    "launch",
    "random_policy",
    "resolved",
]
