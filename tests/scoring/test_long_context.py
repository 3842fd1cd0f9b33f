"""The judges of GraphWalks, MRCR, OOLONG and MemoryAgentBench on values worked by hand, and abstention."""

from __future__ import annotations

import pytest

from memagent_lib.scoring import score

WORKED = [
    # Two of three named, one of two right names missing: precision 1/3, recall 1/2.
    ("graphwalks", "I walked.\nFinal Answer: [a, b, c]", "[a, d]", 0.4),
    ("graphwalks", "final answer: [a,d]", "[d, a]", 1.0),
    ("graphwalks", "Final Answer: [a, d]\nDone.", "[a, d]", 0.0),  # only the last line counts
    ("graphwalks", "a, d", "[a, d]", 0.0),
    ("graphwalks", "Final Answer: []", "[]", 1.0),
    ("graphwalks", r"\boxed{[a, d]}", "[a, d]", 1.0),
    ("graphwalks", r"\boxed{Final Answer: [a]}", "[a, d]", 2 / 3),
    # "abcd" and "bcde" share "bcd": 2 * 3 / 8.
    ("mrcr:X1", "X1abcd", "X1bcde", 0.75),
    ("mrcr:X1", "abcd", "X1abcd", 0.0),
    ("mrcr:X1", " X1abcd", "X1abcd", 0.0),
    ("mrcr:X1", r"\boxed{X1abcd}", "X1abcd", 1.0),
    ("oolong:label", "Label: **spam**", "spam", 1.0),
    ("oolong:label", "Label: [spam]", "spam", 1.0),
    ("oolong:label", "I would say that the label is spam", "spam", 1.0),  # the last word of a long reply
    ("oolong:label", "spam", "ham", 0.0),
    ("oolong:numeric", "Answer: 12", "10", 0.75**2),
    ("oolong:numeric", "Answer: 12.0", "12", 0.0),  # OOLONG reads whole numbers only
    ("oolong:user", "User: 12", "13", 0.0),
    ("oolong:comparison", "Answer: spam is more common than ham", "more common than", 1.0),
    ("oolong:comparison", "Answer: spam is less common than ham", "more common than", 0.0),
    ("oolong:date", "Date: Jan 5, 2023", "2023-01-05", 1.0),
    ("oolong:date", "Date: Jan 6, 2023", "2023-01-05", 0.0),
    ("oolong_real", r"So \boxed{7}", "5", 0.75**2),
    ("oolong_real", r"\boxed{\text{Vex}}", "vex", 1.0),
    ("oolong_real", r"\boxed{Vex, Vax, Keyleth}", "Vex, Percy", 0.5),
    ("oolong_real", "7", "7", 0.0),  # a number outside a box is a text
    ("oolong_real", "Vex", "vex", 1.0),
    ("substring_match", "It lies in the north of France.", "France", 1.0),
    ("substring_match", "It lies in Spain.", "France", 0.0),
    ("substring_match", "a frances", "France", 1.0),  # inside a word as well
    ("exact_match", "Let me see.\nAnswer: The Po.", "po", 1.0),
    ("exact_match", "42\nbecause of the labels", "42", 1.0),
    ("exact_match", "It is 42", "42", 0.0),
    ("abstains", "The document does not mention her dog.", "not enough information", 1.0),
    ("abstains", "The information provided isn't enough, you never mentioned a cat.", "x", 1.0),
    ("abstains", r"\boxed{unknown}", "x", 1.0),
    ("abstains", r"\boxed{Rex}", "There is no dog", 0.0),
    ("abstains", "She did not go to Paris; she went to Rome.", "x", 0.0),
]


@pytest.mark.parametrize(("rule", "reply", "answer", "value"), WORKED)
def test_a_reply_has_the_benchmarks_own_score(rule: str, reply: str, answer: str, value: float) -> None:
    assert score(rule, reply, (answer,)).value == pytest.approx(value)
