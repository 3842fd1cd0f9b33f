"""Measure several engines on the same cores as one: ``python -m experiments.studies.speed engines``.

One engine in this process with all cores, and an engine pool whose engines share the same cores, read the same
documents. All replies must be identical. Starting the engines is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from experiments.studies.speed.results import Measured, Ratio, alternating, paired
from memagent_lib.agent import Agent, open_agent, run_sync
from memagent_lib.data import Example, make
from memagent_lib.driver import gather
from memagent_lib.system import cores

TASK = "experiments/pocket/world.py:pocket_mix"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesBench:
    """Sizes of the measurement: ``model`` reads ``readings`` documents of ``chunks`` chunks at a time."""

    model: str = "experiments/pocket/trained"
    engines: int = 2
    readings: int = 64
    chunks: int = 32
    rounds: int = 3
    seed: int = 0


def bench_engines(settings: EnginesBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Measure the wall time of whole readings, in turn with one engine and with several."""
    s = settings
    threads = cores()
    sides = {
        "one": open_agent(s.model, "vllm", threads=threads),
        "several": open_agent(s.model, "vllm", engines=s.engines),
    }
    examples = list(make(TASK, s.readings, s.seed, sides["one"].encoder.tokenizer, chunks=s.chunks))
    rows = []
    try:
        for agent in sides.values():
            _read(agent, examples[: s.engines])  # an engine's first turns take up to half a minute
        for round_ in range(s.rounds):
            replies = {}
            for side, agent in alternating(sides, round_).items():
                report(f"round {round_ + 1} of {s.rounds}: {side}")
                seconds, replies[side] = _read(agent, examples)
                rows.append({"round": round_, "side": side, "seconds": seconds})
            if replies["one"] != replies["several"]:
                raise RuntimeError(f"{s.model}: readings with one engine and with {s.engines} differ")
    finally:
        for agent in sides.values():
            agent.close()
    what = f"seconds of one engine over those of {s.engines}, {s.readings} readings of {s.chunks} chunks"
    note = f"one engine with {threads} threads; {s.engines} engines"
    ratio = Ratio("engines", what, paired(rows, "side", "one", "several", "seconds"))
    return {"engines": Measured([ratio], rows, note)}


def _read(agent: Agent, examples: list[Example]) -> tuple[float, list[list[str]]]:
    """Return the seconds that all readings took together, and the replies of each."""
    started = time.monotonic()
    traces = run_sync(gather(agent.aread(example.document, example.question) for example in examples))
    seconds = time.monotonic() - started
    return seconds, [[turn.reply.text for turn in trace.turns] for trace in traces]
