"""Compare the cost of reading with a memory and of the whole document in one prompt, by length, on one engine.

A decoder spends ``F(s)`` FLOPs on a prompt and reply of ``s`` tokens (:func:`turn_flops`). A document of
``n`` tokens costs about ``F(n)`` in one prompt, which grows with the square of ``n``. In chunks of ``c`` tokens it
costs ``n / c`` times ``F`` of one turn, which grows linearly. The two costs are therefore equal at one length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.studies.speed.material import QUESTION
from experiments.studies.speed.results import Measured, Ratio, paired
from experiments.studies.speed.turns import Bench
from memagent_lib.agent import Agent
from memagent_lib.backends import ModelShape, Sampling, shape_of
from memagent_lib.readers import reader_named
from memagent_lib.trace import Turn

SIDES = {"agent": "overwrite", "full": "full"}


def turn_flops(shape: ModelShape, tokens: float, replied: float, cached: float = 0.0) -> float:
    """Return the FLOPs of a turn of ``tokens`` tokens, the last ``replied`` of which are the reply.

    The first ``cached`` tokens cost nothing. Without a cache, the cost is ``2 B s + 2 L a s^2 + 2 V d r`` for ``s``
    tokens (``r`` of them in the reply), ``B`` parameters in the body, ``L`` layers whose heads are together ``a`` wide,
    hidden vectors of width ``d`` and a vocabulary of ``V``, which is scored only for the tokens of the reply.
    """
    attention = shape.layers * shape.attention * (tokens**2 - cached**2)
    return 2 * (shape.body * (tokens - cached) + attention + shape.vocabulary * shape.hidden * replied)


def flops_of(shape: ModelShape, turn: Turn) -> float:
    """Return the :func:`turn_flops` of a recorded turn, with those of replies that were turned away."""
    return sum(
        turn_flops(shape, reply.prompt_tokens + reply.reply_tokens, reply.reply_tokens, reply.cached_tokens)
        for reply in turn.attempts
    )


def crossover(shape: ModelShape, chunk_tokens: int, turn_tokens: float, replied: float) -> float:
    """Return the length in tokens above which reading with a memory costs less.

    Each chunk takes a turn of ``turn_tokens``, of which ``replied`` are the reply. Neither side's answer is counted.
    """
    per_token = turn_flops(shape, turn_tokens, replied) / chunk_tokens
    return (per_token - 2 * shape.body) / (2 * shape.layers * shape.attention)


async def cost(bench: Bench) -> Measured:
    """read one document at a time: with a memory, and whole in one prompt"""
    s = bench.settings
    shape = shape_of(str(bench.folder))
    backend = bench.engine.drawing(Sampling(temperature=1.0, seed=s.seed))
    rows = []
    memories = []
    for round_ in range(s.rounds):
        for length in s.full_lengths:
            text = bench.document(length // s.chunk_tokens, 500 + round_)
            for side, reader in SIDES.items():
                # One chunk as long as the document makes `full` put all of it in one prompt.
                encoder = bench.encoder(chunk_tokens=length if side == "full" else None)
                agent = Agent(encoder, backend, reader_named(reader))
                took, trace = await bench.timed(lambda a=agent, t=text: a.aread(t, QUESTION))
                counts = {"turns": len(trace.turns), "flops": sum(flops_of(shape, turn) for turn in trace.turns)}
                rows.append({"round": round_, "side": side, "length": length, **counts, **took._asdict()})
                memories += [turn.reply for turn in trace.turns[1:-1]]
    turn = [sum(getattr(r, name) for r in memories) / len(memories) for name in ("prompt_tokens", "reply_tokens")]
    formula = crossover(shape, s.chunk_tokens, sum(turn), turn[1])
    ratios = [Ratio("cost", "a memory costs less from, by the formula", (formula / 1000,), unit=" K tokens")]
    notes = [f"{shape.body / 1e6:.1f}M parameters in {shape.layers} layers, one reading at a time"]
    for column, what in (("flops", "by FLOPs counted"), ("seconds", "by seconds")):
        found = [crossing([r for r in rows if r["round"] == i], column) for i in range(s.rounds)]
        crossed = tuple(n / 1000 for n in found if not math.isnan(n))
        if crossed:
            ratios.append(Ratio("cost", f"... {what}", crossed, unit=" K tokens"))
        else:
            notes.append(f"no crossing {what} between the lengths measured")
    longest = max(s.full_lengths)
    for column in ("flops", "seconds"):
        values = paired(rows, "side", "full", "agent", column, length=longest)
        ratios.append(Ratio("cost", f"{column} of the whole document over a memory's at {longest:,} tokens", values))
    return Measured(ratios, rows, "; ".join(notes))


def crossing(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    """Return the length at which both sides cost the same, by logarithmic interpolation between two measured lengths.

    The result is NaN if one side costs less at every measured length.
    """
    spent = {side: {row["length"]: row[column] for row in rows if row["side"] == side} for side in SIDES}
    apart = [(n, math.log(spent["full"][n] / spent["agent"][n])) for n in sorted(spent["agent"])]
    for (n, below), (m, above) in pairwise(apart):
        if below <= 0 < above:
            return math.exp(math.log(n) + math.log(m / n) * -below / (above - below))
    return math.nan
