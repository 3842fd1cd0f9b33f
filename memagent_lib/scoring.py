"""Rule-based judges. The same code scores training and evaluation, so the two cannot drift apart.

A judge takes a reply and the accepted answers, any one of which counts, and says what it found and why. Knows no model.
Where a reply boxes its answer, judges of short answers look into the box; judges named after a benchmark then apply
that benchmark's own formula, leniency included, so that numbers compare: ``contains`` is strict where ``lenient`` is
the reference's, and the two are never mixed.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BETWEEN_ITEMS = re.compile(r"[,;\n]|\band\b")
_REFERENCE_WINDOW = 300
_POLAR = ("yes", "no", "noanswer")


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` in [0, 1], the answer that was found in the reply, and the reason."""

    value: float
    answer: str
    reason: str


Judge = Callable[[str, Sequence[str]], Score]


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


def boxed_exact(reply: str, answers: Sequence[str]) -> Score:
    """1 when the last boxed answer equals an accepted one, white space and case aside: the rule that training uses."""
    found = boxed(reply)
    if found is None:
        return Score(0.0, "", "no closed \\boxed{} in the reply")
    return _equal(found, answers, lambda text: "".join(text.lower().split()), "boxed answer")


def reference_boxed(reply: str, answers: Sequence[str]) -> Score:
    r"""MemAgent's training reward: the last box within the last 300 characters, compared in Hendrycks MATH's normal
    form.

    ``\boxed x`` counts as a box up to the next ``$``, and a box that began earlier than 300 characters from the end
    does not.
    """
    tail = reply[-_REFERENCE_WINDOW:].lower()
    found = tail.rsplit("\\boxed ", 1)[1].split("$")[0] if "\\boxed " in tail else boxed(tail)
    if found is None:
        return Score(0.0, "", f"no closed \\boxed{{}} in the last {_REFERENCE_WINDOW} characters of the reply")
    return _equal(found, answers, lambda text: _math_form(text.lower()), "boxed answer")


def exact(reply: str, answers: Sequence[str]) -> Score:
    """1 when the boxed answer, or the whole reply where nothing is boxed, equals an accepted one in SQuAD's normal
    form.
    """
    return _equal(_said(reply), answers, normalise, "answer")


def contains(reply: str, answers: Sequence[str]) -> Score:
    """1 when an accepted answer stands in the reply, both in SQuAD's normal form, at word borders (strict sub-EM)."""
    said = f" {normalise(_said(reply))} "
    for answer in answers:
        if f" {normalise(answer)} " in said:
            return Score(1.0, answer, f"the reply contains {answer!r}")
    return Score(0.0, _said(reply), f"the reply contains none of {_listed(answers)}")


def lenient(reply: str, answers: Sequence[str]) -> Score:
    """The reference's sub-EM: 1 when, in SQuAD's normal form, an accepted answer is inside what was said **or the
    reverse**.

    What was said is the box, else what follows the last ``the answer is``; with neither it is 0. As in the reference,
    an answer that normalises to nothing (``"the"``) is inside everything, and a letter is inside most things.
    """
    found = boxed(reply)
    if found is None:
        _, mark, after = reply.replace("*", "").rpartition("the answer is")
        found = after.strip().strip(".").strip() if mark else None
    if not found:
        return Score(0.0, "", "nothing is boxed and nothing follows 'the answer is'")
    said = normalise(found)
    for answer in answers:
        if normalise(answer) in said:
            return Score(1.0, found, f"{answer!r} is inside {found!r}")
        if said in normalise(answer):
            return Score(1.0, found, f"{found!r} is inside {answer!r} (counted by the reference only)")
    return Score(0.0, found, f"neither {found!r} nor any of {_listed(answers)} is inside the other")


def token_f1(reply: str, answers: Sequence[str]) -> Score:
    """Token F1 in SQuAD's normal form, the best over accepted answers; LongBench's and SQuAD's formula."""
    said = _said(reply)
    return _best(
        said, answers, lambda answer: _overlap_f1(normalise(said).split(), normalise(answer).split()), "token F1"
    )


