"""Rates with their 95 % intervals, for questions that share documents too.

Questions on one document stand or fall together: a reading that lost a chapter answers none of its questions. Ten books
with a hundred questions each say less about other books than a thousand books with one. So an interval here is that of
the number of independent questions with the same spread between documents, the *effective* number. Where each question
has a document of its own, that is their number, and the intervals are Wilson's and Newcombe's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

RATE = ["accuracy", "low", "high", "scored", "scored_documents"]
"""The columns of a summary from which :meth:`Rate.of` makes a rate."""
_LEVEL = 0.975  # 2.5 % lie above it
_Z = NormalDist().inv_cdf(_LEVEL)


class Rate(NamedTuple):
    """The mean score of ``n`` questions on so many ``documents``, with its 95 % interval. Its texts are in percent."""

    value: float
    low: float
    high: float
    n: int
    documents: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Rate:
        """Return the rate in the columns :data:`RATE` of a summary's row."""
        accuracy, low, high, scored, documents = (row[name] for name in RATE)
        return cls(accuracy, low, high, int(scored), int(documents))

    def __str__(self) -> str:
        return f"{self.percent} (n={sample_size(self.n, self.documents)})" if self.n else self.percent

    @property
    def percent(self) -> str:
        """The share with its unit and interval, ``54.2 % [50.1, 58.0]``."""
        if not self.n:
            return "none scored"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    @property
    def short(self) -> str:
        """The share and its interval without the unit, for columns that name it."""
        return self.percent.replace(" %", "")


def sample_size(n: int, documents: int) -> str:
    """Return a number of questions as text, with that of their documents if these are fewer."""
    if documents >= n:
        return f"{n:,}"
    return f"{n:,} on {documents:,} document{'s' if documents > 1 else ''}"


def wilson(successes: float, n: int) -> Rate:
    """Return the Wilson score interval of a share of ``n`` independent trials (Wilson 1927).

    ``successes`` may be a sum of fractional scores.
    """
    if n < 1:
        return Rate(math.nan, math.nan, math.nan, 0, 0)
    low, high = _wilson(successes / n, n)
    return Rate(successes / n, low, high, n, n)


def rate(scores: Sequence[float], documents: Sequence[Hashable]) -> Rate:
    """Return the mean of ``scores`` with its interval; ``documents`` names the document of each.

    The interval is Wilson's for the effective number of questions (Korn and Graubard 1998; Franco et al. 2019): n times
    the binomial variance over the jackknife's variance between documents, less what an estimate from few documents
    leaves open. It is never above n. If all scores are 0, or all 1, nothing tells how alike the questions of a document
    are, and each document counts as one question, or less if one has most of the questions; a single wrong answer,
    which tells, may narrow the interval. A single document always counts as one question, because it says nothing about
    how others differ from it.
    """
    n = len(scores)
    if n < 1:
        return wilson(0, 0)
    share = fmean(scores)  # exact, so that a tie is rounded alike in whatever order the scores come
    number = len(set(documents))
    effective = _effective(scores, documents, share * (1 - share) / n)
    return Rate(share, *_wilson(share, effective), n, number)


def paired_interval(
    left: Sequence[float], right: Sequence[float], documents: Sequence[Hashable] = ()
) -> tuple[float, float]:
    """Return the 95 % interval of mean(right) - mean(left) for scores of the same questions (Newcombe 1998, method 10).

    The method combines Wilson's intervals of the two shares by their correlation. It is valid for few questions and for
    shares of 0 and 1, where a bootstrap has nothing to resample. It was designed for shares, but is also used here for
    fractional scores. With the document of each question in ``documents``, the interval is that of the effective number
    of questions, estimated from the differences as :func:`rate` does from scores.
    """
    n = len(left)
    differences = [y - x for x, y in zip(left, right, strict=True)]
    mean = fmean(differences)
    variance = sum((value - mean) ** 2 for value in differences) / n**2
    effective = _effective(differences, documents, variance) if len(documents) else n
    a, b = fmean(left), fmean(right)
    a_low, a_high = _wilson(a, effective)
    b_low, b_high = _wilson(b, effective)
    joint = fmean(x * y for x, y in zip(left, right, strict=True)) - a * b
    if joint > 0:
        joint = max(0.0, joint - 1 / (2 * effective))  # the continuity correction of method 10
    spread = math.sqrt(a * (1 - a) * b * (1 - b))
    correlation = joint / spread if spread else 0.0

    def half(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up * up - 2 * correlation * up * down + down * down))

    return b - a - half(b - b_low, a_high - a), b - a + half(b_high - b, a - a_low)


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval for a share of ``n`` trials, which need not be a whole number."""
    centre = (share + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(max(0.0, share * (1 - share)) / n + _Z * _Z / (4 * n * n))
    # Rounded, because the end of an interval around 0 or 1 is off by 1e-17.
    return max(0.0, round(centre - half, 12)), min(1.0, round(centre + half, 12))


def _effective(values: Sequence[float], documents: Sequence[Hashable], variance: float) -> float:
    """Return how many independent values tell as much about their mean; if these are, it has the ``variance``."""
    from scipy.stats import t

    n = len(values)
    of_document: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, document in zip(values, documents, strict=True):
        of_document[document].append(value)
    groups = list(of_document.values())
    if len(groups) == n:
        return n
    # One document with most of the questions counts nearly alone, however many others have one or two (Kish 1965).
    alike = n * n / sum(len(group) ** 2 for group in groups)
    if len(groups) == 1 or variance < 1e-12:  # all values are equal; 0 but for rounding
        return alike
    mean = fmean(values)
    # The jackknife's variance of the mean: how far it moves without a document.
    moves = [(sum(group) - mean * len(group)) / (n - len(group)) for group in groups]
    between = (len(groups) - 1) / len(groups) * sum(move * move for move in moves)
    effective = n * min(1.0, variance / between) if between else n
    exact, estimated = t.ppf(_LEVEL, [n - 1, max(1.0, alike - 1)])
    return effective * float(exact / estimated) ** 2
