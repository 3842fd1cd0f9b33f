"""What only a bare CPU needs: a platform, an engine, a way for weights to reach vLLM, which verl loads by name.

Behind this door is what everybody else may ask for; it loads neither torch nor verl.
"""

from memagent_lib.rl.cpu.cpu_settings import (
    answer_for_vllm,
    cpu_environment,
    cpu_settings,
    require_platform,
    start_rollouts,
)

__all__ = ["answer_for_vllm", "cpu_environment", "cpu_settings", "require_platform", "start_rollouts"]
