"""A policy trained through adapters is exported as the plain model that it computes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


@pytest.fixture
def adapted(tmp_path, tokenizer):
    """A small model with adapters that do something, and the folder that it began as."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(
        vocab_size=len(tokenizer.hf), num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.2, **sizes
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(tmp_path / "policy")
    tokenizer.hf.save_pretrained(tmp_path / "policy")
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, target_modules="all-linear")
    model = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    return model, tmp_path / "policy"


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 20)[None]).logits


def saved_by_verl(model, folder, actor) -> Path:
    """The checkpoint folder of a model with adapters, its weights in two files, as verl leaves it."""
    from safetensors.torch import save_file

    trained = actor / "huggingface"
    trained.mkdir(parents=True)
    (trained / "config.json").write_text((folder / "config.json").read_text())
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = sorted(state)
    save_file({name: state[name] for name in names[::2]}, trained / "model-00001-of-00002.safetensors")
    save_file({name: state[name] for name in names[1::2]}, trained / "model-00002-of-00002.safetensors")
    (trained / "model.safetensors.index.json").write_text("{}")
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 6}))
    return trained


def test_a_checkpoint_with_adapters_becomes_a_plain_model(adapted, tmp_path):
    from transformers import AutoModelForCausalLM

    from memagent_lib import open_agent
    from memagent_lib.rl.run.export import save_policy

    model, folder = adapted
    trained = saved_by_verl(model, folder, tmp_path / "actor")
    save_policy(*of_run(trained, folder), tmp_path / "model")
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model")), logits(model), atol=1e-5, rtol=1e-5
    )
    of_adapter = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "adapter")
    torch.testing.assert_close(logits(of_adapter), logits(model), atol=0.05, rtol=0.05)  # bfloat16 in the file
    with closing(open_agent(tmp_path / "model", backend="transformers")) as agent:
        assert agent.read("code?", "the mill drifts past the otter").turns


def of_run(trained: Path, original: Path, **model) -> tuple:
    """The checkpoint of a folder that verl has written, and the recipe of a run that began with ``original``."""
    from memagent_lib.rl import Recipe
    from memagent_lib.rl.run_folder import Checkpoint

    reading = {"template": "short", "chunk_tokens": 32, "memory_tokens": 8, "answer_tokens": 8, "question_tokens": 8}
    tables = {"model": {"path": str(original), **model}, "data": {"train": ["x"], "eval": ["x"]}, "reading": reading}
    recipe = Recipe.from_tables(tables | {"verl": {"trainer.total_training_steps": 9}})
    return Checkpoint(4, trained.parent.parent), recipe


def test_an_export_replaces_no_adapter_that_it_finds(adapted, tmp_path):
    from memagent_lib.rl import RunError, RunFolder, export_checkpoint

    model, folder = adapted
    run = RunFolder(tmp_path / "run")
    actor = run.checkpoints / "global_step_4" / "actor"
    _, recipe = of_run(saved_by_verl(model, folder, actor), folder)
    run.config.write_text(json.dumps({"config": recipe.to_tables(), "device": "cpu"}))
    for found in ("adapter", "one.old", "one.part"):
        (tmp_path / found).mkdir()
    export_checkpoint(run.path, target=tmp_path / "one")
    first = (tmp_path / "one-adapter" / "adapter_model.safetensors").read_bytes()
    export_checkpoint(run.path, target=tmp_path / "two")
    assert (tmp_path / "two-adapter" / "adapter_model.safetensors").read_bytes() == first
    with pytest.raises(RunError, match="exists"):
        export_checkpoint(run.path, target=tmp_path / "model")
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.name.startswith(".")] == []
    assert all((tmp_path / found).is_dir() for found in ("adapter", "one.old", "one.part"))