def hotpot_f1(reply: str, answers: Sequence[str]) -> Score:
    """Token F1 as HotpotQA and MemAgent count it: where either side is yes, no or noanswer, only equality scores."""
    said = _said(reply)

    def value(answer: str) -> float:
        a, b = normalise(said), normalise(answer)
        return 0.0 if a != b and (a in _POLAR or b in _POLAR) else _overlap_f1(a.split(), b.split())

    return _best(said, answers, value, "token F1")


def character_f1(reply: str, answers: Sequence[str]) -> Score:
    """F1 over characters without punctuation and white space, for languages that do not space their words
    (InfiniteBench Zh.QA).
    """

    def letters(text: str) -> list[str]:
        return [c for c in text.lower() if c.isalnum()]

    said = _said(reply)
    return _best(said, answers, lambda answer: _overlap_f1(letters(said), letters(answer)), "character F1")


def match_all(reply: str, answers: Sequence[str]) -> Score:
    """RULER's ``string_match_all``: the share of the answers that stand anywhere in the reply, case aside. All are
    asked for.
    """
    hits = [answer for answer in answers if answer.lower() in reply.lower()]
    missing = [answer for answer in answers if answer not in hits]
    reason = f"the reply holds {len(hits)} of {len(answers)}"
    return Score(len(hits) / len(answers), ", ".join(hits), reason + (f", not {_listed(missing)}" if missing else ""))


def match_part(reply: str, answers: Sequence[str]) -> Score:
    """RULER's ``string_match_part``: 1 when any accepted answer stands anywhere in the reply, case aside."""
    for answer in answers:
        if answer.lower() in reply.lower():
            return Score(1.0, answer, f"the reply holds {answer!r}")
    return Score(0.0, "", f"the reply holds none of {_listed(answers)}")


def items(reply: str, answers: Sequence[str]) -> Score:
    """For questions that ask for several things: right items over the larger of items said and items asked for.

    Items are what commas, semicolons, line ends and ``and`` separate; listing everything in sight does not pay, unlike
    in ``match_all``, so this is the multi-value rule to train on.
    """
    said = {normalise(part) for part in _BETWEEN_ITEMS.split(_said(reply))} - {""}
    wanted = {normalise(answer) for answer in answers}
    right = said & wanted
    reason = f"{len(right)} of {len(wanted)} items, {len(said - wanted)} wrong ones"
    return Score(len(right) / max(len(wanted), len(said)), ", ".join(sorted(said)), reason)


def rouge_l(reply: str, answers: Sequence[str]) -> Score:
    """LongBench's summary score: F of ROUGE-L from the ``rouge`` package that LongBench itself uses, best over accepted
    texts.
    """
    said = _said(reply)
    return _best(said, answers, lambda answer: rouge(said, answer).get("rouge-l", {}).get("f", 0.0), "ROUGE-L F")


def rouge_recall(reply: str, answers: Sequence[str]) -> Score:
    """The mean of the recalls of ROUGE-1, ROUGE-2 and ROUGE-L, as MemAgent reports on GovReport and QMSum."""

    said = _said(reply)

    def value(answer: str) -> float:
        return sum(scores["r"] for scores in rouge(said, answer).values()) / 3

    return _best(said, answers, value, "mean ROUGE recall")


def rouge(reply: str, answer: str) -> dict[str, dict[str, float]]:
    """``rouge-1``, ``rouge-2`` and ``rouge-l``, each with ``r``, ``p`` and ``f``; empty where the package cannot score
    the texts.

    It cannot when a side has no words, or a sentence of some thousand words; LongBench scores both 0.
    """
    from rouge import Rouge

    try:
        return Rouge().get_scores(reply, answer)[0]
    except (ValueError, RecursionError):
        return {}


def first_number(reply: str, answers: Sequence[str]) -> Score:
    """1 when the first number in the answer equals an accepted one (InfiniteBench passkey, number string, Math.Find)."""
    return _numeric(_NUMBER.findall(_said(reply))[:1], answers, "first")


