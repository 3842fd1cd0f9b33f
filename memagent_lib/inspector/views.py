"""Opening the inspector: on a run, a folder or results; as a widget where a person looks on, else as a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import Agent, open_agent
from memagent_lib.errors import UserError
from memagent_lib.evaluation import Result, read_results
from memagent_lib.inspector.pages import still
from memagent_lib.inspector.readings import Readings
from memagent_lib.pages import Page
from memagent_lib.paths import absolute
from memagent_lib.processes import in_jupyter
from memagent_lib.tracking import Experiment, TrackingError, load_results

if TYPE_CHECKING:
    from memagent_lib.inspector.widget import Inspector

Source = str | Path


class InspectorError(UserError, ValueError):
    """Nothing can be shown; the message says why."""


def show(
    source: Source | Sequence[Source] | Mapping[str, Iterable[Result]],
    agents: Mapping[str, Callable[[], Agent]] | None = None,
    tracking: str = "runs",
    **opening: Any,
) -> Inspector | Page:
    """The inspector of results by policy, or of one or more runs (a run's MLflow id, or a folder that holds its
    records).

    ``opening`` says where it begins: ``policy``, ``reader``, ``chunks``, ``example``, ``beside``, ``turn``; without it,
    on the first failure that lost a fact. ``agents`` open, by policy, what reads on from an edited memory; of runs, by
    default, the runs' models.
    """
    live, openers = "", {}
    if not isinstance(source, Mapping):
        named = [str(one) for one in ([source] if isinstance(source, Source) else source)]
        live = f"inspector.show({json.dumps(named[0] if len(named) == 1 else named)})"  # opens it again
        source, openers = _kept(named, tracking)
    readings = Readings(source)
    if not readings.results:
        raise InspectorError("no readings with a trace to look into; 03_evaluate keeps some of every evaluation")
    try:
        state = readings.opening(**opening)
    except (ValueError, TypeError) as wrong:
        raise InspectorError(str(wrong).replace("Readings.opening()", "show()")) from None
    if not in_jupyter():
        return still(readings, state, live)
    from memagent_lib.inspector.widget import Inspector

    return Inspector(readings, state, openers if agents is None else agents, live)


def _kept(named: Sequence[str], tracking: str) -> tuple[dict[str, list[Result]], dict[str, Callable[[], Agent]]]:
    """The results that runs or folders kept, by policy, and how to open the agent of each run's model."""
    found: dict[str, list[Result]] = {}
    openers: dict[str, Callable[[], Agent]] = {}
    for one in named:
        if absolute(one).is_dir():
            found.setdefault(absolute(one).name, []).extend(read_results(absolute(one)))
            continue
        try:
            run = Experiment.open(tracking).join(one)
            about = run.experiment.client.get_run(run.id)
            policy = about.data.params.get("policy", about.info.run_name)
            found.setdefault(policy, []).extend(load_results(run))
        except TrackingError as missing:
            raise InspectorError(str(missing)) from None
        if model := about.data.params.get("model"):
            openers[policy] = partial(open_agent, model, about.data.params.get("backend", "vllm"))
    return found, openers
