"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers and says what it found and why. Strict judges (``boxed``, ``exact``,
``contains``) read the answer where ``lenient``, the reference's rule, reads it and never count what that does not;
judges named after a benchmark apply its own formula, leniency included, so that numbers compare. Knows no model and no
file.
"""

from memagent_lib.scoring.judges import DETAILED_JUDGES, JUDGES, judge_named, score
from memagent_lib.scoring.replies import Score, boxed, normalise, stated

__all__ = ["DETAILED_JUDGES", "JUDGES", "Score", "boxed", "judge_named", "normalise", "score", "stated"]
