"""Our judges on replies from public reports; benchmark judges to the letter; which judges guesses satisfy."""

from __future__ import annotations

import hashlib

import pytest
from field_replies import FIELD_REPLIES
from made_up_replies import made_up

from memagent_lib.scoring import JUDGES, is_guessable, score

# Of the scores of 3,000 made-up replies.
DIGESTS = {
    "boxed_reference": "c3ccd2a82465bfac",
    "lenient": "2e48f3fcacb21a91",
    "sub_em": "0c56ed5ff747eaa0",
    "choice_infinitebench": "dcf5a4ca8d4f1237",
    "f1": "db303e0afb58eb15",
    "f1_hotpot": "88094d681ba01c3a",
    "match_all": "455e98b6361478e4",
    "match_part": "c1f154f2c88d612e",
    "first_number": "80ed1e88f8445da5",
    "last_number": "cad842a4308b3779",
    "number_share": "7b85acf54819be7a",
    "sequence": "1604ede5c831ac40",
    "rouge_l": "00cfed3397608cc0",
    "rouge_recall": "e6186260a9d73e02",
    "characters": "83047a93d58ba6bf",
    "similar": "88cb6af345e197fd",
    "word": "f1bf047c0d4f6818",
    "one_of:kitchen|garden|Lisbon": "f915659f59a961ea",
    "classes:kitchen|garden|Lisbon": "b57f462ae957c867",
    "first_line:f1": "9e60c7ec600ba2c3",
    "graphwalks": "9ce670464eaaa194",
    "mrcr:g": "aa6dd64053be1a69",
    "oolong:numeric": "bb04bccd4d70bfd2",
    "oolong_real": "12b7b905484267bd",
    "substring_match": "4258e400028a915f",
    "exact_match": "31ba11375064bbfd",
}
OURS = {"boxed", "exact", "contains", "items", "choice", "abstains"}


@pytest.mark.parametrize(("rule", "reply", "answers", "right"), FIELD_REPLIES)
def test_a_reply_from_the_field_scores_right(rule: str, reply: str, answers: list[str], right: float) -> None:
    found = score(rule, reply, answers)
    assert found.value == pytest.approx(right), found


@pytest.mark.parametrize("rule", DIGESTS)
def test_a_benchmarks_judge_stays_to_the_letter(rule: str) -> None:
    values = " ".join(f"{score(rule, reply, answers).value:.6f}" for reply, answers in made_up(3000))
    assert hashlib.sha256(values.encode()).hexdigest()[:16] == DIGESTS[rule]


def test_every_judge_is_ours_or_held_to_the_letter() -> None:
    assert {name for name, judge in JUDGES.items() if judge.source == "this library"} == OURS
    assert {rule.partition(":")[0] for rule in DIGESTS} == JUDGES.keys() - OURS


GUESSES = (
    r"\boxed{8, 7, 9}",
    r"\boxed{kitchen, garden, attic}",
    "kitchen, garden, attic",
    "8, 7, 9",
    "yard ; the old mill ; attic",
)


@pytest.mark.parametrize("rule", [f"{j.name}:{j.detail}" if j.detail else j.name for j in JUDGES.values()])
def test_a_judge_declares_whether_guesses_satisfy_it(rule: str) -> None:
    """The right answer in the middle of three guesses, boxed or bare, as training would come to write it."""
    values = [score(rule, reply, (answer,)).value for reply in GUESSES for answer in ("7", "garden", "the old mill")]
    assert is_guessable(rule) == (max(values) > 0.7)


def test_a_detail_or_a_file_may_be_guessable_too(tmp_path) -> None:
    assert is_guessable("first_line:match_part")
    file = tmp_path / "mine.py"
    file.write_text(
        "from memagent_lib.scoring import Judge, Score\n"
        "def near(reply, answers):\n    return Score(0.0, '', 'never')\n"
        "open_to_guesses = Judge('near', 'never', 'mine', near, guessable=True)\n"
    )
    assert is_guessable(f"{file}:open_to_guesses")
    assert not is_guessable(f"{file}:near")
