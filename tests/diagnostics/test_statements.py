"""A fact is in memory only if its statement is: over the real wording of the tasks, decided in a second way."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from reading_by_hand import play

from experiments.pocket import world
from memagent_lib.data import make
from memagent_lib.diagnostics import diagnose
from memagent_lib.readers import overwrite
from memagent_lib.text import Chunk

QUARTZ = "The code of the rusty crab is quartz."
ASKED = "What is the code of the rusty crab?"


def in_memory(memory: str, facts: list[str], question: str, answers: tuple[str, ...]) -> list[bool]:
    """Return whether each of the facts, which are the whole document, is in this memory."""
    document = " ".join(facts)
    starts = [0, *accumulate(len(fact) + 1 for fact in facts)]
    replies = iter([memory, "x"])
    chunk = Chunk(0, document, 0, len(document), 9)
    trace, _ = play(overwrite(question, iter([chunk])), lambda prompt: next(replies))
    spans = [(start, start + len(fact)) for start, fact in zip(starts, facts, strict=False)]
    return [history.captured for history in diagnose(trace, spans, answers, document).histories]


def changed(triple: world.Triple, taken: set[str], rng: random.Random) -> world.Triple:
    """Return a statement or what looks like it: about another subject, half another one, or with another value."""
    key = triple.key
    other = world.other(rng, world.NAMES, taken)
    half = other
    if " " in key:
        other = world.random_thing(rng)
        half = rng.choice([f"{key.split()[0]} {other.split()[1]}", f"{other.split()[0]} {key.split()[1]}"])
    value = world.other(rng, world.CODES if triple.relation == "code" else world.NAMES, taken)
    made = rng.choice([(key, triple.value), (other, triple.value), (half, triple.value), (key, value)])
    return world.Triple(triple.relation, *made)


@pytest.mark.parametrize("kind", world.QuestionKind)
def test_a_pocket_fact_is_in_memory_if_its_triple_is(kind):
    rng = random.Random(7)
    seen = set()
    for _ in range(300):
        question = world.random_question(kind, rng)
        taken = {word for triple in question.triples for word in (triple.key, triple.value)}
        decoy = world.Triple("code", world.random_thing(rng), question.answers[0])
        noted = [changed(triple, taken, rng) for triple in (*question.triples, decoy) if rng.random() < 0.9]
        rng.shuffle(noted)
        memory = " ".join(triple.text for triple in noted)
        found = in_memory(memory, [triple.text for triple in question.triples], question.text, question.answers)
        assert found == [triple in noted for triple in question.triples], (memory, question)
        seen.update(found)
    assert seen == {True, False}


@pytest.mark.parametrize(
    "task",
    [
        *("niah_single_1", "niah_multikey_2", "niah_multikey_3", "updates", "ordering", "multihop_2", "comparison"),
        *("comparison_4", "prose_needle", "prose_update", "prose_hop", "vt"),
    ],
)
def test_of_a_tasks_facts_those_are_in_memory_that_it_states(task, tokenizer):
    for example in make(task, 12, 3, tokenizer, length_tokens=12_000):
        facts = [example.document[start:end] for start, end in example.evidence]
        for left_out in range(len(facts)):
            memory = [fact for at, fact in enumerate(facts) if at != left_out]
            expected = [at != left_out for at in range(len(facts))]
            for separator in (" ", "\n"):
                found = in_memory(separator.join(memory), facts, example.question, example.answers)
                assert found == expected, (memory, facts[left_out])


@pytest.mark.parametrize(
    ("fact", "question", "answer", "memory", "present"),
    [
        (QUARTZ, ASKED, "quartz", "the rusty otter is quartz", False),
        (QUARTZ, ASKED, "quartz", "The code of the rusty crab is flint. The code of the otter is quartz.", False),
        (QUARTZ, ASKED, "quartz", "rusty crab: flint; rusty otter: quartz", False),
        (QUARTZ, ASKED, "quartz", "mole quartz", False),
        (QUARTZ, ASKED, "quartz", "rusty crab: quartz", True),
        (QUARTZ, ASKED, "quartz", "- otter: flint\n- crab, rusty: quartz", True),
        (QUARTZ, ASKED, "quartz", "Quartz is what opens the door of the rusty crab.", True),
        (QUARTZ, ASKED, "quartz", "quartz", True),
        (QUARTZ, ASKED, "quartz", "Final answer: quartz", True),
        (QUARTZ, ASKED, "quartz", "1. flint\n2. quartz", True),
        (QUARTZ, ASKED, "quartz", "The code of the rusty crab is flint, now quartz.", True),
        ("Rosa Abbot can be found in room 666.", "Which room does Rosa Abbot have?", "666", "Room: 666", True),
        ("Rosa Abbot can be found in room 666.", "Which room does Rosa Abbot have?", "666", "Her office is 666.", True),
        ("Rosa Abbot can be found in room 666.", "Which room does Rosa Abbot have?", "666", "Abbot has 666", True),
        ("Rosa Abbot can be found in room 666.", "Which room does Rosa Abbot have?", "666", "Rosa Hale: 666", False),
        ("Letters for Magnus Hale go to St. Ives.", "Where is Magnus Hale?", "St. Ives", "St. Ives: M. Hale", True),
        ("Letters for Magnus Hale go to St. Ives.", "Where is Magnus Hale?", "St. Ives", "Otto Hale: St. Ives", False),
    ],
)
def test_a_value_counts_unless_its_sentence_is_about_another_subject(fact, question, answer, memory, present):
    assert in_memory(memory, [fact], question, (answer,)) == [present]


def test_a_value_that_is_another_facts_subject_is_in_memory_as_a_statement_only():
    facts = ["The keeper of the dusty finch is Basil.", "The code of Basil is mirror."]
    question = "What is the code of the keeper of the dusty finch?"

    def found(memory: str) -> list[bool]:
        return in_memory(memory, facts, question, ("mirror",))

    assert found("The code of Basil is mirror.") == [False, True]
    assert found("keeper of the dusty finch: Basil") == [True, False]
    assert found("The dusty finch, whose keeper is Basil, has the code mirror.") == [True, True]
    assert found("The code of the dusty finch is mirror. The keeper of the dusty goat is Basil.") == [False, False]


@pytest.mark.parametrize(
    ("later", "outcome"),
    [
        ([QUARTZ, f"A dog. {QUARTZ}", QUARTZ], "in memory"),
        ([QUARTZ, "The code of the rusty crab is flint.", "-"], "noted and lost after 1 turn to another value"),
        (
            [QUARTZ, QUARTZ, "The code of the rusty otter is quartz."],
            "noted and lost after 2 turns to another statement",
        ),
        ([f"A dog. {QUARTZ}", "A dog.", "A cat."], "noted and lost after 1 turn to nothing"),
        (["A dog.", "A cat.", "-"], "read but never noted"),
    ],
)
def test_an_outcome_has_how_long_a_fact_stayed_and_what_replaced_it(later, outcome):
    replies = iter([*later, "x"])
    texts = [QUARTZ, " Rain.", " Snow."]
    ends = [0, *accumulate(map(len, texts))]
    chunks = [Chunk(i, text, ends[i], ends[i + 1], 9) for i, text in enumerate(texts)]
    trace, _ = play(overwrite(ASKED, iter(chunks)), lambda prompt: next(replies))
    (history,) = diagnose(trace, [(0, len(QUARTZ))], ["quartz"]).histories
    assert history.outcome == outcome
