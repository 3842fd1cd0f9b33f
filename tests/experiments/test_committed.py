"""The policies committed in experiments/pocket are what the recipe makes, with their way of reading."""

import json
from pathlib import Path

import pytest

from experiments.pocket.model import build_model
from experiments.pocket.warm_start import READING
from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.agent import AgentSettings
from memagent_lib.text import Tokenizer

POLICIES = sorted((Path(__file__).parents[2] / "experiments" / "pocket").glob("*/config.json"))


@pytest.mark.parametrize("folder", [path.parent for path in POLICIES], ids=lambda folder: folder.name)
def test_a_committed_policy_is_what_the_recipe_makes(folder):
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer()
    assert Tokenizer.load(folder).hf.get_vocab() == tokenizer.get_vocab()
    committed = AutoModelForCausalLM.from_pretrained(folder)
    born = build_model(tokenizer)
    assert {n: p.shape for n, p in committed.named_parameters()} == {n: p.shape for n, p in born.named_parameters()}
    assert AgentSettings.load(folder) == READING


def test_the_adapter_of_prose_is_small_and_keeps_two_notes_with_smollm2():
    folder = Path(__file__).parents[2] / "experiments" / "studies" / "prose" / "trained"
    read = [json.loads((folder / name).read_text()) for name in ("base.json", "adapter_config.json")]
    assert [read[0]["model"], read[1]["base_model_name_or_path"]] == ["smollm2", "smollm2"]
    assert AgentSettings.load(folder).budget.memory_tokens == 44
    assert (folder / "adapter_model.safetensors").stat().st_size < 5_000_000
