"""Measurements on one engine: the order of a prompt's parts, our own overhead."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.studies.speed.material import QUESTION, document, orders, recorded
from experiments.studies.speed.results import Measured, Ratio, alternating, paired
from memagent_lib.agent import Agent
from memagent_lib.backends import Sampling
from memagent_lib.driver import gather
from memagent_lib.prompts import Budget, Encoder, Request
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Trace

if TYPE_CHECKING:
    from experiments.studies.speed.read import ReadBench
    from memagent_lib.backends.vllm import VLLM


class Took(NamedTuple):
    """The wall time, and the processor time of all threads of this process, both the engine's and ours."""

    seconds: float
    cpu_seconds: float


class Bench:
    """What all measurements use: an engine with the model in ``folder``, the settings, encoders and documents."""

    def __init__(self, settings: ReadBench, tokenizer: Tokenizer, engine: VLLM, folder: Path):
        self.settings = settings
        self.tokenizer = tokenizer
        self.engine = engine
        self.folder = folder

    def encoder(
        self, template: str = "chunk_first", memory_tokens: int | None = None, chunk_tokens: int | None = None
    ) -> Encoder:
        s = self.settings
        budget = Budget(
            chunk_tokens=chunk_tokens or s.chunk_tokens,
            memory_tokens=memory_tokens or s.memory_tokens,
            answer_tokens=16,
            question_tokens=64,
        )
        return Encoder(self.tokenizer, orders()[template], budget)

    def document(self, pieces: int, seed: int) -> str:
        return document(1000 * self.settings.seed + seed, pieces, self.tokenizer, self.settings.chunk_tokens)

    async def timed(self, work: Callable[[], Awaitable[Any]]) -> tuple[Took, Any]:
        """Run ``work`` with an empty prefix cache; return the time it took and its result."""
        # Otherwise the second side would find the first side's prompts in the cache.
        await self.engine.forget_prefixes()
        wall = time.perf_counter()
        cpu = time.process_time()
        result = await work()
        return Took(time.perf_counter() - wall, time.process_time() - cpu), result


async def order(bench: Bench) -> Measured:
    """read one document with a group of rollouts: memory before chunk, and chunk before memory"""
    s = bench.settings
    rows = []
    ratios = []
    draws = [bench.engine.drawing(Sampling(temperature=1.0, seed=1000 * s.seed + i)) for i in range(s.group)]
    for share, memory, fewer, faster in (
        ("full", s.memory_tokens, 3.5, 2.0),
        ("a third full", max(4, s.memory_tokens // 3), 7.0, 3.0),
    ):
        for round_ in range(s.rounds):
            text = bench.document(s.chunks, round_)
            for template in alternating(orders(), round_):
                agents = [Agent(bench.encoder(template, memory), drawn) for drawn in draws]
                took, traces = await bench.timed(lambda a=agents, t=text: gather(one.aread(t, QUESTION) for one in a))
                side = {"memories": share, "round": round_, "order": template}
                rows.append(side | took._asdict() | _prefill(traces))
        for what, column, target in (
            ("prefilled tokens of turns with a memory", "prefilled_with_memory", fewer),
            ("prefilled tokens of whole readings", "prefilled_tokens", None),
            ("wall time of whole readings", "seconds", faster),
            ("processor time of whole readings", "cpu_seconds", faster),
        ):
            values = paired(rows, "order", "memory_first", "chunk_first", column, memories=share)
            ratios.append(Ratio("chunk first", f"{what}, memories {share}", values, at_least=target))
    rates = [f"{row['memories']} {row['order']} {row['hit_rate']:.0%}" for row in rows if row["round"] == 0]
    return Measured(ratios, rows, f"cache hits: {', '.join(rates)}")


def _prefill(traces: Sequence[Trace]) -> dict[str, float]:
    """Count the tokens that were prompted, computed, and found in the cache.

    Turns with a memory are counted apart too, because in a first turn both orders can share the whole prompt.
    """
    turns = [turn for trace in traces for turn in trace.turns]
    prompted = sum(t.reply.prompt_tokens for t in turns)
    cached = sum(t.reply.cached_tokens for t in turns)
    return {
        "prompt_tokens": prompted,
        "prefilled_tokens": prompted - cached,
        "prefilled_with_memory": sum(
            t.reply.prompt_tokens - t.reply.cached_tokens for t in turns if t.prompt.chunk and t.prompt.memory
        ),
        "hit_rate": cached / prompted,
        "reply_tokens": sum(t.reply.reply_tokens for t in turns),
    }


async def overhead(bench: Bench) -> Measured:
    """run our readings, and the engine alone with the same prompts"""
    s = bench.settings
    encoder = bench.encoder()
    rows = []
    texts = [bench.document(s.concurrent_chunks, 100 + i) for i in range(s.concurrent)]
    agent = Agent(encoder, bench.engine)
    # The bare side replays these requests, so both sides compute the same tokens.
    sent = await recorded(agent, texts)
    sides = {
        "bare": lambda: gather(_replay(bench.engine, requests) for requests in sent),
        "memagent": lambda: gather(agent.aread(text, QUESTION) for text in texts),
    }
    for round_ in range(s.rounds):
        for name, work in alternating(sides, round_).items():
            took, _ = await bench.timed(work)
            rows.append({"round": round_, "driver": name, "turns": sum(map(len, sent)), **took._asdict()})
    ratios = []
    for what, column in (("wall time", "seconds"), ("processor time", "cpu_seconds")):
        percent = tuple(100 * (ratio - 1) for ratio in paired(rows, "driver", "memagent", "bare", column))
        claim = f"{what} of {s.concurrent} readings over the bare engine's"
        ratios.append(Ratio("overhead", claim, percent, at_most=5.0, unit=" %"))
    return Measured(ratios, rows)


async def _replay(engine: VLLM, requests: Sequence[Request]) -> None:
    """Send the requests through the engine's own interface and discard the replies."""
    for request in requests:
        await engine.generate(request)
