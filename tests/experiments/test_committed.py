"""The policies committed in experiments/pocket are what the recipe makes, with their way of reading."""

from pathlib import Path

import pytest

from experiments.pocket.model import build_model
from experiments.pocket.warm_start import READING
from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.agent import AgentSettings
from memagent_lib.text import Tokenizer

POLICIES = sorted((Path(__file__).parents[2] / "experiments" / "pocket").glob("*/config.json"))


def test_all_policies_are_there():
    assert [path.parent.name for path in POLICIES] == ["trained", "warm_start"]


@pytest.mark.parametrize("folder", [path.parent for path in POLICIES], ids=lambda folder: folder.name)
def test_a_committed_policy_is_what_the_recipe_makes(folder):
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer()
    assert Tokenizer.load(folder).hf.get_vocab() == tokenizer.get_vocab()
    committed = AutoModelForCausalLM.from_pretrained(folder)
    born = build_model(tokenizer)
    assert {n: p.shape for n, p in committed.named_parameters()} == {n: p.shape for n, p in born.named_parameters()}
    assert AgentSettings.load(folder) == READING
