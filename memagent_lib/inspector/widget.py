"""The inspector as a widget of JupyterLab.

The widget requests its texts from the kernel; without a kernel, a static page is displayed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import anywidget
import traitlets

from memagent_lib.agent import Agent, chunks_after, run_sync
from memagent_lib.driver import drive
from memagent_lib.evaluation import Result
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import SCRIPT, still
from memagent_lib.pages import SavedCopy, style
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.text import chunk_stream
from memagent_lib.trace import Trace, Turn

SAVED_BYTES = 300_000
"""How many bytes of texts a saved notebook has at most. They are those of the readings that the widget opens with."""


class Inspector(anywidget.AnyWidget):
    """The widget: readings by policy, one or two displayed at a time.

    A reading of a thousand turns opens at once, because the texts of a turn are sent only when somebody opens that
    turn. Each function in ``agents`` is called once, when a person first continues from an edited memory of that
    policy.
    """

    _esm = SCRIPT
    _css = style("inspector/inspector.css")
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
        # Opened on first use and then reused: loading a model takes seconds.
        self.agents = {policy: cache(opener) for policy, opener in agents.items()}
        super().__init__(
            catalog=readings.catalog(),
            state=state,
            saved=readings.embedded(readings.displayed(state), SAVED_BYTES),
            live=live,
            # Functions cannot be sent to the browser; the names of the policies that have one can.
            can_rerun=[policy for policy in dict.fromkeys(readings.policies.values()) if policy in agents],
        )
        self.on_msg(lambda _, request, __: self.send(self.respond(request)))

    def _ipython_display_(self) -> None:
        """Display the widget, and below it a page for viewers without a kernel (GitHub, nbviewer, a converted copy)."""
        data, metadata = self._repr_mimebundle_()
        SavedCopy(still(self.readings, self.state, self.live), "ma-inspector", data, metadata)

    def respond(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to one message from the browser: its ``id`` with ``answer`` or ``error``.

        A request names what it needs (``story``, ``detail``, ``phrases``, ``search``, ``rerun``) and its arguments.
        """
        answers = {
            "story": self.readings.story,
            "detail": self.readings.detail,
            "phrases": self.readings.phrases,
            "search": self.readings.search,
            "rerun": self._rerun,
        }
        arguments = {name: value for name, value in request.items() if name not in ("id", "what")}
        try:
            return {"id": request["id"], "answer": answers[request["what"]](**arguments)}
        except Exception as failure:  # the widget displays it: a traceback in the cell's output would go unseen
            return {"id": request["id"], "error": f"{type(failure).__name__}: {failure}"}

    def _rerun(self, key: str, turn: int, memory: str) -> dict[str, Any]:
        policy = self.readings.policies[key]
        if policy not in self.agents:
            fix = f"show(..., agents={{{policy!r}: OPENER}}) takes a function that opens one"
            raise ValueError(f"no agent for {policy!r}; {fix}")
        result = read_on(self.readings.results[key], turn, memory, self.agents[policy]())
        added = self.readings.add(f"{policy}, other memory after turn {turn + 1}", result)
        self.catalog = self.readings.catalog()
        # Both are what the notebook opens with next time.
        self.saved = self.readings.embedded([key, added], SAVED_BYTES)
        return self.readings.entry(added)


def read_on(result: Result, turn: int, memory: str, agent: Agent) -> Result:
    """Repeat a reading from ``turn`` on with ``memory`` as that turn's memory; ``agent`` reads the later chunks."""
    turns = result.trace.turns
    question = result.trace.question
    reply = replace(turns[turn].reply, text=memory, finish_reason="edited", thinking="", signal="")
    edited = Turn(turns[turn].prompt, reply)
    previous = Trace(question, (*turns[:turn], edited), result.trace.reader)
    chunks = [t.prompt.chunk for t in turns[turn + 1 :] if t.prompt.kind.reads]
    unread = result.example.document[max(chunk.end for chunk in result.trace.chunks_read) :]
    if unread:  # the reading stopped before the document's end, and this one need not
        rest = chunk_stream([unread], agent.encoder.tokenizer, agent.encoder.budget.chunk_tokens)
        chunks += chunks_after(result.trace, rest)
    # The edited turn counts as read, so the reader continues after it.
    session = reader_named(result.trace.reader)(question, chunks, previous=previous)
    trace = run_sync(drive(session, agent.encoder, agent.backend, on_bad_memory=agent.on_bad_memory))
    # Nobody trained on this reading.
    example = replace(result.example, metadata=result.example.metadata | {"credit": ""})
    return replace(result, example=example, trace=trace, score=score(example.rule, trace.answer, example.answers))
