"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers, and returns a score with the answer it found and the reason. This
library's own judges (``boxed``, ``exact``, ``contains``, ``items``, ``choice``, ``abstains``) compare numbers by value
and give no credit for a list of guesses. Judges named after a benchmark apply its formula, including its leniency, so
that scores are comparable; a box counts as the reply. Nothing here depends on models or data files.
"""

from memagent_lib.scoring.judges import (
    JUDGES,
    NOTHING_STATED,
    AnyAnswer,
    Rule,
    Score,
    box_or_all,
    guess_warning,
    judge_hash,
    judge_name,
    judge_named,
    normalise,
    overlap_f1,
    score,
    token_f1,
)
from memagent_lib.scoring.matching import boxed

__all__ = [
    "JUDGES",
    "NOTHING_STATED",
    "AnyAnswer",
    "Rule",
    "Score",
    "box_or_all",
    "boxed",
    "guess_warning",
    "judge_hash",
    "judge_name",
    "judge_named",
    "normalise",
    "overlap_f1",
    "score",
    "token_f1",
]
