"""Lessons: what a teacher writes into a memory, what an answer rests on, and which readings are worth following."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from reading_by_hand import play

from memagent_lib.data import Example, make
from memagent_lib.evaluation import Result
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.sft import SftConfig, SftRecipe, lessons_from_examples, lessons_from_traces, rows
from memagent_lib.text import chunks
from memagent_lib.trace import BadMemory, Kind, Prompt, Reply, Trace, Turn

BUDGET = Budget(chunk_tokens=300, memory_tokens=240, answer_tokens=40, question_tokens=80)
FACT = r"The code of the \w+ \w+ is \d+\."


@pytest.fixture(scope="module")
def encoder(tokenizer) -> Encoder:
    return Encoder(tokenizer, Template.load("short"), BUDGET)


@pytest.fixture(scope="module")
def examples(tokenizer) -> list[Example]:
    return list(make("needle", 24, 1, tokenizer, chunks=3, chunk_tokens=300))


OVERWRITE = reader_named("overwrite")


def taught(examples, encoder, **settings):
    found = list(lessons_from_examples(examples, encoder, SftConfig(statements=FACT, **settings), OVERWRITE))
    return [found[i : i + 4] for i in range(0, len(found), 4)]


def test_the_blind_teacher_copies_whatever_is_stated(examples, encoder):
    copied_evidence = 0
    for lessons, example in zip(taught(examples, encoder), examples, strict=True):
        for prompt, reply in lessons[:3]:
            available = re.findall(FACT, f"{prompt.memory} {prompt.chunk.text}")
            copied = re.findall(FACT, reply)
            assert set(copied) <= set(available) and len(copied) <= 4
            assert bool(copied) == bool(available)
        start, end = example.evidence[0]
        copied_evidence += example.document[start:end] in lessons[2][1]
    assert 2 <= copied_evidence <= 25  # of 40: neither never nor knowingly


def test_the_aware_teacher_copies_the_evidence_and_nothing_else(examples, encoder):
    for lessons, example in zip(taught(examples, encoder, teacher="aware"), examples, strict=True):
        start, end = example.evidence[0]
        needle = example.document[start:end]
        whole = any(needle in prompt.chunk.text for prompt, _ in lessons[:3])  # not cut in two by a chunk's end
        assert lessons[2][1] == (needle if whole else encoder.template.empty_memory)


KEYED = r"The code of the (?P<key>\w+ \w+) is \d+\."


@pytest.mark.parametrize("teacher", ["blind", "aware"])
def test_a_note_begins_with_the_key_of_its_statement(examples, encoder, teacher):
    config = SftConfig(statements=KEYED, teacher=teacher)
    found = list(lessons_from_examples(examples, encoder, config, OVERWRITE))
    answered = [lesson for lesson in found if lesson.prompt.kind.answers and "unknown" not in lesson.reply]
    for text in [*(prompt.memory for prompt, _ in found), *(reply for prompt, reply in found if prompt.chunk)]:
        notes = re.findall(rf"(\w+ \w+): ({FACT})", text)
        assert all(key in statement for key, statement in notes)
        assert text in ("", encoder.template.empty_memory, " ".join(f"{key}: {stated}" for key, stated in notes))
    assert len(answered) > 20  # evidence is recognised in the form of a note


def changing(tokenizer, *, values, evidence):
    """Return the lessons of a teacher who looks for one of a code's values, of which each has a chunk of its own."""
    told = [f"The code of the red door is {value}. The code of the old lamp is {value + 1}. " for value in values]
    stated = f"The code of the red door is {evidence}."
    start = "".join(told).index(stated)
    example = Example(
        id="changing",
        task="update",
        document="".join(told).strip(),
        question="What is the code of the red door?",
        answers=(str(evidence),),
        evidence=((start, start + len(stated)),),
    )
    chunk = max(tokenizer.count(text) for text in told)
    budget = Budget(chunk_tokens=chunk, memory_tokens=120, answer_tokens=40, question_tokens=80)
    config = SftConfig(statements=KEYED, teacher="aware")
    *reads, answer = lessons_from_examples(
        [example], Encoder(tokenizer, Template.load("short"), budget), config, OVERWRITE
    )
    assert len(reads) == len(values)
    return [reply for _, reply in reads], answer.reply


