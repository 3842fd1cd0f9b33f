"""What would have been: a reading that continues from a memory which a person has edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from memagent_lib.agent import Agent, drive, run_sync
from memagent_lib.evaluation import Result
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.trace import Trace, Turn

Opener = Agent | Callable[[], Agent]


class Agents:
    """Agents by policy, each opened when it is first needed. A single one serves every policy."""

    def __init__(self, openers: Opener | Mapping[str, Opener] | None):
        self._openers, self._opened = openers, {}

    def can_read(self, policy: str) -> bool:
        return self._openers is not None and (not isinstance(self._openers, Mapping) or policy in self._openers)

    def of(self, policy: str) -> Agent:
        if not self.can_read(policy):
            raise ValueError(f"no agent is given for {policy!r}; show(..., agents={{{policy!r}: agent}}) takes one")
        opener = self._openers[policy] if isinstance(self._openers, Mapping) else self._openers
        name = policy if isinstance(self._openers, Mapping) else ""
        if name not in self._opened:
            self._opened[name] = opener if isinstance(opener, Agent) else opener()
        return self._opened[name]


def read_on(result: Result, turn: int, memory: str, agent: Agent) -> Result:
    """The reading up to ``turn``, whose memory becomes ``memory``, and from there as ``agent`` reads on."""
    turns, question = result.trace.turns, result.trace.question
    edited = Turn(turns[turn].prompt, replace(turns[turn].reply, text=memory, finish_reason="edited", thinking=""))
    earlier = Trace(question, (*turns[:turn], edited), result.trace.reader)
    chunks = [t.prompt.chunk for t in turns[turn + 1 :] if t.prompt.kind.reads]
    session = reader_named(result.trace.reader)(question, chunks, earlier=earlier)
    trace = run_sync(drive(session, agent.encoder, agent.backend))
    return replace(result, trace=trace, score=score(result.example.rule, trace.answer, result.example.answers))
