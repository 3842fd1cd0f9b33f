"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers, any one of which counts, and says what it found and why. Knows no model.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` in [0, 1], the answer that was found in the reply, and the reason."""

    value: float
    answer: str
    reason: str


def boxed(reply: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces matched; ``None`` where there is none or it never closes."""
    start = reply.rfind("\\boxed{")
    if start < 0:
        return None
    depth, inside = 0, start + len("\\boxed{")
    for at in range(inside - 1, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[at], 0)
        if depth == 0:
            return reply[inside:at]
    return None


def normalise(text: str) -> str:
    """SQuAD's normal form (Rajpurkar et al. 2016): lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def boxed_exact(reply: str, accepted: Sequence[str]) -> Score:
    """1 when the last boxed answer equals an accepted one, white space and case aside: the rule that training uses."""
    found = boxed(reply)
    if found is None:
        return Score(0.0, "", "no closed \\boxed{} in the reply")
    return _equal(found, accepted, lambda text: "".join(text.lower().split()), "boxed answer")


def exact(reply: str, accepted: Sequence[str]) -> Score:
    """1 when the boxed answer, or the whole reply where nothing is boxed, equals an accepted one in SQuAD's normal form."""
    return _equal(_said(reply), accepted, normalise, "answer")


def contains(reply: str, accepted: Sequence[str]) -> Score:
    """1 when an accepted answer stands in the reply, both in SQuAD's normal form, at word borders (strict sub-EM)."""
    said = f" {normalise(_said(reply))} "
    for answer in accepted:
        if f" {normalise(answer)} " in said:
            return Score(1.0, answer, f"the reply contains {answer!r}")
    return Score(0.0, _said(reply), f"the reply contains none of {_listed(accepted)}")


JUDGES: dict[str, Callable[[str, Sequence[str]], Score]] = {"boxed": boxed_exact, "contains": contains, "exact": exact}


def score(rule: str, reply: str, accepted: Sequence[str]) -> Score:
    """The score of ``reply`` by the judge called ``rule``."""
    if rule not in JUDGES:
        raise ValueError(f"no judge {rule!r}; choose from {', '.join(sorted(JUDGES))}")
    if not accepted or not all(accepted):
        raise ValueError("the example has no accepted answer, or an empty one; give at least one, and none empty")
    return JUDGES[rule](reply, accepted)


def _said(reply: str) -> str:
    found = boxed(reply)
    return reply if found is None else found


def _equal(found: str, accepted: Sequence[str], form: Callable[[str], str], what: str) -> Score:
    for answer in accepted:
        if form(found) == form(answer):
            return Score(1.0, found, f"the {what} equals {answer!r}")
    return Score(0.0, found, f"the {what} is {found!r}, accepted: {_listed(accepted)}")


def _listed(accepted: Sequence[str]) -> str:
    shown = ", ".join(map(repr, accepted[:3]))
    return shown if len(accepted) <= 3 else f"{shown} and {len(accepted) - 3} more"
