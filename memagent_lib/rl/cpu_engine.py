"""verl's FSDP engine for a CPU: log-probabilities of replies only, each in one vectorised pass.

verl's unpacked path computes logits of every prompt token and takes their logarithms token by token in Python. A reader's
prompts are an order of magnitude longer than its replies, so on a CPU that is most of the time of an update. Here rows end
together (padding on the left), the model is asked for the logits of the tail alone, and nothing is looped over.

Imported by verl's workers as ``actor_rollout_ref.model.external_lib``; registers itself for the device ``cpu``.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import memagent_lib.rl.loss  # noqa: F401  # registers the loss: external_lib names one module


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuEngine(FSDPEngineWithLMHead):
    """What :class:`FSDPEngineWithLMHead` computes, at the positions that are trained on; zero elsewhere."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        ids, replies = micro_batch["input_ids"], micro_batch["responses"].offsets().diff()
        padded, shown, positions = left_padded(ids.values(), ids.offsets().diff())
        longest = int(replies.max())
        inputs = {"input_ids": padded, "attention_mask": shown.long(), "position_ids": positions, "logits_to_keep": longest + 1}
        temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32).expand(len(replies))
        return inputs, {"labels": padded[:, -longest:], "replies": replies, "temperature": temperature, "offsets": ids.offsets()}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        replies, offsets = output_args["replies"], output_args["offsets"]
        longest = output_args["labels"].shape[1]
        trained = torch.arange(longest) >= longest - replies[:, None]
        logits = output.logits[:, :-1][trained] / output_args["temperature"].repeat_interleave(replies)[:, None]
        labels = output_args["labels"][trained]
        # verl shifts by one: the log-probability of a token stands where the token before it is.
        places = (offsets[1:, None] - longest + torch.arange(longest) - 1)[trained]
        logs = logits.log_softmax(-1)
        result = {"log_probs": _nested(logs.gather(-1, labels[:, None]).squeeze(-1), places, offsets)}
        if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            result["entropy"] = _nested(-(logs.exp() * logs).sum(-1), places, offsets)
        return result


def _nested(values: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    flat = values.new_zeros(int(offsets[-1])).index_copy(0, places, values)
    return torch.nested.nested_tensor_from_jagged(flat, offsets)


def left_padded(values: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of ``lengths`` laid end to end, as (rows, longest) with padding in front; which places are shown; positions."""
    start = int(lengths.max()) - lengths[:, None]
    columns = torch.arange(int(lengths.max()))
    shown = columns >= start
    padded = values.new_zeros(shown.shape)
    padded[shown] = values
    return padded, shown, (columns - start).clamp(min=0)
