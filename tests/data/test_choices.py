"""Multiple-choice answers: a letter or a text, and nothing that only looks like one."""

from __future__ import annotations

import pytest

from memagent_lib.data.formats.choices import option_answers

OPTIONS = ["Ada", "Odo", "Ira", "Una"]


@pytest.mark.parametrize("answer", ["B", "Odo"])
def test_a_letter_and_a_text_name_the_same_option(answer):
    assert option_answers(answer, OPTIONS, "x.json, record 1") == ("Odo", "B")


@pytest.mark.parametrize("answer", ["", "AB", "E", "odo"])
def test_an_answer_that_is_no_option_is_refused(answer):
    with pytest.raises(ValueError, match=r"x\.json, record 1: the answer .* is none of the options"):
        option_answers(answer, OPTIONS, "x.json, record 1")


def test_more_options_than_letters_are_refused():
    with pytest.raises(ValueError, match="5 options, and the judge 'choice' knows the letters A, B, C, D"):
        option_answers("Odo", [*OPTIONS, "Eve"], "x.json, record 1")
