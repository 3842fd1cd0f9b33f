"""An oracle finds every answer in the document, and nobody finds it without: the two sides of an honest data set."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from memagent_lib.data.tasks.babi import OBJECTS, PEOPLE, ROOMS
from oracles import box, oracle

from memagent_lib.data import TASKS, make
from memagent_lib.scoring import score

OFFLINE = [name for name, preset in TASKS.items() if not preset.needs]
SIZE = {
    "needle": {"chunks": 2, "chunk_tokens": 160},
    "fwe": {"length_tokens": 2000},
    "cwe": {"length_tokens": 1500},
    "multihop_3": {"length_tokens": 5600},
    "multihop_4": {"length_tokens": 7600},
    "comparison_4": {"length_tokens": 4600},
    "keychain": {"length_tokens": 6600},
    "prose_update": {"chunks": 2, "chunk_tokens": 500},
    "prose_unstated": {"chunks": 2, "chunk_tokens": 600},
}


def size(name: str) -> dict[str, int]:
    return SIZE.get(name, {"length_tokens": 3200 if name in ("multihop_2", "comparison") else 1600})


@pytest.mark.parametrize("name", OFFLINE)
def test_an_oracle_reader_answers_every_example(name, tokenizer):
    n = 30 if name == "keychain" else 80
    for example in make(name, n, 17, tokenizer, **size(name)):
        verdict = score(example.rule, oracle(example), example.answers)
        assert verdict.value == 1.0, (example.question, example.answers, oracle(example), verdict.reason)


@pytest.mark.parametrize(
    "name", ["niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"]
)
def test_an_oracle_reader_answers_every_example_in_essays(name, tokenizer, essays):
    for example in make(name, 25, 3, tokenizer, length_tokens=2500, haystack_path=essays):
        assert score(example.rule, oracle(example), example.answers).value == 1.0


@pytest.mark.parametrize("task", ["multihop_3", "multihop_4", "updates"])
def test_an_oracle_reader_follows_a_chain_of_keys(task, tokenizer):
    for example in make("keychain", 6, 5, tokenizer, length_tokens=9000, task=task, links=3, decoys=2):
        assert score(example.rule, oracle(example), example.answers).value == 1.0


@pytest.mark.parametrize("name", OFFLINE)
def test_the_evidence_of_every_example_contains_its_answer(name, tokenizer):
    for example in make(name, 12, 23, tokenizer, **size(name)):
        text = " ".join(example.document[start:end] for start, end in example.evidence)
        if example.task == "prose_absent":
            assert not text
            continue
        assert text
        if name not in ("comparison", "comparison_4"):
            assert all(answer in text for answer in example.answers)


def guesses(name: str, question: str, habit: str) -> list[str]:
    """What a reader without the document can say: a candidate of the question, or what is often right elsewhere."""
    if name.startswith("comparison"):
        a, b = re.search(r", (.+) or (.+)\?", question).groups()
        return [a, b, min(a, b), max(a, b, key=len)]
    closed = [label for label in (*ROOMS, *PEOPLE, *OBJECTS) if not re.search(rf"\b{label}\b", question)]
    if name in ("qa1", "qa2", "qa3", "qa4"):
        closed = [label for label in closed if label in ROOMS]
    return [habit, "", closed[0], closed[-1]]


@pytest.mark.parametrize("name", [n for n in OFFLINE if n not in ("keychain", "cwe", "fwe")])
def test_a_reader_without_the_document_scores_chance(name, tokenizer):
    small = {"chunks": 1, "chunk_tokens": 90} if name == "needle" else size(name)
    habit = Counter(a for e in make(name, 60, 99, tokenizer, **small) for a in e.answers).most_common(1)[0][0]
    examples = list(make(name, 500, 1, tokenizer, **small))
    strategies = zip(*(guesses(name, e.question, habit) for e in examples), strict=True)
    for answers in strategies:
        values = [score(e.rule, box(a), e.answers).value for e, a in zip(examples, answers, strict=True)]
        assert sum(values) / 500 <= TASKS[name].chance + 0.02, answers[:3]


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_counting_tasks_cannot_be_guessed_from_other_examples(name, tokenizer):
    examples = list(make(name, 40, 1, tokenizer, **size(name)))
    replies = [" ".join(e.answers) for e in examples]
    values = [
        score(e.rule, reply, e.answers).value for e, reply in zip(examples, replies[1:] + replies[:1], strict=True)
    ]
    assert sum(values) / len(values) <= 0.02


def test_naming_every_candidate_is_no_answer(tokenizer):
    for name, everything in (("qa2", " or ".join(ROOMS)), ("qa5", " and ".join((*PEOPLE, *OBJECTS)))):
        assert all(
            score(e.rule, box(everything), e.answers).value == 0
            for e in make(name, 20, 1, tokenizer, length_tokens=900)
        )
    for e in make("comparison", 20, 1, tokenizer, **size("comparison")):
        both = " or ".join(re.search(r", (.+) or (.+)\?", e.question).groups())
        assert score(e.rule, box(both), e.answers).value == 0
