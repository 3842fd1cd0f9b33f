"""Replies that are not a memory: which they are, what happens to them, and where a person sees it.

The sentences are those of public reports, named by project and number; those without a name are our own.
"""

import json
from dataclasses import replace

import pytest
from training_loop import ScriptedServer, in_order, loop_of, recipe_of

from memagent_lib.agent import Agent, AgentSettings, open_agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.bad_memory import Fault, OnBadMemory, PromptParts, fault_of
from memagent_lib.data import Example
from memagent_lib.documents import on_bad_memory_for
from memagent_lib.driver import Observer
from memagent_lib.journal import Journal
from memagent_lib.prompts import Template
from memagent_lib.readers import reader_named
from memagent_lib.trace import Kind, Reply, Trace

TEMPLATE = Template.load("chunk_first")
MEMORY = "the red door has code 4711"
QUESTION = "What is the code of the red door?"
CHUNK = "Fog lay over the harbour. The lamp keeper is Odo Brandt, who pays 1,200 euros of rent."


def fault(reply: str, memory: str = MEMORY) -> Fault | None:
    return fault_of(reply, PromptParts(memory, CHUNK, QUESTION, TEMPLATE.wording(Kind.READ), TEMPLATE.empty_memory))


@pytest.mark.parametrize(
    ("expected", "reply"),
    [
        (Fault.COMMENT, "No changes needed to the memory, as the section on fog does not mention the red door."),
        (Fault.COMMENT, "The original summary remains appropriate."),  # langchain#2504
        (Fault.COMMENT, "The section describes the harbour but does not mention the red door."),
        (Fault.COMMENT, "Certainly!"),  # koboldcpp#213
        (Fault.REFUSAL, "I’m sorry, I can’t help with that."),
        (Fault.REFUSAL, "抱歉，我无法协助。"),
        (Fault.EMPTY, ""),  # camel#4321: an empty summary cleared the history
        (Fault.ECHO, "Reply with the new memory only."),  # mem0#2736
        (Fault.ECHO, f"<question>\n{QUESTION}\n</question>\n\n<piece>\nFog lay over the harbour. The"),
        (Fault.ECHO, QUESTION),
    ],
)
def test_what_is_no_memory_is_named(expected, reply):
    assert fault(reply) is expected


@pytest.mark.parametrize(
    "reply",
    [
        MEMORY,
        "The rent: no changes needed until 2027.",
        "The memory remains unchanged: the red door has code 4711.",
        # langchain#8824: a comment before the summary itself
        "Since the context does not add any relevant information, we will return the original summary:\n" + MEMORY,
        "I'm sorry, I cannot find the name, but the red door has code 4711.",
        "The section does not mention the red door, but the lamp keeper Odo Brandt pays 1,200 euros.",
        "Der Hafen liegt im Nebel; die rote Tür hat den Code 4711.",
        "今天天气很好，鸟儿在唱歌。",
    ],
)
def test_a_memory_with_content_is_never_turned_away(reply):
    assert fault(reply) is None


@pytest.mark.parametrize("reply", ["No relevant information found yet.", "(nothing noted yet)", "None", ""])
def test_nothing_found_is_a_memory_while_there_is_none(reply):
    assert fault(reply, memory="") is None
    assert fault("No changes needed to the memory.", memory="") is Fault.COMMENT
    assert fault("No changes needed to the memory, as it is about fog.", memory="") is Fault.COMMENT
    assert fault("Odo Brandt pays 1,200 euros.\n\n(No changes to the previous memory.)", memory="") is None


NOTE = "red door code 4711"
COMMENT = "No changes needed to the memory."


def read(encoder, *replies, on: str = "keep", reader="overwrite", observer=None) -> tuple[Trace, Scripted]:
    waiting = iter(replies)
    backend = Scripted(lambda _: next(waiting))
    agent = Agent(encoder, backend, reader_named(reader), on_bad_memory=OnBadMemory.of(on))
    text = "The red door has code 4711. " + "A small boat drifts past the old mill. " * 20
    three_chunks = text[: encoder.tokenizer.tokens(text).starts[3 * encoder.budget.chunk_tokens - 8]]
    return agent.read(three_chunks, QUESTION, observer=observer), backend


def test_take_makes_every_reply_the_memory_and_counts(encoder):
    trace, _ = read(encoder, NOTE, COMMENT, NOTE, "4711", on="take")
    assert trace.memories == (NOTE, COMMENT, NOTE)
    assert (trace.bad_memories, trace.bad_memory_kinds) == (1, "1 comment (take)")


def test_keep_leaves_the_old_memory_and_records_what_came(encoder):
    came = Reply(COMMENT, finish_reason="length", prompt_tokens=60, reply_tokens=7)
    trace, backend = read(encoder, NOTE, came, NOTE + "; boat", "I'm sorry, I can't help.")
    assert trace.memories == (NOTE, NOTE, NOTE + "; boat")
    assert len(backend.requests) == 4
    bad = trace.turns[1].bad_memory
    assert (bad.fault, bad.action, [reply.text for reply in bad.replies]) == ("comment", "keep", [COMMENT])
    assert (trace.cut_memories, trace.reply_tokens, trace.bad_memories) == (0, 7, 1)
    assert trace.answer == "I'm sorry, I can't help.", "an answer is not judged"


