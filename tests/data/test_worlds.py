"""The generated world, its questions, and the chains of keys on top."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import read

from memagent_lib.data import Example, Span
from memagent_lib.data.tasks.catalog import make
from memagent_lib.data.tasks.keychain import wrapped
from memagent_lib.data.tasks.multihop import MultiHop, Questions
from memagent_lib.data.tasks.pooled import arranged
from memagent_lib.data.tasks.world import BLOCK, world
from memagent_lib.scoring import boxed


def test_every_name_is_unique_and_every_fact_stands_where_it_says():
    of = world(7, 0, 2 * BLOCK)
    assert len(of.documents) == 2 * BLOCK
    assert len({document.partition("\n")[0] for document in of.documents}) == 2 * BLOCK
    for entity in of.entities[::17]:
        for fact in entity.facts.values():
            sentence = entity.document[fact.start : fact.end]
            assert sentence.endswith(".")
            assert fact.value in sentence
            if fact.target is not None:
                assert of.entities[fact.target].name == fact.value


def test_relations_lead_to_things_of_the_right_kind_and_founders_have_one_company():
    of = world(7)
    kinds = {
        "born in": "city",
        "based in": "city",
        "taught by": "person",
        "directed by": "person",
        "founded by": "person",
        "governed by": "person",
    }
    for entity in of.entities:
        for relation, fact in entity.facts.items():
            if relation in kinds:
                assert of.entities[fact.target].kind == kinds[relation]
    founders = Counter(e.facts["founded by"].target for e in of.entities if e.kind == "company")
    assert max(founders.values()) == 1


def test_two_seeds_or_two_numbers_are_two_worlds_and_one_is_one():
    assert world(1).documents == world(1, 0).documents
    assert not set(world(1).documents) & set(world(2).documents)
    assert not set(world(1).documents) & set(world(1, 1).documents)


@pytest.mark.parametrize(
    ("shape", "hops", "gold"),
    [("bridge", 2, 2), ("chain", 3, 3), ("chain", 4, 4), ("comparison", 2, 2), ("comparison", 4, 4)],
)
def test_a_question_has_as_many_gold_documents_as_hops_and_its_distractors_state_the_same_of_others(shape, hops, gold):
    of = world(5)
    pool = Questions(of, MultiHop(shape=shape, hops=hops, distractors=3))
    for index in range(60):
        asked = pool.question(5, index)
        assert len(set(asked.gold)) == gold
        assert not set(asked.gold) & set(asked.near)
        for i in asked.gold:
            alike = [of.entities[j] for j in asked.near if of.entities[j].kind == of.entities[i].kind]
            assert len(alike) >= 2
        assert all(asked.answers[0] not in asked.question for _ in [0] if shape != "comparison")


def test_most_hard_distractors_share_a_word_with_their_gold_document():
    of = world(5)
    pool = Questions(of, MultiHop(distractors=3))
    shared = []
    for index in range(40):
        asked = pool.question(5, index)
        words = {w for i in asked.gold for w in of.entities[i].name.split()} - {"The", "of", "the", "Works"}
        shared += [bool(words & set(of.entities[j].name.split())) for j in asked.near if of.entities[j].kind != "city"]
    assert sum(shared) / len(shared) > 0.9


def test_comparisons_come_in_pairs_with_the_other_answer_so_that_names_and_order_say_nothing(tokenizer):
    for name in ("comparison", "comparison_4"):
        examples = list(make(name, 40, 2, tokenizer, length_tokens=2500))
        for one, other in zip(examples[::2], examples[1::2], strict=True):
            names = re.search(r", (.+) or (.+)\?", one.question).groups()
            assert re.search(r", (.+) or (.+)\?", other.question).groups() == names
            assert {one.answers[0], other.answers[0]} == set(names)
            assert ("earlier" in one.question) != ("earlier" in other.question)
            assert one.document != other.document
        assert len({e.question for e in examples}) == 40


def test_questions_come_from_new_worlds_after_five_hundred(tokenizer):
    task = MultiHop()
    pools = [Questions(world(1, number), task) for number in (0, 1)]
    assert pools[0].question(1, 3).question != pools[1].question(1, 3).question
    assert len({pools[0].question(1, i).question for i in range(500)}) > 400


@pytest.mark.parametrize("documents", [2, 50, 333])
def test_a_document_count_is_kept_and_gold_documents_are_where_they_are_recorded(documents, tokenizer):
    for example in make("multihop_2", 4, 6, tokenizer, documents=documents):
        titles = re.findall(r"(?:^|\n\n)Document (\d+):\n(.+)\n", example.document)
        assert [int(number) for number, _ in titles] == list(range(1, documents + 1))
        assert len(example.metadata["gold_places"]) == 2
        assert [titles[p][1] for p in example.metadata["gold_places"]] == example.metadata["gold_names"]
        assert example.metadata["documents"] == documents
        assert (
            example.metadata["depths"] == sorted(example.metadata["depths"])
            or example.metadata["gold_places"][0] > example.metadata["gold_places"][1]
        )


def test_more_documents_than_the_pool_has_or_fewer_than_the_gold_ones_are_an_error(tokenizer):
    with pytest.raises(ValueError, match="1 documents were asked for; this question needs at least 2"):
        list(make("multihop_2", 1, 6, tokenizer, documents=1))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(0, 30))
def test_arranging_keeps_the_others_in_order_and_every_gold_document(depths, others):
    gold = [1000 + i for i in range(len(depths))]
    order = arranged(gold, depths, list(range(others)))
    assert [i for i in order if i < 1000] == list(range(others))
    assert sorted(i for i in order if i >= 1000) == gold


TEXT = "The mill stands. Rain fell on it. Nobody came. The key was under the mat. So it ended. One. Two. Three. Four. Five."


@given(seed=st.integers(0, 10_000), links=st.integers(1, 5), decoys=st.integers(0, 4), at=st.integers(0, len(TEXT) - 9))
def test_a_chain_of_keys_leaves_document_and_evidence_as_they_were(seed, links, decoys, at):
    plain = Example(
        id="x",
        task="t",
        question="Where was the key?",
        document=TEXT,
        answers=("under the mat",),
        evidence=(Span(at, at + 8), Span(0, 3)),
    )
    made = wrapped(plain, [f"What of {k}?" for k in range(decoys)], links, random.Random(seed))
    entries = re.findall(r"\[[^\]]*\] ", made.document)
    assert len(entries) == links * (1 + decoys)
    assert re.sub(r"\[[^\]]*\] ", "", made.document) == TEXT
    shown = [made.document[s.start : s.end] for s in made.evidence]
    assert shown[links:] == [TEXT[at : at + 8], TEXT[:3]]
    assert shown[links - 1].endswith("-> Where was the key?]")
    assert made.metadata["hidden_question"] == "Where was the key?"
    assert plain.question not in made.question


def test_the_decoys_of_a_chain_are_real_questions_about_other_things(tokenizer):
    for example in make("keychain", 5, 8, tokenizer, length_tokens=5600):
        ends = re.findall(r"-> ([A-Z][^\]]*\?)\]", example.document)
        assert len(ends) == 4
        assert len(set(ends)) == 4
        assert example.metadata["hidden_question"] in ends


def test_the_last_update_counts_and_stale_values_are_recorded(tokenizer):
    for example in make("updates", 10, 3, tokenizer, length_tokens=2500, times=5):
        found = re.findall(
            r"is (?:\w+ )?(\d{7})\.",
            " ".join(
                re.findall(rf"price of {re.search('price of (.+) in', example.question)[1]} [^.]*\.", example.document)
            ),
        )
        assert found == [*example.metadata["stale"], example.answers[0]]


def test_the_nth_event_has_all_earlier_ones_as_evidence(tokenizer):
    for example in make("ordering", 10, 3, tokenizer, length_tokens=2500):
        assert len(example.evidence) == example.metadata["place"]
        assert example.answers[0] in example.document[slice(*example.evidence[-1])]
        assert boxed(read("ordering", example.question, example.document)) == example.answers[0]
