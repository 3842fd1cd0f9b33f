"""The processes of a training run: checks before it, supervisor and trainer during, export after.

``supervisor`` and ``training_process`` are programs; nothing imports them. The algorithm is not in this package.
"""

from memagent_lib.rl.run.checks import chosen_device, dry_run, require_training, resolved
from memagent_lib.rl.run.export import ExportError, export_checkpoint
from memagent_lib.rl.run.training_run import TrainingRun, attach, launch

__all__ = [
    "ExportError",
    "TrainingRun",
    "attach",
    "chosen_device",
    "dry_run",
    "export_checkpoint",
    "launch",
    "require_training",
    "resolved",
]
