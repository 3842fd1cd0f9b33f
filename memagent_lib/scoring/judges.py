"""The judges by name. Most take any of the accepted answers: the best value that the answer found has against one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from memagent_lib.scoring.replies import Score, box_or_all, boxed, math_form, normal_words, normalise, squeezed, stated

Judge = Callable[[str, Sequence[str]], Score]
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIGNED_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_BETWEEN_ITEMS = re.compile(r"[,;\n]|\band\b")
_REFERENCE_WINDOW = 300
_POLAR = ("yes", "no", "noanswer")
_LETTERS = ("A", "B", "C", "D")


@dataclass(frozen=True, slots=True)
class AnyAnswer:
    """A judge for questions with one answer: ``read`` finds it, ``value`` compares it with an accepted one."""

    read: Callable[[str], str | None]
    value: Callable[[str, str], float]

    def __call__(self, reply: str, answers: Sequence[str]) -> Score:
        if (said := self.read(reply)) is None:
            return Score(0.0, "", "the reply states no answer: nothing is boxed where this judge looks for it")
        value, best = max(((float(self.value(said, answer)), answer) for answer in answers), key=lambda pair: pair[0])
        if value == 0:
            return Score(0.0, said, f"found {said[:80]!r}, accepted: {_listed(answers)}")
        return Score(value, said, f"{value:.3g} for {said[:80]!r} against {best[:80]!r}")


def last_box(reply: str) -> str | None:
    """The last box, where it is not empty."""
    return boxed(reply) or None


def reference_box(reply: str) -> str | None:
    r"""The box within the last 300 characters, as in MemAgent's training; ``\boxed x`` counts up to ``$``."""
    tail = reply[-_REFERENCE_WINDOW:].lower()
    return tail.rsplit("\\boxed ", 1)[1].split("$")[0] if "\\boxed " in tail else boxed(tail)


def has_words(said: str, answer: str) -> bool:
    """Strict sub-EM: the answer stands in what was said, at word borders."""
    return f" {normal_words(answer)} " in f" {normal_words(said)} "


def either_inside(said: str, answer: str) -> bool:
    """The reference's sub-EM: one is inside the other. What normalises to nothing (``"the"``) is inside everything.

    Beyond the reference, spelling (:func:`plain`) and white space do not count against an answer.
    """
    found, wanted = normal_words(said), normal_words(answer)
    return wanted in found or found in wanted or squeezed(said) == squeezed(answer)


def token_f1(said: str, answer: str) -> float:
    """Token F1 in SQuAD's normal form; LongBench's and SQuAD's formula."""
    return _overlap_f1(normalise(said).split(), normalise(answer).split())


def hotpot_f1(said: str, answer: str) -> float:
    """Token F1 as HotpotQA and MemAgent count it: where either side is yes, no or noanswer, only equality scores."""
    a, b = normalise(said), normalise(answer)
    return 0.0 if a != b and (a in _POLAR or b in _POLAR) else _overlap_f1(a.split(), b.split())


def character_f1(said: str, answer: str) -> float:
    """F1 over letters and digits, for languages that do not space their words (InfiniteBench Zh.QA)."""
    a, b = ([c for c in text.lower() if c.isalnum()] for text in (said, answer))
    return _overlap_f1(a, b)


def rouge_l(said: str, answer: str) -> float:
    """LongBench's summary score: F of ROUGE-L from the ``rouge`` package that LongBench itself uses."""
    return rouge(said, answer).get("rouge-l", {}).get("f", 0.0)


def rouge_recall(said: str, answer: str) -> float:
    """The mean of the recalls of ROUGE-1, ROUGE-2 and ROUGE-L, as MemAgent reports on GovReport and QMSum."""
    return sum(scores["r"] for scores in rouge(said, answer).values()) / 3


