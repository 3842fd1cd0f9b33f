"""An adapter's folder is a model like any other: its outputs are its base's with the adapter, or one clear line."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from memagent_lib import provenance
from memagent_lib.agent import AgentSettings, open_agent
from memagent_lib.errors import MissingFile
from memagent_lib.models import PUBLISHED, ModelError, adapters, find_model, name_of, record_base, require_adapter_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

IDS = torch.arange(3, 40)[None]


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def with_adapter(model, rank: int = 4, seed: int = 0):
    """Return the model with adapters whose effect is large."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=6, target_modules="all-linear")
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    return model


@pytest.fixture
def base(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "base")
    tokenizer.hf.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base, tmp_path):
    """The folder of an adapter as peft saves it, and the logits of the model that it was saved from."""
    from transformers import AutoModelForCausalLM

    model = with_adapter(AutoModelForCausalLM.from_pretrained(base))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", logits(model)


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(find_model(str(folder)))


def test_an_adapters_folder_gives_the_logits_of_its_model(adapter, base, cache):
    folder, expected = adapter
    torch.testing.assert_close(logits(loaded(folder)), expected, atol=1e-5, rtol=1e-5)
    assert (logits(loaded(base)) - expected).abs().max() > 0.1
    assert find_model(str(folder)) == find_model(str(folder))
    assert len([path for path in cache.iterdir() if path.is_dir() and path.name != "hashes"]) == 1


def test_an_adapter_reads_with_its_own_settings(adapter, cache, tmp_path):
    folder, _ = adapter
    budget = {"chunk_tokens": 40, "memory_tokens": 12, "answer_tokens": 8, "question_tokens": 16}
    plain = open_agent(tmp_path / "base", "transformers", template="short", budget=budget, threads=1)
    AgentSettings.of(plain.encoder.template, plain.encoder.budget, "gated").save(folder)
    plain.close()
    agent = open_agent(folder, "transformers", threads=1)
    assert (agent.reader.name, agent.encoder.budget.memory_tokens) == ("gated", 12)
    assert agent.read("code?", "The mill drifts past the code 4821.").turns
    agent.close()


def test_an_adapters_base_may_be_an_adapter_found_beside_it(adapter, tmp_path, cache):
    from transformers import AutoModelForCausalLM

    first, _ = adapter
    model = with_adapter(AutoModelForCausalLM.from_pretrained(find_model(str(first))), rank=2, seed=1)
    second = tmp_path / "second"
    model.save_pretrained(second)
    record_base(second, str(first), Path(find_model(str(first))))
    assert json.loads((second / "adapter_config.json").read_text())["base_model_name_or_path"] == "../adapter"
    torch.testing.assert_close(logits(loaded(second)), logits(model), atol=1e-5, rtol=1e-5)


def test_a_merged_adapter_is_named_by_its_own_folder(adapter, base, tmp_path, cache):
    folder = adapter[0]
    merged = Path(find_model(str(folder)))
    assert name_of(merged) == str(folder)
    folder.rename(tmp_path / "elsewhere")
    assert name_of(merged) == str(merged)
    assert name_of(base) == str(base)


def test_a_published_model_is_named_as_it_is_fetched(cache):
    assert name_of(PUBLISHED["smollm2"].folder) == "smollm2"


def test_a_hash_names_base_adapter_and_scale_but_no_folder(adapter, base, tmp_path, cache):
    folder, _ = adapter
    original = provenance.model_hash(folder)
    assert original == provenance.model_hash(find_model(str(folder)))
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "again")
    assert provenance.model_hash(moved) == original
    config = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 7}))
    assert provenance.model_hash(moved) != original
    assert provenance.model_hash(base) != original


def test_an_adapter_on_another_base_is_refused(adapter, base, llama, tmp_path, cache):
    folder, _ = adapter
    record_base(folder, str(base), base)
    assert find_model(str(folder))
    other = tmp_path / "other"
    shutil.copytree(base, other)
    with torch.no_grad():
        next(llama.parameters()).add_(0.5)
    llama.save_pretrained(other)
    with torch.no_grad():
        next(llama.parameters()).sub_(0.5)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(other)}))
    with pytest.raises(ModelError, match=r"was trained on \.\./base with weights [0-9a-f]{16}, and .*other has"):
        find_model(str(folder))


