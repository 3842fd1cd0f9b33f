"""One reading for many questions: what is read, what each question costs, how it resumes, and where it is displayed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import Example
from memagent_lib.evaluation import (
    Result,
    evaluate,
    to_frame,
    turns_to_frame,
)
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import SHARED_QUESTION, reader_named
from memagent_lib.trace import Reply

TEXT = "the owl has 17 . the otter has 23 . the mole has 42 . rain taps on the roof all night . "
ANIMALS = {"owl": "17", "otter": "23", "mole": "42"}


def questions(*names: str, document: str = TEXT * 3) -> list[Example]:
    return [
        Example(id=name, task="own", question=f"what has the {name}?", document=document, answers=(ANIMALS[name],),
                rule="contains")
        for name in names
    ]  # fmt: skip


@pytest.fixture
def encoder(tokenizer) -> Encoder:
    budget = Budget(chunk_tokens=60, memory_tokens=24, answer_tokens=12, question_tokens=512)
    return Encoder(tokenizer, Template.load("short"), budget)


def reply(text: str) -> Reply:
    """Answer each question rightly, and count one token for a memory and three for an answer."""
    if "Write the answer" not in text:
        return Reply("seen", prompt_tokens=10, reply_tokens=1)
    animal = next(animal for animal in ANIMALS if f"the {animal}?" in text)
    return Reply(f"\\boxed{{{ANIMALS[animal]}}}", prompt_tokens=5, reply_tokens=3)


def read(encoder, examples, backend, folder=None, reader="overwrite", **options) -> list[Result]:
    agent = Agent(encoder, backend, reader_named(reader))
    return evaluate(agent, examples, folder=folder, progress=False, shared_reading=True, **options)


def kinds(backend: Scripted) -> list[str]:
    return ["answer" if "Write the answer" in request.text else "read" for request in backend.requests]


def test_a_document_is_read_once_and_each_question_answered(encoder):
    backend = Scripted(reply)
    other = questions("mole", document="the mole has 42 . " * 12)
    found = read(encoder, [*questions("owl", "otter", "mole"), *other], backend)
    assert [result.score.value for result in found] == [1.0] * 4
    chunks = [len(result.trace.reads) for result in found]
    assert chunks[0] == chunks[1] == chunks[2] > 1
    assert kinds(backend).count("read") == chunks[0] + chunks[3]
    assert kinds(backend).count("answer") == 4
    reads = [request.text for request in backend.requests if "Write the answer" not in request.text]
    assert all(SHARED_QUESTION in text and "the owl?" not in text for text in reads)
    assert found[1].trace.turns[-1].prompt.question == "what has the otter?"
    assert found[0].trace.reads == found[1].trace.reads


def test_the_parts_of_all_questions_add_up_to_what_was_spent(encoder):
    backend = Scripted(reply)
    rows = to_frame(read(encoder, questions("owl", "otter", "mole"), backend))
    chunks = kinds(backend).count("read")
    assert rows["turns"].sum() == len(backend.requests) == chunks + 3
    assert rows["prompt_tokens"].sum() == 10 * chunks + 3 * 5
    assert rows["reply_tokens"].sum() == chunks + 3 * 3
    assert rows["turns"].max() - rows["turns"].min() <= 1
    assert rows["questions"].tolist() == [3, 3, 3]
    each = to_frame(evaluate(Agent(encoder, Scripted(reply)), questions("owl"), progress=False))
    assert each["questions"].tolist() == [1]


def test_bad_and_cut_memories_of_a_shared_reading_count_once(encoder):
    def refuses(text: str) -> Reply:
        found = reply(text)
        if "Write the answer" in text:
            return found
        return replace(found, text="I cannot help with that.", finish_reason="length")

    found = read(encoder, questions("owl", "otter"), Scripted(refuses))
    rows = to_frame(found)
    chunks = len(found[0].trace.reads)
    assert rows["cut_memories"].tolist() == [chunks, 0]
    # From the second chunk on, the reply is the old memory, which is no fault.
    assert rows["bad_memories"].tolist() == [1, 0]
    assert rows["bad_memory_kinds"].tolist() == ["1 refusal (take)", ""]


def test_turns_of_a_shared_reading_are_there_once(encoder):
    found = read(encoder, questions("owl", "otter", "mole"), Scripted(reply))
    turns = turns_to_frame({"p": found})
    assert turns.groupby("kind").size().to_dict() == {"answer": 3, "read": len(found[0].trace.reads)}
    first_failed = [replace(found[0], trace=None), *found[1:]]
    assert turns_to_frame({"p": first_failed}).groupby("kind").size().to_dict() == {
        "answer": 2,
        "read": len(found[1].trace.reads),
    }


def test_a_failed_reading_fails_all_and_a_failed_answer_one(encoder, tmp_path):
    def breaks(on: str):
        def broken(text: str) -> Reply:
            if on in text:
                raise BackendError("gone")
            return reply(text)

        return Scripted(broken)

    examples = questions("owl", "otter", "mole")
    found = read(encoder, examples, breaks("the otter?"), tmp_path)
    assert [result.error for result in found] == [None, "BackendError: gone", None]
    backend = Scripted(reply)
    again = read(encoder, examples, backend, tmp_path)
    assert kinds(backend) == ["answer"]  # the reading's turns are in the journal
    assert [result.score.value for result in again] == [1.0] * 3
    failed = read(encoder, examples, breaks(SHARED_QUESTION))
    assert {result.error for result in failed} == {"BackendError: gone"}


def test_a_finished_question_is_not_asked_again(encoder, tmp_path):
    read(encoder, questions("owl", "otter"), Scripted(reply), tmp_path)
    backend = Scripted(reply)
    found = read(encoder, questions("owl", "otter", "mole"), backend, tmp_path)
    assert kinds(backend) == ["answer"]
    assert [result.sharing for result in found] == [(3, 0), (3, 1), (3, 2)]
    assert to_frame(found)["prompt_tokens"].sum() == 10 * len(found[0].trace.reads) + 15
    each = Scripted(reply)
    evaluate(Agent(encoder, each), questions("owl"), folder=tmp_path, progress=False)
    assert "read" in kinds(each)  # another journal: its prompts have the question


@pytest.mark.parametrize("reader", ["gated", "recall", "retrieving", "multislot", "map_merge"])
def test_readers_with_a_memory_can_share_a_reading(encoder, reader):
    backend = Scripted(reply)
    found = read(encoder, questions("owl", "otter"), backend, reader=reader)
    assert [result.score.value for result in found] == [1.0, 1.0]
    assert kinds(backend).count("answer") == 2 and {result.trace.reader for result in found} == {reader}
    assert to_frame(found)["turns"].sum() == len(backend.requests)