def rouge(reply: str, answer: str) -> dict[str, dict[str, float]]:
    """``rouge-1``, ``rouge-2`` and ``rouge-l``, each with ``r``, ``p`` and ``f``.

    Empty where a side has no words, or a sentence of some thousand words; LongBench scores both 0.
    """
    from rouge import Rouge

    try:
        return Rouge().get_scores(reply, answer)[0]
    except (ValueError, RecursionError):
        return {}


def first_number(reply: str) -> str | None:
    """The first number in the answer (InfiniteBench passkey, number string, Math.Find)."""
    return next(iter(_NUMBER.findall(box_or_all(reply))), None)


def last_number(reply: str) -> str | None:
    """The last number in the answer, sign included (InfiniteBench Code.Run)."""
    return next(reversed(_SIGNED_NUMBER.findall(box_or_all(reply))), None)


def same_number(said: str, answer: str) -> bool:
    """Equal as text, or as numbers where either has a decimal point."""
    decimal = "." in said + answer and _SIGNED_NUMBER.fullmatch(answer)
    return said == answer or bool(decimal and float(said) == float(answer))


def is_word(said: str, answer: str) -> bool:
    """The answer is one of the words, case aside (InfiniteBench KV retrieval and dialogue)."""
    return answer.lower() in re.sub(r"[\n:\"'.,?!{}]", " ", said).lower().split()


def right_before_error(said: str, answer: str) -> float:
    """The share of a list of numbers that is right before the first error (InfiniteBench Math.Calc)."""
    wanted, found = (re.findall(r"-?\d+", text) for text in (answer, said))
    right = 0
    while right < min(len(wanted), len(found)) and wanted[right] == found[right]:
        right += 1
    return right / max(1, len(wanted))


def code_line(reply: str) -> str:
    """The first line of code, as LongBench takes it."""
    lines = reply.lstrip("\n").split("\n")
    return next((text for text in lines if not any(mark in text for mark in ("`", "#", "//"))), "")


def likeness(said: str, answer: str) -> float:
    """LongBench's code score: difflib's ratio in hundredths."""
    return round(100 * SequenceMatcher(None, said, answer).ratio()) / 100


def number_share(reply: str, answers: Sequence[str]) -> Score:
    """The share of the reply's numbers that are an accepted one (LongBench passage count and passage retrieval)."""
    numbers = re.findall(r"\d+", reply)
    wanted = {found for answer in answers for found in re.findall(r"\d+", answer)[:1]}
    right = sum(number in wanted for number in numbers)
    reason = f"{right} of {len(numbers)} numbers are right"
    return Score(right / max(1, len(numbers)), ", ".join(numbers[:5]), reason)


def match_all(reply: str, answers: Sequence[str]) -> Score:
    """RULER's ``string_match_all``: the share of the answers that stand anywhere in the reply, case aside."""
    hits = [answer for answer in answers if answer.lower() in reply.lower()]
    missing = [answer for answer in answers if answer not in hits]
    reason = f"the reply holds {len(hits)} of {len(answers)}"
    return Score(len(hits) / len(answers), ", ".join(hits), reason + (f", not {_listed(missing)}" if missing else ""))


def items(reply: str, answers: Sequence[str]) -> Score:
    """For questions that ask for several things: right items over the larger of items said and items asked for.

    Items are what commas, semicolons, line ends and ``and`` separate; listing everything in sight does not pay, unlike
    in ``match_all``, so this is the multi-value rule to train on.
    """
    said = {normal_words(part) for part in _BETWEEN_ITEMS.split(box_or_all(reply))} - {""}
    wanted = {normal_words(answer) for answer in answers}
    right = said & wanted
    reason = f"{len(right)} of {len(wanted)} items, {len(said - wanted)} wrong ones"
    return Score(len(right) / max(len(wanted), len(said)), ", ".join(sorted(said)), reason)


