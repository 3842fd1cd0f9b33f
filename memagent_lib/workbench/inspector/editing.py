"""What would have been: a reading that continues from a memory which a person has edited."""

from __future__ import annotations

from dataclasses import replace

from memagent_lib.agent import Agent, drive, run_sync
from memagent_lib.evaluation import Result
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.trace import Trace, Turn


def read_on(result: Result, turn: int, memory: str, agent: Agent) -> Result:
    """The reading up to ``turn``, whose memory becomes ``memory``, and from there as ``agent`` reads on."""
    turns, question = result.trace.turns, result.trace.question
    edited = Turn(turns[turn].prompt, replace(turns[turn].reply, text=memory, finish_reason="edited", thinking=""))
    earlier = Trace(question, (*turns[:turn], edited), result.trace.reader)
    chunks = [t.prompt.chunk for t in turns[turn + 1 :] if t.prompt.kind.reads]
    session = reader_named(result.trace.reader)(question, chunks, earlier=earlier)
    trace = run_sync(drive(session, agent.encoder, agent.backend))
    return replace(result, trace=trace, score=score(result.example.rule, trace.answer, result.example.answers))
