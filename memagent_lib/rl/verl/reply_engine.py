"""verl's FSDP engine, changed to compute only the logits of reply tokens, and prefixes shared by rows only once.

verl computes logits of every token of a micro-batch. With a vocabulary of 152,000, the logits of 16,384 tokens and
their log-probabilities take 25 GB, more than a 7B model's weights. Nine tenths of the tokens are prompt tokens, which
are not in the loss; here the output head sees only the positions that predict reply tokens.

Packed rows (``use_remove_padding``) are laid end to end, as in verl, for flash-attention. Rows that are not packed are
laid out as trees (:mod:`memagent_lib.rl.verl.prefix_trees`), which have an attention of their own. In both layouts,
losses and gradients equal verl's up to rounding; ``tests/rl/test_objective.py`` checks it. If neither can be used
(sliding windows, fused kernels, Ulysses, padding), verl computes all logits by itself, and the log gives the reason.

verl's workers import this module as ``actor_rollout_ref.model.external_lib``; importing it registers the engine for
NVIDIA's GPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from tensordict import NonTensorStack, TensorDict
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.utils import postprocess_batch_func

import memagent_lib.rl.loss  # noqa: F401  # registers the loss: external_lib names one module
from memagent_lib.models import merged_weights
from memagent_lib.rl.verl.prefix_trees import TREES, attends_to_everything, blocks, forest, micro_batches, prefix_trees


def switch_dropout_off(module: torch.nn.Module) -> None:
    """Set every rate of dropout in a model to 0: of layers, and those that attention passes to its kernel."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, 0.0)


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cuda", vendor="nvidia")
class ReplyEngine(FSDPEngineWithLMHead):
    """Computes what :class:`FSDPEngineWithLMHead` does, but for reply tokens only; all other tokens get zero.

    For a model or setting that rules this out, it leaves the work to that class.
    """

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Choose between reply logits and verl's own path, and switch off dropout, which only the update would have."""
        base = module.get_base_model() if self._is_lora else module
        why = next((reason for reason, applies in self._in_the_way(base).items() if applies), None)
        self.replies_only = why is None
        self.in_trees = self.replies_only and not self.use_remove_padding
        if why:
            print(f"{type(base).__name__}: logits of every token are computed, because {why}")
        if self.in_trees:
            base.set_attn_implementation(TREES)
        switch_dropout_off(module)
        config = self.engine_config
        if get_device_name() == "cpu":  # verl would offload a reference model to the CPU, with memory pinned for a GPU
            self.engine_config = dataclasses.replace(config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config

    def _in_the_way(self, module: torch.nn.Module) -> dict[str, bool]:
        """Map each reason to stay on verl's own path to whether it applies."""
        trees = not self.use_remove_padding
        config = module.config.get_text_config()
        return {
            "its forward pass takes no logits_to_keep": "logits_to_keep" not in signature(module.forward).parameters,
            "its head and loss are one kernel": self.model_config.use_fused_kernels,
            "its rows are cut over ranks": self.use_ulysses_sp,
            "its micro-batches are padded to one length": self.pad_to_length,
            "it has layers that do not attend to everything": trees and not attends_to_everything(config),
            "its attention is not PyTorch's": trees and config._attn_implementation != "sdpa",
        }

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """Run all micro-batches as verl does, but with trees, so that rows with a common prefix share a micro-batch.

        The loss is normalised over all ranks. Columns that are not tensors are left out: verl would copy them to the
        device with the others, which takes an eighth of an update on a CPU.
        """
        if not self.in_trees:
            return super().forward_backward_batch(data, loss_function, forward_only)
        data = data.exclude(*(name for name, value in data.items() if isinstance(value, NonTensorStack)))
        group = self.get_data_parallel_group()
        tokens = data["loss_mask"].sum().to(get_device_id())
        dist.all_reduce(tokens, group=group)
        tu.assign_non_tensor(
            data, sp_size=1, batch_num_tokens=tokens.item(), dp_size=self.get_data_parallel_size(), use_dynamic_bsz=True
        )
        batches = self._cut(data, group)
        # Gradients are exchanged once, after the last micro-batch.
        outputs = []
        for number, rows in enumerate(batches, 1):
            last = forward_only or number == len(batches)
            with torch.set_grad_enabled(not forward_only), self._gradient_sync_context(is_last_micro_batch=last):
                loss, output = self.forward_step(tu.index_select_tensor_dict(data, rows), loss_function, forward_only)
                if not forward_only:
                    (self.scaler.scale(loss) if self.scaler else loss).backward()
                    output.pop("model_output")
                outputs.append(output)
        return postprocess_batch_func(output_lst=outputs, indices=batches, data=data)

    def _cut(self, data: TensorDict, group: Any) -> list[list[int]]:
        """Make equally many micro-batches on every rank, because FSDP's ranks run their forward passes together."""
        limit = data["max_token_len_per_gpu"]
        trees = prefix_trees(_rows(data), limit)
        most = torch.tensor(len(micro_batches(trees, limit)), device=get_device_id())
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        return micro_batches(trees, limit, at_least=int(most))

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Compute with the base model alone: it is the reference policy of a model with adapters.

        peft freezes the adapters meanwhile. FSDP learns the type of gradients from the parameters that are trainable in
        its first forward pass, which is often this one, so they stay trainable here. Gradients are off anyway.
        """
        trainable = [weight for weight in self.module.parameters() if weight.requires_grad]
        with self.module.disable_adapter():
            for weight in trainable:
                weight.requires_grad_(True)
            yield

    def get_per_tensor_param(self, **choices: Any) -> tuple[Any, Any]:
        """Return the weights for vLLM as a model without adapters, unless ``model.lora.merge`` is off.

        verl can merge adapters too, but in place, and it rounds the result to bfloat16. On a CPU, memory that the
        update has freed goes back to the system first, because rollouts need it in other processes.
        """
        if get_device_name() == "cpu":
            from memagent_lib.rl.verl.cpu_platform import return_freed_memory

            return_freed_memory()
        if not (self._is_lora and self.model_config.lora.get("merge", False)):
            return super().get_per_tensor_param(**choices)
        adapter = self.module.peft_config["default"]
        scale = adapter.lora_alpha / adapter.r
        return merged_weights(self.module.state_dict(), scale, get_device_id()), None  # they may be offloaded

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.in_trees:
            return tree_inputs(micro_batch)
        inputs, args = super().prepare_model_inputs(micro_batch)
        if self.replies_only:
            inputs["logits_to_keep"] = before_replies(micro_batch)
        return inputs, args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        if not self.replies_only:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        if self.in_trees:
            return at_replies(output.logits[output_args["trees"], output_args["nodes"]], micro_batch)
        return at_replies(output.logits.squeeze(0), micro_batch)


def tree_inputs(micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a model with tree attention, and where in its logits each reply token is predicted.

    The second dict has ``trees`` and ``nodes``: indices into the logits, with an entry per reply token in row order.
    """
    packed = forest(prefix_trees(_rows(micro_batch)))
    device = micro_batch["input_ids"].device
    prompts = micro_batch["prompts"].offsets().diff().tolist()
    # A token is predicted at the node before it; after the last token nothing is predicted.
    predicting = [(tree, path[prompt - 1 : -1]) for (tree, path), prompt in zip(packed.nodes, prompts, strict=True)]
    trees = torch.tensor([tree for tree, nodes in predicting for _ in nodes], device=device)
    nodes = torch.tensor([node for _, nodes in predicting for node in nodes], device=device)
    # The model selects the same nodes in every tree of the batch, so it is passed the union of all.
    with_logits, nodes = torch.unique(nodes, return_inverse=True)
    inputs = {
        "input_ids": packed.ids.to(device),
        "position_ids": packed.positions.to(device),
        "tree_blocks": [block.to(device) for block in blocks(packed)],
        "logits_to_keep": with_logits,
    }
    return inputs, {"trees": trees, "nodes": nodes}


def _rows(data: TensorDict) -> list[list[int]]:
    return [row.tolist() for row in data["input_ids"].unbind()]


def before_replies(micro_batch: TensorDict) -> torch.Tensor:
    """Return the position in the packed rows that predicts each reply token: the one before the token."""
    ends = micro_batch["input_ids"].offsets()[1:]
    lengths = micro_batch["responses"].offsets().diff()
    spans = zip(ends.tolist(), lengths.tolist(), strict=True)
    return torch.cat([torch.arange(end - n - 1, end - 1, device=ends.device) for end, n in spans])


def at_replies(logits: torch.Tensor, micro_batch: TensorDict) -> dict[str, torch.Tensor]:
    """Return verl's model output, computed from the logits of reply tokens, of shape (reply tokens, vocabulary)."""
    labels = micro_batch["responses"]
    offsets = micro_batch["input_ids"].offsets()
    positions = before_replies(micro_batch)
    lengths = labels.offsets().diff()
    temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32, device=logits.device)
    temperature = temperature.expand(len(lengths)).repeat_interleave(lengths)
    logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
    logs = (logits / temperature[:, None]).log_softmax(-1)

    def nested(values: torch.Tensor) -> torch.Tensor:
        # verl expects a value for every token of a row; those of prompts are never read.
        flat = values.new_zeros(int(offsets[-1])).index_copy(0, positions, values)
        return torch.nested.nested_tensor_from_jagged(flat, offsets)

    result = {"log_probs": nested(logs.gather(-1, labels.values()[:, None]).squeeze(-1))}
    if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
        result["entropy"] = nested(-(logs.exp() * logs).sum(-1))
    return result
