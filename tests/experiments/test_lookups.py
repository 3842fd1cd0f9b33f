"""Losses and false values of single hard turns: memories are the policy's own, and a broken lookup is seen."""

import torch
from transformers import AutoModelForCausalLM

from experiments.pocket.lookups import lookups, margins, noted, plain
from experiments.pocket.word_tokenizer import build_tokenizer
from memagent_lib.prompts import Template
from memagent_lib.text import Tokenizer


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


def test_a_memory_is_in_the_words_of_the_policy() -> None:
    tokenizer = Tokenizer(build_tokenizer())
    template = Template.load("short")
    turns = lookups(3, seed=1)
    model = AutoModelForCausalLM.from_pretrained("experiments/pocket/trained")
    together = noted(model, tokenizer, template, turns)
    assert all(triple.value in memory for turn, memory in zip(turns, together, strict=True) for triple in turn.triples)
    assert together == [noted(model, tokenizer, template, [turn])[0] for turn in turns]
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token is as likely as any other
    assert noted(model, tokenizer, template, turns) == [plain(turn) for turn in turns]
