"""Two steps of a model with adapters in bfloat16: a reference pass with the adapters off, then an update.

Prints as JSON, step by step, the loss of the reference policy, that of the policy, and the type of the gradients.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import peft
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

from memagent_lib.rl.verl.reply_engine import ReplyEngine


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_key_value_heads=1, initializer_range=0.2, **sizes))
    model = peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear")
    )
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [module for module in model.modules() if type(module).__name__ == "Qwen2DecoderLayer"]
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=os.environ["RESHARD"] == "1")
    adapters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(adapters, lr=1.0)
    ids = torch.arange(20)[None]
    for _ in range(2):
        model.eval()
        with torch.no_grad(), ReplyEngine.disable_adapter(SimpleNamespace(module=model)):
            reference = model(input_ids=ids, labels=ids).loss
        model.train()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        types = sorted({str(weight.grad.dtype) for weight in adapters})
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"reference": reference.item(), "policy": loss.item(), "gradients": types}))


main()
