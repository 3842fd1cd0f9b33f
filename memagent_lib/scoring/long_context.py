"""The formulas of OOLONG, GraphWalks, MRCR and MemoryAgentBench, and a rule for questions without an answer.

Each follows the published code of its benchmark, except that a box counts as the reply if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from memagent_lib.scoring.formulas import overlap_f1
from memagent_lib.scoring.matching import same_answer
from memagent_lib.scoring.replies import Score, box_or_all, boxed, normal_words, normalise

_SHORT_CHARS = 20
_COMPARISONS = ("more common", "less common", "same frequency")
_UNDERFLOW = 5000
_NODES = re.compile(r"final answer:\s*\[(.*)\]\s*$", re.IGNORECASE)
_TEXT_BOX = re.compile(r"\\boxed\{\\text\{([^}]*)\}\}")
_BOX = re.compile(r"\\boxed[\{]+([^}]*)[\}]+")
_UNBOXED = "not in a box: "
_ANSWER_LINE = re.compile(r"answer:(.*)(?:\n|$)", re.IGNORECASE)
# In SQuAD's normal form, which has no apostrophes.
_STATED = r"(mention|stat|provide|specif|sa(?:y|id)|contain|discuss|giv|includ|know|share|indicat|disclos|reveal)\w*"
_NOT_STATED = re.compile(
    r"^na$|\b(unknown|unanswerable|insufficient information|no (information|mention|indication|answer|such information)"
    r"|(not|isnt|arent) ((enough|sufficient|any) information|answerable|available|found)"
    rf"|(not|never|nowhere|isnt|arent|wasnt|werent) (been )?{_STATED}"
    r"|(not|cannot|cant) be (answered|determined|found)"
    r"|(cannot|cant|can not|could not|couldnt|unable to|impossible to|not possible to) (answer|determine|find|tell|say)"
    rf"|(didnt|doesnt|dont|havent|hasnt|did not|does not|do not|have not|has not) (have|{_STATED}))\b"
)


def named_nodes(reply: str) -> str | None:
    """Return what GraphWalks reads as the list of nodes: the brackets in the last line's ``Final Answer: [a, b]``.

    A box that has no such words is the list itself. Returns ``None`` if there is neither.
    """
    inside = boxed(reply)
    if inside is not None and "final answer:" not in inside.lower():
        return inside.strip().strip("[]")
    found = _NODES.search(box_or_all(reply).split("\n")[-1])
    return found[1] if found else None


def node_f1(found: str, answer: str) -> float:
    """Return GraphWalks' F1 of two sets of nodes. ``answer`` may have brackets. Two empty sets score 1."""
    nodes = _names(found)
    accepted = _names(answer.strip().strip("[]"))
    if not nodes and not accepted:
        return 1.0
    return overlap_f1(nodes, accepted)


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def after_prefix(prefix: str) -> Callable[[str], str | None]:
    """Return MRCR's reading of a reply: the text after ``prefix``, or ``None`` if the reply does not begin with it."""

    def read(reply: str) -> str | None:
        text = box_or_all(reply)
        return text.removeprefix(prefix) if text.startswith(prefix) else None

    return read


def likeness_after(prefix: str) -> Callable[[str, str], float]:
    """Return MRCR's comparison: difflib's ratio with ``answer``, from which ``prefix`` is removed."""
    return lambda found, answer: SequenceMatcher(None, found, answer.removeprefix(prefix)).ratio()


def oolong_answer(reply: str) -> str:
    """Return what OOLONG takes as the answer: the text after the last colon, or a short reply, or the last word."""
    text = box_or_all(reply)
    if ":" not in text:
        words = text.split()
        return text if len(text) < _SHORT_CHARS or not words else words[-1]
    answer = re.sub(r"[*\[\]]", "", text.split(":")[-1].strip())
    if len(answer) < _SHORT_CHARS:
        return answer
    return next((words for words in _COMPARISONS if words in answer), answer)


def oolong_value(kind: str) -> Callable[[str, str], float]:
    """Return OOLONG's comparison for an answer type: ``numeric``, ``date``, or any other, which has to be equal.

    A number that is wrong by n scores 0.75 ** n. A comparison (``more common``) may be a part of the accepted answer.
    """

    def compare(found: str, answer: str) -> float:
        if found == answer:
            return 1.0
        if found in _COMPARISONS:
            return float(found in answer)
        if kind == "numeric":
            return _near(found, answer)
        if kind == "date":
            return float(_date(found) is not None and _date(found) == _date(answer))
        return 0.0

    return compare


def _near(found: str, answer: str) -> float:
    try:
        difference = abs(int(found) - int(answer))
    except ValueError:
        return 0.0
    return 0.75 ** min(difference, _UNDERFLOW)  # a float for numbers of any size


def _date(text: str) -> object | None:
    import pandas as pd

    # OOLONG uses dateutil, to which pandas leaves all dates that are not in ISO form.
    try:
        return pd.Timestamp(text).to_pydatetime().replace(tzinfo=None)
    except (ValueError, TypeError, OverflowError, AttributeError):
        return None


def oolong_real_answer(reply: str) -> str:
    r"""Return the content of the first ``\boxed{\text{...}}`` or ``\boxed{...}``, or the whole reply after a mark.

    OOLONG's real split reads a number or a list only from a box.
    """
    found = _TEXT_BOX.search(reply) or _BOX.search(reply)
    return found[1] if found else f"{_UNBOXED}{reply}"


def oolong_real_value(found: str, answer: str) -> float:
    """Return OOLONG's score for its real split.

    Numbers score 0.75 ** difference, lists the share of accepted entries. Texts have to be equal, ignoring case.
    """
    gold = _parsed(answer)
    value = found.removeprefix(_UNBOXED) if found.startswith(_UNBOXED) else _parsed(found)
    if isinstance(gold, int) and isinstance(value, int):
        return 0.75 ** min(abs(gold - value), _UNDERFLOW)
    if isinstance(gold, str) and isinstance(value, str):
        return float(bool(value.strip()) and gold.strip().lower() == value.strip().lower())
    if isinstance(gold, list) and isinstance(value, list) and gold:
        return len(set(gold) & set(value)) / len(gold)
    return 0.0


def _parsed(text: str) -> int | str | list[str]:
    try:
        return int(text)
    except ValueError:
        pass
    if "," in text:
        return [entry.strip() for entry in text.split(",") if entry.strip()]
    return text


def substring_match(found: str, answer: str) -> bool:
    """Return whether an answer stands in a reply, both in SQuAD's normal form (MemoryAgentBench)."""
    return normalise(answer) in normalise(found)


def exact_match(found: str, answer: str) -> bool:
    """Return whether a reply, or what it has after its first ``Answer:``, equals an answer in SQuAD's normal form.

    Without ``Answer:`` the first line counts as well (MemoryAgentBench).
    """
    line = _ANSWER_LINE.search(found)
    part = line[1] if line else found.split("\n")[0]
    part = re.sub("^answer:", "", part.strip(), flags=re.IGNORECASE)
    return normalise(answer) in (normalise(found), normalise(part))


def abstains(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the reply says that the document does not state the answer, in an answer's words or in usual ones.

    For questions whose premise is false. A reply that also offers an answer is not recognised as wrong.
    """
    found = box_or_all(reply).strip()
    phrase = _NOT_STATED.search(normal_words(found))
    if phrase or any(same_answer(found, answer) for answer in answers):
        words = phrase[0] if phrase else found[:80]
        return Score(1.0, found, f"the reply abstains: {words!r}")
    return Score(0.0, found, "the reply does not say that the document lacks the answer")
