"""An adapter's folder is a model like any other: its outputs are its base's with the adapter, or one clear line."""

import json
import shutil
from pathlib import Path

import pytest

from memagent_lib import provenance
from memagent_lib.models import ModelError, find_model, name_of, record_base, require_adapter_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

IDS = torch.arange(3, 40)[None]


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def with_adapter(model, rank: int = 4, seed: int = 0, modules="all-linear"):
    """Return the model with adapters whose effect is large."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=6, target_modules=modules)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    return model


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(find_model(str(folder)))


def change(folder: Path, **settings) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))


@pytest.fixture
def base(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "base")
    tokenizer.hf.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base, tmp_path):
    """The folder of an adapter as peft saves it, and the logits of the model that it was saved from."""
    model = with_adapter(loaded(base))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", logits(model)


def test_an_adapters_folder_gives_the_logits_of_its_model(adapter, base, cache):
    folder, expected = adapter
    torch.testing.assert_close(logits(loaded(folder)), expected, atol=1e-4, rtol=1e-4)
    assert (logits(loaded(base)) - expected).abs().max() > 0.1
    merged = Path(find_model(str(folder)))
    assert [path for path in cache.iterdir() if (path / "config.json").exists()] == [merged]
    assert name_of(merged) == str(folder) and name_of(base) == str(base)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("modules", [["lm_head"], ["embed_tokens"]])
def test_an_adapter_on_tied_weights_is_refused(model_folder, tmp_path, cache, modules):
    with_adapter(loaded(model_folder), modules=modules).save_pretrained(tmp_path / "tied")
    with pytest.raises(ModelError, match="logits"):
        find_model(str(tmp_path / "tied"))


def test_an_adapters_base_may_be_an_adapter_found_beside_it(adapter, tmp_path, cache):
    first, _ = adapter
    model = with_adapter(loaded(first), rank=2, seed=1)
    second = tmp_path / "second"
    model.save_pretrained(second)
    record_base(second, str(first), Path(find_model(str(first))))
    assert json.loads((second / "base.json").read_text())["model"] == "../adapter"
    torch.testing.assert_close(logits(loaded(second)), logits(model), atol=1e-3, rtol=1e-3)


def test_a_hash_names_base_adapter_and_scale_but_no_folder(adapter, base, tmp_path, cache):
    folder, _ = adapter
    original = provenance.model_hash(folder)
    assert original == provenance.model_hash(find_model(str(folder)))
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "again")
    assert provenance.model_hash(moved) == original
    change(moved, lora_alpha=7)
    assert provenance.model_hash(moved) != original != provenance.model_hash(base)


def test_an_adapter_on_another_base_is_refused(adapter, base, llama, tokenizer, tmp_path, cache):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, _ = adapter
    other = shutil.copytree(base, tmp_path / "other")
    weights = {name: weight + 0.5 for name, weight in llama.state_dict().items()}
    llama.save_pretrained(other, state_dict=weights)
    small = LlamaConfig(vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    LlamaForCausalLM(small).save_pretrained(tmp_path / "small")
    with pytest.raises(ModelError, match="does not fit"):
        require_adapter_of(tmp_path / "small", folder)
    change(folder, base_model_name_or_path="../small")
    with pytest.raises(ModelError, match=r"does not fit its base .*small"):
        find_model(str(folder))
    record_base(folder, str(base), base)
    with pytest.raises(ModelError, match="was trained on"):
        require_adapter_of(other, folder)
    change(folder, base_model_name_or_path=str(other))
    with pytest.raises(ModelError, match="was trained on"):
        find_model(str(folder))


@pytest.mark.parametrize("variant", [{"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"q_proj": 2}}])
def test_an_adapter_that_training_cannot_merge_is_refused(adapter, base, variant):
    folder = adapter[0]
    assert require_adapter_of(base, folder)["r"] == 4
    change(folder, **variant)
    with pytest.raises(ModelError, match=next(iter(variant))):
        require_adapter_of(base, folder)