def choice(reply: str, answers: Sequence[str]) -> Score:
    """Multiple choice: 1 when the answer begins with an accepted letter or holds an accepted option's text."""
    said = box_or_all(reply).strip()
    letter = re.match(r"\(?([A-D])\b", said) or re.search(r"(?:answer|option)(?: is)?:? *\(?([A-D])\b", said)
    if letter:
        return AnyAnswer(lambda _: letter.group(1), lambda found, answer: normalise(found) == normalise(answer))(
            reply, answers
        )
    return AnyAnswer(lambda _: said, has_words)(reply, [a for a in answers if a not in _LETTERS] or answers)


def one_of(labels: str) -> Judge:
    """BABILong's rule for ``labels`` (``a|b|c``): the first sentence names the answer and no other label.

    Leave labels that the question itself mentions out of ``labels``, as BABILong does.
    """
    known = {label.lower() for label in labels.split("|") if label}

    def named(reply: str) -> str:
        said = box_or_all(reply).lower().split(".")[0].split("<context>")[0].split("<example>")[0]
        return "|".join(sorted(label for label in known if label in said))

    def right(said: str, answer: str) -> bool:
        several = "," in answer and len(answer) > 3
        return set(said.split("|")) == (set(answer.lower().split(",")) if several else {answer.lower()})

    return AnyAnswer(named, right)


def classes(names: str) -> Judge:
    """LongBench's rule for classes (``a|b|c``): 1 over how many the first line names, the right one among them.

    A class whose name is part of the right one's does not count as named.
    """
    known = [name for name in names.split("|") if name]

    def share(line: str, answer: str) -> float:
        counted = [name for name in known if name in line and (name == answer or name not in answer)]
        return 1 / len(counted) if answer in counted else 0.0

    return AnyAnswer(_first_line, share)


def first_line(rule: str) -> Judge:
    """Another judge, shown the first line of the reply only (LongBench's few-shot tasks)."""
    judge = judge_named(rule)
    return lambda reply, answers: judge(_first_line(reply), answers)


JUDGES: dict[str, Judge] = {
    "boxed": AnyAnswer(last_box, lambda said, answer: squeezed(said) == squeezed(answer)),
    "boxed_reference": AnyAnswer(reference_box, lambda said, answer: math_form(said) == math_form(answer)),
    "characters": AnyAnswer(box_or_all, character_f1),
    "choice": choice,
    "contains": AnyAnswer(stated, has_words),
    "exact": AnyAnswer(stated, lambda said, answer: normal_words(said) == normal_words(answer)),
    "f1": AnyAnswer(box_or_all, token_f1),
    "f1_hotpot": AnyAnswer(box_or_all, hotpot_f1),
    "first_number": AnyAnswer(first_number, same_number),
    "items": items,
    "last_number": AnyAnswer(last_number, same_number),
    "lenient": AnyAnswer(stated, either_inside),
    "match_all": match_all,
    "match_part": AnyAnswer(str, lambda said, answer: answer.lower() in said.lower()),
    "number_share": number_share,
    "rouge_l": AnyAnswer(box_or_all, rouge_l),
    "rouge_recall": AnyAnswer(box_or_all, rouge_recall),
    "sequence": AnyAnswer(box_or_all, right_before_error),
    "similar": AnyAnswer(code_line, likeness),
    "word": AnyAnswer(str, is_word),
}
"""Judges that need nothing but the accepted answers.

``boxed`` is what training uses: the box equals an accepted answer, case and white space aside. ``exact`` and
``contains`` (strict sub-EM) read the box or what follows ``the answer is``, in SQuAD's normal form; a reply that does
not say which of its words are the answer has none. ``lenient`` is MemAgent's headline score, ``boxed_reference`` its
training reward, ``match_all`` and ``match_part`` are RULER's ``string_match_all`` and ``string_match_part``.
"""

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


def _first_line(reply: str) -> str:
    return reply.lstrip("\n").split("\n")[0]


def _overlap_f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    same = sum((Counter(said) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _listed(answers: Sequence[str]) -> str:
    shown = ", ".join(map(repr, answers[:3]))
    return shown if len(answers) <= 3 else f"{shown} and {len(answers) - 3} more"
