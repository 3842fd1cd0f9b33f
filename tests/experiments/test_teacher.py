"""What is supervised: read turns that are blind to their question, and answers that the memory allows."""

import random
import re
from collections import Counter

import pytest

from experiments.pocket.teacher import MEMORY_STATEMENTS, Shares, Teacher, answer_from, ideal, subset
from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import WORDS, Crowd, Question, QuestionKind, Triple, disjoint_questions, document
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


def test_a_read_turn_copies_statements_in_order(teacher):
    rng = random.Random(0)
    sizes = Counter()
    for _ in range(400):
        fields, reply = parts(teacher, teacher.read(rng, 96))
        known = STATEMENT.findall(fields["Memory"]) + STATEMENT.findall(fields["Text"])
        copied = STATEMENT.findall(reply)
        if len(known) >= MEMORY_STATEMENTS:
            sizes[len(copied)] += 1
        assert len(copied) > 0 or teacher.template.empty_memory in reply
        rest = iter(known)
        assert all(statement in rest for statement in copied)
    assert set(sizes) == set(range(MEMORY_STATEMENTS + 1)), (
        "a memory may have fewer statements than there is room for, or none"
    )
    assert min(sizes.values()) > 0.6 * sizes.total() / len(sizes)


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


def test_turns_of_one_key_copy_several_of_its_values(teacher):
    rng = random.Random(3)
    repeated = {0.0: [], 1.0: []}
    for several in repeated:
        for _ in range(400):
            fields, reply = parts(teacher, teacher.read(rng, 96, several))
            known = STATEMENT.findall(fields["Memory"]) + STATEMENT.findall(fields["Text"])
            copied = STATEMENT.findall(reply)
            assert set(copied) <= set(known) and len(set(copied)) == len(copied)
            if len(copied) == MEMORY_STATEMENTS:
                keys = [statement.partition(" is ")[0] for statement in copied]
                repeated[several].append(len(set(keys)) < len(keys))
    usual, of_one_key = (sum(found) / len(found) for found in repeated.values())
    assert of_one_key > 2 * usual > 0


def test_replies_never_repeat_what_a_memory_repeats(teacher):
    rng = random.Random(4)
    crowded = 0
    for _ in range(400):
        turn = teacher.turn(rng, 96, Shares(twice=0.5))
        fields, reply = parts(teacher, turn)
        before = STATEMENT.findall(fields["Memory"])
        recited = STATEMENT.findall(reply)
        crowded += len(set(before)) < len(before) == MEMORY_STATEMENTS
        assert len(set(recited)) == len(recited)
        if turn.kind != "read":
            values = [v for v in re.search(r"boxed\{ (.*)\}", reply)[1].split(", ") if v != "unknown"]
            assert len(set(values)) == len(values)
    assert 100 < crowded < 300


def test_a_direct_answer_is_from_the_text_or_unknown(teacher):
    """Half-matching statements are no answer, and a value is never made up."""
    rng = random.Random(5)
    unknown = []
    half_matching = 0
    for _ in range(600):
        turn = teacher.turn(rng, 96, Shares(direct=1.0))
        fields, reply = parts(teacher, turn)
        assert turn.kind == "direct" and not fields["Memory"]
        stated = STATEMENT.findall(fields["Text"])
        recited = STATEMENT.findall(reply)
        assert all(statement in stated or " is unknown." in statement for statement in recited)
        unknown.append("boxed{ unknown" in reply)
        key = re.fullmatch(r"What is the code of the (\w+) (\w+)\?", fields["Question"])
        if key:
            keyed = [
                statement for statement in stated if statement.startswith(f"The code of the {key[1]} {key[2]} is ")
            ]
            assert recited == (keyed or [f"The code of the {key[1]} {key[2]} is unknown."])
            half_matching += any((key[1] in statement) != (key[2] in statement) for statement in stated)
    assert 0.2 < sum(unknown) / len(unknown) < 0.6
    assert half_matching > 50


def test_the_subset_is_uniform():
    rng = random.Random(2)
    counts = [0] * 8
    known = [str(i) for i in range(8)]
    for _ in range(4000):
        for copied in subset(known, rng):
            counts[int(copied)] += 1
    assert all(abs(count / 4000 - MEMORY_STATEMENTS / 8) < 0.04 for count in counts)


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


