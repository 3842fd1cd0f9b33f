"""What supervision shows: read turns that are blind to their question, answer turns that memory allows."""

import random
import re
from collections import Counter

import pytest

from experiments.pocket.teacher import MEMORY_STATEMENTS, Shares, Teacher, answer_from, ideal, subset
from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import WORDS, Crowd, Question, QuestionKind, Triple, disjoint_questions, document
from memagent_lib.data import Length
from memagent_lib.text import Tokenizer

FACT = re.compile(r"The \w+ of (?:the )?[\w ]+? is \w+\.")


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(Tokenizer(build_tokenizer()))


def parts(teacher, turn):
    prompt = teacher.tokenizer.decode(turn.prompt)
    shown = {name: prompt.partition(f"{name}: ")[2].partition("\n")[0] for name in ("Question", "Text", "Memory")}
    return shown, teacher.tokenizer.decode(turn.reply)


def test_a_read_turn_copies_statements_in_order(teacher):
    rng, sizes = random.Random(0), Counter()
    for _ in range(400):
        shown, reply = parts(teacher, teacher.read(rng, 96))
        known = FACT.findall(shown["Memory"]) + FACT.findall(shown["Text"])
        kept = FACT.findall(reply)
        if len(known) >= MEMORY_STATEMENTS:
            sizes[len(kept)] += 1
        assert len(kept) > 0 or teacher.template.empty_memory in reply
        rest = iter(known)
        assert all(fact in rest for fact in kept)
    assert set(sizes) == set(range(MEMORY_STATEMENTS + 1)), "a memory may say less than it could, and nothing at all"
    assert min(sizes.values()) > 0.6 * sizes.total() / len(sizes)


@pytest.mark.parametrize("several", [0.0, 1.0])
def test_what_is_copied_does_not_depend_on_the_question(teacher, several):
    """The target is drawn from the facts alone: needed facts are kept as often as any other."""
    rng, needed, others = random.Random(1), [], []
    for _ in range(3000):
        shown, reply = parts(teacher, teacher.read(rng, 96, several))
        keys = re.findall(r"the (\w+ \w+)(?= and|\?)", shown["Question"])
        known, kept = FACT.findall(shown["Memory"]) + FACT.findall(shown["Text"]), FACT.findall(reply)
        if len(known) > MEMORY_STATEMENTS:
            for fact in known:
                (needed if any(f" {key} " in fact for key in keys) else others).append(fact in kept)
    share, base = sum(needed) / len(needed), sum(others) / len(others)
    assert len(needed) > 500 and abs(share - base) < 0.06


def test_turns_of_one_key_copy_several_of_its_values(teacher):
    rng, repeated = random.Random(3), {0.0: [], 1.0: []}
    for several in repeated:
        for _ in range(400):
            shown, reply = parts(teacher, teacher.read(rng, 96, several))
            known, kept = FACT.findall(shown["Memory"]) + FACT.findall(shown["Text"]), FACT.findall(reply)
            assert set(kept) <= set(known) and len(set(kept)) == len(kept)
            if len(kept) == MEMORY_STATEMENTS:
                keys = [fact.partition(" is ")[0] for fact in kept]
                repeated[several].append(len(set(keys)) < len(keys))
    usual, of_one_key = (sum(found) / len(found) for found in repeated.values())
    assert of_one_key > 2 * usual > 0


def test_replies_never_repeat_what_a_memory_repeats(teacher):
    rng, crowded = random.Random(4), 0
    for _ in range(400):
        turn = teacher.turn(rng, 96, Shares(twice=0.5))
        shown, reply = parts(teacher, turn)
        held, said = FACT.findall(shown["Memory"]), FACT.findall(reply)
        crowded += len(set(held)) < len(held) == MEMORY_STATEMENTS
        assert len(set(said)) == len(said)
        if turn.kind != "read":
            values = [v for v in re.search(r"boxed\{ (.*)\}", reply)[1].split(", ") if v != "unknown"]
            assert len(set(values)) == len(values)
    assert 100 < crowded < 300


def test_a_direct_answer_is_from_the_text_or_unknown(teacher):
    """Half-matching facts are no answer, and a value is never made up."""
    rng, unknown, half_matching = random.Random(5), [], 0
    for _ in range(600):
        turn = teacher.turn(rng, 96, Shares(direct=1.0))
        shown, reply = parts(teacher, turn)
        assert turn.kind == "direct" and not shown["Memory"]
        told, said = FACT.findall(shown["Text"]), FACT.findall(reply)
        assert all(fact in told or " is unknown." in fact for fact in said)
        unknown.append("boxed{ unknown" in reply)
        if asked := re.fullmatch(r"What is the code of the (\w+) (\w+)\?", shown["Question"]):
            keyed = [fact for fact in told if fact.startswith(f"The code of the {asked[1]} {asked[2]} is ")]
            assert said == (keyed or [f"The code of the {asked[1]} {asked[2]} is unknown."])
            half_matching += any((asked[1] in fact) != (asked[2] in fact) for fact in told)
    assert 0.2 < sum(unknown) / len(unknown) < 0.6
    assert half_matching > 50


