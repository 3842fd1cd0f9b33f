"""What is supervised: read turns that are blind to their question, and answers that the memory allows."""

import random
import re
from collections import Counter

import pytest

from experiments.pocket.teacher import MEMORY_STATEMENTS, Teacher, answer_from, ideal
from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import Crowd, QuestionKind, disjoint_questions, document
from memagent_lib.data import Length
from memagent_lib.text import Tokenizer

STATEMENT = re.compile(r"The \w+ of (?:the )?[\w ]+? is \w+\.")


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(Tokenizer(build_tokenizer()))


def parts(teacher, turn):
    prompt = teacher.tokenizer.decode(turn.prompt)
    fields = {name: prompt.partition(f"{name}: ")[2].partition("\n")[0] for name in ("Question", "Text", "Memory")}
    return fields, teacher.tokenizer.decode(turn.reply)


@pytest.mark.parametrize("several", [0.0, 1.0])
def test_what_is_copied_does_not_depend_on_the_question(teacher, several):
    """The target is drawn from the statements alone: needed ones are copied as often as any other."""
    rng = random.Random(1)
    needed = []
    others = []
    for _ in range(3000):
        fields, reply = parts(teacher, teacher.read(rng, 96, several))
        keys = re.findall(r"the (\w+ \w+)(?= and|\?)", fields["Question"])
        known = STATEMENT.findall(fields["Memory"]) + STATEMENT.findall(fields["Text"])
        copied = STATEMENT.findall(reply)
        if len(known) > MEMORY_STATEMENTS:
            for statement in known:
                (needed if any(f" {key} " in statement for key in keys) else others).append(statement in copied)
    share = sum(needed) / len(needed)
    base = sum(others) / len(others)
    assert len(needed) > 500 and abs(share - base) < 0.06


@pytest.mark.parametrize("kind", QuestionKind)
def test_ideal_memories_answer_every_document_and_hold_no_more(teacher, kind):
    """The whole: documents of 20 chunks as the tasks make them, decoys, half-matching statements and all."""
    rng = random.Random(f"ideal {kind}")
    crowd = Crowd(density=0.8, half_matching=0.9, same_key=0.1)
    sizes = Counter()
    for _ in range(40):
        question, decoys = disjoint_questions(kind, rng, 2)
        text, _ = document(question, decoys, crowd, rng, Length(chunks=20, chunk_tokens=96), teacher.tokenizer)
        memory = []
        found = STATEMENT.findall(text)
        for start in range(0, len(found), 7):
            memory = ideal(question, [*memory, *found[start : start + 7]])
            sizes[len(memory)] += 1
        assert {*question.answers} == {*re.search(r"boxed\{ (.*)\}", answer_from(question, memory))[1].split(", ")}
        assert {triple.text for triple in question.triples} >= {*memory}
    needed = {"needle": 1, "update": 1, "multikey": 2, "multivalue": 3, "bridge": 4, "chain": 4}
    assert max(sizes) == needed[kind]
