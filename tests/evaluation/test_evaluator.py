"""Evaluation: examples x agent, errors apart from wrong answers, and a journal (design, invariants 9 and 11)."""

import re

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import make
from memagent_lib.evaluation.evaluator import evaluate, summarise, to_frame, wilson
from memagent_lib.prompts import Budget, Encoder, Template


def _careful(text: str) -> str:
    """A perfect reader of needles: what a scripted model of the task says."""
    key = re.search(r"code of the (\w+ \w+)\?", text).group(1)
    found = re.search(rf"The code of the {key} is (\d+)\.", text)
    if "Write the answer" in text:
        return f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return found.group(0) if found else "nothing yet"


@pytest.fixture(scope="module")
def needles(tokenizer):
    return list(make("needle", 12, 5, tokenizer, chunks=3, chunk_tokens=200))


@pytest.fixture(scope="module")
def needle_encoder(tokenizer):
    return Encoder(
        tokenizer,
        Template.load("pocket"),
        Budget(chunk_tokens=200, memory_tokens=60, answer_tokens=16, question_tokens=64),
    )


def test_a_perfect_reader_answers_every_needle_and_captures_and_retains_it(needle_encoder, needles):
    frame = to_frame(evaluate(Agent(needle_encoder, Scripted(_careful)), needles, progress=False))
    assert frame["score"].tolist() == [1.0] * 12
    assert frame["capture"].tolist() == frame["retention"].tolist() == [1.0] * 12


def test_a_failed_request_is_an_error_result_and_not_a_wrong_answer(needle_encoder, needles):
    def sometimes(text: str) -> str:
        if needles[3].question in text:
            raise BackendError("the server went away")
        return _careful(text)

    frame = to_frame(evaluate(Agent(needle_encoder, Scripted(sometimes)), needles, progress=False))
    failed = frame[frame["error"].notna()]
    assert failed["example"].tolist() == [needles[3].id] and failed["score"].isna().all()
    (row,) = summarise(frame).to_dict("records")
    assert (row["scored"], row["failed"], row["accuracy"]) == (11, 1, 1.0)


def test_a_bug_is_not_taken_for_a_failed_request(needle_encoder, needles):
    with pytest.raises(ZeroDivisionError):
        evaluate(Agent(needle_encoder, Scripted(lambda text: str(1 / 0))), needles, progress=False)


def test_a_journal_keeps_finished_examples_and_retries_failed_and_half_written_ones(needle_encoder, needles, tmp_path):
    journal = tmp_path / "journal.jsonl"
    down = Scripted(
        lambda text: (_ for _ in ()).throw(BackendError("down")) if needles[0].question in text else _careful(text)
    )
    first = evaluate(Agent(needle_encoder, down), needles, journal=journal, progress=False)
    journal.write_text(journal.read_text() + '{"example": "needle-3x200-5-0", "tra')
    again = Scripted(_careful)
    second = evaluate(Agent(needle_encoder, again), needles, journal=journal, progress=False)
    assert first[0].error and all(r.score.value == 1 for r in second)
    assert {r.text.count(needles[0].question) for r in again.requests} == {1}
    assert [r.example.id for r in second] == [e.id for e in needles]


def test_wilson_agrees_with_published_values():
    rate = wilson(15, 20)  # worked example: 0.531 to 0.888
    assert (round(rate.low, 3), round(rate.high, 3)) == (0.531, 0.888)
    assert wilson(0, 10).low == 0 and wilson(10, 10).high == 1