def test_the_subset_is_uniform():
    rng, counts = random.Random(2), [0] * 8
    known = [str(i) for i in range(8)]
    for _ in range(4000):
        for kept in subset(known, rng):
            counts[int(kept)] += 1
    assert all(abs(count / 4000 - MEMORY_STATEMENTS / 8) < 0.04 for count in counts)


@pytest.mark.parametrize("ask", QuestionKind)
def test_ideal_memories_answer_every_document_and_hold_no_more(teacher, ask):
    """The whole: documents of 20 chunks as the tasks make them, decoys, half-matching facts and all."""
    rng, crowd, sizes = random.Random(f"ideal {ask}"), Crowd(density=0.8, half_matching=0.9, same_key=0.1), Counter()
    for _ in range(40):
        asked, decoys = disjoint_questions(ask, rng, 2)
        text, _ = document(asked, decoys, crowd, rng, Length(chunks=20, chunk_tokens=96), teacher.tokenizer)
        told, memory = FACT.findall(text), []
        while told:
            shown, told = told[:7], told[7:]
            memory = ideal(asked, [*memory, *shown])
            sizes[len(memory)] += 1
        assert {*asked.answers} == {*re.search(r"boxed\{ (.*)\}", answer_from(asked, memory))[1].split(", ")}
        assert {triple.text for triple in asked.triples} >= {*memory}
    needed = {"needle": 1, "update": 1, "multikey": 2, "multivalue": 3, "bridge": 4, "chain": 4}
    assert max(sizes) == needed[ask]


def test_an_ideal_reader_collects_codes_until_it_knows_whose(teacher):
    asked = Question(QuestionKind.BRIDGE, ("red fox",), (), ("bell",))
    before = ideal(asked, facts(["code Ada bell", "code red owl maple", "code Ben lily"]))
    assert before == facts(["keeper red fox unknown", "code Ada bell", "code Ben lily"])
    assert ideal(asked, [*before, *facts(["keeper red fox Ada"])]) == facts(["keeper red fox Ada", "code Ada bell"])
    assert ideal(asked, facts(["keeper red fox Eva", "code Ada bell"])) == facts(
        ["keeper red fox Eva", "code Eva unknown"]
    )


def test_an_aware_teacher_writes_ideal_memories(teacher):
    aware, rng, kinds, half_matching = Teacher(teacher.tokenizer, aware=True), random.Random(6), Counter(), 0
    for _ in range(400):
        turn = aware.turn(rng, 96, Shares(answers=0.0, several=0.4, twice=0.3))
        shown, reply = parts(teacher, turn)
        known, kept = FACT.findall(shown["Memory"]) + FACT.findall(shown["Text"]), FACT.findall(reply)
        assert turn.kind == "ideal" and len(set(kept)) == len(kept) <= MEMORY_STATEMENTS
        assert all(fact in known or " is unknown." in fact for fact in kept)
        if asked := re.fullmatch(r"What is the (?:last )?code of the (\w+) (\w+)\?", shown["Question"]):
            key = f"The code of the {asked[1]} {asked[2]} is "
            told = [fact for fact in known if fact.startswith(key) and " unknown" not in fact]
            assert kept == [*told, f"{key}unknown."][max(0, len(told) - 1) :][:1]
            kinds["told" if told else "not told"] += 1
            half_matching += any((asked[1] in fact) != (asked[2] in fact) for fact in known)
    assert min(kinds.values()) > 0.2 * kinds.total()
    assert half_matching > 50


FACTS = {
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
ASKS = {"none": "needle", "lead only": "bridge", "broken chain": "chain"}


def facts(lines):
    return [Triple(relation, " ".join(key), value).text for relation, *key, value in (line.split() for line in lines)]


@pytest.mark.parametrize("case", FACTS)
def test_an_answer_recites_what_the_memory_allows(case):
    keys, memory, recited, box = FACTS[case]
    reply = answer_from(Question(QuestionKind(ASKS.get(case, case)), keys, (), ()), facts(memory))
    assert reply == " ".join([*facts(recited.split(", ")), rf"\boxed{{ {box}}}"])


def test_every_word_of_the_world_is_one_token(teacher):
    assert len({word.lower() for word in WORDS}) == len(WORDS)
    assert all(teacher.tokenizer.count(f" {word}") == 1 for word in WORDS)


def test_turns_are_a_function_of_the_generator(teacher):
    one, other = ([teacher.turn(rng, 64) for _ in range(20)] for rng in (random.Random(3), random.Random(3)))
    assert one == other
