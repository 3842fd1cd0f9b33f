"""What only a bare CPU needs: platform, engine, rollout server, and a way for weights to reach vLLM.

verl loads those by module name. This door has what the rest of the room uses, and loads neither torch nor verl.
"""

from memagent_lib.rl.cpu.cpu_settings import (
    answer_for_vllm,
    cpu_environment,
    cpu_settings,
    require_platform,
    start_rollouts,
)

__all__ = ["answer_for_vllm", "cpu_environment", "cpu_settings", "require_platform", "start_rollouts"]
