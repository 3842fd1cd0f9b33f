"""Losses of single hard turns: the places judged are those of the true values, and a broken lookup is seen."""

import torch
from transformers import AutoModelForCausalLM

from experiments.pocket.lookups import lookups, margins
from memagent_lib.pocket.pocket_tokenizer import build_tokenizer


def test_a_lookup_that_works_is_told_from_one_that_does_not() -> None:
    turns = lookups(60, seed=0)
    assert [len(turn.values) for turn in turns[:3]] == [1, 2, 1]  # one fact, two, the last of several values
    tokenizer, turn = build_tokenizer(), turns[0]
    text = tokenizer.decode(turn.ids)
    assert text.endswith(".") and text.count(tokenizer.decode(turn.ids[turn.values[0]])) >= 3
    model = AutoModelForCausalLM.from_pretrained("experiments/pocket/warm_start")
    works = margins(model, turns)
    assert (works["margin"] > 0).mean() > 0.95 and works.groupby("ask").size().tolist() == [20, 20, 20]
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()  # the layer that compares words
    assert (margins(model, turns)["margin"] > 0).mean() < 0.5