@pytest.mark.parametrize("evidence", [740, 520])
def test_an_aware_teacher_replaces_a_value_until_it_is_the_evidence(tokenizer, evidence):
    memories, answer = changing(tokenizer, values=[310, 520, 740], evidence=evidence)
    assert memories == [f"red door: The code of the red door is {value}." for value in (310, 520, evidence)]
    assert answer == f"\\boxed{{{evidence}}}"


def test_an_answer_is_right_only_if_the_memory_has_the_evidence(examples, encoder):
    known = 0
    for lessons, example in zip(taught(examples, encoder, known=0.5), examples, strict=True):
        prompt, reply = lessons[3]
        start, end = example.evidence[0]
        has = example.document[start:end] in prompt.memory
        known += has
        assert reply == (f"\\boxed{{{example.answers[0]}}}" if has else "\\boxed{unknown}")
    assert 16 <= known <= 38
    form = r"{evidence} \boxed{ {answer}}"  # evidence may be quoted first
    for lessons, example in zip(taught(examples, encoder, known=1.0, answer=form), examples, strict=True):
        start, end = example.evidence[0]
        assert lessons[3][1] == f"{example.document[start:end]} \\boxed{{ {example.answers[0]}}}"


def test_lessons_are_a_function_of_seed_and_example(examples, encoder):
    assert taught(examples, encoder) == taught(examples, encoder)
    assert taught(examples, encoder)[7] == taught(examples[7:8], encoder)[0]
    assert taught(examples, encoder) != taught(examples, encoder, seed=1)


def test_what_no_teacher_can_teach_is_refused(examples, encoder):
    example = Example(id="mine-3", task="own", question="Who?", document="A text.", answers=("me",))
    with pytest.raises(ValueError, match="mine-3"):
        list(lessons_from_examples([example], encoder, SftConfig(), OVERWRITE))
    with pytest.raises(ValueError, match="blind"):
        by_reader("blind", examples, encoder)
    lesson = next(lessons_from_examples(examples, encoder, SftConfig(statements=FACT), OVERWRITE))
    with pytest.raises(ValueError, match=r"1,201 .* 240"):
        rows([lesson._replace(reply="word " * 300)], encoder)


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"data": {}}, "train"),
        ({"sft": {"statements": "("}}, "statements"),
        ({"sft": {"answer": "yes"}}, "answer"),
        ({"sft": {"shares": {"keep": 0.9, "done": 0.2}}}, "shares"),
        ({"sft": {"warmup_steps": 200}}, "warmup_steps"),
    ],
)
def test_a_wrong_recipe_names_the_setting(table, setting):
    tables = {"model": {"path": "m"}, "data": {"train": "a.parquet"}, "reading": {}} | table
    with pytest.raises(ValueError, match=setting):
        SftRecipe.from_tables(tables)


def reading(example: Example, answer: str, words: int = 1, finish_reason: str = "stop") -> Result:
    read = Turn(Prompt(Kind.READ, example.question), Reply("note " * words, finish_reason, reply_tokens=words))
    last = Turn(Prompt(Kind.ANSWER, example.question, "note"), Reply(f"\\boxed{{{answer}}}", reply_tokens=2))
    verdict = score("boxed", last.reply.text, example.answers)
    return Result(example, "overwrite", 1.0, Trace(example.question, (read, last)), verdict)


def test_traces_teach_the_shortest_right_whole_reading(examples):
    one, two, three = examples[:3]
    results = [
        reading(one, one.answers[0], words=9),
        reading(one, one.answers[0], words=4),
        reading(one, "wrong", words=1),
        reading(two, "wrong"),
        reading(three, three.answers[0], finish_reason="length"),
    ]
    found = list(lessons_from_traces(results, OVERWRITE, Counter()))
    assert [reply for _, reply in found] == ["note " * 4, f"\\boxed{{{one.answers[0]}}}"]


def test_a_row_is_the_readers_prompt_and_a_reply_with_an_end(examples, encoder):
    lesson = next(lessons_from_examples(examples, encoder, SftConfig(statements=FACT), OVERWRITE))
    (row,) = rows([lesson], encoder)
    assert tuple(row.prompt) == encoder.encode(lesson.prompt).ids
    assert row.reply == [*encoder.tokenizer.encode(lesson.reply), encoder.tokenizer.end_ids[0]]


# Every reader has lessons, in the form that it parses.

FORMS = {
    "gated": {"", "keep", "done"},
    "recall": {"", "recall"},
    "retrieving": {"", "done", "search"},
    "multislot": {""},
    "map_merge": {""},
}


