"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers, and returns a score with the answer it found and the reason. Strict
judges (``boxed``, ``exact``, ``contains``) read the answer where MemAgent's own rule (``lenient``) reads it and never
accept what that refuses; judges named after a benchmark apply its formula, leniency included, so that numbers compare.
Knows no model and no data file.
"""

from memagent_lib.scoring.judges import JUDGES, Judge, Rule, judge_hash, judge_named, score
from memagent_lib.scoring.replies import Score, boxed, normalise, stated

__all__ = ["JUDGES", "Judge", "Rule", "Score", "boxed", "judge_hash", "judge_named", "normalise", "score", "stated"]