def test_an_adapter_of_other_sizes_is_refused(adapter, tokenizer, tmp_path, cache):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, _ = adapter
    small = LlamaConfig(
        vocab_size=len(tokenizer.hf), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(small).save_pretrained(tmp_path / "small")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "../small"}))
    with pytest.raises(ModelError, match=r"does not fit its base .*small: .*size mismatch"):
        find_model(str(folder))


def test_an_adapter_on_a_hub_model_finds_it_in_the_cache(adapter, base, tmp_path, cache, monkeypatch):
    folder, _ = adapter
    from_folder = find_model(str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    model = tmp_path / "hub/models--me--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text("c" * 40)
    shutil.copytree(base, model / "snapshots" / ("c" * 40))
    record_base(folder, "me/tiny", Path("me/tiny"))
    assert find_model(str(folder)) == from_folder
    shutil.rmtree(from_folder)
    merged = Path(find_model(str(folder)))
    assert json.loads((merged / "source.json").read_text())["base"] == "me/tiny"


def test_an_adapter_without_its_base_or_weights_is_refused(adapter, cache):
    folder, _ = adapter
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "smollm2"}))
    with pytest.raises(MissingFile, match=r"needs its base model 'smollm2': .*memagent model smollm2"):
        find_model(str(folder))
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "org/none"}))
    with pytest.raises(MissingFile, match="of which there is no folder here"):
        find_model(str(folder))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has adapter_config\.json but no adapter_model\.safetensors"):
        find_model(str(folder))


@pytest.mark.parametrize("content", ["{bad", "[1]"])
@pytest.mark.parametrize("name", ["adapter_config.json", "base.json"])
def test_a_damaged_file_of_an_adapter_is_named(adapter, base, cache, name, content):
    folder, _ = adapter
    (folder / name).write_text(content)
    for use in (lambda: find_model(str(folder)), lambda: require_adapter_of(base, folder)):
        with pytest.raises(ModelError, match=rf"{name} (is no JSON: Expecting|must have a JSON object, got \[1\])"):
            use()


def test_a_base_in_the_older_file_format_counts_as_memory(adapter, base, llama, cache, monkeypatch):
    (base / "model.safetensors").unlink()
    torch.save(llama.state_dict(), base / "pytorch_model.bin")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=adapters.PROCESS_BYTES))
    with pytest.raises(ModelError, match=r"merging the adapter adapter needs .* of memory"):
        find_model(str(adapter[0]))


@pytest.mark.parametrize("change", [{"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"q_proj": 2}}])
def test_an_adapter_that_the_export_cannot_merge_is_refused(adapter, base, change):
    folder = adapter[0]
    assert require_adapter_of(base, folder)["r"] == 4
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=f"has {next(iter(change))} = .*only plain LoRA"):
        require_adapter_of(base, folder)


def test_an_adapter_without_a_hash_is_compared_by_shape_and_name(adapter, base, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = adapter[0]
    other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"was trained on .*base, whose weights are not those of .*other"):
        require_adapter_of(tmp_path / "other", folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "gone"}))
    require_adapter_of(tmp_path / "other", folder)
    wider = AutoConfig.from_pretrained(base)
    wider.intermediate_size *= 2
    AutoModelForCausalLM.from_config(wider).save_pretrained(tmp_path / "wider")
    with pytest.raises(ModelError, match=r"changes .*proj.weight of shape .*, and in .*wider its shape is"):
        require_adapter_of(tmp_path / "wider", folder)


def test_a_base_in_the_older_file_format_has_shapes_too(adapter, base, llama):
    folder = adapter[0]
    (base / "model.safetensors").unlink()
    torch.save(llama.state_dict(), base / "pytorch_model.bin")
    assert require_adapter_of(base, folder)["r"] == 4
    (base / "pytorch_model.bin").write_bytes(b"PK and no more")
    with pytest.raises(
        ModelError, match=r"pytorch_model.bin is damaged, or has more than weights; give it as safetensors$"
    ):
        require_adapter_of(base, folder)


def test_a_base_that_is_a_file_is_found_from_any_folder(adapter, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    record_base(adapter[0], "model.gguf", base)
    assert json.loads((adapter[0] / "base.json").read_text())["model"] == "../model.gguf"


def test_a_base_without_weights_has_no_hash(adapter, tmp_path):
    with pytest.raises(MissingFile, match=r"no weights .* in .*gone"):
        record_base(adapter[0], "gone", tmp_path / "gone")
    record_base(adapter[0], "someone/model", Path("someone/model"))
    assert json.loads((adapter[0] / "base.json").read_text())["sha256"] == ""
