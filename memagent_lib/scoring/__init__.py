"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers, and returns a score with the answer it found and the reason. Our own
judges (``boxed``, ``exact``, ``contains``, ``items``, ``choice``) compare numbers by value and give no credit for a
list of guesses. Judges that come from a benchmark apply its formula, including its leniency, so that scores are
comparable; where a box counts as the reply, or a formula differs, its docstring says so. This package does not depend
on models or data files.
"""

from memagent_lib.scoring.judges import (
    JUDGES,
    Judge,
    Rule,
    guess_warning,
    is_guessable,
    judge_hash,
    judge_name,
    judge_named,
    score,
)
from memagent_lib.scoring.replies import Score, boxed, normalise, stated

__all__ = [
    "JUDGES", "Judge", "Rule", "Score", "boxed", "guess_warning", "is_guessable", "judge_hash", "judge_name",
    "judge_named", "normalise", "score", "stated",
]  # fmt: skip
