"""What training needs only on a machine without a GPU: platform, engine, rollout server, weight channel.

verl loads these modules by name. This ``__init__`` exports the functions that the rest of ``rl`` calls, and loads
neither torch nor verl.
"""

from memagent_lib.rl.cpu.cpu_memory import (
    FIT_SETTINGS,
    CpuFit,
    fit_of,
    memory_of,
    require_free,
)
from memagent_lib.rl.cpu.cpu_settings import (
    answer_for_vllm,
    computes_in_half,
    cpu_environment,
    cpu_settings,
    require_platform,
    start_rollouts,
)

__all__ = [
    "FIT_SETTINGS",
    "CpuFit",
    "answer_for_vllm",
    "computes_in_half",
    "cpu_environment",
    "cpu_settings",
    "fit_of",
    "memory_of",
    "require_free",
    "require_platform",
    "start_rollouts",
]
