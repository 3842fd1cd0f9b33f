"""What reading costs: the formula against a count by hand, and against where it crosses."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.studies.speed.cost import crossing, crossover
from memagent_lib.backends import ModelShape
from memagent_lib.trace import BadMemory, Kind, Prompt, Reply, Turn

SHAPE = ModelShape(parameters=1150, body=1000, layers=2, hidden=5, kv_width=5, vocabulary=30, attention=7)


def test_a_turns_arithmetic_is_that_worked_out_by_hand():
    # 10 tokens of which 3 are replied: 2 x 1000 x 10 + 2 x 2 x 7 x 100 + 2 x 30 x 5 x 3
    assert SHAPE.turn_flops(10, 3) == 20_000 + 2_800 + 900
    # the first 4 were computed before: 2 x 1000 x 6 + 28 x (100 - 16) + 900
    assert SHAPE.turn_flops(10, 3, cached=4) == 12_000 + 2_352 + 900


def test_causal_attention_sums_what_each_token_sees():
    seen = sum(4 * SHAPE.layers * SHAPE.attention * (token + 0.5) for token in range(10))
    assert SHAPE.turn_flops(10, 0) - 2 * SHAPE.body * 10 == pytest.approx(seen)


def test_at_the_crossover_both_cost_the_same():
    chunk, turn, replied = 50, 80, 20
    length = crossover(SHAPE, chunk, turn, replied)
    assert length / chunk * SHAPE.turn_flops(turn, replied) == pytest.approx(SHAPE.turn_flops(length, 0))
    assert length > 0


def test_a_crossing_lies_between_two_measured_lengths_or_is_nan():
    def rows(agent, full):
        sides = {"agent": agent, "full": full}
        return [
            {"side": side, "length": n, "seconds": seconds(n)} for side, seconds in sides.items() for n in (1, 10, 100)
        ]

    found = crossing(rows(lambda n: 30 * n, lambda n: n * n), "seconds")
    assert found == pytest.approx(30)
    assert math.isnan(crossing(rows(lambda n: n, lambda n: 2 * n), "seconds"))


def test_a_body_excludes_embeddings_and_a_reading_sums_its_turns():
    from transformers import Qwen2Config

    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    for tied in (True, False):
        shape = ModelShape.of(Qwen2Config(vocab_size=30, num_key_value_heads=1, tie_word_embeddings=tied, **sizes))
        # of a layer: queries, keys, values with biases, output, the two norms, and the three of the inner part
        layer = 8 * 8 + 8 + 2 * (8 * 4 + 4) + 8 * 8 + 2 * 8 + 3 * 8 * 12
        assert (shape.body, shape.parameters) == (2 * layer + 8, 2 * layer + 8 + (1 if tied else 2) * 30 * 8)
    turns = [(10, 3, 0), (20, 5, 4)]
    replies = [SimpleNamespace(prompt_tokens=n - r, reply_tokens=r, cached_tokens=c) for n, r, c in turns]
    trace = SimpleNamespace(turns=[SimpleNamespace(attempts=[reply]) for reply in replies])
    assert SHAPE.reading_flops(trace) == 23_700 + SHAPE.turn_flops(20, 5, 4)


def test_a_reply_that_was_turned_away_was_computed_too():
    away = Reply("Certainly!", prompt_tokens=7, reply_tokens=3)
    turn = Turn(Prompt(Kind.READ, "q"), Reply("a note", prompt_tokens=7, reply_tokens=4))
    retried = replace(turn, bad_memory=BadMemory("acknowledgement", "retry", (away,)))
    assert SHAPE.flops_of(retried) - SHAPE.flops_of(turn) == SHAPE.turn_flops(10, 3)
