"""The formulas behind the judges: how to read an answer from a reply, and how to compare it with an accepted one.

Each formula follows the published code of the benchmark that its docstring names, including its leniency, so that
scores are comparable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from difflib import SequenceMatcher

from memagent_lib.scoring.replies import box_or_all, boxed, normal_words, normalise, squeezed

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIGNED_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_REFERENCE_WINDOW_CHARS = 300
_POLAR = ("yes", "no", "noanswer")


def reference_box(reply: str) -> str | None:
    r"""Return the content of the last box within the last 300 characters in lower case, as MemAgent's training does.

    The content of ``\boxed x`` extends up to the next ``$``. Returns ``None`` if there is no box or it does not close.
    """
    tail = reply[-_REFERENCE_WINDOW_CHARS:].lower()
    if "\\boxed " not in tail:
        return boxed(tail)
    return tail.rsplit("\\boxed ", 1)[1].split("$")[0]


def first_line(reply: str) -> str:
    """Return the first line of a reply, after any line breaks at its beginning.

    If only later lines have a box, return the last one with the first line of its content. (LongBench's own prompts ask
    for no box.)
    """
    line = _line(reply)
    box = boxed(reply)
    if box is None or boxed(line) is not None:
        return line
    return f"\\boxed{{{_line(box)}}}"


def _line(text: str) -> str:
    return text.lstrip("\n").split("\n")[0]


def code_line(reply: str) -> str:
    """Return the first line of the box, or of the reply, that is code by LongBench's rule, or "" if none is."""
    reply = box_or_all(reply)
    # LongBench skips lines with these marks, which are comments and fences.
    for line in reply.lstrip("\n").split("\n"):
        if not any(mark in line for mark in ("`", "#", "//")):
            return line
    return ""


def first_number(reply: str) -> str | None:
    """Return the first number of the answer, or ``None`` (InfiniteBench passkey, number string, Math.Find)."""
    return next(iter(_NUMBER.findall(box_or_all(reply))), None)


def last_number(reply: str) -> str | None:
    """Return the last number of the answer, sign included, or ``None`` (InfiniteBench Code.Run).

    InfiniteBench scores a number 0 if other words or marks such as ``**`` follow it.
    """
    return next(reversed(_SIGNED_NUMBER.findall(box_or_all(reply))), None)


def same_number(found: str, answer: str) -> bool:
    """Return whether two numbers are equal as text, or equal in value if either has a decimal point."""
    if found == answer:
        return True
    decimal = "." in found + answer and _SIGNED_NUMBER.fullmatch(answer)
    return bool(decimal and float(found) == float(answer))


def has_words(found: str, answer: str) -> bool:
    """Strict sub-EM: return whether the reply's answer contains the accepted one as whole words."""
    return f" {normal_words(answer)} " in f" {normal_words(found)} "


def either_inside(found: str, answer: str) -> bool:
    """MemAgent's sub-EM: return whether one answer contains the other.

    An answer that normalises to nothing (``"the"``) is in every answer. Unlike the reference, this ignores differences
    in spelling (:func:`~memagent_lib.scoring.replies.plain`) and white space.
    """
    words = normal_words(found)
    accepted = normal_words(answer)
    return accepted in words or words in accepted or squeezed(found) == squeezed(answer)


def is_word(found: str, answer: str) -> bool:
    """Return whether the accepted answer is one of the reply's words in any case (InfiniteBench KV and dialogues)."""
    return answer.lower() in re.sub(r"[\n:\"'.,?!{}]", " ", found).lower().split()


def token_f1(found: str, answer: str) -> float:
    """Return the token F1 of two answers in SQuAD's normal form, as SQuAD and LongBench do."""
    return overlap_f1(normalise(found).split(), normalise(answer).split())


def hotpot_f1(found: str, answer: str) -> float:
    """Return HotpotQA's and MemAgent's token F1. If either answer is yes, no or noanswer, unequal answers score 0."""
    words = normalise(found)
    accepted = normalise(answer)
    # Otherwise "no" would score against any sentence that has a "no" in it.
    if words != accepted and (words in _POLAR or accepted in _POLAR):
        return 0.0
    return overlap_f1(words.split(), accepted.split())


def character_f1(found: str, answer: str) -> float:
    """Return F1 over letters and digits, for languages that do not put spaces between words (InfiniteBench Zh.QA)."""
    return overlap_f1(_letters(found), _letters(answer))


def rouge_l(found: str, answer: str) -> float:
    """Return LongBench's summary score: the F-score of ROUGE-L, from the ``rouge`` package that LongBench uses."""
    return rouge(found, answer).get("rouge-l", {}).get("f", 0.0)


def rouge_recall(found: str, answer: str) -> float:
    """Return the mean recall of ROUGE-1, ROUGE-2 and ROUGE-L, which MemAgent reports on GovReport and QMSum."""
    return sum(scores["r"] for scores in rouge(found, answer).values()) / 3


def rouge(found: str, answer: str) -> dict[str, dict[str, float]]:
    """Return ``rouge-1``, ``rouge-2`` and ``rouge-l``, each with ``r``, ``p`` and ``f``.

    The result is empty if either text has no words, or has a sentence of several thousand words. LongBench scores both
    cases 0.
    """
    from rouge import Rouge

    try:
        return Rouge().get_scores(found, answer)[0]
    except (ValueError, RecursionError):
        return {}


def right_before_error(found: str, answer: str) -> float:
    """Return the share of the accepted numbers before the reply's first wrong one (InfiniteBench Math.Calc).

    InfiniteBench reads no signs.
    """
    accepted = re.findall(r"-?\d+", answer)
    numbers = re.findall(r"-?\d+", found)
    right = 0
    while right < min(len(accepted), len(numbers)) and accepted[right] == numbers[right]:
        right += 1
    return right / max(1, len(accepted))


def likeness(found: str, answer: str) -> float:
    """Return LongBench's code score: difflib's ratio, rounded to hundredths."""
    # LongBench uses fuzzywuzzy, which rounds to whole per cent; without its C extension it is difflib.
    return round(100 * SequenceMatcher(None, found, answer).ratio()) / 100


def _letters(text: str) -> list[str]:
    return [character for character in text.lower() if character.isalnum()]


def overlap_f1(found: Collection[str], accepted: Collection[str]) -> float:
    """Return the F1 of two bags of words or of other parts."""
    same = sum((Counter(found) & Counter(accepted)).values())
    if not same:
        return 0.0
    precision = same / len(found)
    recall = same / len(accepted)
    return 2 * precision * recall / (precision + recall)
