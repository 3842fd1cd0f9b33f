"""The fair pocket world: solvable from question and text, and its decoys are like its question in every respect."""

from __future__ import annotations

import re
from statistics import mean

import pytest
from pocket import boxed, fair_task, solve, triples_in

from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import QuestionKind
from memagent_lib.data import make
from memagent_lib.scoring import score
from memagent_lib.text import Tokenizer, chunks

MOST = {"needle": 8, "multivalue": 8, "multikey": 8, "bridge": 3, "update": 8, "chain": 8}


@pytest.fixture(scope="module")
def pocket_tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer())


def examples(kind, tokenizer, chunk_count, n=40, **parameters):
    return list(make(fair_task(kind), n, 5, tokenizer, chunks=chunk_count, **parameters))


@pytest.mark.parametrize("chunk_count", [1, 2, 7])
@pytest.mark.parametrize("kind", list(QuestionKind))
def test_a_fair_text_answers_its_question(kind, chunk_count, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, chunk_count):
        assert example.task == f"fair_{kind}"
        assert len(chunks(example.document, pocket_tokenizer, 96)) == chunk_count
        found = boxed(solve(example.question, example.document))
        assert score(example.rule, found, example.answers).value == 1, example.id
        evidence = " ".join(example.document[start:end] for start, end in example.evidence)
        assert set(solve(example.question, evidence)) == set(example.answers)
        assert 2 <= example.metadata["candidates"] <= MOST[kind]


def test_decoys_have_as_many_half_matching_statements(pocket_tokenizer):
    own = []
    others = []
    for example in examples("update", pocket_tokenizer, 8, 150, repeated=0.0):
        wanted = re.search(r"the (\w+ \w+)\?", example.question)[1]
        keys = [key for relation, key, _ in triples_in(example.document) if relation == "code" and " " in key]
        several = {key for key in keys if keys.count(key) > 1}
        for key in several:
            half = sum(len({*key.split()} & {*other.split()}) == 1 for other in keys)
            (own if key == wanted else others).append(half)
    assert mean(own) > 2
    assert mean(own) == pytest.approx(mean(others), rel=0.1)
