"""A trace stores facts and derives the rest; its record gives it back."""

import json

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.trace import Reply, Trace


def test_a_trace_survives_its_record(encoder):
    trace = Agent(encoder, Scripted(lambda text: Reply("a memory", "length", 7, 3, 2))).read("Some text. " * 40, "q?")
    assert Trace.from_record(json.loads(json.dumps(trace.to_record()))) == trace
    assert trace.cut_memories == len(trace.reads) > 1
    assert list(trace.to_frame()["turn"]) == list(range(1, len(trace.turns) + 1))
    assert list(trace.to_frame()["finish_reason"]) == ["length"] * len(trace.turns)
