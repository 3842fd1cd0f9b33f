"""The inspector in JupyterLab: a widget whose texts come from the kernel, and a static page without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import anywidget
import traitlets

from memagent_lib.agent import Agent, drive, run_sync
from memagent_lib.evaluation import Result
from memagent_lib.inspector.pages import SCRIPT, still
from memagent_lib.inspector.readings import Readings
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.trace import Trace, Turn

STYLE = SCRIPT.parent / "templates" / "inspector.css"
SAVED_BYTES = 300_000
"""How much of the texts it opens with a saved notebook keeps."""


class Inspector(anywidget.AnyWidget):
    """Readings by policy, shown one or two at a time. ``agents`` open, by policy, what reads on from an edited memory;
    each is called once, when it is first needed.

    The texts of a turn come from the kernel when they are looked at, so that a reading of a thousand turns opens at
    once; those that it opens with are saved with the notebook.
    """

    _esm = SCRIPT
    _css = STYLE
    catalog = traitlets.List().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    saved = traitlets.Dict().tag(sync=True)
    live = traitlets.Unicode().tag(sync=True)
    can_rerun = traitlets.List().tag(sync=True)

    def __init__(
        self,
        readings: Readings,
        state: dict[str, Any],
        agents: Mapping[str, Callable[[], Agent]],
        live: str,
    ):
        self.readings = readings
        self.agents = {policy: cache(opener) for policy, opener in agents.items()}
        other = readings.beside(readings.entry(state["key"]), state["beside"])
        shown = [state["key"], *([other["key"]] if other else [])]
        super().__init__(
            catalog=readings.catalog(),
            state=state,
            saved=readings.embedded(shown, SAVED_BYTES),
            live=live,
            can_rerun=[policy for policy in dict.fromkeys(readings.policies.values()) if policy in agents],
        )
        self.on_msg(self._asked)

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """The widget, and beside it what a page without a kernel can show (GitHub, nbviewer, a saved copy)."""
        data, about = super()._repr_mimebundle_(**given)
        return data | {"text/html": still(self.readings, self.state, self.live).body}, about

    def _asked(self, _: Any, request: Mapping[str, Any], __: Any) -> None:
        known = {
            "story": self.readings.story,
            "detail": self.readings.detail,
            "phrases": self.readings.phrases,
            "search": self.readings.search,
            "rerun": self._rerun,
        }
        given = {name: value for name, value in request.items() if name not in ("id", "what")}
        try:
            self.send({"id": request["id"], "answer": known[request["what"]](**given)})
        except Exception as failure:  # a person waits for an answer, and the cell's output is not where they look
            self.send({"id": request["id"], "error": f"{type(failure).__name__}: {failure}"})

    def _rerun(self, key: str, turn: int, memory: str) -> dict[str, Any]:
        policy = self.readings.policies[key]
        if policy not in self.agents:
            fix = f"show(..., agents={{{policy!r}: OPENER}}) takes a function that opens one"
            raise ValueError(f"no agent is given for {policy!r}; {fix}")
        result = read_on(self.readings.results[key], turn, memory, self.agents[policy]())
        added = self.readings.add(f"{policy}, other memory after turn {turn + 1}", result)
        self.catalog = self.readings.catalog()
        self.saved = self.readings.embedded([key, added], SAVED_BYTES)  # what a page opened again shows
        return self.readings.entry(added)


def read_on(result: Result, turn: int, memory: str, agent: Agent) -> Result:
    """The reading up to ``turn``, whose memory becomes ``memory``, and from there as ``agent`` reads on."""
    turns, question = result.trace.turns, result.trace.question
    edited = Turn(turns[turn].prompt, replace(turns[turn].reply, text=memory, finish_reason="edited", thinking=""))
    previous = Trace(question, (*turns[:turn], edited), result.trace.reader)
    chunks = [t.prompt.chunk for t in turns[turn + 1 :] if t.prompt.kind.reads]
    session = reader_named(result.trace.reader)(question, chunks, previous=previous)
    trace = run_sync(drive(session, agent.encoder, agent.backend))
    return replace(result, trace=trace, score=score(result.example.rule, trace.answer, result.example.answers))
