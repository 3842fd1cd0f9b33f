"""Replies that are no memory: which they are, what happens to them, and where a person sees it.

The sentences are those of public reports, named by project and number; those without a name are our own.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from memagent_lib.agent import Agent, AgentSettings, open_agent
from memagent_lib.backends import BackendError, Sampling, Scripted
from memagent_lib.bad_memory import Fault, OnBadMemory, PromptParts, fault_of
from memagent_lib.data import Example
from memagent_lib.documents import on_bad_memory_for, read_files
from memagent_lib.driver import Observer
from memagent_lib.evaluation import Result, bad_memory_notes, overview, table, to_frame
from memagent_lib.inspector.readings import Readings
from memagent_lib.journal import Journal
from memagent_lib.prompts import Request, Template
from memagent_lib.readers import READERS, gated, map_merge, multislot, recall
from memagent_lib.scoring import score
from memagent_lib.trace import Kind, Reply, Trace

TEMPLATE = Template.load("chunk_first")
MEMORY = "the red door has code 4711"
QUESTION = "What is the code of the red door?"
CHUNK = "Fog lay over the harbour. The lamp keeper is Odo Brandt, who pays 1,200 euros of rent."


def fault(reply: str, memory: str = MEMORY, chunk: str = CHUNK, question: str = QUESTION) -> Fault | None:
    wording = TEMPLATE.wording(Kind.READ)
    return fault_of(reply, PromptParts(memory, chunk, question, wording, TEMPLATE.empty_memory))


@pytest.mark.parametrize(
    "reply",
    [
        "No changes needed to the memory.",
        "**No changes needed.**",
        "The memory does not need to be updated.",
        "I will keep the memory as it is.",
        "As stated in the previous memory.",
        "No changes needed to the memory, as the section on fog does not mention the red door.",
        "Return original summary.",  # langchain#2504, the next five too
        "The original summary remains appropriate.",
        "No changes needed to the original summary.",
        "The existing summary remains sufficient in capturing the key points discussed",
        "No refinement needed, as the new context does not provide any additional information on the content of the "
        "discussion or its key takeaways.",
        "The existing summary is already comprehensive and does not require any refinement based on the additional "
        "context provided",
        "The original answer remains relevant and accurate.",  # langchain#1460
        # langchain#8824
        "The existing summary is more comprehensive and provides a clear understanding of fog over harbours. The "
        "additional context provided does not contribute to the summary and can be disregarded.",
        "(nothing)",  # nanobot#5694
        "N/A",  # mem0#2875 has NONE
        "There is no relevant information about the red door in this section.",
        "This section describes fog over the harbour and contains no relevant information.",
        "The piece doesn't contain any relevant information.",
        "(nothing noted yet)",
        "无需更新记忆。",
        "记忆保持不变",
        "Keine Änderungen am Gedächtnis nötig.",
        "Aucun changement nécessaire.",
        "No se necesitan cambios en la memoria.",
    ],
)
def test_a_comment_about_the_memory_is_no_memory(reply):
    assert fault(reply) is Fault.COMMENT


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("I'm sorry, but I can't assist with that.", Fault.REFUSAL),
        ("I’m sorry, I can’t help with that.", Fault.REFUSAL),
        ("As an AI language model, I do not have access to earlier pieces.", Fault.REFUSAL),
        ("抱歉，我无法协助。", Fault.REFUSAL),
        # companion-emergence#77
        (
            "I'm not going to produce this memory update, the same cycle repeats. I won't proceed.",
            Fault.REFUSAL,
        ),
        # hermes-agent#118363
        ("I can't produce this summary as requested. Two parts of the instruction conflict with it.", Fault.REFUSAL),
        ("Please provide the document so that I can help.", Fault.REFUSAL),
        ("It seems you haven't provided the text.", Fault.REFUSAL),
        # smart-second-brain#435
        ("Error generating summary: Error: net::ERR_INCOMPLETE_CHUNKED_ENCODING", Fault.REFUSAL),
        ("ACK_21", Fault.ACKNOWLEDGEMENT),  # kimi-code#3684
        ("Certainly!", Fault.ACKNOWLEDGEMENT),  # koboldcpp#213
        ("Got it, I have read the section.", Fault.ACKNOWLEDGEMENT),
        ("Ready for the next section.", Fault.ACKNOWLEDGEMENT),
        ("UPDATE", Fault.ACKNOWLEDGEMENT),
        ('<tool_call>{"name": "search", "arguments": {}}</tool_call>', Fault.TOOL_CALL),  # open-webui#29308
        ('{"name": "update_memory", "arguments": {"text": "x"}}', Fault.TOOL_CALL),
        ("", Fault.EMPTY),  # camel#4321: an empty summary cleared the history
        ("---", Fault.EMPTY),
        ("{}", Fault.EMPTY),
        ("Reply with the new memory only.", Fault.ECHO),  # mem0#2736: a sentence of the instruction became a memory
        ("Keep what already helps, word for word where names and numbers matter", Fault.ECHO),
        (
            "<question>\nWhat is the code of the red door?\n</question>\n\n<piece>\nFog lay over the harbour. The",
            Fault.ECHO,
        ),
        ("Question: What is the code of the red door?", Fault.ECHO),
        ("What is the code of the red door?", Fault.ECHO),
        ("The weather is lovely today and birds are singing.", Fault.UNRELATED),
        ("今天天气很好，鸟儿在唱歌。", None),  # in another script than the document: it may be a translation
    ],
)
def test_what_is_no_memory_is_named(reply, expected):
    assert fault(reply) is expected


@pytest.mark.parametrize(
    "reply",
    [
        MEMORY,
        MEMORY + ", and the lamp keeper is Odo Brandt",
        "The rent: no changes needed until 2027.",
        "The memory remains unchanged: the red door has code 4711.",
        "Sure! Here is the updated memory:\n\nthe red door has code 4711",
        # langchain#8824: a comment before the summary itself
        "Since the provided context does not add any relevant information to the original summary, we will return the "
        "original summary:\nthe red door has code 4711",
        "<memory>\nthe red door has code 4711\n</memory>",
        "```\ncode 4711\n```",
        '{"memory": "code 4711"}',
        "I'm sorry, I cannot find the name, but the red door has code 4711.",
        "Sorry, no code here; the lamp is kept by Odo Brandt.",
        "Odo Brandt pays 1200 euros. No new information about the red door.",
        "Der Hafen liegt im Nebel; die rote Tür hat den Code 4711.",
        "Keep the red door shut",
        "The answer is \\boxed{4711}.",
        "7",
    ],
)
def test_a_memory_with_content_is_never_turned_away(reply):
    assert fault(reply) is None


@pytest.mark.parametrize("reply", ["No relevant information found yet.", "(nothing noted yet)", "None", ""])
def test_nothing_found_is_a_memory_while_there_is_none(reply):
    assert fault(reply, memory="") is None


@pytest.mark.parametrize("reply", ["No changes needed to the memory.", "I'm sorry, I can't help.", "OK", "."])
def test_a_comment_is_no_memory_even_without_an_old_one(reply):
    assert fault(reply, memory="") is not None


def test_short_chunks_numbers_and_other_scripts_are_compared():
    assert fault("the rent is 1200 now", memory="", chunk="Miete: 1,200") is None
    assert fault("灯塔的守卫叫欧多。", memory="", chunk="灯塔的守卫是欧多，他住在海边。", question="守卫是谁？") is None
    assert fault("今天天气很好，鸟儿唱歌。", memory="", chunk="灯塔守卫是欧多。", question="谁？") is Fault.UNRELATED
    assert fault("Porto", memory="", chunk="x") is None  # fewer than three words are too few to compare


def test_words_of_the_document_itself_are_no_refusal_and_no_call():
    quote = "I'm sorry, I cannot come to dinner"
    assert fault(quote, memory="", chunk=f"She wrote: {quote}.") is None
    call = '<tool_call>{"name": "x", "arguments": {}}'
    assert fault(call, memory="", chunk=f"The log has {call} twice.") is None


# The driver


def scripted(*replies: str | Reply):
    waiting = iter(replies)
    return Scripted(lambda _: next(waiting))


def three_chunks(encoder) -> str:
    text = "The red door has code 4711. " + "A small boat drifts past the old mill. " * 20
    return text[: encoder.tokenizer.tokens(text).starts[3 * encoder.budget.chunk_tokens - 8]]


def read(encoder, *replies, on: str = "keep", reader=READERS["overwrite"], observer=None) -> tuple[Trace, Scripted]:
    backend = scripted(*replies)
    agent = Agent(encoder, backend, reader, on_bad_memory=OnBadMemory.of(on))
    return agent.read(three_chunks(encoder), QUESTION, observer=observer), backend


NOTE = "red door code 4711"
COMMENT = "No changes needed to the memory."


def test_take_makes_every_reply_the_memory_and_counts(encoder):
    trace, _ = read(encoder, NOTE, COMMENT, NOTE, "4711", on="take")
    assert trace.memories == (NOTE, COMMENT, NOTE)
    assert trace.bad_memories == 1
    assert trace.bad_memory_kinds == "1 comment (take)"
    assert trace.turns[1].attempts == (trace.turns[1].reply,)


def test_keep_leaves_the_old_memory_and_records_what_came(encoder):
    came = Reply(COMMENT, finish_reason="length", prompt_tokens=60, reply_tokens=7)
    trace, backend = read(encoder, NOTE, came, NOTE + "; boat", "4711")
    assert trace.memories == (NOTE, NOTE, NOTE + "; boat")
    assert len(backend.requests) == 4
    bad = trace.turns[1].bad_memory
    assert (bad.fault, bad.action) == ("comment", "keep")
    assert [reply.text for reply in bad.replies] == [COMMENT]
    assert str(bad) == "the reply was a comment about the memory; the old memory stayed"
    assert trace.cut_memories == 0
    assert trace.reply_tokens == 7


def test_retry_sends_the_prompt_once_more_as_another_attempt(encoder):
    trace, backend = read(
        encoder, NOTE, Reply("Certainly!", reply_tokens=3), Reply(NOTE, reply_tokens=5), NOTE, "4711", on="retry"
    )
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert [request.attempt for request in backend.requests] == [0, 0, 1, 0, 0]
    assert backend.requests[1].ids == backend.requests[2].ids
    assert trace.bad_memory_kinds == "1 acknowledgement (retry)"
    assert [reply.text for reply in trace.turns[1].attempts] == ["Certainly!", NOTE]
    assert trace.reply_tokens == 8


def test_a_second_bad_reply_leaves_the_old_memory(encoder):
    trace, backend = read(encoder, NOTE, "Certainly!", COMMENT, NOTE, "4711", on="retry")
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert len(backend.requests) == 5
    assert trace.bad_memory_kinds == "1 acknowledgement (keep)"
    assert [reply.text for reply in trace.turns[1].attempts] == ["Certainly!", COMMENT]
    assert "the second was no memory either; the old memory stayed" in str(trace.turns[1].bad_memory)


def test_answers_are_never_judged(encoder):
    trace, _ = read(encoder, NOTE, NOTE, NOTE, "I'm sorry, I can't help.")
    assert trace.answer == "I'm sorry, I can't help."
    assert trace.bad_memories == 0


def test_a_record_restores_what_was_turned_away(encoder):
    trace, _ = read(encoder, NOTE, "Certainly!", COMMENT, NOTE, "4711", on="retry")
    record = json.loads(json.dumps(trace.to_record()))
    assert Trace.from_record(record) == trace
    assert "bad_memory" not in record["turns"][0]
    frame = trace.to_frame()
    assert list(frame["bad_memory"].notna()) == [False, True, False, False]


def test_an_unfinished_thought_can_leave_the_old_memory(encoder):
    thought = Reply("<think>first I", finish_reason="length", reply_tokens=24)
    trace, _ = read(encoder, NOTE, thought, NOTE, "4711")
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert trace.bad_memory_kinds == "1 unfinished thought (keep)"
    assert trace.turns[1].bad_memory.replies[0].thinking == "<think>first I"
    with pytest.raises(BackendError, match="still thinking"):
        read(encoder, NOTE, thought, on="take")
    with pytest.raises(BackendError, match="still thinking"):
        read(encoder, NOTE, NOTE, NOTE, thought)


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
    assert len(backend.requests) == 5 - finished
    assert [request.attempt for request in backend.requests] == [0, 0, 1, 0, 0][finished:]


def test_a_stored_thought_is_not_taken_as_an_empty_memory(encoder, tmp_path):
    thought = Reply("<think>first I", finish_reason="length", reply_tokens=24)
    with Journal(tmp_path / "j", {}) as journal:
        read(encoder, thought, NOTE, NOTE, "4711", observer=Observer(store=journal.reading()))
    with Journal(tmp_path / "j", {}) as journal:
        trace, _ = read(encoder, NOTE, NOTE, NOTE, "4711", on="take", observer=Observer(store=journal.reading()))
    assert trace.memories[0] == NOTE


# Other readers


def test_a_gate_is_no_bad_memory_and_observers_see_it_opened(encoder):
    seen = []
    replies = (NOTE, "**Decision:** KEEP - nothing new", "DONE", "4711")
    trace, _ = read(encoder, *replies, reader=gated, observer=Observer(on_turn=seen.append))
    assert trace.memories == (NOTE, NOTE, NOTE)
    assert trace.bad_memories == 0
    assert [turn.reply.signal for turn in seen] == ["", "keep", "done", ""]
    assert [turn.reply.text for turn in seen] == [NOTE, NOTE, NOTE, "4711"]


def test_a_recall_request_outlives_the_comment_before_it(encoder):
    trace, _ = read(encoder, NOTE, "old mill boat", "No changes.\nRECALL: door code", "4711", reader=recall)
    assert trace.memories == (NOTE, "old mill boat", "old mill boat")
    assert trace.turns[2].reply.signal == "recall: door code"
    assert trace.turns[-1].prompt.memory == f"old mill boat\nFrom an earlier memory:\n{NOTE}"


def test_recall_keeps_its_own_memory_not_the_recalled_one(encoder):
    replies = (NOTE, "old mill boat\n**RECALL:** door code", COMMENT, "4711")
    trace, _ = read(encoder, *replies, reader=recall)
    assert NOTE in trace.turns[2].prompt.memory
    assert trace.memories[2] == "old mill boat"


def test_each_slot_and_each_part_falls_back_to_its_own_memory(encoder):
    trace, _ = read(encoder, NOTE, "Certainly!", NOTE, "4711", reader=multislot)
    assert trace.memories == (NOTE, "", NOTE)
    replies = {0: NOTE, 1: "old mill boat", 2: "boat", 3: COMMENT, 4: COMMENT, 5: "4711"}
    trace, _ = read(encoder, *replies.values(), reader=map_merge)
    merges = [turn for turn in trace.turns if turn.prompt.kind == Kind.MERGE]
    assert [turn.reply.text for turn in merges] == [turn.prompt.memory for turn in merges]
    assert trace.bad_memories == len(merges) == 2


# Settings


def test_an_unknown_action_is_refused_with_the_names(encoder, tokenizer):
    with pytest.raises(ValueError, match="on_bad_memory must be one of take, keep, retry, got 'drop'"):
        open_agent("m", Scripted(str), tokenizer=tokenizer, on_bad_memory="drop")


def test_only_another_action_than_take_enters_the_identity(encoder):
    agent = Agent(encoder, Scripted(str))
    assert "on_bad_memory" not in agent.identity
    assert replace(agent, on_bad_memory=OnBadMemory.KEEP).identity["on_bad_memory"] == "keep"


def test_a_trained_policys_settings_name_its_action(tmp_path, tokenizer):
    AgentSettings().save(tmp_path)
    assert "on_bad_memory" not in json.loads((tmp_path / "memagent.json").read_text())
    AgentSettings(on_bad_memory="keep").save(tmp_path)
    assert open_agent(tmp_path, Scripted(str), tokenizer=tokenizer).on_bad_memory is OnBadMemory.KEEP
    assert open_agent(tmp_path, Scripted(str), tokenizer=tokenizer, on_bad_memory="take").on_bad_memory == "take"


def test_a_second_attempt_is_sampled_with_a_seed_of_its_own():
    greedy = Sampling()
    first = Request((1, 2), "", 8)
    second = replace(first, attempt=1)
    assert greedy.for_request(first) is greedy
    assert greedy.for_request(second).temperature == 0.7
    assert greedy.seed_for(first) is None
    assert greedy.seed_for(second) == greedy.seed_for(second) is not None
    sampled = Sampling(temperature=1.0, top_p=0.9, seed=3)
    assert sampled.for_request(second) is sampled
    assert sampled.seed_for(first) != sampled.seed_for(second)


# What a person sees


@pytest.fixture
def log(tmp_path, encoder) -> Path:
    path = tmp_path / "log.txt"
    path.write_text(three_chunks(encoder))
    return path


def read_log(encoder, log, *replies, **options):
    agent = Agent(encoder, scripted(*replies), on_bad_memory=OnBadMemory.KEEP)
    return read_files(agent, [log], [QUESTION], **options)


def test_last_lines_and_page_of_a_reading_have_the_reason(encoder, log):
    reading = read_log(encoder, log, NOTE, "No changes & no updates.", NOTE, "4711")
    assert reading.warnings == ["in 1 turn a reply was no memory: 1 comment (keep)"]
    page = reading._repr_html_()
    assert "the reply was a comment about the memory; the old memory stayed" in page
    assert "No changes &amp; no updates." in page


def test_a_journal_of_before_the_setting_is_continued(encoder, log, tmp_path):
    taking = Agent(encoder, scripted(NOTE, COMMENT, NOTE, "4711"))
    read_files(taking, [log], [QUESTION], journal=tmp_path / "j")
    reading = read_log(encoder, log, NOTE, "4711", journal=tmp_path / "j")  # the first two replies are stored
    assert reading.trace.memories == (NOTE, NOTE, NOTE)


def test_reading_files_leaves_trained_policies_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert on_bad_memory_for(tmp_path) == "keep"
    assert on_bad_memory_for("Qwen/Qwen2.5-7B-Instruct") == "keep"
    AgentSettings().save(tmp_path)
    assert on_bad_memory_for(tmp_path) is None


def test_tables_notes_and_the_inspector_count_them(encoder):
    trace, _ = read(encoder, NOTE, COMMENT, NOTE, "4711")
    example = Example(id="a", task="toy", question=QUESTION, document="", answers=("4711",), rule="contains")
    result = Result(example, "overwrite", 1.0, trace, score("contains", trace.answer, example.answers))
    rows = to_frame([result])
    assert rows.loc[0, ["bad_memories", "bad_memory_kinds"]].tolist() == [1, "1 comment (keep)"]
    (note,) = bad_memory_notes(rows)
    assert note.startswith("overwrite: in 1 turns of 1 readings a reply was no memory")
    assert bad_memory_notes(rows.drop(columns="bad_memories")) == []
    rows = rows.assign(policy="mine", chunks=2)
    for make in (overview, table):
        assert make(rows)["bad memories"].tolist() == [1]
        for without in (rows.drop(columns="bad_memories"), rows.assign(bad_memories=0)):
            assert "bad memories" not in make(without)
    readings = Readings({"policy": [result]})
    (key,) = readings.results
    assert readings.story(key)["bad"] == [1]
    detail = readings.detail(key, 1)
    assert detail["turned_away"] == [COMMENT]
    assert detail["bad"] == "the reply was a comment about the memory; the old memory stayed"
    assert readings.entry(key)["fates"][-1] == "a reply was no memory"


# Training


class RolloutServer:
    """verl's rollout server: it records sampling settings and gives scripted replies, each with its own tokens."""

    def __init__(self, tokenizer, *replies: str):
        self.tokens = iter([tokenizer.encode(reply) for reply in replies])
        self.sampling = []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.sampling.append(sampling_params)
        ids = next(self.tokens)
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields={})


