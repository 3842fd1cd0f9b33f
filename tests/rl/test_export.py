"""A policy is put together from what the ranks of a run saved: really sharded, by two processes, in groups and not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

RANK = """
import os, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

folder, rank, shape = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
store = torch.distributed.FileStore(f"{folder}/store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[2 - len(shape):])
model = fully_shard(AutoModelForCausalLM.from_pretrained(f"{folder}/policy"), mesh=mesh)
torch.save(model.state_dict(), f"{folder}/actor/model_world_size_2_rank_{rank}.pt")
torch.distributed.barrier()
"""


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mesh", [(2,), (2, 1)], ids=["shards of both", "two groups of one"])
def test_an_export_joins_the_shards_that_the_ranks_saved(tmp_path: Path, tokenizer, mesh, tied) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from memagent_lib.rl.run.export import export_model

    sizes = {"hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = Qwen2Config(vocab_size=601, num_key_value_heads=1, head_dim=4, tie_word_embeddings=tied, **sizes)
    policy = Qwen2ForCausalLM(config)
    policy.save_pretrained(tmp_path / "policy")
    tokenizer.hf.save_pretrained(tmp_path / "policy")
    config.save_pretrained(tmp_path / "actor" / "huggingface")  # what verl leaves of the model: no weights
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path), str(rank), str(mesh)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=200)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    export_model(tmp_path / "actor" / "huggingface", tmp_path / "policy", tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert exported.keys() == policy.state_dict().keys()
    for name, weight in policy.state_dict().items():
        assert torch.equal(exported[name], weight), name
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == (tmp_path / "policy" / "tokenizer.json").read_bytes()