def last_number(reply: str, answers: Sequence[str]) -> Score:
    """1 when the last number in the answer, sign included, equals an accepted one (InfiniteBench Code.Run)."""
    return _numeric(re.findall(r"-?\d+(?:\.\d+)?", _said(reply))[-1:], answers, "last")


def number_share(reply: str, answers: Sequence[str]) -> Score:
    """The share of the numbers in the reply that are an accepted one (LongBench passage count and passage retrieval)."""
    numbers = re.findall(r"\d+", reply)
    wanted = {found for answer in answers for found in re.findall(r"\d+", answer)[:1]}
    right = sum(number in wanted for number in numbers)
    return Score(
        right / len(numbers) if numbers else 0.0, ", ".join(numbers[:5]), f"{right} of {len(numbers)} numbers are right"
    )


def word(reply: str, answers: Sequence[str]) -> Score:
    """1 when an accepted answer is one of the reply's words, case aside (InfiniteBench KV retrieval and dialogue)."""
    said = re.sub(r"[\n:\"'.,?!{}]", " ", reply).lower().split()
    for answer in answers:
        if answer.lower() in said:
            return Score(1.0, answer, f"{answer!r} is a word of the reply")
    return Score(0.0, "", f"none of {_listed(answers)} is a word of the reply")


def choice(reply: str, answers: Sequence[str]) -> Score:
    """Multiple choice: 1 when the answer begins with an accepted letter or is an accepted option's text."""
    said = _said(reply).strip()
    letter = re.match(r"\(?([A-D])\b", said) or re.search(r"(?:answer|option)(?: is)?:? *\(?([A-D])\b", said)
    found = letter.group(1) if letter else said
    return (
        _equal(found, answers, normalise, "choice")
        if letter
        else contains(said, [a for a in answers if a not in "ABCD"] or answers)
    )


def sequence(reply: str, answers: Sequence[str]) -> Score:
    """The share of a list of numbers, given as one accepted text, that the reply gets right before its first error
    (Math.Calc).
    """
    said = re.findall(r"-?\d+", _said(reply))

    def value(answer: str) -> float:
        wanted = re.findall(r"-?\d+", answer)
        right = next(
            (i for i, (a, b) in enumerate(zip(wanted, said, strict=False)) if a != b), min(len(wanted), len(said))
        )
        return right / max(1, len(wanted))

    return _best(" ".join(said[:5]), answers, value, "right before the first error")


def similar(reply: str, answers: Sequence[str]) -> Score:
    """LongBench's code score: how alike the first code line of the reply and the answer are, by difflib's ratio in
    hundredths.
    """
    lines = reply.lstrip("\n").split("\n")
    line = next((text for text in lines if not any(mark in text for mark in ("`", "#", "//"))), "")
    return _best(
        line, answers, lambda answer: round(100 * SequenceMatcher(None, line, answer).ratio()) / 100, "likeness"
    )


def one_of(labels: str) -> Judge:
    """BABILong's rule for a closed set of ``labels`` (``a|b|c``): the first sentence names the answer and no other
    label.

    Leave labels that the question itself mentions out of ``labels``, as BABILong does.
    """
    known = {label.lower() for label in labels.split("|") if label}

    def judge(reply: str, answers: Sequence[str]) -> Score:
        said = _said(reply).lower().split(".")[0].split("<context>")[0].split("<example>")[0]
        named = {label for label in known if label in said}
        for answer in answers:
            wanted = set(answer.lower().split(",")) if "," in answer and len(answer) > 3 else {answer.lower()}
            if named == wanted:
                return Score(1.0, answer, f"the first sentence names {answer!r} alone")
        return Score(
            0.0,
            ", ".join(sorted(named)),
            f"the first sentence names {_listed(sorted(named)) or 'no label'}; accepted: {_listed(answers)}",
        )

    return judge


