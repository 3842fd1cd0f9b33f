"""The contract of a judge, for every one in the list; and judges in a file of one's own."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_lib.data import Example, load, make, save
from memagent_lib.plugins import PluginError
from memagent_lib.scoring import JUDGES, judge_named, score

RULES = [f"{judge.name}:{judge.detail}" if judge.detail else judge.name for judge in JUDGES.values()]
ANSWERS = ("7", "garden", "the old mill")  # for every judge one has the form it wants: a number, a label, a text
SEVERAL = ("match_all", "items")  # the others accept any one of the answers
HOSTILE = ["", " ", "\n", "\\boxed{}", "\\boxed{", "no idea", "garden\nkitchen", "7, 8\n9", "A", "\\boxed{7}\\boxed{8}"]


@pytest.mark.parametrize("rule", RULES)
def test_an_accepted_answer_in_the_form_it_wants_scores_1(rule: str) -> None:
    replies = {answer: (answer, f"\\boxed{{{answer}}}") for answer in ANSWERS}
    scores = {score(rule, reply, (answer,)).value for answer in ANSWERS for reply in replies[answer]}
    assert max(scores) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_reply_scores_0(rule: str) -> None:
    assert {score(rule, "", (answer,)).value for answer in (*ANSWERS, "B", "New York")} == {0.0}


def test_an_empty_choice_scores_0_where_only_a_is_accepted() -> None:
    assert score("choice", "", ("A",)).value == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_any_reply_scores_in_the_unit_interval_with_a_reason(rule: str) -> None:
    for reply in (*HOSTILE, *ANSWERS):
        found = score(rule, reply, ("7", "garden\nparty"))
        assert 0.0 <= found.value <= 1.0
        assert found.reason and found.reason.splitlines() == [found.reason], (reply, found.reason)


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
def test_no_text_breaks_a_judge(reply: str, answers: list[str]) -> None:
    for rule in RULES:
        assert 0.0 <= score(rule, reply, answers).value <= 1.0, rule


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_the_answers_makes_no_difference(rule: str) -> None:
    for reply in (*HOSTILE, *ANSWERS, "\\boxed{garden, 7}", "garden 7"):
        scores = [score(rule, reply, answers).value for answers in permutations(("7", "garden", "old mill"))]
        assert len(set(scores)) == 1, (reply, scores)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("answers", [(), ("",), ("x", "")])
def test_no_answers_or_an_empty_one_is_an_error(rule: str, answers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no accepted answer, or an empty one"):
        score(rule, "x", answers)


@pytest.mark.parametrize("rule", [judge.name for judge in JUDGES.values() if not judge.detail])
def test_any_of_several_answers_is_accepted_and_found(rule: str) -> None:
    alone = score(rule, "\\boxed{7}", ("7",))
    assert alone.value > 0
    assert alone.answer
    if rule not in SEVERAL:
        assert score(rule, "\\boxed{7}", ("Madrid 55", "7")).value == pytest.approx(alone.value)


def test_every_judge_says_what_it_does_and_where_it_is_from() -> None:
    for judge in JUDGES.values():
        assert judge.summary and judge.summary.splitlines() == [judge.summary], judge.name
        assert judge.source, judge.name
    with_detail = {"classes", "first_line", "mrcr", "one_of", "oolong"}
    assert {judge.name for judge in JUDGES.values() if judge.detail} == with_detail


def test_an_unknown_judge_names_the_known_ones() -> None:
    for rule in ("fuzzy", "one_of", "one_of:", "f1:x", "f1:"):
        with pytest.raises(ValueError, match=r"no judge .*choose from abstains, boxed.*one_of:\.\.\..*FILE\.py:NAME"):
            judge_named(rule)


OWN = '''
from memagent_lib.scoring import Judge, Score


def near(reply, answers):
    """Half a point for the right first letter."""
    right = any(reply[:1] == answer[0] for answer in answers)
    return Score(0.5 * right, reply[:1], "by the first letter")


def generous(reply, answers):
    return Score(2.0, reply, "more than everything")


declared = Judge("near", "half a point for the right first letter", "a colleague", near)
LIMIT = 7
'''


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize("name", ["near", "declared"])
def test_a_judge_in_a_file_scores_like_a_listed_one(own_file: Path, name: str) -> None:
    rule = f"{own_file}:{name}"
    assert score(rule, "maple", ("mill",)) == score(rule, "mud", ("mill", "x"))
    assert score(rule, "maple", ("mill",)).value == 0.5
    assert score(f"first_line:{rule}", "\nmaple\nelm", ("mill",)).answer == "m"


def test_examples_carry_a_judge_in_a_file(own_file: Path, tokenizer, tmp_path: Path) -> None:
    rule = f"{own_file}:near"
    examples = make("needle", 2, 1, tokenizer, chunks=1, chunk_tokens=200, rule=rule)
    (first, second) = load(save(examples, tmp_path / "data.parquet"))
    assert (first.rule, second.rule) == (rule, rule)
    assert score(first.rule, first.answers[0], first.answers).value == 0.5


def test_a_file_without_the_named_judge_is_a_clear_error(own_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"mine\.py has no 'far'; it has .*near"):
        judge_named(f"{own_file}:far")
    with pytest.raises(ValueError, match="LIMIT is of type int; a judge in a file is a function"):
        judge_named(f"{own_file}:LIMIT")
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.py"):
        judge_named(f"{tmp_path}/none.py:near")
    with pytest.raises(ValueError, match=r"example 'one': .*mine\.py has no 'far'"):
        Example(id="one", task="t", question="q?", document="x", answers=("a",), rule=f"{own_file}:far")


def test_a_score_outside_the_unit_interval_is_refused(own_file: Path) -> None:
    with pytest.raises(ValueError, match=r"generous' returned Score\(value=2\.0.*has to return .* in \[0, 1\]"):
        score(f"{own_file}:generous", "x", ("x",))
