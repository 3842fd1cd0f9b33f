"""The judges that score replies, by name. Every example names its own as its ``rule``.

A rule is the name of a judge below, ``FILE.py:NAME`` for a function of your own, or a judge of a benchmark in
``experiments/benchmarks``: ``mrcr:PREFIX`` is the entry ``mrcr`` of ``JUDGES`` in ``mrcr.py``, and
``longbench/rouge_l`` the entry of that name in ``longbench.py``. What follows the colon is a detail: such an entry
turns it into a :data:`Rule`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from memagent_lib.errors import nearest
from memagent_lib.plugins import is_plugin, load_plugin, plugin_hash, shipped_module, shipped_plugin
from memagent_lib.scoring.lists import items_in, option_letter
from memagent_lib.scoring.matching import answer_in, box_in, boxed, plain, same_answer, same_text, states


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict on a reply: ``value`` in [0, 1], the answer found in the reply, and the reason in one line."""

    value: float
    answer: str
    reason: str


Rule = Callable[[str, Sequence[str]], Score]
"""Scores a reply against the accepted answers."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
NOTHING_STATED = "the reply states no answer in a form that this judge reads"
# In SQuAD's normal form, which has no apostrophes.
_STATED = (
    r"(mention|stat|provide|specif|sa(?:y|id)|contain|discuss|giv|includ|know|share|indicat|disclos|reveal|told)\w*"
)
_NOT_STATED = re.compile(
    r"^(na|none|nothing|not applicable)$|\bunknown$|^unknown (?!\w+$)|\b(is|are|was|were|remains?) unknown\b"
    r"|(^|\b(has|have|contains|is|are|there) )no (record|evidence)\b"
    r"|\b(unanswerable|insufficient information|no (information|mention|indication|answer|such information)"
    r"|nothing about|information (\w+ ){0,3}not (enough|sufficient)"
    r"|(not|isnt|arent) ((enough|sufficient|any) information|answerable|available|found)"
    rf"|(not|never|nowhere|isnt|arent|wasnt|werent) (been )?(?!including|known (?:for(?! certain| sure)|as)\b){_STATED}"
    r"|(not|cannot|cant) be (answered|determined|found)"
    r"|(cannot|cant|can not|could not|couldnt|unable to|impossible to|not possible to) (answer|determine|find|tell|say)"
    rf"|(didnt|doesnt|dont|havent|hasnt|did not|does not|do not|have not|has not) (have|{_STATED}))\b"
)


@dataclass(frozen=True, slots=True)
class AnyAnswer:
    """A rule for questions with one answer: the best match between the reply's answer and any accepted answer.

    ``extract`` reads the answer from a reply; it returns ``None`` if the reply states no answer. ``compare`` returns a
    value in [0, 1].
    """

    extract: Callable[[str], str | None]
    compare: Callable[[str, str], float]

    def __call__(self, reply: str, answers: Sequence[str]) -> Score:
        found = self.extract(reply)
        if found is None:
            return Score(0.0, "", NOTHING_STATED)
        # The best one counts: accepted answers are alternatives.
        values = [float(self.compare(found, answer)) for answer in answers]
        value = max(values)
        if value == 0:
            return Score(0.0, found, f"found {found[:80]!r}, accepted: {_listed(answers)}")
        best = answers[values.index(value)]
        return Score(value, found, f"{value:.3g} for {found[:80]!r} against {best[:80]!r}")


def stated(reply: str) -> str | None:
    """Return the answer as MemAgent finds it: the box, or else the text after the last ``the answer is``.

    Returns ``None`` if the reply has neither, or if what it has is empty.
    """
    found = boxed(reply)
    if found is None:
        _, mark, after = reply.replace("*", "").rpartition("the answer is")
        if mark:
            found = after.strip().strip(".").strip()
    return found or None


def box_or_all(reply: str) -> str:
    """Return the content of the box, or the whole reply if there is none. Many benchmarks' judges score this."""
    found = boxed(reply)
    return reply if found is None else found


def squeezed(text: str) -> str:
    """Return the text in the spelling of :func:`plain`, in lower case and without white space."""
    return "".join(plain(text).lower().split())


def normalise(text: str) -> str:
    """Return SQuAD's normal form (Rajpurkar et al. 2016): lower case, no punctuation or articles, single spaces."""
    # Punctuation goes first, as in SQuAD's script: "a.b" becomes "ab", not "a b".
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normal_words(text: str) -> str:
    """Return SQuAD's normal form of the text in the spelling of :func:`plain`."""
    return normalise(plain(text))


