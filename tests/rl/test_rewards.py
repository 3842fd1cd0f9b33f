"""Rewards besides the answer's score, worked out by hand on traces of real readers."""

from __future__ import annotations

import pytest
from reading_by_hand import pieces, play

from experiments.readers.gated import early_exit, gated, late_exit, update
from experiments.readers.recall import gain, recall, share_of_words
from experiments.readers.retrieving import retrieving, stop
from memagent_lib.data import Example, Span
from memagent_lib.errors import UserError
from memagent_lib.evaluation import Result
from memagent_lib.readers import overwrite
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.rewards import reward_named, rewards_of, turn_position
from memagent_lib.scoring import Score

TEXTS = ("Rain. ", "The code is 4711. ", "Snow. ", "It is Ada's. ", "Wind.")
CHUNKS = pieces(*TEXTS)
DOCUMENT = "".join(TEXTS)


def read(reader, *replies: str, evidence=(), answers=("4711",)) -> Result:
    left = iter(replies)
    trace = play(reader("q", CHUNKS), lambda prompt: next(left))[0]
    starts = [(DOCUMENT.index(words), len(words)) for words in evidence]
    spans = tuple(Span(start, start + size) for start, size in starts)
    example = Example(id="a", task="toy", question="q", document=DOCUMENT, answers=answers, evidence=spans)
    return Result(example, reader.name, 0.0, trace, Score(1.0, "", ""))


def test_a_gate_is_right_where_it_follows_the_evidence():
    replies = ("KEEP", "4711", "KEEP", "KEEP", "4711", "x")
    assert update(read(gated, *replies, evidence=["4711"])) == [1, 1, 1, 1, -1, None]
    assert update(read(gated, *replies, evidence=["4711", "Ada"])) == [1, 1, 1, -1, -1, None]
    assert update(read(gated, *replies)) == [None] * 6, "without evidence no gate is judged"
    across = read(gated, "KEEP", "4711", "4711", "KEEP", "KEEP", "x", evidence=["4711. Snow"])
    assert update(across) == [1, 1, 1, 1, 1, None]


@pytest.mark.parametrize(
    ("replies", "evidence", "early", "late"),
    [
        (("DONE", "x"), ["4711"], 1, 0),
        (("-", "DONE\n4711", "x"), ["4711"], 0, 0),
        (("-", "DONE\n4711", "x"), ["4711", "Ada"], 1, 0),
        (("-", "-", "DONE", "x"), ["4711"], 0, 1),
        (("-",) * 5 + ("x",), ["Ada"], 0, 1),
        (("-",) * 5 + ("x",), ["Wind"], 0, 0),
        (("-", "DONE", "x"), ["4711. Snow"], 1, 0),
        (("DONE", "x"), [], None, None),
    ],
)
def test_an_exit_is_right_with_the_last_evidence(replies, evidence, early, late):
    result = read(gated, *replies, evidence=evidence)
    assert (early_exit(result), late_exit(result)) == (early, late)


def test_evidence_that_a_search_found_counts_as_read():
    # A passage of the fourth chunk is four characters long here.
    found = read(retrieving, "-\nSEARCH: Ad", "DONE\nAd", "x", evidence=["Ad"])
    assert found.trace.turns[1].prompt.chunk.text == "s Ad"
    assert (early_exit(found), late_exit(found)) == (0, 0)
    assert early_exit(read(retrieving, "-\nSEARCH: Ad", "DONE\nAd", "x", evidence=["Ada"])) == 1
    assert turn_position(found.trace.turns[1]).startswith("found ")


@pytest.mark.parametrize("evidence", [["4711"], []])
def test_a_stop_pays_less_for_each_turn_after_the_last_need(evidence):
    assert stop(read(gated, "-", "DONE\n4711", "x", evidence=evidence)) == 1
    assert stop(read(gated, "-", "4711", "KEEP", "DONE", "x", evidence=evidence)) == pytest.approx(0.36)
    assert stop(read(gated, "-", "-", "DONE", "x", evidence=evidence)) == 0


def test_a_gain_is_what_a_memory_and_its_request_bring():
    replies = ("-", "the 4711 code", "rain", "rain\nRECALL: code", "4711", "x")
    assert gain(read(recall, *replies)) == [0, 1, -1, 1, 1, None]
    assert gain(read(recall, *replies, answers=("4711 code",))) == [0, 1, -1, 1, 0.5, None]
    assert share_of_words("It was ADA, of course", ["Ada Lovelace", "ada"]) == 0.75
    assert share_of_words("", ["?"]) == 0


def test_turns_of_rollouts_are_compared_by_what_they_read():
    first = read(gated, "DONE", "x").trace
    second = read(gated, *["-"] * 5, "x").trace
    assert turn_position(first.turns[0]) == turn_position(second.turns[0]) == "gate 0-6"
    assert turn_position(first.turns[1]) == turn_position(second.turns[5]) == "answer"


def recipe(reader: str, **rewards: float) -> Recipe:
    tables = {"model": {"path": "x"}, "data": {"train": "a.parquet", "eval": "b.parquet"}, "rewards": rewards}
    return Recipe.from_tables(tables | {"reading": {"reader": reader}, "verl": {"trainer.total_training_steps": 1}})


@pytest.mark.parametrize(
    ("reader", "name"),
    [("overwrite", "update"), ("recall", "late_exit"), ("gated", "DONE"), ("gated", "no.py:x")],
)
def test_a_reward_that_no_file_defines_is_refused(reader, name):
    with pytest.raises(UserError, match=name):
        recipe(reader, **{name: 0.1})


def test_rewards_are_functions_of_the_readers_file_or_of_any(tmp_path):
    gates = recipe("gated", rollout_weight=0.9, update=0.1, early_exit=-0.75)
    assert gates.reward_weights == {"update": 0.1, "early_exit": -0.75}
    mine = tmp_path / "mine.py"
    mine.write_text("def brief(result):\n    return -len(result.trace.answer)\n")
    assert recipe("overwrite", **{f"{mine}:brief": 0.2}).reward_weights == {f"{mine}:brief": 0.2}
    assert reward_named(f"{mine}:brief", "overwrite")(read(overwrite, *["-"] * 5, "four")) == -4


def test_a_reward_of_turns_has_a_value_for_each():
    result = read(overwrite, *"abcde", "x")
    turns, whole = rewards_of(result, {"each": lambda r: (1.0,) * 6, "whole": lambda r: 0.5, "none": lambda r: None})
    assert (turns, whole) == ({"each": [1.0] * 6}, {"whole": 0.5, "none": None})
    for size in (5, 7):
        with pytest.raises(UserError, match="each"):
            rewards_of(result, {"each": lambda r, size=size: [1.0] * size})
