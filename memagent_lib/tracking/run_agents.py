"""The agents of evaluations: a run records how its agent was opened, and opens one like it again.

A server's key or password is never recorded. This module does not depend on results.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from memagent_lib.agent import Agent, AgentSettings, open_agent
from memagent_lib.backends import Sampling
from memagent_lib.prompts import Template
from memagent_lib.tracking.runs import Experiment, Run
from memagent_lib.tracking.store import TrackingError

AGENT = "agent.json"
_LOG = logging.getLogger("memagent_lib")


def log_agent(run: Run, agent: Agent, model: str, backend: str, **options: Any) -> None:
    """Log how to open an agent again, for :func:`agent_openers`, as the artifact ``agent.json``.

    ``model``, ``backend`` and ``options`` (such as ``tokenizer`` and ``api``) are what :func:`open_agent` was called
    with; prompts, sizes, sampling, and the server's address and request fields come from the agent itself.
    """
    encoder = agent.encoder
    arguments = encoder.tokenizer.chat_arguments
    settings = AgentSettings.of(encoder.template, encoder.budget, agent.reader.source, arguments, agent.on_bad_memory)
    opening = asdict(settings) | {"model": str(model), "backend": backend, "sampling": agent.identity["sampling"]}
    own = {name: getattr(agent.backend, name, None) for name in ("base_url", "extra", "window")}
    opening |= {name: value for name, value in (own | options).items() if value}
    run.text(json.dumps({"weights": agent.weights, "opening": opening}, indent=1, default=str), AGENT)


def agent_openers(experiment: Experiment, runs: Mapping[str, str]) -> dict[str, Callable[[], Agent]]:
    """Return a function for each name that opens the agent of its run, with the settings with which the run read.

    ``runs`` maps names to ids of runs. A run without ``agent.json``, of training or of an earlier version, has no
    function; a warning says so. The functions raise :class:`TrackingError` if the model has other weights now.
    """
    openers = {}
    for name, run_id in runs.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                text = experiment.join(run_id).fetch(AGENT, folder).read_text(encoding="utf-8")
        except TrackingError:
            _LOG.warning(
                "the run %s of %s does not record its agent, so its memories cannot be edited and read on; evaluate "
                "again, or give show(..., agents={%r: OPENER}) a function that opens one", run_id, name, name
            )  # fmt: skip
            continue
        openers[name] = partial(_open, **json.loads(text))
    return openers


def _open(weights: str, opening: Mapping[str, Any]) -> Agent:
    sampling = Sampling(**opening["sampling"])
    agent = open_agent(**(opening | {"template": Template.of(opening["template"]), "sampling": sampling}))
    if agent.weights != weights:
        agent.close()
        raise TrackingError(
            f"{opening['model']} has other weights now ({agent.weights}) than this run read with ({weights}); put them "
            "back, or evaluate again"
        )
    return agent
