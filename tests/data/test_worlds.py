"""The generated world, its questions, and the chains of keys on top."""

from __future__ import annotations

import re

import pytest

from memagent_lib.data import ExampleKey, Length, make
from memagent_lib.data.tasks.multihop import MultiHop


def plan(task: MultiHop, seed: int, index: int):
    return task.plan(ExampleKey("world", seed, index, Length(documents=80)))


@pytest.mark.parametrize(
    ("shape", "hops", "gold"),
    [("bridge", 2, 2), ("chain", 3, 3), ("chain", 4, 4), ("comparison", 2, 2), ("comparison", 4, 4)],
)
def test_a_question_has_a_gold_document_a_hop_and_five_decoys(shape, hops, gold):
    for index in range(20):
        made = plan(MultiHop(shape=shape, hops=hops), 5, index)
        documents = [statement.text for statement in made.statements]
        assert [bool(statement.evidence) for statement in made.statements] == [True] * gold + [False] * (
            len(documents) - gold
        )
        per_chain = gold // 2 if shape == "comparison" else gold
        assert len(documents) - gold == 5 * per_chain
        assert len(set(documents)) == len(documents)
        if shape != "comparison":
            assert made.answers[0] not in made.question


@pytest.mark.parametrize("name", ["comparison", "comparison_4"])
def test_no_pair_is_compared_twice_and_order_reveals_nothing(name):
    task = MultiHop(shape="comparison", hops=4 if name.endswith("4") else 2)
    made = [plan(task, 2, index) for index in range(500)]
    names = [re.search(r", (.+) or (.+)\?", p.question).groups() for p in made]
    assert len({frozenset(pair) for pair in names}) == 500
    first = [p.answers[0] == pair[0] for p, pair in zip(made, names, strict=True)]
    assert sum(first) == 250
    assert sum(p.answers[0] == min(pair) for p, pair in zip(made, names, strict=True)) == 250
    assert 0.42 < sum("earlier" in p.question for p in made) / 500 < 0.58


@pytest.mark.parametrize("documents", [12, 50, 333])
def test_documents_are_counted_and_gold_ones_where_recorded(documents, tokenizer):
    for example in make("multihop_2", 4, 6, tokenizer, documents=documents):
        titles = re.findall(r"(?:^|\n\n)Document (\d+):\n(.+)\n", example.document)
        assert [int(number) for number, _ in titles] == list(range(1, documents + 1))
        assert len(example.metadata["gold_places"]) == 2
        assert [titles[p][1] for p in example.metadata["gold_places"]] == example.metadata["gold_names"]
        assert example.metadata["documents"] == documents


def test_a_chain_of_keys_adds_entries_to_the_document(tokenizer):
    for example in make("keychain", 5, 8, tokenizer, documents=60, links=3, decoys=4):
        entries = re.findall(r"\[([0-9a-f-]{36}) -> ([^\]]*)\]", example.document)
        assert len(entries) == 15
        evidence = [example.document[start:end] for start, end in example.evidence]
        assert [text.startswith("[") for text in evidence] == [True] * 3 + [False] * 2
        assert evidence[2].endswith(f"-> {example.metadata['hidden_question']}]")
        assert example.metadata["hidden_question"] not in example.question
        assert example.answers[0] in evidence[-1]
