"""Which readings of a question of two hops are displayed: a stated rule, on traces worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent_lib.data import Span
from memagent_lib.evaluation import two_hop_case, two_hop_outcomes

FILLER = "Rain taps on the roof all night."
QUESTION = "What is the code of the keeper of the bold owl?"
LEAD, LAST = "The code of Ada is maple.", "The keeper of the bold owl is Ada."
DOCUMENT = "".join(f"{text:<40}" for text in (LEAD, FILLER, FILLER, LAST, FILLER))


@pytest.fixture
def read(make_reading):
    def make(*memories: str, answer: str = "maple", name: str = "one"):
        """A reading of five chunks, the lead in the first and the last fact in the fourth."""
        spans = [Span(at := DOCUMENT.index(fact), at + len(fact)) for fact in (LEAD, LAST)]
        made = make_reading(list(memories), rf"\boxed{{{answer}}}", DOCUMENT, spans[0], "maple", name)
        return replace(made, example=replace(made.example, question=QUESTION, evidence=tuple(spans)))

    return make


@pytest.fixture
def kept_lead(read):
    return read(LEAD, LEAD, LEAD, f"{LEAD} {LAST}", f"{LEAD} {LAST}", name="kept")


@pytest.fixture
def lost_lead(read):
    return read(LEAD, "nothing", "nothing", LAST, LAST, answer="acorn", name="lost")


@pytest.fixture
def guessed(read):
    return read(LEAD, "nothing", "nothing", LAST, LAST, name="guessed")


def test_the_case_is_the_right_reading_with_the_longest_wait(kept_lead, lost_lead, guessed) -> None:
    wrong = replace(kept_lead, score=lost_lead.score)
    assert two_hop_case([lost_lead, guessed, wrong, kept_lead])[1] is kept_lead


def test_outcomes_have_capture_and_retention_of_each_fact(kept_lead, lost_lead) -> None:
    rows = two_hop_outcomes([kept_lead, lost_lead])
    assert rows["example"].tolist() == ["kept", "lost"] and rows["right"].tolist() == [True, False]
    assert rows["waited"].fillna(-1).tolist() == [3, -1]
    assert rows[["lead_captured", "lead_retained", "last_captured", "last_retained"]].to_numpy().tolist() == [
        [True, True, True, True], [True, False, True, True],
    ]  # fmt: skip
