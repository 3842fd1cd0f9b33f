"""The pocket world: its documents can be solved from their text, and shortcuts do not pay."""

import random
import re

import pytest
from pocket import boxed, pocket_task, solve, triples_in

from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import QuestionKind
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
def test_answers_that_ignore_the_question_do_not_pay(kind, pocket_tokenizer):
    made = examples(kind, pocket_tokenizer, 16, 150)
    codes = [[triple for triple in triples_in(example.document) if triple[0] == "code"] for example in made]
    for shortcut, guess in SHORTCUTS.items():
        rng = random.Random(shortcut)
        right = [
            score(example.rule, boxed(guess(triples, example.question, rng)), example.answers).value
            for example, triples in zip(made, codes, strict=True)
        ]
        assert sum(right) / len(right) < 0.1, shortcut


@pytest.mark.parametrize("kind", list(QuestionKind))
def test_the_answer_to_what_no_text_states_is_unknown(kind, pocket_tokenizer):
    for example in examples(kind, pocket_tokenizer, 4, untold=1.0, half_matching=0.9):
        assert (example.answers, example.evidence) == (("unknown",), ())
        keys = re.findall(r"the (\w+ \w+)(?= and|\?)", example.question) or [example.question.split()[-1][:-1]]
        needed = {QuestionKind.BRIDGE: "keeper", QuestionKind.CHAIN: "friend"}.get(kind, "code")
        stated = {(relation, key) for relation, key, _ in triples_in(example.document)}
        assert not stated & {(needed, key) for key in keys}
        assert len(chunks(example.document, pocket_tokenizer, 96)) == 4
