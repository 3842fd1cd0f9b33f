"""What reading costs: the formula against a count by hand, and against where it crosses."""

import math

import pytest

from experiments.bench.cost import crossing, crossover, flops
from memagent_lib.rl.model_shape import ModelShape

BODY = ModelShape(parameters=1000, layers=2, hidden=5, kv_width=5, vocabulary=30)


def test_a_turns_arithmetic_is_that_worked_out_by_hand():
    # 10 tokens of which 3 are replied: 2 x 1000 x 10 + 2 x 2 x 5 x 100 + 2 x 30 x 5 x 3
    assert flops(BODY, 10, 3) == 20_000 + 2_000 + 900
    # the first 4 were computed before: 2 x 1000 x 6 + 20 x (100 - 16) + 900
    assert flops(BODY, 10, 3, cached=4) == 12_000 + 1_680 + 900


def test_causal_attention_is_the_sum_over_tokens_of_what_each_sees():
    seen = sum(4 * BODY.layers * BODY.hidden * (token + 0.5) for token in range(10))
    assert flops(BODY, 10, 0) - 2 * BODY.parameters * 10 == pytest.approx(seen)


def test_at_the_crossover_both_cost_the_same():
    chunk, turn, replied = 50, 80, 20
    length = crossover(BODY, chunk, turn, replied)
    assert length / chunk * flops(BODY, turn, replied) == pytest.approx(flops(BODY, length, 0))
    assert length > 0


def test_a_crossing_lies_between_two_measured_lengths_and_is_none_where_one_side_is_always_cheaper():
    def rows(agent, full):
        sides = {"agent": agent, "full": full}
        return [
            {"side": side, "length": n, "seconds": seconds(n)} for side, seconds in sides.items() for n in (1, 10, 100)
        ]

    found = crossing(rows(lambda n: 30 * n, lambda n: n * n), "seconds")
    assert found == pytest.approx(30)
    assert math.isnan(crossing(rows(lambda n: n, lambda n: 2 * n), "seconds"))
