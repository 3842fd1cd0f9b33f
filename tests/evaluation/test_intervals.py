"""Intervals of rates and of paired differences, of independent questions and of questions that share documents."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from memagent_lib.evaluation import rate, summarise, wilson
from memagent_lib.evaluation.intervals import paired_interval
from memagent_lib.evaluation.tables import paired

ROUNDS = 400


def test_wilson_is_scipys():
    for right, n in ((15, 20), (0, 10), (10, 10), (3, 7), (411, 1000)):
        scipys = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert wilson(right, n)[1:3] == pytest.approx((scipys.low, scipys.high), abs=1e-9)


def test_a_rate_has_its_text_with_and_without_unit_and_n():
    found = wilson(15, 20)
    assert str(found) == "75.0 % [53.1, 88.8] (n=20)"
    assert (found.percent, found.short) == ("75.0 % [53.1, 88.8]", "75.0 [53.1, 88.8]")
    assert str(wilson(0, 0)) == wilson(0, 0).short == "none scored"


@pytest.mark.parametrize("right", [0, 1, 13, 20])
def test_questions_with_own_documents_have_wilsons_interval(right):
    scores = [1.0] * right + [0.0] * (20 - right)
    assert rate(scores, range(20)) == wilson(right, 20)


def test_questions_that_agree_count_as_their_documents():
    """Of 4 documents with 5 questions each, 3 are all right and 1 all wrong: as little as 4 questions, or less."""
    scores = [1.0] * 15 + [0.0] * 5
    documents = [number // 5 for number in range(20)]
    share = wilson(3, 4)
    found = rate(scores, documents)
    assert found.value == share.value and (found.n, found.documents) == (20, 4)
    assert found.low < share.low and found.high > share.high


def test_a_document_with_most_questions_counts_nearly_alone():
    """300 questions on a book and one on each of nine: whether they agree or not, there is little but the book."""
    documents = ["book"] * 300 + list(range(9))
    for scores in ([1.0] * 309, [1.0, 0.0] * 150 + [1.0] * 9):
        found = rate(scores, documents)
        assert found.high - found.low > 0.75


def _scores(draw: np.random.Generator, documents: list[int], share: float) -> list[float]:
    """Return a score for each question, by its document; two of one document correlate by 0.3."""
    alike = 0.3
    right = draw.beta(share * (1 / alike - 1), (1 - share) * (1 / alike - 1), max(documents) + 1)
    return (draw.random(len(documents)) < right[documents]).astype(float).tolist()


@pytest.mark.parametrize(
    ("sizes", "share"),
    [([20] * 10, 0.5), ([40] * 5, 0.8), ([4] * 50, 0.9), ([60] * 10 + [1] * 128, 0.5), ([150] * 2 + [1] * 50, 0.5)],
    ids=["ten", "five", "fifty", "ten large", "two large"],
)
def test_of_twenty_intervals_eighteen_cover_the_truth(sizes, share):
    draw = np.random.default_rng(0)
    named = np.repeat(np.arange(len(sizes)), sizes).tolist()
    covered = as_if_independent = 0
    for _ in range(ROUNDS):
        scores = _scores(draw, named, share)
        found, apart = rate(scores, named), wilson(sum(scores), len(scores))
        covered += found.low <= share <= found.high
        as_if_independent += apart.low <= share <= apart.high
    assert covered >= 0.9 * ROUNDS > as_if_independent


@pytest.mark.parametrize(
    ("both", "right", "left", "neither", "low", "high"),
    [(36, 12, 2, 0, 0.0569, 0.3404), (20, 12, 2, 16, 0.0562, 0.3292), (30, 0, 0, 0, -0.1135, 0.1135)],
)
def test_paired_intervals_are_those_newcombe_published(both, right, left, neither, low, high):
    on_left = [1.0] * both + [0.0] * right + [1.0] * left + [0.0] * neither
    on_right = [1.0] * both + [1.0] * right + [0.0] * left + [0.0] * neither
    assert paired_interval(on_left, on_right) == pytest.approx((low, high), abs=1e-4)
    assert paired_interval(on_left, on_right, range(len(on_left))) == paired_interval(on_left, on_right)


def test_paired_intervals_over_documents_cover_the_truth():
    """The right line answers what it does for a document as a whole, so questions tell less than their number."""
    draw = np.random.default_rng(1)
    named = np.repeat(np.arange(12), 15).tolist()
    covered = as_if_independent = 0
    for _ in range(ROUNDS):
        left, right = _scores(draw, named, 0.4), _scores(draw, named, 0.6)
        low, high = paired_interval(left, right, named)
        covered += low <= 0.2 <= high
        low, high = paired_interval(left, right)
        as_if_independent += low <= 0.2 <= high
    assert covered >= 0.9 * ROUNDS > as_if_independent


def _rows(policy: str, scores: list[float]) -> pd.DataFrame:
    """Return rows of one policy: questions in tens on each of the documents."""
    count = len(scores)
    columns = {"example": [f"q{number}" for number in range(count)], "document": [f"d{n // 10}" for n in range(count)]}
    same = {"policy": policy, "reader": "overwrite", "task": "qa", "chunks": 4, "question": "", "error": None}
    return pd.DataFrame(columns | {"score": scores}).assign(**same)


def test_summaries_and_differences_count_documents():
    """LoCoMo asks hundreds of questions about each of ten conversations; here ten about each of three."""
    before, after = _rows("before", [0.0] * 20 + [1.0] * 10), _rows("after", [0.0] * 10 + [1.0] * 20)
    (row,) = summarise(after).to_dict("records")
    assert (row["scored"], row["scored_documents"]) == (30, 3)
    assert row["low"] < 0.2 and row["high"] > 0.95  # 30 questions of their own: 0.488 to 0.808
    (found,) = paired(pd.concat([before, after]), "before", "after").to_dict("records")
    assert (found["n"], found["documents"], found["right_only"]) == (30, 3, 10)
    assert found["low"] < 0 < found["high"]  # one document changed
