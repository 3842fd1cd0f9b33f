"""The contract of every judge, of the library and of the benchmarks; replies from public reports; your own judges."""

from __future__ import annotations

import hashlib
from itertools import permutations
from pathlib import Path

import pytest
from field_replies import FIELD_REPLIES
from hypothesis import given
from hypothesis import strategies as st
from made_up_replies import made_up

from memagent_lib.data import load, make, save
from memagent_lib.plugins import PluginError, shipped_module, shipped_names
from memagent_lib.scoring import JUDGES, guess_warning, judge_hash, judge_name, score

# Of the scores of 3,000 made-up replies: a change of these changes published numbers.
DIGESTS = {
    "boxed": "068c9b2edcef8dcd",
    "exact": "8e58c2f582695a1a",
    "contains": "765424f721767ced",
    "items": "44ccd6d3a055b42d",
    "choice": "c6d2126a7eebb63d",
    "abstains": "401e8fc6431874e0",
    "sub_em": "0c56ed5ff747eaa0",
    "lenient": "2e48f3fcacb21a91",
    "f1": "593cb4c9d1b955e0",
    "match_all": "455e98b6361478e4",
    "match_part": "c1f154f2c88d612e",
    "babilong:kitchen|garden|Lisbon": "f915659f59a961ea",
    "graphwalks": "a1afda5ae2e17446",
    "infinitebench/choice": "eb1ff47e90a0bc32",
    "infinitebench/word": "f1bf047c0d4f6818",
    "infinitebench/characters": "b89cf8f4367c0699",
    "infinitebench/sequence": "1604ede5c831ac40",
    "infinitebench/first_number": "80ed1e88f8445da5",
    "infinitebench/last_number": "cad842a4308b3779",
    "longbench/rouge_l": "8c988ebef7921fbf",
    "longbench/line_f1": "a9ced7d7c4d8e19e",
    "longbench/line_rouge_l": "9b7264237e97b147",
    "longbench/number_share": "7b85acf54819be7a",
    "longbench/similar": "5ac9dc95e96625f6",
    "longbench/classes:kitchen|garden|Lisbon": "b57f462ae957c867",
    "memoryagentbench/substring": "4258e400028a915f",
    "memoryagentbench/exact": "7020debdf5365cb5",
    "mrcr:g": "f666ae3c2f2ed7cf",
    "oolong:numeric": "0c48cef947674f2d",
    "oolong/real": "12b7b905484267bd",
}
RULES = list(DIGESTS)
ANSWERS = ("7", "garden", "the old mill")  # for every judge one has the form it wants: a number, a label, a text
HOSTILE = ["", " ", "\n", "\\boxed{}", "\\boxed{", "no idea", "garden\nkitchen", "7, 8\n9", "A", "\\boxed{7}\\boxed{8}"]


def test_every_judge_is_frozen() -> None:
    benchmarks = [getattr(shipped_module("benchmarks", name), "JUDGES", {}) for name in shipped_names("benchmarks")]
    assert {judge_name(rule) for rule in DIGESTS} == {*JUDGES, *(name for judges in benchmarks for name in judges)}


@pytest.mark.parametrize("rule", RULES)
def test_a_judge_stays_to_the_letter(rule: str) -> None:
    values = " ".join(f"{score(rule, reply, answers).value:.6f}" for reply, answers in made_up(3000))
    assert hashlib.sha256(values.encode()).hexdigest()[:16] == DIGESTS[rule]


@pytest.mark.parametrize(("rule", "reply", "answers", "right"), FIELD_REPLIES)
def test_a_reply_from_the_field_scores_right(rule: str, reply: str, answers: list[str], right: float) -> None:
    found = score(rule, reply, answers)
    assert found.value == pytest.approx(right), found


@pytest.mark.parametrize("rule", RULES)
def test_right_replies_score_1_and_empty_ones_0(rule: str) -> None:
    right = [score(rule, reply, (a,)).value for a in ANSWERS for reply in (a, f"\\boxed{{{a}}}")]
    assert max(right) == pytest.approx(1.0)
    assert {score(rule, "", (answer,)).value for answer in (*ANSWERS, "B", "New York")} == {0.0}


@pytest.mark.parametrize("rule", RULES)
def test_any_reply_scores_in_the_unit_interval_with_a_reason_in_any_order(rule: str) -> None:
    for reply in (*HOSTILE, *ANSWERS, "\\boxed{garden, 7}"):
        found = [score(rule, reply, answers) for answers in permutations(("7", "garden", "old\nmill"))]
        assert len({one.value for one in found}) == 1
        assert 0.0 <= found[0].value <= 1.0
        assert found[0].reason and found[0].reason.splitlines() == [found[0].reason]


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
def test_no_text_breaks_a_judge(reply: str, answers: list[str]) -> None:
    for rule in RULES:
        assert 0.0 <= score(rule, reply, answers).value <= 1.0, rule


OWN = '''
from memagent_lib.scoring import Score


def near(reply, answers):
    """Half a point for the right first letter."""
    right = any(reply[:1] == answer[0] for answer in answers)
    return Score(0.5 * right, reply[:1], "by the first letter")


def generous(reply, answers):
    return Score(2.0, reply, "more than everything")


LIMIT = 7
'''


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return file


def test_examples_carry_a_judge_in_a_file(own_file: Path, tokenizer, tmp_path: Path) -> None:
    rule = f"{own_file}:near"
    examples = make("needle", 1, 1, tokenizer, chunks=1, chunk_tokens=200, rule=rule)
    (found,) = load(save(examples, tmp_path / "data.parquet"))
    assert score(found.rule, found.answers[0], found.answers).value == 0.5
    assert judge_hash(rule) and judge_hash("mrcr:g") != judge_hash("graphwalks") and not judge_hash("boxed")


@pytest.mark.parametrize(
    ("rule", "error", "named"),
    [
        ("fuzzy", ValueError, "boxed"),
        ("f1:x", ValueError, "f1"),
        ("longbench/odd", ValueError, "longbench/odd"),
        ("{file}:far", PluginError, "far"),
        ("{file}:LIMIT", ValueError, "LIMIT"),
        ("{file}x.py:near", FileNotFoundError, "near"),
        ("{file}:generous", ValueError, "generous"),
    ],
)
def test_a_rule_that_is_none_is_refused_by_name(rule: str, error: type, named: str, own_file: Path) -> None:
    with pytest.raises(error, match=named):
        score(rule.format(file=own_file), "x", ("x",))


@pytest.mark.parametrize("answers", [(), ("",), ("x", "")])
def test_no_answers_or_an_empty_one_is_an_error(answers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="answer"):
        score("boxed", "x", answers)


def test_a_judge_that_guesses_satisfy_is_named_before_training() -> None:
    """The right answer in the middle of three guesses, boxed or bare, as training would come to write it."""
    replies = (r"\boxed{8, 7, 9}", "kitchen, garden, attic", r"\boxed{kitchen, garden, attic}", "8, 7, 9")
    for rule in JUDGES:
        values = [score(rule, reply, (answer,)).value for reply in replies for answer in ("7", "garden")]
        assert bool(guess_warning([rule])) == (max(values) > 0.7), rule
