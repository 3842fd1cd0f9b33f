"""Reinforcement learning of readers with verl: multi-conversation GRPO, on GPUs and on a bare CPU.

``config`` and ``verl_config`` say what a run is, ``agent_loop``, ``loss`` and ``trainer`` are what verl calls, ``cpu``
holds what only a CPU needs, ``run`` the processes around a run. Knows verl, vLLM and Ray, and loads none of them here.
Knows no notebook and no chart.
"""

from memagent_lib.rl.config import (
    DataConfig,
    ModelConfig,
    ReadingConfig,
    Recipe,
    TrackingConfig,
    TrainingConfig,
    flatten,
)
from memagent_lib.rl.run.folder import Checkpoint, RunFolder, TrainingState, TrainingStatus, keep_rollout, kept_rollouts
from memagent_lib.rl.run.launcher import RunError, TrainingRun, attach, launch, resolved

__all__ = [
    "Checkpoint",
    "DataConfig",
    "ModelConfig",
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
    "flatten",
    "keep_rollout",
    "kept_rollouts",
    "launch",
    "resolved",
]