def has_words(found: str, answer: str) -> bool:
    """Strict sub-EM: return whether the reply's answer contains the accepted one as whole words."""
    return f" {normal_words(answer)} " in f" {normal_words(found)} "


def either_inside(found: str, answer: str) -> bool:
    """MemAgent's sub-EM: return whether one answer contains the other.

    An answer that normalises to nothing (``"the"``) is in every answer. Unlike the reference, this ignores differences
    in spelling (:func:`~memagent_lib.scoring.matching.plain`) and white space.
    """
    words = normal_words(found)
    accepted = normal_words(answer)
    return accepted in words or words in accepted or squeezed(found) == squeezed(answer)


def overlap_f1(found: Collection[str], accepted: Collection[str]) -> float:
    """Return the F1 of two bags of words or of other parts."""
    same = sum((Counter(found) & Counter(accepted)).values())
    if not same:
        return 0.0
    precision = same / len(found)
    recall = same / len(accepted)
    return 2 * precision * recall / (precision + recall)


def token_f1(found: str, answer: str) -> float:
    """Return the token F1 of two answers in SQuAD's normal form, as SQuAD and LongBench do."""
    return overlap_f1(normalise(found).split(), normalise(answer).split())


def match_all(reply: str, answers: Sequence[str]) -> Score:
    """Score the reply by the share of the accepted answers that occur anywhere in it, ignoring case (RULER)."""
    hits = [answer for answer in answers if answer.lower() in reply.lower()]
    missing = [answer for answer in answers if answer not in hits]
    reason = f"the reply has {len(hits)} of {len(answers)}"
    if missing:
        reason += f", not {_listed(missing)}"
    return Score(len(hits) / len(answers), ", ".join(hits), reason)


