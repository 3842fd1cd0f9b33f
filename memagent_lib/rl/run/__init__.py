"""The processes of a training run: checks and plan before it, launcher, supervisor and trainer during, export after.

``supervisor`` and ``training_process`` are programs; nothing imports them. The algorithm is not in this package.
"""

from memagent_lib.rl.run.checks import require_training, resolved
from memagent_lib.rl.run.export import ExportError, export_checkpoint
from memagent_lib.rl.run.launcher import chosen_device, launch
from memagent_lib.rl.run.training_plan import PlanError, TrainingPlan, dry_run
from memagent_lib.rl.run.training_run import RunError, TrainingRun, attach

__all__ = [
    "ExportError",
    "PlanError",
    "RunError",
    "TrainingPlan",
    "TrainingRun",
    "attach",
    "chosen_device",
    "dry_run",
    "export_checkpoint",
    "launch",
    "require_training",
    "resolved",
]
