"""The engine for a CPU: each shared beginning once, log-probabilities of replies only, nothing token by token.

verl's unpacked path runs every row whole, computes logits of every prompt token, and takes their logarithms in a
Python loop. A reader's prompts are an order of magnitude longer than its replies and the rollouts of a group share
most of them, so here rows are laid out as trees (:mod:`memagent_lib.rl.cpu.prefix_trees`). The results are verl's, up
to rounding; a test compares them. Trees fit models whose every layer attends to all that came before; others take
verl's path, and the log says so.

Imported by verl's workers as ``actor_rollout_ref.model.external_lib``; registers itself for the device ``cpu``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tensordict import NonTensorStack, TensorDict
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.utils import postprocess_batch_func

from memagent_lib.rl.cpu import weight_channel
from memagent_lib.rl.cpu.prefix_trees import attends_to_everything, forest, micro_batches, prefix_trees
from memagent_lib.rl.lora import merged
from memagent_lib.rl.reply_engine import ReplyEngine

weight_channel.use()


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuEngine(ReplyEngine):
    """The same from trees of rows; a model that they do not fit takes verl's path."""

    def _in_the_way_of_rows(self, module: torch.nn.Module) -> dict[str, bool]:
        whole = attends_to_everything(module.config.get_text_config())
        return {"it has layers that do not attend to everything": not whole}

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A reference model is offloaded to the CPU, where ours already is; verl would pin its memory for a device."""
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config

    def get_per_tensor_param(self, **choices: Any) -> tuple[Any, Any]:
        """verl's; of a model with adapters the weights that it computes with, because vLLM's CPU build loads no other.

        verl folds them in too, and rounds to bfloat16 on the way.
        """
        if not self._is_lora:
            return super().get_per_tensor_param(**choices)
        adapter = self.module.peft_config["default"]
        state = self.module.state_dict().items()
        held = {name: w.full_tensor() if isinstance(w, DTensor) else w for name, w in state}
        return iter(merged(held, adapter.lora_alpha / adapter.r).items()), None

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """As verl's, with micro-batches cut so that rows which begin alike stay together. The normaliser is global.

        What is no tensor stays behind: verl copies every column of every row to the device, an eighth of an update.
        """
        if not self.replies_only:
            return super().forward_backward_batch(data, loss_function, forward_only)
        data = data.exclude(*(name for name, value in data.items() if isinstance(value, NonTensorStack)))
        group = self.get_data_parallel_group()
        tokens = data["loss_mask"].sum()
        dist.all_reduce(tokens, group=group)
        tu.assign_non_tensor(
            data, sp_size=1, batch_num_tokens=tokens.item(), dp_size=self.get_data_parallel_size(), use_dynamic_bsz=True
        )
        batches = self._cut(data, group)
        outputs = []
        with torch.set_grad_enabled(not forward_only):
            for rows in batches:
                loss, output = self.forward_step(tu.index_select_tensor_dict(data, rows), loss_function, forward_only)
                if not forward_only:
                    loss.backward()
                    output.pop("model_output")
                outputs.append(output)
        return postprocess_batch_func(output_lst=outputs, indices=batches, data=data)

    def _cut(self, data: TensorDict, group: Any) -> list[list[int]]:
        """As many micro-batches on every rank: FSDP's ranks go forward together."""
        trees, limit = prefix_trees(_rows(data)), data["max_token_len_per_gpu"]
        most = torch.tensor(len(micro_batches(trees, limit)))
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        return micro_batches(trees, limit, at_least=int(most))

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self.replies_only:
            return super().prepare_model_inputs(micro_batch)
        packed = forest(prefix_trees(_rows(micro_batch)))
        prompts = micro_batch["prompts"].offsets().diff().tolist()
        # The prediction of a token stands at the node before it; of the last token nothing is predicted.
        places = [(tree, path[prompt - 1 : -1]) for (tree, path), prompt in zip(packed.places, prompts, strict=True)]
        trees = torch.tensor([tree for tree, nodes in places for _ in nodes])
        kept, nodes = torch.unique(torch.tensor([node for _, nodes in places for node in nodes]), return_inverse=True)
        inputs = {
            "input_ids": packed.ids,
            "position_ids": packed.positions,
            "attention_mask": packed.sees[:, None],
            "logits_to_keep": kept,
        }
        return inputs, {"trees": trees, "nodes": nodes}

    def _reply_logits(self, logits: torch.Tensor, output_args: dict[str, Any]) -> torch.Tensor:
        return logits[output_args["trees"], output_args["nodes"]]


def _rows(data: TensorDict) -> list[list[int]]:
    return [row.tolist() for row in data["input_ids"].unbind()]
