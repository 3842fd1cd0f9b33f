"""A trace stores facts and derives the rest; its record gives it back."""

import json

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn


def test_a_trace_survives_its_record(encoder):
    trace = Agent(encoder, Scripted(lambda text: Reply("a memory", "length", 7, 3, 2))).read("Some text. " * 40, "q?")
    assert Trace.from_record(json.loads(json.dumps(trace.to_record()))) == trace
    assert trace.cut_memories == len(trace.reads) > 1
    assert list(trace.to_frame()["turn"]) == list(range(1, len(trace.turns) + 1))
    assert list(trace.to_frame()["finish_reason"]) == ["length"] * len(trace.turns)


def test_a_merged_memory_that_was_cut_counts_and_an_answer_not():
    merge = Turn(Prompt(Kind.MERGE, "q?", "one", Chunk(0, "other", 0, 9, 3)), Reply("both", "length"))
    answer = Turn(Prompt(Kind.ANSWER, "q?", "both"), Reply("4711", "length"))
    assert Trace("q?", (merge, answer)).cut_memories == 1