def test_an_ideal_reader_collects_codes_until_it_knows_whose(teacher):
    question = Question(QuestionKind.BRIDGE, ("red fox",), (), ("bell",))
    before = ideal(question, statements(["code Ada bell", "code red owl maple", "code Ben lily"]))
    assert before == statements(["keeper red fox unknown", "code Ada bell", "code Ben lily"])
    assert ideal(question, [*before, *statements(["keeper red fox Ada"])]) == statements(
        ["keeper red fox Ada", "code Ada bell"]
    )
    assert ideal(question, statements(["keeper red fox Eva", "code Ada bell"])) == statements(
        ["keeper red fox Eva", "code Eva unknown"]
    )


def test_an_aware_teacher_writes_ideal_memories(teacher):
    aware = Teacher(teacher.tokenizer, aware=True)
    rng = random.Random(6)
    kinds = Counter()
    half_matching = 0
    for _ in range(400):
        turn = aware.turn(rng, 96, Shares(answers=0.0, several=0.4, twice=0.3))
        fields, reply = parts(teacher, turn)
        known = STATEMENT.findall(fields["Memory"]) + STATEMENT.findall(fields["Text"])
        copied = STATEMENT.findall(reply)
        assert turn.kind == "ideal" and len(set(copied)) == len(copied) <= MEMORY_STATEMENTS
        assert all(statement in known or " is unknown." in statement for statement in copied)
        words = re.fullmatch(r"What is the (?:last )?code of the (\w+) (\w+)\?", fields["Question"])
        if words:
            key = f"The code of the {words[1]} {words[2]} is "
            stated = [statement for statement in known if statement.startswith(key) and " unknown" not in statement]
            assert copied == [*stated, f"{key}unknown."][max(0, len(stated) - 1) :][:1]
            kinds["stated" if stated else "not stated"] += 1
            half_matching += any((words[1] in statement) != (words[2] in statement) for statement in known)
    assert min(kinds.values()) > 0.2 * kinds.total()
    assert half_matching > 50


RECITALS = {
    "needle": (("red fox",), ["code red fox maple"], "code red fox maple", "maple"),
    "none": (("red owl",), ["code red fox maple"], "code red owl unknown", "unknown"),
    "update": (
        ("red fox",),
        ["code red fox maple", "code red owl bell", "code red fox lemon"],
        "code red fox lemon",
        "lemon",
    ),
    "multivalue": (
        ("red fox",),
        ["code red fox maple", "code red owl bell", "code red fox lemon"],
        "code red fox maple, code red fox lemon",
        "maple, lemon",
    ),
    "multikey": (
        ("red owl", "red fox"),
        ["code red fox maple"],
        "code red owl unknown, code red fox maple",
        "unknown, maple",
    ),
    "bridge": (("red fox",), ["code Ada bell", "keeper red fox Ada"], "keeper red fox Ada, code Ada bell", "bell"),
    "lead only": (("red fox",), ["code Ada bell", "keeper red owl Ada"], "keeper red fox unknown", "unknown"),
    "chain": (
        ("Ada",),
        ["friend Ada Ben", "friend Ben Eva", "code Eva bell", "code Ben lily"],
        "friend Ada Ben, friend Ben Eva, code Eva bell",
        "bell",
    ),
    "broken chain": (
        ("Ada",),
        ["friend Ada Ben", "friend Eva Ben", "code Eva lily"],
        "friend Ada Ben, code Ben unknown",
        "unknown",
    ),
}
KINDS = {"none": "needle", "lead only": "bridge", "broken chain": "chain"}


def statements(lines):
    return [Triple(relation, " ".join(key), value).text for relation, *key, value in (line.split() for line in lines)]


@pytest.mark.parametrize("case", RECITALS)
def test_an_answer_recites_what_the_memory_allows(case):
    keys, memory, recited, box = RECITALS[case]
    reply = answer_from(Question(QuestionKind(KINDS.get(case, case)), keys, (), ()), statements(memory))
    assert reply == " ".join([*statements(recited.split(", ")), rf"\boxed{{ {box}}}"])


def test_every_word_of_the_world_is_one_token(teacher):
    assert len({word.lower() for word in WORDS}) == len(WORDS)
    assert all(teacher.tokenizer.count(f" {word}") == 1 for word in WORDS)


def test_turns_are_a_function_of_the_generator(teacher):
    one, other = ([teacher.turn(rng, 64) for _ in range(20)] for rng in (random.Random(3), random.Random(3)))
    assert one == other
