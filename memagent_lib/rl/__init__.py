"""Reinforcement learning of readers with verl: multi-conversation GRPO, on GPUs and on a bare CPU.

``config``, ``verl_config`` and ``training_plan`` say what a run is and needs, ``run_folder`` what it leaves on disk;
``agent_loop``, ``advantages``, ``loss``, ``reply_engine`` and ``trainer`` are what verl calls; ``cpu`` holds what only
a CPU needs, ``run`` the processes around a run; ``self_check`` trains to look at a machine. Knows verl, vLLM and Ray,
and loads none of them here. Knows no notebook and no chart.
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
from memagent_lib.rl.run import (
    PlanError,
    RunError,
    TrainingPlan,
    TrainingRun,
    attach,
    check_training,
    dry_run,
    launch,
    random_policy,
    resolved,
)
from memagent_lib.rl.run_folder import Checkpoint, RunFolder, TrainingState, TrainingStatus, load_rollouts, save_rollout

__all__ = [
    "Checkpoint",
    "ClusterConfig",
    "Credit",
    "DataConfig",
    "ModelConfig",
    "Overlong",
    "PlanError",
    "ReadingConfig",
    "Recipe",
    "RunError",
    "RunFolder",
    "TrackingConfig",
    "TrainingConfig",
    "TrainingPlan",
    "TrainingRun",
    "TrainingState",
    "TrainingStatus",
    "attach",
    "check_training",
    "dry_run",
    "flatten",
    "launch",
    "load_rollouts",
    "random_policy",
    "resolved",
    "save_rollout",
]
