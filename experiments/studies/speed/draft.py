"""Measure how much time drafts save: ``python -m experiments.studies.speed draft``.

The draft of a reply is the memory that it replaces. For comparison, the same backend without drafts, and vLLM, read the
same documents, each on one CPU core. All replies must be identical, word for word. A random model would not do, because
the policy determines how often a draft is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.studies.speed.results import Measured, Ratio, alternating, paired
from memagent_lib.agent import Agent, open_agent, run_sync
from memagent_lib.data import Example, make
from memagent_lib.driver import gather
from memagent_lib.settings import require_at_least

TASK = "experiments/pocket/world.py:pocket_mix"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBench:
    """Sizes of the measurement: each of ``models`` reads ``readings`` documents of ``chunks`` chunks at a time."""

    models: tuple[str, ...] = ("experiments/pocket/trained", "experiments/pocket/warm_start")
    readings: tuple[int, ...] = (12, 64)
    chunks: int = 32
    rounds: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "chunks", "rounds")
        if len({Path(model).name for model in self.models}) < len(self.models):
            raise ValueError(f"models: {list(self.models)} have folders of one name; rows are grouped by it")


def bench_draft(settings: DraftBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Measure processor seconds of whole readings, by model."""
    names = {Path(model).name: model for model in settings.models}
    return {name: _of_model(settings, name, model, report) for name, model in names.items()}


def _of_model(s: DraftBench, name: str, model: str, report: Callable[[str], None]) -> Measured:
    sides = {
        "drafts": open_agent(model, "transformers", threads=1),
        "plain": open_agent(model, "transformers", threads=1, drafts=False),
        "vllm": open_agent(model, "vllm", threads=1),
    }
    rows = []
    ratios = []
    for count in s.readings:
        report(f"{model}: {count} readings at a time")
        tokenizer = sides["drafts"].encoder.tokenizer
        examples = list(make(TASK, count, s.seed, tokenizer, chunks=s.chunks))
        for round_ in range(s.rounds):
            replies = {}
            for side, agent in alternating(sides, round_).items():
                cpu_s, replies[side] = _read(agent, examples)
                rows.append({"round": round_, "readings": count, "side": side, "cpu_s": cpu_s})
            # Drafts must save time without changing a reply, else the comparison means nothing.
            if not replies["drafts"] == replies["plain"] == replies["vllm"]:
                raise RuntimeError(f"{model}: readings with and without drafts differ")
        for base, what in (("plain", "without drafts"), ("vllm", "vLLM")):
            of = f"processor seconds of {what} over those with drafts, {count} at a time"
            ratios.append(Ratio(name, of, paired(rows, "side", base, "drafts", "cpu_s", readings=count)))
    for agent in sides.values():
        agent.close()
    return Measured(ratios, rows)


def _read(agent: Agent, examples: list[Example]) -> tuple[float, list[list[str]]]:
    """Return this process's processor seconds, and the replies of each reading."""
    started = time.process_time()
    traces = run_sync(gather(agent.aread(example.document, example.question) for example in examples))
    spent = time.process_time() - started
    return spent, [[turn.reply.text for turn in trace.turns] for trace in traces]
