"""Open the inspector on a run, a folder or results: as a widget in Jupyter, as a page elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.agent import Agent
from memagent_lib.errors import UserError
from memagent_lib.evaluation import Result, results_by_file
from memagent_lib.inspector.readings import Readings
from memagent_lib.inspector.static_pages import still
from memagent_lib.pages import Page
from memagent_lib.paths import absolute, shortest_ends
from memagent_lib.rl import RunFolder
from memagent_lib.system import in_jupyter
from memagent_lib.tracking import Experiment, TrackingError, agent_openers, load_results, run_names

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

    A run is an MLflow id, a folder with its results, or that of a training run, whose steps are policies. Each has a
    name of its own: its policy or folder, with the settings that differ, a part of the id or more of the path where two
    share it. ``opening`` (``policy``, ``reader``, ``chunks``, ``example``, ``beside``, ``turn``) chooses the reading to
    display first; by default it is a failure where another policy was right, if any that lost evidence. ``agents`` maps
    each policy to a function that opens its agent, for continuing from an edited memory; the default for runs are
    :func:`~memagent_lib.tracking.agent_openers`.
    """
    live = ""
    openers: Callable[[], Mapping[str, Callable[[], Agent]]] = dict
    if not isinstance(source, Mapping):
        if isinstance(source, Source):
            source = [source]
        sources = [str(one) for one in source]
        argument = sources[0] if len(sources) == 1 else sources
        live = f"inspector.show({json.dumps(argument)})"
        source, openers = _load(sources, tracking)
    readings = Readings(source)
    try:
        state = readings.opening(**opening)
    except ValueError as wrong:  # an unknown value
        raise InspectorError(str(wrong)) from None
    if not in_jupyter():
        return still(readings, state, live)
    from memagent_lib.inspector.widget import Inspector  # loads ipywidgets, which a page does not need

    return Inspector(readings, state, openers() if agents is None else agents, live)


def _load(
    sources: Sequence[str], tracking: str
) -> tuple[dict[str, list[Result]], Callable[[], Mapping[str, Callable[[], Agent]]]]:
    """Return the results of runs and folders by name, and a function that returns the openers of the runs' agents."""
    paths = {source: absolute(source) for source in sources}
    folders = shortest_ends(path for source, path in paths.items() if path.exists() or "/" in source)
    run_ids = [source for source, path in paths.items() if path not in folders]
    openers: Callable[[], Mapping[str, Callable[[], Agent]]] = dict
    results: dict[str, list[Result]] = {}
    if run_ids:
        try:
            experiment = Experiment.open(tracking, create=False)
            names = run_names(experiment, run_ids)
            for run_id in run_ids:
                results[names[run_id]] = load_results(experiment.join(run_id))
        except TrackingError as missing:
            raise InspectorError(str(missing)) from None
        openers = partial(agent_openers, experiment, {names[run_id]: run_id for run_id in run_ids})
    for folder, name in folders.items():
        run = RunFolder(folder)
        if run.is_run:
            results |= {f"{name}, step {step}": rollouts for step, rollouts in sorted(run.rollouts())}
            continue
        by_file = {file.stem: found for file, found in results_by_file(folder).items()}
        results |= _apart(str(folder) if name in results else name, by_file)
    return results, openers


def _apart(name: str, parts: Mapping[str, list[Result]]) -> dict[str, list[Result]]:
    """Return results under one name, or each part under its own if two parts have a reading of the same question."""
    readings = [{(result.reader, result.key) for result in part} for part in parts.values()]
    if len(set().union(*readings)) == sum(map(len, readings)):
        return {name: [result for part in parts.values() for result in part]}
    return {f"{name}, {words}": part for words, part in parts.items()}
