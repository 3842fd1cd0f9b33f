"""verl's FSDP engine with logits of replies only: nine tenths of the trained tokens are prompt, and none of them is in
the loss.

verl computes logits of every token of a micro-batch. Over a vocabulary of 152,000 those of 16,384 tokens take 25 GB on
the way to their log-probabilities, more than a 7B model's weights. Here the output head sees the places before reply
tokens alone; losses and gradients are verl's, up to rounding, which the objective's test shows. verl's own path is
kept, and the log says so, for a model that cannot choose its places, unpacked rows, Ulysses, fused kernels and pads.

Imported by verl's workers as ``actor_rollout_ref.model.external_lib``; registers itself for NVIDIA's GPUs.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import memagent_lib.rl.loss  # noqa: F401  # registers the loss: external_lib names one module


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cuda", vendor="nvidia")
class ReplyEngine(FSDPEngineWithLMHead):
    """What :class:`FSDPEngineWithLMHead` computes, at the tokens that are trained on; zero elsewhere."""

    def _build_module(self) -> torch.nn.Module:
        module = super()._build_module()
        why = next((reason for reason, holds in self._in_the_way(module).items() if holds), None)
        self.replies_only = why is None
        if why:
            print(f"{type(module).__name__}: logits of every token are computed, because {why}")
        return module

    def _in_the_way(self, module: torch.nn.Module) -> dict[str, bool]:
        """What keeps verl's own path, and whether it holds."""
        return {
            "its forward pass takes no logits_to_keep": "logits_to_keep" not in signature(module.forward).parameters,
            "its head and loss are one kernel": self.model_config.use_fused_kernels,
        } | self._in_the_way_of_rows(module)

    def _in_the_way_of_rows(self, module: torch.nn.Module) -> dict[str, bool]:
        return {
            "its rows are not packed": not self.use_remove_padding,
            "its rows are cut over ranks": self.use_ulysses_sp,
            "its micro-batches are padded to one length": self.pad_to_length,
        }

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, args = super().prepare_model_inputs(micro_batch)
        if self.replies_only:
            inputs["logits_to_keep"] = before_replies(micro_batch)
        return inputs, args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        if not self.replies_only:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        return at_replies(self._reply_logits(output.logits, output_args), micro_batch)

    def _reply_logits(self, logits: torch.Tensor, output_args: dict[str, Any]) -> torch.Tensor:
        """Of what the model returned, a row for each reply token, in the order of the rows."""
        return logits.squeeze(0)


def before_replies(micro_batch: TensorDict) -> torch.Tensor:
    """Of each reply token, where the token before it stands in the packed rows: there it is predicted."""
    ends, lengths = micro_batch["input_ids"].offsets()[1:], micro_batch["responses"].offsets().diff()
    spans = zip(ends.tolist(), lengths.tolist(), strict=True)
    return torch.cat([torch.arange(end - n - 1, end - 1, device=ends.device) for end, n in spans])


def at_replies(logits: torch.Tensor, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
    """verl's model output from the logits of the reply tokens alone, (reply tokens, vocabulary)."""
    labels, offsets, places = micro_batch["responses"], micro_batch["input_ids"].offsets(), before_replies(micro_batch)
    lengths = labels.offsets().diff()
    temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32, device=logits.device)
    temperature = temperature.expand(len(lengths)).repeat_interleave(lengths)
    logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
    logs = (logits / temperature[:, None]).log_softmax(-1)

    def nested(values: torch.Tensor) -> torch.Tensor:
        flat = values.new_zeros(int(offsets[-1])).index_copy(0, places, values)
        return torch.nested.nested_tensor_from_jagged(flat, offsets)

    result = {"log_probs": nested(logs.gather(-1, labels.values()[:, None]).squeeze(-1))}
    if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
        result["entropy"] = nested(-(logs.exp() * logs).sum(-1))
    return result
