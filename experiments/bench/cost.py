"""What reading with a memory costs at a length, and what the whole document in one prompt costs on the same engine.

A decoder with ``B`` parameters in its layers, ``L`` layers of width ``d`` and ``V`` words spends on a prompt and reply
of ``s`` tokens, ``r`` of them replied, ``F(s, r) = 2 B s + 2 L d s^2 + 2 V d r`` FLOPs (causal attention; words are
scored where one is drawn). A document of ``n`` tokens costs ``F(n + ..)`` in one prompt, and in chunks of ``c`` tokens
``n / c`` times ``F`` of one turn: a square against a line, which cross once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.bench.material import QUESTION
from experiments.bench.results import Measured, Ratio
from experiments.bench.turns import Bench
from memagent_lib.agent import Agent
from memagent_lib.backends import Sampling
from memagent_lib.readers import READERS
from memagent_lib.trace import Trace

SIDES = {"agent": "overwrite", "full": "full"}


class Shape(NamedTuple):
    """The numbers of a decoder that decide its arithmetic; ``body`` is the parameters of its layers."""

    body: int
    layers: int
    width: int
    words: int

    @classmethod
    def of(cls, folder: Any) -> Shape:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(folder))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        body = sum(weight.numel() for weight in model.model.layers.parameters())
        return cls(body, config.num_hidden_layers, config.hidden_size, config.vocab_size)

    def flops(self, tokens: float, replied: float, cached: float = 0.0) -> float:
        """Of a turn of so many ``tokens``, prompt and reply, the first ``cached`` of them computed before."""
        body, attention = 2 * self.body * (tokens - cached), 2 * self.layers * self.width * (tokens**2 - cached**2)
        return body + attention + 2 * self.words * self.width * replied

    def of_trace(self, trace: Trace) -> float:
        return sum(
            self.flops(r.prompt_tokens + r.reply_tokens, r.reply_tokens, r.cached_tokens)
            for r in (turn.reply for turn in trace.turns)
        )

    def crossover(self, chunk_tokens: int, turn_tokens: float, replied: float) -> float:
        """The length in tokens from which a memory costs less: turns of ``turn_tokens``, ``replied`` of them, one for
        each chunk. The one answer of either side is left out.
        """
        per_token = self.flops(turn_tokens, replied) / chunk_tokens
        return (per_token - 2 * self.body) / (2 * self.layers * self.width)


async def cost(bench: Bench) -> Measured:
    """one document at a time: with a memory, and whole in one prompt"""
    s, rows = bench.settings, []
    shape, backend = Shape.of(bench.folder), bench.engine.drawing(Sampling(temperature=1.0, seed=s.seed))
    memories = []
    for round_ in range(s.rounds):
        for length in s.full_lengths:
            text = bench.document(length // s.chunk_tokens, 500 + round_)
            for side, reader in SIDES.items():
                encoder = bench.encoder(chunk_tokens=length if side == "full" else None)
                agent = Agent(encoder, backend, READERS[reader])
                took, trace = await bench.timed(lambda a=agent, t=text: a.aread(t, QUESTION))
                facts = {"turns": len(trace.turns), "flops": shape.of_trace(trace), **took._asdict()}
                rows.append({"round": round_, "side": side, "length": length, **facts})
                memories += [turn.reply for turn in trace.turns[1:-1]]
    turn = [sum(getattr(r, name) for r in memories) / len(memories) for name in ("prompt_tokens", "reply_tokens")]
    formula = shape.crossover(s.chunk_tokens, sum(turn), turn[1])
    ratios = [Ratio("cost", "a memory costs less from, by the formula", (formula / 1000,), unit=" K tokens")]
    notes = [f"{shape.body / 1e6:.1f}M parameters in {shape.layers} layers, one reading at a time"]
    for column, what in (("flops", "by FLOPs counted"), ("seconds", "by seconds")):
        found = [crossing([r for r in rows if r["round"] == i], column) for i in range(s.rounds)]
        if crossed := tuple(n / 1000 for n in found if not math.isnan(n)):
            ratios.append(Ratio("cost", f"... {what}", crossed, unit=" K tokens"))
        else:
            notes.append(f"no crossing {what} between the lengths measured")
    longest = [r for r in rows if r["length"] == max(s.full_lengths)]
    for column in ("flops", "seconds"):
        times = [_per_side(longest, i, column) for i in range(s.rounds)]
        what = f"{column} of the whole document over a memory's at {max(s.full_lengths):,} tokens"
        ratios.append(Ratio("cost", what, tuple(t["full"] / t["agent"] for t in times)))
    return Measured(ratios, rows, "; ".join(notes))


def _per_side(rows: Sequence[Mapping[str, Any]], round_: int, column: str) -> dict[str, float]:
    return {row["side"]: row[column] for row in rows if row["round"] == round_}


def crossing(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    """The length at which both sides spend as much, between two that were measured: lines in logarithms of both. Not a
    number where one side spends less everywhere.
    """
    spent = {side: {row["length"]: row[column] for row in rows if row["side"] == side} for side in SIDES}
    apart = [(n, math.log(spent["full"][n] / spent["agent"][n])) for n in sorted(spent["agent"])]
    for (n, below), (m, above) in pairwise(apart):
        if below <= 0 < above:
            return math.exp(math.log(n) + math.log(m / n) * -below / (above - below))
    return math.nan
