"""Losses and false values of single hard turns: memories are the policy's own, and a broken lookup is seen."""

import torch
from transformers import AutoModelForCausalLM

from experiments.pocket.lookups import lookups, margins


def test_margins_separate_a_working_lookup_from_a_broken_one() -> None:
    turns = lookups(30, seed=0)
    assert [len(turn.triples) for turn in turns[:3]] == [1, 2, 1]  # one fact, two, the last of several values
    assert not any(triple.text in turn.text for turn in turns for triple in turn.triples)
    model = AutoModelForCausalLM.from_pretrained("experiments/pocket/warm_start")
    works = margins(model, turns)
    assert (works["margin"] > 0).mean() > 0.95 and works.groupby("kind").size().tolist() == [10, 10, 10]
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()  # the layer that compares words
    assert (margins(model, turns)["margin"] > 0).mean() < 0.5
