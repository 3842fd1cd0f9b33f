"""The pocket world: its documents can be solved from their text, and shortcuts do not pay."""

import random
import re

import pytest
from pocket import STATEMENT, boxed, pocket_task, solve, triples_in

from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import QuestionKind, random_question
from memagent_lib.data import make
from memagent_lib.scoring import score
from memagent_lib.text import Tokenizer, chunks

LENGTHS = (1, 2, 7)
N = 60


@pytest.fixture(scope="module")
def pocket_tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer())


def examples(kind, tokenizer, chunk_count, n=N, **parameters):
    return list(make(pocket_task(kind), n, 5, tokenizer, chunks=chunk_count, **parameters))


@pytest.mark.parametrize("chunk_count", LENGTHS)
@pytest.mark.parametrize("kind", list(QuestionKind))
def test_a_text_answers_its_question_and_fills_its_chunks(kind, chunk_count, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, chunk_count):
        assert len(chunks(example.document, pocket_tokenizer, 96)) == chunk_count
        assert score(example.rule, boxed(solve(example.question, example.document)), example.answers).value == 1, (
            example.id
        )


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_evidence_is_whole_statements_and_needed_ones_only(kind, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, 4):
        stated = [example.document[start:end] for start, end in example.evidence]
        assert all(STATEMENT.fullmatch(text) for text in stated)
        assert set(solve(example.question, " ".join(stated))) == set(example.answers)
        assert len(stated) == len(set(stated)) == example.metadata["facts"]


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_without_its_evidence_a_text_does_not_answer(kind, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, 4):
        text = example.document
        for start, end in example.evidence:
            text = text.replace(example.document[start:end], "")
        try:
            found = solve(example.question, text)
        except IndexError:
            continue
        assert not set(found) & set(example.answers)  # of updates, an older one is still there


def test_a_seed_has_the_same_questions_at_every_length(pocket_tokenizer):
    for kind in QuestionKind:
        short = examples(kind, pocket_tokenizer, 2, 5)
        long = examples(kind, pocket_tokenizer, 9, 5)
        assert [e.question for e in short] == [e.question for e in long]
        assert [e.answers for e in short] == [e.answers for e in long]
        assert examples(kind, pocket_tokenizer, 9, 5) == long


def half_named(triples, question, rng):
    names = set(re.findall(r"\w+", question))
    return [rng.choice([value for _, key, value in triples if len(names & set(key.split())) == 1] or ["none"])]


SHORTCUTS = {
    "the first code stated": lambda triples, question, rng: [triples[0][2]],
    "the last code stated": lambda triples, question, rng: [triples[-1][2]],
    "any code": lambda triples, question, rng: [rng.choice(triples)[2]],
    "the code stated most often": lambda triples, question, rng: [
        max((value for *_, value in triples), key=[f[2] for f in triples].count)
    ],
    "a code of something with half the name": half_named,
}


@pytest.mark.parametrize("kind", list(QuestionKind))
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_answers_that_ignore_the_question_do_not_pay(kind, shortcut, pocket_tokenizer):
    right = []
    rng = random.Random(shortcut)
    for example in examples(kind, pocket_tokenizer, 16, 150):
        codes = [triple for triple in triples_in(example.document) if triple[0] == "code"]
        right.append(
            score(example.rule, boxed(SHORTCUTS[shortcut](codes, example.question, rng)), example.answers).value
        )
    assert sum(right) / len(right) < 0.1


def test_the_first_of_several_updates_is_not_the_answer(pocket_tokenizer):
    right = []
    for example in examples(QuestionKind.UPDATE, pocket_tokenizer, 8, 60):
        key = re.search(r"the (\w+ \w+)\?", example.question)[1]
        stated = [
            value for relation, about, value in triples_in(example.document) if (relation, about) == ("code", key)
        ]
        assert 2 <= len(stated) <= 4 and len(set(stated)) == len(stated)
        right.append(stated[0] in example.answers)
    assert not any(right)


def test_half_matching_names_are_common_and_never_the_right_one(pocket_tokenizer):
    half = whole = 0
    for example in examples(QuestionKind.NEEDLE, pocket_tokenizer, 8):
        adjective, noun = re.search(r"the (\w+) (\w+)\?", example.question).groups()
        keys = [key for relation, key, _ in triples_in(example.document) if " " in key and relation == "code"]
        half += sum((adjective in key) != (noun in key) for key in keys) / len(keys)
        whole += keys.count(f"{adjective} {noun}")
    assert whole == N and half / N > 0.2


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_texts_state_other_relations_of_the_same_key(kind, pocket_tokenizer):
    """The relation counts, too: a thing whose code is the answer has a keeper. In a chain it would be another link."""
    beside = triples = 0
    for example in examples(kind, pocket_tokenizer, 8, same_key=0.2):
        stated = triples_in(example.document)
        needed = triples_in(" ".join(example.document[start:end] for start, end in example.evidence))
        needed += [triple for triple in stated if triple[:2] in {one[:2] for one in needed}]  # earlier updates
        others = [triple for triple in stated if triple not in needed]
        beside += sum(key in {key for _, key, _ in needed} for _, key, _ in others)
        triples += len(others)
        assert set(solve(example.question, example.document)) == set(example.answers)
    assert beside == 0 if kind is QuestionKind.CHAIN else 0.1 < beside / triples < 0.3


