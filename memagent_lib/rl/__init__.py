"""Reinforcement learning of readers with verl: multi-conversation GRPO, on GPUs and on a bare CPU.

``config`` and ``verl_config`` say what a run is, ``agent_loop``, ``loss`` and ``trainer`` are what verl calls, ``cpu``
holds what only a CPU needs, ``run`` the processes around a run. Knows verl, vLLM and Ray, and loads none of them here.
Knows no notebook and no chart.
"""

from memagent_lib.rl.advantages import Credit, Overlong
from memagent_lib.rl.config import (
    ClusterConfig,
    DataConfig,
    ModelConfig,
    ReadingConfig,
    Recipe,
    TrackingConfig,
    TrainingConfig,
    flatten,
)
from memagent_lib.rl.plan import Plan, PlanError, dry_run
from memagent_lib.rl.run.folder import Checkpoint, RunFolder, TrainingState, TrainingStatus, keep_rollout, kept_rollouts
from memagent_lib.rl.run.launcher import launch, resolved
from memagent_lib.rl.run.training_run import RunError, TrainingRun, attach

__all__ = [
    "Checkpoint",
    "ClusterConfig",
    "Credit",
    "DataConfig",
    "ModelConfig",
    "Overlong",
    "Plan",
    "PlanError",
    "ReadingConfig",
    "Recipe",
    "RunError",
    "RunFolder",
    "TrackingConfig",
    "TrainingConfig",
    "TrainingRun",
    "TrainingState",
    "TrainingStatus",
    "attach",
    "dry_run",
    "flatten",
    "keep_rollout",
    "kept_rollouts",
    "launch",
    "resolved",
]
