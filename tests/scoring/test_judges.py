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


AT_THE_SEAMS = [
    # An "a" at the end is a name, elsewhere an article.
    ("contains", "The answer is Plan B.", "Plan A", 0.0),
    ("contains", r"\boxed{Group C}", "Group A", 0.0),
    ("contains", r"\boxed{the Serie A league}", "Serie A", 1.0),
    ("exact", r"\boxed{Hepatitis}", "Hepatitis A", 0.0),
    ("exact", r"\boxed{hepatitis A.}", "Hepatitis A", 1.0),
    ("contains", r"\boxed{it is a cat}", "A", 0.0),
    ("contains", r"\boxed{J.K. Rowling}", "J. K. Rowling", 1.0),
    ("contains", r"\boxed{Not until 1995}", "1995", 1.0),
    # Answers without words and numbers, and labels with a space after their comma.
    ("exact", r"\boxed{+}", "+", 1.0),
    ("exact", r"\boxed{+}", "*", 0.0),
    ("contains", r"\boxed{🙂}", "🙂", 1.0),
    ("contains", r"\boxed{🙂}", "🙁", 0.0),
    ("one_of:kitchen|garden", "The garden and the kitchen.", "kitchen, garden", 1.0),
    # Fractions, units and money.
    ("boxed", r"\boxed{1\frac{1}{2}}", "5.5", 0.0),
    ("boxed", r"\boxed{1\frac{1}{2}}", "1.5", 1.0),
    ("boxed", r"\boxed{\frac12}", "1/2", 1.0),
    ("exact", r"\boxed{3 1/2 inches}", "3.5 inches", 1.0),
    ("boxed", r"\boxed{50 \text{ percent}}", "50%", 1.0),
    ("contains", r"\boxed{8%}", "8 per cent", 1.0),
    ("exact", r"\boxed{US$5M}", "$5 million", 1.0),
    ("exact", r"\boxed{5 million dollars}", "$5 million", 1.0),
    ("exact", r"\boxed{5 million euros}", "$5 million", 0.0),
    ("exact", r"\boxed{5 m}", "5 million", 0.0),
    ("boxed", r"\boxed{25^\circ\text{C}}", "25°C", 1.0),
    ("boxed", r"\boxed{\{a, b\}}", "{a, b}", 1.0),
    # Dates with a weekday, without a year, and in AP style.
    ("contains", r"\boxed{Monday, 15 March 2021}", "March 15, 2021", 1.0),
    ("contains", r"\boxed{Monday, 15 March 2021}", "Monday", 1.0),
    ("exact", r"\boxed{Sept. 15, 2021}", "15 September 2021", 1.0),
    ("exact", r"\boxed{15-Mar-2021}", "2021-03-15", 1.0),
    ("exact", r"\boxed{15th of March}", "March 15", 1.0),
    ("exact", r"\boxed{March 16}", "March 15", 0.0),
    ("exact", r"\boxed{March 2021}", "March 20", 0.0),
    ("contains", r"\boxed{March 15, 2021}", "March 15", 1.0),
    # Options: an explanation after the letter discusses the others.
    ("choice", "D\n\nExplanation: options A, B and C are wrong.", "D", 1.0),
    ("choice", "D. Paris\n\nOption B names the capital of Italy.", "D", 1.0),
    ("choice", "A. Paris\nB. Rome\nThe best option is B.", "B", 1.0),
    ("choice", "A\n\nNo. Final answer: B", "B", 1.0),
    ("choice", "정답은 B입니다", "B", 1.0),
    # Abstentions.
    ("abstains", r"\boxed{not found}", "x", 1.0),
    ("abstains", "It isn't stated.", "x", 1.0),
    ("abstains", "There is no mention of that.", "x", 1.0),
    ("abstains", "I cannot find this in the text.", "x", 1.0),
    ("abstains", "N/A", "x", 1.0),
    ("abstains", "It was found in Paris.", "x", 0.0),
]


@pytest.mark.parametrize(("rule", "reply", "answer", "value"), AT_THE_SEAMS)
def test_words_and_numbers_count_as_people_write_them(rule: str, reply: str, answer: str, value: float) -> None:
    assert score(rule, reply, (answer,)).value == value


LISTS = [
    ("The magic numbers in the text are 12, 34, and 56.", ("12", "34", "56"), 1.0),
    ("Here are the numbers:\n- 12\n- 34\n- 99", ("12", "34", "56"), 2 / 3),
    ("Answer: 12, 34\n\nExplanation: they are in the text, at the start", ("12", "34"), 1.0),
    (r"\boxed{Berlin und Hamburg}", ("Berlin", "Hamburg"), 1.0),
    (r"\boxed{What is Love, Jaws}", ("What is Love", "Jaws"), 1.0),
    (r"\boxed{Hepatitis B}", ("Hepatitis A", "Hepatitis B"), 0.5),
]


@pytest.mark.parametrize(("reply", "answers", "value"), LISTS)
def test_words_around_a_list_are_no_items(reply: str, answers: tuple[str, ...], value: float) -> None:
    assert score("items", reply, answers).value == pytest.approx(value)


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
