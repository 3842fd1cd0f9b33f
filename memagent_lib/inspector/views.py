"""Open the inspector on a run, a folder or results: as a widget in Jupyter, as a page elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import Agent, open_agent
from memagent_lib.errors import UserError
from memagent_lib.evaluation import Result, read_results
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import still
from memagent_lib.pages import Page
from memagent_lib.paths import absolute
from memagent_lib.processes import in_jupyter
from memagent_lib.tracking import Experiment, TrackingError, load_results, load_runs, policy_of

if TYPE_CHECKING:
    from memagent_lib.inspector.widget import Inspector

Source = str | Path


class InspectorError(UserError, ValueError):
    """There is nothing to display. The message gives the reason."""


def show(
    source: Source | Sequence[Source] | Mapping[str, Iterable[Result]],
    agents: Mapping[str, Callable[[], Agent]] | None = None,
    tracking: str = "runs",
    **opening: Any,
) -> Inspector | Page:
    """Open the inspector on results by policy, or on one or more runs.

    A run is an MLflow id, or a folder with its results. ``opening`` (``policy``, ``reader``, ``chunks``, ``example``,
    ``beside``, ``turn``) chooses the reading to display first; by default it is the first failure that lost evidence.
    ``agents`` maps each policy to a function that opens its agent, for continuing from an edited memory; for runs, the
    default opens the run's model.
    """
    live = ""
    openers: dict[str, Callable[[], Agent]] = {}
    if not isinstance(source, Mapping):
        if isinstance(source, Source):
            source = [source]
        sources = [str(one) for one in source]
        argument = sources[0] if len(sources) == 1 else sources
        live = f"inspector.show({json.dumps(argument)})"
        source, openers = _load(sources, tracking)
    readings = Readings(source)
    if not readings.results:
        raise InspectorError("no readings with a trace to look into; 03_evaluate saves some of every evaluation")
    try:
        state = readings.opening(**opening)
    except (ValueError, TypeError) as wrong:  # an unknown value, or an unknown argument
        raise InspectorError(str(wrong).replace("Readings.opening()", "show()")) from None
    if not in_jupyter():
        return still(readings, state, live)
    from memagent_lib.inspector.widget import Inspector  # loads ipywidgets, which a page does not need

    if agents is None:
        agents = openers
    return Inspector(readings, state, agents, live)


def _load(sources: Sequence[str], tracking: str) -> tuple[dict[str, list[Result]], dict[str, Callable[[], Agent]]]:
    """Return the results of runs or folders by policy, and functions that open the agents of the runs' models."""
    results: dict[str, list[Result]] = {}
    openers: dict[str, Callable[[], Agent]] = {}
    for source in sources:
        folder = absolute(source)
        if folder.is_dir():
            results.setdefault(folder.name, []).extend(read_results(folder))
            continue
        try:
            run = Experiment.open(tracking).join(source)
            row = load_runs(run.experiment, f"attributes.run_id = '{run.id}'").to_dict("records")[0]
            policy = policy_of(row)
            results.setdefault(policy, []).extend(load_results(run))
        except TrackingError as missing:
            raise InspectorError(str(missing)) from None
        model = row.get("params.model")
        if model:
            openers[policy] = partial(open_agent, model, row.get("params.backend", "vllm"))
    return results, openers
