"""verl's FSDP engine on a CPU: rows are laid out as trees, and nothing calls a GPU.

Without packing, verl computes every row in full, with logits of every prompt token, and takes logarithms in a Python
loop. This engine extends :class:`~memagent_lib.rl.verl.reply_engine.ReplyEngine`, which avoids both.

verl's workers import this module as ``actor_rollout_ref.model.external_lib``; importing it registers the engine for the
device ``cpu``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry

from memagent_lib.rl.cpu import weight_channel
from memagent_lib.rl.cpu.cpu_memory import return_freed_memory
from memagent_lib.rl.verl.reply_engine import ReplyEngine

weight_channel.use()  # verl imports this module in the process that sends the weights


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuEngine(ReplyEngine):
    """:class:`ReplyEngine` without pinned memory."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Build a reference model like any other. verl would offload it to the CPU, with memory pinned for a GPU."""
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config

    def get_per_tensor_param(self, **choices: Any) -> tuple[Any, Any]:
        """Return memory that the update has freed to the system, then the weights for vLLM.

        verl calls this once a step, before rollouts, which need memory in other processes.
        """
        return_freed_memory()
        return super().get_per_tensor_param(**choices)