def by_reader(name: str, examples, encoder, **settings):
    return list(lessons_from_examples(examples, encoder, SftConfig(statements=FACT, **settings), reader_named(name)))


@pytest.mark.parametrize("name", FORMS)
def test_lessons_of_every_reader_have_the_form_it_parses(name, examples, encoder):
    found = by_reader(name, examples, encoder)
    commands = set()
    for prompt, reply in found:
        kind = prompt.kind
        opened = kind.opened(Reply(reply), prompt.old_memory) if kind.opened else Reply(reply)
        commands.add(opened.command)
        assert not (kind.malformed and kind.malformed(opened.text)), reply
        if kind.writes_memory and opened.text not in (prompt.old_memory, encoder.template.empty_memory):
            assert re.sub(FACT, "", opened.text).strip() == "", "a memory has statements and nothing else"
    assert commands == FORMS[name]
    assert {prompt.kind for prompt, _ in found} == set(reader_named(name).prompts)


@pytest.mark.parametrize("name", FORMS)
def test_lessons_follow_from_each_other_by_the_reader(name, examples, encoder):
    """Played back to the reader, the replies lead to the same prompts, but for what an answer was given to know."""
    for example in examples[:8]:
        found = by_reader(name, [example], encoder)
        replies = iter([reply for _, reply in found])

        def reply(prompt, replies=replies):
            text = next(replies)
            return "" if text == encoder.template.empty_memory else text

        parts = chunks(example.document, encoder.tokenizer, 300)
        trace, _ = play(reader_named(name)(example.question, parts), reply)
        assert [turn.prompt for turn in trace.turns[:-1]] == [prompt for prompt, _ in found[:-1]]


def test_the_aware_teacher_gates_by_the_evidence(examples, encoder):
    for example in examples:
        *reads, (answer, _) = by_reader("gated", [example], encoder, teacher="aware")
        start, end = example.evidence[0]
        needle = example.document[start:end]
        whole = [needle in prompt.chunk.text for prompt, _ in reads]
        expected = [f"DONE\n{needle}" if has else "KEEP" for has in whole]
        assert [reply for _, reply in reads] == expected
        assert len(reads) == 3 or whole[-1], "reading ends with the evidence"
        assert answer.memory == (needle if whole[-1] else "") or needle in answer.memory


def test_the_shares_of_commands_are_those_of_the_recipe(examples, encoder):
    found = [reply for prompt, reply in by_reader("gated", examples, encoder, shares={"keep": 1.0, "done": 0.0})]
    assert set(found[:3]) == {"KEEP"}
    found = by_reader("gated", examples, encoder, shares={"keep": 0.0, "done": 1.0})
    assert len(found) == 2 * len(examples), "every reading ends at once"


def test_a_traces_commands_are_part_of_its_lessons(examples):
    one = examples[0]
    gate = Kind("gate", reads=True)  # as a recorded trace has it
    turns = (
        Turn(Prompt(gate, one.question, "old"), Reply("old", signal="keep", reply_tokens=1)),
        Turn(Prompt(gate, one.question, "old"), Reply("new", signal="done", reply_tokens=3)),
        Turn(Prompt(Kind.ANSWER, one.question, "new"), Reply(f"\\boxed{{{one.answers[0]}}}", reply_tokens=2)),
    )
    result = Result(
        one, "gated", 1.0, Trace(one.question, turns, "gated"), score("boxed", turns[-1].reply.text, one.answers)
    )
    found = list(lessons_from_traces([result], reader_named("gated"), Counter()))
    assert [reply for _, reply in found] == ["KEEP", "DONE\nnew", turns[-1].reply.text]
    beside = reading(one, one.answers[0])  # an evaluation has the readings of baselines too
    assert list(lessons_from_traces([beside, result], reader_named("gated"), Counter())) == found


def test_bad_memories_are_no_lessons_and_are_counted(examples):
    one = examples[0]
    result = reading(one, one.answers[0])
    bad = replace(result.trace.turns[0], bad_memory=BadMemory("comment", "take"))
    result = replace(result, trace=Trace(one.question, (bad, result.trace.turns[1])))
    left_out = Counter()
    found = list(lessons_from_traces([result], reader_named("overwrite"), left_out))
    assert [prompt.kind for prompt, _ in found] == [Kind.ANSWER]
    assert left_out == {"comment": 1}
