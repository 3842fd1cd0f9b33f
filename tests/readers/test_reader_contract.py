"""What every reader promises, checked for each that ships: a new reader is tested by being listed."""

from __future__ import annotations

import pytest
from reading_by_hand import ABC, pieces, play, remember_all

from memagent_lib.plugins import shipped_names
from memagent_lib.prompts import Template
from memagent_lib.readers import READERS, reader_named, several_questions
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Reply, Trace

ALL = {name: reader_named(name) for name in sorted((*READERS, *shipped_names("readers")))}
CONTINUE = [name for name, reader in ALL.items() if reader.continues]


def prompts_of(moves) -> list:
    return [prompt for move in moves for prompt in (move if isinstance(move, tuple) else (move,))]


@pytest.mark.parametrize("name", ALL)
def test_prompts_are_of_the_declared_kinds_and_sizes(name, encoder):
    reader = ALL[name]
    says = f"memory {'x ' * (encoder.budget.memory_tokens // 4)}"
    chunk_text = "memory y " * (encoder.budget.chunk_tokens // 4)
    _, moves = play(
        reader("q", pieces(*[chunk_text] * 9)), lambda p: f"{says}\n{p.kind.name.upper()}: memory y".strip()
    )
    prompts = prompts_of(moves)
    assert {prompt.kind for prompt in prompts} == set(reader.prompts)
    for prompt in prompts:
        assert prompt.memories <= reader.prompts[prompt.kind]
        assert ("chunk" in prompt.kind.parts) == (prompt.chunk is not None)
        if name != "full":  # whose prompt is as long as the document
            request = encoder.encode(prompt)
            assert len(request.ids) + request.max_tokens <= encoder.window_of(reader.prompts)
    for template in Template.shipped():
        Template.load(template).require(reader.prompts)


@pytest.mark.parametrize("name", ALL)
def test_a_document_of_one_empty_chunk_and_a_silent_model_are_read(name):
    trace, _ = play(ALL[name]("q", [Chunk(0, "", 0, 0, 0)]), lambda p: "x")
    assert (trace.answer, trace.reader) == ("x", name)
    assert Trace.from_record(trace.to_record()) == trace
    trace, _ = play(ALL[name]("q", pieces("a ", "b ", "c ")), lambda p: "")
    assert trace.answer == ""


@pytest.mark.parametrize("name", ALL)
def test_every_chunk_is_read_once_and_answered_from_memory(name):
    trace, moves = play(ALL[name]("q", iter(ABC)), remember_all)
    if not ALL[name].has_memory:
        assert len(trace.turns) == len(moves) == 1
        return
    assert sorted(t.prompt.chunk.index for t in trace.reads) == [0, 1, 2, 3, 4]
    assert set(trace.answer.split()) == set("abcdefgh")
    assert trace.turns[-1].prompt.kind == Kind.ANSWER


@pytest.mark.parametrize("name", CONTINUE)
def test_a_continued_reading_equals_one_without_a_break(name):
    def reply(prompt):
        return " ".join(remember_all(prompt).split()[-3:])

    whole, _ = play(ALL[name]("q", ABC), reply)
    first, _ = play(ALL[name]("q", ABC[:2]), reply)
    second, _ = play(ALL[name]("q", ABC[2:], previous=first), reply)
    assert second == whole


def test_readers_that_can_continue_are_known():
    assert set(CONTINUE) == {"gated", "multislot", "overwrite", "recall"}
    assert several_questions(["a", "b"]).continues


@pytest.mark.parametrize("name", ALL)
def test_a_written_command_opens_to_what_was_written(name):
    for kind in ALL[name].prompts:
        for command in kind.commands:
            signal = f"{command}: the bold owl" if command in ("recall", "search") else command
            memory = "old" if command == "keep" else "new note"
            opened = kind.opened(Reply(kind.written(memory, signal)), "old")
            assert (opened.text, opened.signal, opened.command) == (memory, signal, command)
        if kind.written:
            assert kind.written("new note", "") == "new note"