def contains(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the reply's answer has the words of an accepted answer, without denying them or adding guesses."""
    found = answer_in(reply)
    if found is None:
        return Score(0.0, "", NOTHING_STATED)
    fault = states(found, answers)
    if fault:
        return Score(0.0, found, f"found {found[:80]!r}, accepted: {_listed(answers)}; {fault}")
    return Score(1.0, found, f"1 for {found[:80]!r}, accepted: {_listed(answers)}")


def items(reply: str, answers: Sequence[str]) -> Score:
    """Score the number of correct items, divided by the number of accepted or listed items, whichever is larger.

    Commas, semicolons, line breaks and ``and`` separate items, except inside an accepted answer. Unlike with
    ``match_all``, listing everything in sight does not pay, so train with this rule if a question has several answers.
    """
    return max((_items_score(listed, answers) for listed in items_in(reply, answers)), key=lambda found: found.value)


def _items_score(listed: Sequence[str], answers: Sequence[str]) -> Score:
    # Spellings of one item count once.
    accepted: list[str] = []
    for answer in answers:
        if not any(same_answer(answer, other) for other in accepted):
            accepted.append(answer)
    right = sum(any(same_answer(item, answer) for item in listed) for answer in accepted)
    reason = f"{right} of {len(accepted)} items, {len(listed) - right} wrong ones"
    return Score(right / max(len(accepted), len(listed)), ", ".join(sorted(listed)).replace("\n", " "), reason)


def choice(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the reply chooses an accepted letter, or states the text of an accepted option.

    If an accepted answer is a letter and the reply chooses letters, only letters are compared; several score 0.
    """
    # Benchmarks write a letter as B, (B), B. or B).
    letters = {answer.strip("(). ").upper() for answer in answers if _is_letter(answer)}
    texts = [answer for answer in answers if not _is_letter(answer)]
    found = answer_in(reply) or reply
    if any(same_answer(found, text) for text in texts):  # a text may have a letter: Vitamin C
        return Score(1.0, found, f"1 for {found[:80]!r}, accepted: {_listed(answers)}")
    chosen = option_letter(reply) if letters else None
    if chosen is not None:
        named = chosen or "several letters"
        return Score(float(chosen in letters), chosen, f"chose {named}, accepted: {_listed(answers)}")
    if not texts:
        return Score(0.0, "", "the reply chooses no letter")
    return contains(reply, texts)


def _is_letter(answer: str) -> bool:
    return re.fullmatch(r"\(?[A-Za-z][).]?", answer.strip()) is not None


def abstains(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the reply says that the document does not state the answer, in an answer's words or in usual ones.

    For questions whose premise is false. A reply that also offers an answer is not recognised as wrong.
    """
    found = box_or_all(reply).strip()
    phrase = _NOT_STATED.search(normal_words(found))
    if phrase or any(same_answer(found, answer) for answer in answers):
        return Score(1.0, found, f"the reply abstains: {phrase[0] if phrase else found[:80]!r}")
    return Score(0.0, found, "the reply does not say that the document lacks the answer")


JUDGES: dict[str, Rule] = {
    # This library's own: numbers by value, no credit for a list of guesses.
    "boxed": AnyAnswer(box_in, same_text),  # what training uses
    "exact": AnyAnswer(answer_in, same_answer),
    "contains": contains,
    "items": items,
    "choice": choice,
    "abstains": abstains,
    # To the letter: MemAgent's (arXiv 2507.02259), SQuAD's and RULER's.
    "sub_em": AnyAnswer(stated, has_words),
    "lenient": AnyAnswer(stated, either_inside),
    "f1": AnyAnswer(box_or_all, token_f1),
    "match_all": match_all,
    "match_part": AnyAnswer(str, lambda found, answer: answer.lower() in found.lower()),
}
"""The judges of the library. None needs more than the reply and the accepted answers."""
GUESSABLE = ("sub_em", "lenient", "match_all", "match_part")
"""Judges that a list of guesses satisfies; reinforcement learning exploits that."""


@cache
def judge_named(rule: str) -> Rule:
    """Return the scoring function for a rule. Raises ``ValueError`` if there is none.

    A file that is edited changes no job that has begun: an evaluation clears this cache, and :func:`judge_hash`'s.
    """
    if rule in JUDGES:
        return JUDGES[rule]
    if is_plugin(rule):
        found = load_plugin(rule)
        if not callable(found) or isinstance(found, type):
            raise ValueError(f"{rule} is of type {type(found).__name__}; a judge in a file is a function")
        return found
    name, _, detail = rule.partition(":")
    judges = getattr(shipped_module("benchmarks", name.partition("/")[0]), "JUDGES", {})
    if name not in judges:
        raise ValueError(
            f"no judge {rule!r}; choose from {', '.join(JUDGES)}, a benchmark's own, or a function: FILE.py:NAME "
            f"(a model judges only evaluations: memagent evaluate --judge){nearest(rule, JUDGES)}"
        )
    return judges[name](detail) if detail else judges[name]


def judge_name(rule: str) -> str:
    """Return the name of a rule's judge without what a record adds to it: ``mrcr`` for ``mrcr:PREFIX``."""
    return rule if is_plugin(rule) else rule.partition(":")[0]


@cache
def judge_hash(rule: str) -> str:
    """Return a hash (16 hex digits) of the file that contains a judge, or "" for a judge of the library."""
    if rule in JUDGES:
        return ""
    shipped = None if is_plugin(rule) else shipped_plugin("benchmarks", judge_name(rule).partition("/")[0])
    return plugin_hash(shipped or rule)


def guess_warning(rules: Iterable[str]) -> str:
    """Return a warning about the rules that accept a list of guesses, or "" if there are none."""
    names = ", ".join(repr(rule) for rule in dict.fromkeys(rules) if rule in GUESSABLE)
    if not names:
        return ""
    return (
        f"a list of guesses satisfies the judge {names}, and reinforcement finds that out; for training choose "
        "boxed, exact, contains or, for several answers, items (memagent data ... --rule contains)"
    )


def score(rule: str, reply: str, answers: Sequence[str]) -> Score:
    """Score a reply with the judge named by ``rule``.

    Raises ``ValueError`` if there is no accepted answer, if one is empty, or if the judge returns an invalid score.
    """
    judge = judge_named(rule)
    if not answers or not all(answers):
        raise ValueError("the example has no accepted answer, or an empty one; give at least one, and none empty")
    found = judge(reply, answers)
    if not isinstance(found, Score) or not 0 <= found.value <= 1:
        raise ValueError(f"the judge {rule!r} returned {found!r}; it has to return a Score with a value in [0, 1]")
    return found


def _listed(answers: Sequence[str]) -> str:
    named = ", ".join(map(repr, answers))
    return named if len(named) <= 200 else f"{named[:200]}... ({len(answers)} in all)"
