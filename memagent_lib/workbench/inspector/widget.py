"""The interactive inspector: a widget over the readings of one or more runs, and the same as a page of its own.

``show(run)`` rebuilds it after a kernel restart from what the run kept. Where nobody looks on (papermill executes the
notebook) it is a static page instead: widgets do not outlive their kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from memagent_lib.agent import Agent, drive, run_sync
from memagent_lib.evaluation.evaluator import Result
from memagent_lib.files import place
from memagent_lib.scoring import score
from memagent_lib.trace import Trace, Turn
from memagent_lib.workbench.inspector.pages import STYLE, Page, compare, page, pick
from memagent_lib.workbench.inspector.readings import Readings
from memagent_lib.workbench.kernel import in_jupyter

if TYPE_CHECKING:
    from memagent_lib.tracking.runs import Run

SCRIPT = Path(__file__).parent / "view.js"
ROOM_MB = 8.0


class Inspector(anywidget.AnyWidget):
    """Readings by policy, shown one or two at a time. ``agent`` is what reads on from an edited memory; without one nothing can.

    The texts of a turn come from the kernel when they are looked at, so that a reading of a thousand turns opens at once.
    """

    _esm = SCRIPT
    _css = STYLE
    catalog = traitlets.List().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    can_rerun = traitlets.Bool(False).tag(sync=True)

    def __init__(self, readings: Mapping[str, Iterable[Result]], agent: Agent | None = None, **state: Any):
        self.readings, self.agent = Readings(readings), agent
        if not self.readings.results:
            raise ValueError("no readings with a trace to look into; 03_evaluate keeps some of every evaluation")
        super().__init__(
            catalog=self.readings.catalog(), state=_opening(self.readings, state), can_rerun=agent is not None
        )
        self.on_msg(self._asked)

    def save(self, path: str | Path, room_mb: float = ROOM_MB) -> Path:
        """Write the page that :func:`twin` makes."""
        return twin(self.readings, self.state, room_mb).save(path)

    def _asked(self, _: Any, request: Mapping[str, Any], __: Any) -> None:
        known = {
            "story": self.readings.story,
            "detail": self.readings.detail,
            "phrases": self.readings.phrases,
            "rerun": self._rerun,
        }
        given = {name: value for name, value in request.items() if name not in ("id", "what")}
        if "turn" in given and request["what"] == "detail":
            given["index"] = given.pop("turn")
        try:
            self.send({"id": request["id"], "answer": known[request["what"]](**given)})
        except Exception as failure:  # whatever it was, a person is waiting for an answer, and the cell's output is not where they look
            self.send({"id": request["id"], "error": f"{type(failure).__name__}: {failure}"})

    def _rerun(self, key: str, turn: int, memory: str) -> dict[str, Any]:
        result = read_on(self.readings.results[key], turn, memory, self.agent)
        added = self.readings.add(f"{self.readings.policies[key]}, other memory after turn {turn}", result)
        self.catalog = self.readings.catalog()
        return next(entry for entry in self.catalog if entry["key"] == added)


def read_on(result: Result, turn: int, memory: str, agent: Agent) -> Result:
    """The reading as it was up to ``turn``, whose memory becomes ``memory``, and from there as ``agent`` reads the same chunks."""
    turns = result.trace.turns
    edited = Turn(turns[turn].prompt, replace(turns[turn].reply, text=memory, finish_reason="edited", thinking=""))
    earlier = Trace(result.trace.question, (*turns[:turn], edited), result.trace.reader)
    chunks = (t.prompt.chunk for t in turns[turn + 1 :] if t.prompt.kind.reads)
    trace = run_sync(drive(agent.reader(result.trace.question, chunks, earlier=earlier), agent.encoder, agent.backend))
    return replace(result, trace=trace, score=score(result.example.rule, trace.answer, result.example.answers))


def show(
    source: Run | str | Path | Mapping[str, Iterable[Result]],
    agent: Agent | None = None,
    tracking: str = "runs",
    **state: Any,
) -> Inspector | Page:
    """The inspector of a run (a :class:`Run`, an MLflow run id, or a folder that holds its traces) or of results by policy.

    ``state`` says where it opens: ``left`` and ``right`` (policies), ``example``, ``turn``, ``filter``.
    """
    readings = source if isinstance(source, Mapping) else _kept(source, tracking)
    if in_jupyter():
        return Inspector(readings, agent, **state)
    return still({name: list(found) for name, found in readings.items()}, **state)


def still(
    readings: Mapping[str, Sequence[Result]], left: str = "", right: str = "", example: str = "", **_: Any
) -> Page:
    """What :func:`show` opens with, without script: one reading, or two of the same example."""
    names = [left or next(iter(readings)), *([right] if right else [])]
    found = [[r for r in readings[name] if r.trace is not None and example in ("", r.example.id)] for name in names]
    if len(names) == 2:
        return compare(*pick(*found), names)
    return page(pick(found[0], found[0])[0], names[0])


def twin(readings: Readings, state: Mapping[str, Any], room_mb: float = ROOM_MB) -> Page:
    """A page with the same script that needs no kernel and no network. Readings go in whole, those of the example it opens with first,
    until ``room_mb`` is full; where one had no room, the page says so."""
    catalog = readings.catalog()
    first = sorted(catalog, key=lambda entry: entry["example"] != state.get("example"))
    stories, details, phrases, room = {}, {}, {}, room_mb * 1e6
    for entry in first:
        key = entry["key"]
        stories[key] = readings.story(key)
        if (size := readings.bytes_of(key)) <= room:
            room -= size
            details[key] = [readings.detail(key, i) for i in range(entry["turns"])]
            phrases[key] = readings.phrases(key)
    left_out = len(catalog) - len(details)
    data = {
        "catalog": catalog,
        "state": dict(state),
        "stories": stories,
        "details": details,
        "phrases": phrases,
        "room": f"{room_mb:g} MB",
    }
    note = f"<p><small>{left_out} of {len(catalog)} readings show their timeline only: this page holds {room_mb:g} MB of texts.</small></p>"
    script = SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/")
    start = "mount(document.getElementById('inspector'), embedded(JSON.parse(document.getElementById('data').textContent)));"
    escaped = json.dumps(data).replace("<", "\\u003c")
    body = f"""<div id="inspector"></div>{note if left_out else ""}
