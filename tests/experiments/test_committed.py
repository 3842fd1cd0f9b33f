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


def test_the_adapters_of_prose_stand_on_one_another():
    prose = Path(__file__).parents[2] / "experiments" / "studies" / "prose"
    read = {name: json.loads((prose / name / "adapter_config.json").read_text()) for name in ("warm_start", "trained")}
    bases = {name: json.loads((prose / name / "base.json").read_text())["model"] for name in read}
    assert bases == {"warm_start": "smollm2", "trained": "../warm_start"}
    assert {name: config["base_model_name_or_path"] for name, config in read.items()} == bases
    assert [AgentSettings.load(prose / name).budget.memory_tokens for name in read] == [44, 34]