def classes(names: str) -> Judge:
    """LongBench's rule for classes (``a|b|c``): 1 over the number of classes that the first line names, the right one
    among them.

    A class whose name is part of the right one's does not count as named.
    """
    known = [name for name in names.split("|") if name]

    def judge(reply: str, answers: Sequence[str]) -> Score:
        line = reply.lstrip("\n").split("\n")[0]
        named = [name for name in known if name in line]

        def value(answer: str) -> float:
            counted = [name for name in named if name == answer or name not in answer]
            return 1 / len(counted) if answer in counted else 0.0

        return _best(", ".join(named), answers, value, "class share")

    return judge


def first_line(rule: str) -> Judge:
    """Another judge, shown the first line of the reply only (LongBench's few-shot tasks)."""
    judge = judge_named(rule)
    return lambda reply, answers: judge(reply.lstrip("\n").split("\n")[0], answers)


JUDGES: dict[str, Judge] = {
    "boxed": boxed_exact,
    "boxed_reference": reference_boxed,
    "characters": character_f1,
    "choice": choice,
    "contains": contains,
    "exact": exact,
    "f1": token_f1,
    "f1_hotpot": hotpot_f1,
    "first_number": first_number,
    "items": items,
    "last_number": last_number,
    "lenient": lenient,
    "match_all": match_all,
    "match_part": match_part,
    "number_share": number_share,
    "rouge_l": rouge_l,
    "rouge_recall": rouge_recall,
    "sequence": sequence,
    "similar": similar,
    "word": word,
}
"""Judges that need nothing but the accepted answers."""

DETAILED_JUDGES: dict[str, Callable[[str], Judge]] = {"classes": classes, "first_line": first_line, "one_of": one_of}
"""Judges that a rule spells out after a colon: ``one_of:kitchen|garden``, ``first_line:f1``."""


def judge_named(rule: str) -> Judge:
    """The judge called ``rule``; ``ValueError`` with the known names otherwise."""
    name, colon, detail = rule.partition(":")
    if colon and detail and name in DETAILED_JUDGES:
        return DETAILED_JUDGES[name](detail)
    if rule not in JUDGES:
        detailed = ", ".join(f"{known}:..." for known in sorted(DETAILED_JUDGES))
        raise ValueError(f"no judge {rule!r}; choose from {', '.join(sorted(JUDGES))}, {detailed}")
    return JUDGES[rule]


def score(rule: str, reply: str, answers: Sequence[str]) -> Score:
    """The score of ``reply`` by the judge called ``rule``."""
    judge = judge_named(rule)
    if not answers or not all(answers):
        raise ValueError("the example has no accepted answer, or an empty one; give at least one, and none empty")
    return judge(reply, answers)


def _said(reply: str) -> str:
    found = boxed(reply)
    return reply if found is None else found


def _equal(found: str, answers: Sequence[str], form: Callable[[str], str], what: str) -> Score:
    for answer in answers:
        if form(found) == form(answer):
            return Score(1.0, found, f"the {what} equals {answer!r}")
    return Score(0.0, found, f"the {what} is {found!r}, accepted: {_listed(answers)}")


def _best(said: str, answers: Sequence[str], value: Callable[[str], float], what: str) -> Score:
    best, answer = max(((value(answer), answer) for answer in answers), key=lambda pair: pair[0])
    return Score(float(best), said, f"{what} {best:.3f} against {answer[:80]!r}")


def _numeric(found: Sequence[str], answers: Sequence[str], which: str) -> Score:
    said = found[0] if found else ""
    for answer in answers:
        decimal = "." in said + answer and re.fullmatch(r"-?\d+(?:\.\d+)?", answer)
        if said and (said == answer or (decimal and float(said) == float(answer))):
            return Score(1.0, said, f"the {which} number is {answer}")
    return Score(0.0, said, f"the {which} number is {said or 'missing'}, accepted: {_listed(answers)}")


def _overlap_f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    same = sum((Counter(said) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


_MATH_FORM = (
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."), (" ", ""),
)  # fmt: skip


def _math_form(text: str) -> str:
    for old, new in _MATH_FORM:
        text = text.replace(old, new)
    return text


def _listed(answers: Sequence[str]) -> str:
    shown = ", ".join(map(repr, answers[:3]))
    return shown if len(answers) <= 3 else f"{shown} and {len(answers) - 3} more"