<script type="application/json" id="data">{escaped}</script>
<script type="module">{script}
{start}</script>"""
    return Page(escape(str(state.get("example") or "memories")), body)


def _opening(readings: Readings, state: Mapping[str, Any]) -> dict[str, Any]:
    known = {"left", "right", "example", "turn", "filter"}
    if unknown := sorted(set(state) - known):
        raise ValueError(f"the inspector has no {', '.join(unknown)}; it opens at {', '.join(sorted(known))}")
    policies = list(dict.fromkeys(entry["policy"] for entry in readings.catalog()))
    for name in ("left", "right"):
        if state.get(name) and state[name] not in policies:
            raise ValueError(f"{name}: no readings of {state[name]!r}; there are those of {', '.join(policies)}")
    return {"left": policies[0], "right": "", "example": "", "turn": 0, "filter": "all"} | dict(state)


def _kept(source: Run | str | Path, tracking: str) -> dict[str, list[Result]]:
    from memagent_lib.evaluation.trace_files import TRACES, read
    from memagent_lib.tracking.runs import Experiment, Run, load_results

    if not isinstance(source, Run) and (place(source) / TRACES).is_file():
        return {place(source).name: read(place(source))}
    run = source if isinstance(source, Run) else Experiment.open(tracking).join(str(source))
    about = run.ledger.client.get_run(run.id)
    return {about.data.params.get("policy", about.info.run_name): load_results(run)}