def test_retry_sends_the_prompt_once_more_and_then_keeps(encoder):
    trace, backend = read(encoder, NOTE, "Certainly!", NOTE, NOTE, "4711", on="retry")
    assert [request.attempt for request in backend.requests] == [0, 0, 1, 0, 0]
    assert backend.requests[1].ids == backend.requests[2].ids
    assert trace.bad_memory_kinds == "1 comment (retry)"
    trace, _ = read(encoder, NOTE, "Certainly!", COMMENT, NOTE, "4711", on="retry")
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert trace.bad_memory_kinds == "1 comment (keep)"
    assert [reply.text for reply in trace.turns[1].attempts] == ["Certainly!", COMMENT]
    assert Trace.from_record(json.loads(json.dumps(trace.to_record()))) == trace


def test_an_unfinished_thought_can_leave_the_old_memory(encoder):
    thought = Reply("<think>first I", finish_reason="length", reply_tokens=24)
    trace, _ = read(encoder, NOTE, thought, NOTE, "4711")
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert trace.bad_memory_kinds == "1 unfinished thought (keep)"
    with pytest.raises(BackendError, match="thinking_tokens"):
        read(encoder, NOTE, thought, on="take")


@pytest.mark.parametrize("finished", range(1, 6))
def test_a_resumed_reading_decides_the_same(encoder, tmp_path, finished):
    replies = (NOTE, "Certainly!", COMMENT, NOTE, "4711")
    whole, _ = read(encoder, *replies, on="retry")
    with Journal(tmp_path / "j", {}) as journal:
        read(encoder, *replies, on="retry", observer=Observer(store=journal.reading()))
    lines = (tmp_path / "j").read_text().splitlines(keepends=True)
    (tmp_path / "j").write_text("".join(lines[: 1 + finished]))
    with Journal(tmp_path / "j", {}) as journal:
        again, backend = read(encoder, *replies[finished:], on="retry", observer=Observer(store=journal.reading()))
    assert again == whole
    assert [request.attempt for request in backend.requests] == [0, 0, 1, 0, 0][finished:]


def test_the_action_is_a_setting_of_the_agent_and_of_a_trained_policy(encoder, tmp_path, tokenizer):
    with pytest.raises(ValueError, match="on_bad_memory"):
        open_agent("m", Scripted(str), tokenizer=tokenizer, on_bad_memory="drop")
    agent = Agent(encoder, Scripted(str))
    assert "on_bad_memory" not in agent.identity
    assert replace(agent, on_bad_memory=OnBadMemory.KEEP).identity["on_bad_memory"] == "keep"
    assert on_bad_memory_for(tmp_path) == "keep"
    AgentSettings(on_bad_memory="keep").save(tmp_path)
    assert on_bad_memory_for(tmp_path) is None
    assert open_agent(tmp_path, Scripted(str), tokenizer=tokenizer).on_bad_memory == "keep"
    assert open_agent(tmp_path, Scripted(str), tokenizer=tokenizer, on_bad_memory="take").on_bad_memory == "take"


@pytest.mark.parametrize("action", ["take", "keep", "retry"])
async def test_replies_turned_away_in_training_are_rows_too(tokenizer, model_folder, tmp_path, action):
    pytest.importorskip("verl")

    replies = [NOTE, "No changes.", "4711"]
    if action == "retry":
        replies.insert(2, "door code")
    server = ScriptedServer(tokenizer, in_order(*replies))
    sizes = {"chunk_tokens": 24, "memory_tokens": 16, "answer_tokens": 8, "question_tokens": 16}
    recipe = recipe_of(model_folder, sizes, reading={"on_bad_memory": action})
    loop = loop_of(tmp_path, server, recipe)
    text = "The red door has code 4711. " + "A small boat drifts past the old mill. " * 9
    document = text[: tokenizer.tokens(text).starts[40]]
    example = Example(id="a", task="toy", question="code?", document=document, answers=("4711",), rule="contains")
    row = example.to_record() | {"raw_prompt": example.to_record()["prompt"], "uid": "s1p0"}
    outputs = await loop.run({"temperature": 0.0}, **row, global_steps=1, session_id=0)
    assert [tokenizer.decode(tuple(output.response_ids)) for output in outputs] == replies
    metrics = outputs[-1].extra_fields["reward_extra_info"]
    assert (metrics["bad_memories"], metrics["turns"]) == (1.0, 3.0)
    temperatures = [0.0, 0.0, 0.7, 0.0] if action == "retry" else [0.0, 0.0, 0.0]
    assert [each["temperature"] for each in server.sampling] == temperatures