async def trained(tokenizer, on: str, *replies: str, temperature: float = 1.0):
    """The decoded rows of one rollout, its metrics, and the sampling of every request."""
    pytest.importorskip("verl")
    from memagent_lib.rl.agent_loop import MemAgentLoop

    server = RolloutServer(tokenizer, *replies)
    sizes = {"chunk_tokens": 24, "memory_tokens": 16, "answer_tokens": 8, "question_tokens": 16}
    loop = MemAgentLoop(server, tokenizer.hf, "overwrite", "short", sizes, window=512, on_bad_memory=on)
    text = "The red door has code 4711. " + "A small boat drifts past the old mill. " * 9
    document = text[: tokenizer.tokens(text).starts[40]]
    example = Example(id="a", task="toy", question="code?", document=document, answers=("4711",), rule="contains")
    row = example.to_record() | {"raw_prompt": example.to_record()["prompt"], "uid": "s1p0"}
    outputs = await loop.run({"temperature": temperature}, **row, global_steps=1, session_id=0)
    rows = [tokenizer.decode(tuple(output.response_ids)) for output in outputs]
    return rows, outputs[-1].extra_fields["reward_extra_info"], server.sampling


async def test_training_takes_every_reply_by_default(tokenizer):
    rows, metrics, _ = await trained(tokenizer, "take", NOTE, "No changes.", "4711")
    assert rows == [NOTE, "No changes.", "4711"]
    assert metrics["bad_memories"] == 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.0])
async def test_replies_turned_away_in_training_are_rows_too(tokenizer, temperature):
    rows, metrics, _ = await trained(tokenizer, "keep", NOTE, "No changes.", "4711", temperature=temperature)
    assert rows == [NOTE, "No changes.", "4711"]
    assert metrics["bad_memories"] == 1.0
    replies = (NOTE, "No changes.", "door code", "4711")
    rows, metrics, sampling = await trained(tokenizer, "retry", *replies, temperature=temperature)
    assert rows == list(replies)
    assert metrics["turns"] == 3.0
    assert [each["temperature"] for each in sampling] == [temperature, temperature, temperature or 0.7, temperature]
    assert sampling[2]["seed"] != sampling[1].get("seed")