def test_bridges_come_in_both_orders_and_fit_a_memory(pocket_tokenizer):
    orders = []
    for example in examples(QuestionKind.BRIDGE, pocket_tokenizer, 12):
        first = example.document[slice(*example.evidence[0])]
        orders.append(first.startswith("The code"))
        people = {key for relation, key, _ in triples_in(example.document) if relation == "code" and " " not in key}
        assert len(people) == 3
    assert 0.3 < sum(orders) / len(orders) < 0.7


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_the_answer_to_what_no_text_states_is_unknown(kind, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, 4, untold=1.0, half_matching=0.9):
        assert (example.answers, example.evidence) == (("unknown",), ())
        keys = re.findall(r"the (\w+ \w+)(?= and|\?)", example.question) or [example.question.split()[-1][:-1]]
        needed = {QuestionKind.BRIDGE: "keeper", QuestionKind.CHAIN: "friend"}.get(kind, "code")
        stated = {(relation, key) for relation, key, _ in triples_in(example.document)}
        assert not stated & {(needed, key) for key in keys}
        assert len(chunks(example.document, pocket_tokenizer, 96)) == 4


def test_a_share_of_untold_documents_leaves_the_others_solvable(pocket_tokenizer):
    half = examples("needle", pocket_tokenizer, 2, untold=0.5)
    assert 20 <= sum(example.answers == ("unknown",) for example in half) <= 40
    stated = [example for example in half if example.answers != ("unknown",)]
    assert all(solve(example.question, example.document) == list(example.answers) for example in stated)


def test_statements_that_are_apart_are_in_chunks_of_their_own(pocket_tokenizer):
    def of_one_chunk(examples):
        """Count documents with a chunk that has two values of the question's key."""
        crowded = 0
        for example in examples:
            key = re.findall(r"the (\w+ \w+)\?", example.question)[0]
            stated = [match.start() for match in re.finditer(f"The code of the {key} is", example.document)]
            ends = [chunk.end for chunk in chunks(example.document, pocket_tokenizer, 96)]
            at = [sum(end <= start for end in ends) for start in stated]
            assert len(at) >= 2 and solve(example.question, example.document) == list(example.answers)
            crowded += len(set(at)) < len(at)
        return crowded

    assert of_one_chunk(examples("update", pocket_tokenizer, 8)) > 10
    assert of_one_chunk(examples("update", pocket_tokenizer, 8, apart=0.15)) == 0


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_the_same_document_answers_a_question_about_a_decoy(kind, pocket_tokenizer):
    usual = examples(kind, pocket_tokenizer, 7, 20)
    for example, decoy in zip(usual, examples(kind, pocket_tokenizer, 7, 20, about_decoy=True), strict=True):
        assert (decoy.document, decoy.task, decoy.id) == (
            example.document,
            f"pocket_{kind}_decoy",
            f"{example.id}_decoy",
        )
        assert decoy.question != example.question
        assert set(solve(decoy.question, decoy.document)) == set(decoy.answers)
        evidence = " ".join(decoy.document[start:end] for start, end in decoy.evidence)
        assert set(solve(decoy.question, evidence)) == set(decoy.answers)


def test_a_document_without_a_decoy_has_no_question_about_one(pocket_tokenizer):
    with pytest.raises(ValueError, match="1x96 is too short for a decoy in document 0; request more chunks"):
        list(make(pocket_task("chain"), 1, 0, pocket_tokenizer, chunks=1, about_decoy=True))


def test_a_bad_parameter_is_refused(pocket_tokenizer):
    with pytest.raises(ValueError, match="ask must be one of needle"):
        list(make(pocket_task("needle"), 1, 0, pocket_tokenizer, chunks=1, ask="haystack"))
    with pytest.raises(ValueError, match=r"apart must be at most 0\.2.*got 0\.3"):
        list(make(pocket_task("update"), 1, 0, pocket_tokenizer, chunks=8, apart=0.3))
    with pytest.raises(ValueError, match="whole chunks"):
        list(make(pocket_task("needle"), 1, 0, pocket_tokenizer, length_tokens=500))


def test_chains_have_two_to_four_links():
    rng = random.Random(0)
    assert {len(random_question(QuestionKind.CHAIN, rng).triples) for _ in range(100)} == {2, 3, 4}
