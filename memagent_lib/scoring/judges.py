"""All judges in one list, each with its description and the source of its formula.

To add a judge to the library, write its function in ``formulas.py`` and declare it in ``_DECLARED`` below. A judge of
your own is a function in any file; use ``FILE.py:NAME`` as its rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memagent_lib.errors import nearest
from memagent_lib.plugins import is_plugin, load_plugin, plugin_hash
from memagent_lib.scoring import formulas, long_context
from memagent_lib.scoring.lists import items_in, option_letter
from memagent_lib.scoring.matching import answer_in, box_in, same_answer, same_text, states
from memagent_lib.scoring.replies import Score, box_or_all, math_form, normalise, stated

Rule = Callable[[str, Sequence[str]], Score]
"""Scores a reply against the accepted answers."""

_LETTERS = ("A", "B", "C", "D")
_NOTHING_STATED = "the reply states no answer in a form that this judge reads"
_NAMED_ANSWERS = 3  # in a reason


@dataclass(frozen=True, slots=True)
class Judge:
    """A way to score replies. Examples, recipes and commands name it as their ``rule``.

    ``function`` is a :data:`Rule`. Some judges need a detail (labels, or another judge), which follows the name after a
    colon: ``one_of:kitchen|garden``. Their ``function`` turns a detail into a :data:`Rule`, and their ``detail`` is an
    example of one. A ``guessable`` judge accepts a list of guesses; reinforcement learning exploits that.
    """

    name: str
    summary: str
    source: str
    function: Callable[..., Any]
    detail: str = ""
    guessable: bool = False


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
            return Score(0.0, "", _NOTHING_STATED)
        # The best one counts: accepted answers are alternatives.
        values = [float(self.compare(found, answer)) for answer in answers]
        value = max(values)
        if value == 0:
            return Score(0.0, found, f"found {found[:80]!r}, accepted: {_listed(answers)}")
        best = answers[values.index(value)]
        return Score(value, found, f"{value:.3g} for {found[:80]!r} against {best[:80]!r}")


def number_share(reply: str, answers: Sequence[str]) -> Score:
    """Score the reply, or its box, by the share of its numbers that are the first number of an accepted answer."""
    numbers = re.findall(r"\d+", box_or_all(reply))
    accepted = {number for answer in answers for number in re.findall(r"\d+", answer)[:1]}
    right = sum(number in accepted for number in numbers)
    reason = f"{right} of {len(numbers)} numbers are right"
    return Score(right / max(1, len(numbers)), ", ".join(numbers[:5]), reason)


def match_all(reply: str, answers: Sequence[str]) -> Score:
    """Score the reply by the share of the accepted answers that occur anywhere in it, ignoring case."""
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
        return Score(0.0, "", _NOTHING_STATED)
    fault = states(found, answers)
    if fault:
        return Score(0.0, found, f"found {found[:80]!r}, accepted: {_listed(answers)}; {fault}")
    return Score(1.0, found, f"1 for {found[:80]!r}, accepted: {_listed(answers)}")


def items(reply: str, answers: Sequence[str]) -> Score:
    """Score the number of correct items, divided by the number of accepted or listed items, whichever is larger.

    Commas, semicolons, line breaks and ``and`` separate items, except inside an accepted answer. Unlike with
    ``match_all``, listing everything in sight does not pay, so train with this rule if a question has several answers.
    """
    readings = [_items_score(listed, answers) for listed in items_in(reply, answers)]
    return max(readings, key=lambda found: found.value, default=_items_score([], answers))


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
    chosen = option_letter(reply) if letters else None
    if chosen is not None:
        named = chosen or "several letters"
        return Score(float(chosen in letters), chosen, f"chose {named}, accepted: {_listed(answers)}")
    if not texts:
        return Score(0.0, "", "the reply chooses no letter")
    if not answer_in(reply):
        # A reply that states no answer is one as a whole.
        reply = f"\\boxed{{{reply}}}"
    return contains(reply, texts)


def _is_letter(answer: str) -> bool:
    return re.fullmatch(r"\(?[A-Za-z][).]?", answer.strip()) is not None


def choice_infinitebench(reply: str, answers: Sequence[str]) -> Score:
    """Score 1 if the answer chooses an accepted letter from A to D, or contains the text of an accepted option.

    A letter is chosen at the beginning, or after ``answer`` or ``option``; only letters are then compared. A reply with
    neither may choose a letter as :func:`choice` finds it.
    """
    found = box_or_all(reply).strip()
    letter = re.match(r"\(?([A-D])\b", found) or re.search(r"(?:answer|option)(?: is)?:? *\(?([A-D])\b", found)
    if letter:
        return _by_letter(letter.group(1), answers)
    # "A" alone is an article in SQuAD's normal form, and would stand in every reply.
    texts = [answer for answer in answers if answer not in _LETTERS]
    by_text = AnyAnswer(lambda _: found, formulas.has_words)(reply, texts or answers)
    chosen = option_letter(reply)
    if by_text.value or not chosen or len(texts) == len(answers):
        return by_text
    return _by_letter(chosen, answers)


def _by_letter(letter: str, answers: Sequence[str]) -> Score:
    return AnyAnswer(lambda _: letter, lambda one, other: normalise(one) == normalise(other))("", answers)


def one_of(labels: str) -> Rule:
    """Return a rule for ``labels`` (``a|b|c``) that scores 1 if the first sentence names the answer and no other label.

    An answer with commas stands for several labels, all of which must be named. As in BABILong, ``labels`` must not
    include labels that occur in the question itself.
    """
    known = {label.lower() for label in labels.split("|") if label}

    def named(reply: str) -> str:
        sentence = box_or_all(reply).lower().split(".")[0].split("<context>")[0].split("<example>")[0]
        return "|".join(sorted(label for label in known if label in sentence))

    def right(found: str, answer: str) -> bool:
        accepted = [answer.lower()]
        if "," in answer and len(answer) > 3:
            accepted = [label.strip() for label in answer.lower().split(",")]
        return set(found.split("|")) == set(accepted)

    return AnyAnswer(named, right)


def classes(names: str) -> Rule:
    """Return a rule for class names (``a|b|c``) that scores the first line of a reply.

    The score is 1 divided by the number of classes that the line names, or 0 if the correct class is not among them. A
    class does not count as named if its name is part of the correct class's name.
    """
    known = [name for name in names.split("|") if name]

    def share(line: str, answer: str) -> float:
        counted = [name for name in known if name in line and (name == answer or name not in answer)]
        if answer not in counted:
            return 0.0
        return 1 / len(counted)

    return AnyAnswer(lambda reply: box_or_all(formulas.first_line(reply)), share)


def first_line(rule: str) -> Rule:
    """Return a rule that applies ``rule`` only to the first line of the reply."""
    judge = judge_named(rule)
    return lambda reply, answers: judge(formulas.first_line(reply), answers)


def mrcr(prefix: str) -> Rule:
    """Return a rule that compares a reply with the answer after ``prefix``, with which both have to begin."""
    return AnyAnswer(long_context.after_prefix(prefix), long_context.likeness_after(prefix))


def oolong(kind: str) -> Rule:
    """Return a rule for OOLONG's answer types: ``numeric``, ``date``, or any other name for answers that are equal."""
    return AnyAnswer(long_context.oolong_answer, long_context.oolong_value(kind))


_OURS = "this library"
_MEMAGENT = "MemAgent, arXiv 2507.02259"
_RULER = "RULER, arXiv 2404.06654"
_LONGBENCH = "LongBench, arXiv 2308.14508"
_INFINITEBENCH = "InfiniteBench, arXiv 2402.13718"
_OOLONG = "OOLONG, arXiv 2511.02817"
_MEMORYAGENTBENCH = "MemoryAgentBench, arXiv 2507.05257"
_OPENAI = "GraphWalks and MRCR, openai/graphwalks and openai/mrcr on the Hub"

_DECLARED = (
    # Questions with a short answer.
    Judge(
        "boxed", "the last box equals an answer in text or value, white space aside; what training uses", _OURS,
        AnyAnswer(box_in, same_text),
    ),
    Judge(
        "exact", "the answer stated has an answer's words and numbers and no others", _OURS,
        AnyAnswer(answer_in, same_answer),
    ),
    Judge(
        "contains", "the answer stated has an answer's words, not denied and not among other guesses", _OURS, contains
    ),
    Judge(
        "sub_em", "strict sub-EM: what MemAgent's rule finds has an answer's words, at word borders", _MEMAGENT,
        AnyAnswer(stated, formulas.has_words), guessable=True,
    ),
    Judge(
        "lenient", "sub-EM: the answer stated is inside an accepted one, or the other way round", _MEMAGENT,
        AnyAnswer(stated, formulas.either_inside), guessable=True,
    ),
    Judge(
        "boxed_reference", "the training reward: a box near the end equals an answer in MATH's normal form", _MEMAGENT,
        AnyAnswer(formulas.reference_box, lambda found, answer: math_form(found) == math_form(answer)),
    ),
    Judge("f1", "token F1 in SQuAD's normal form", "SQuAD, arXiv 1606.05250", AnyAnswer(box_or_all, formulas.token_f1)),
    Judge(
        "f1_hotpot", "token F1; yes, no and noanswer score only when equal", "HotpotQA, arXiv 1809.09600",
        AnyAnswer(box_or_all, formulas.hotpot_f1),
    ),
    Judge("choice", "multiple choice: the letter that the reply chooses, or the text of an option", _OURS, choice),
    Judge(
        "choice_infinitebench", "multiple choice: the letter A to D or the text of an option", _INFINITEBENCH,
        choice_infinitebench, guessable=True,
    ),
    Judge(
        "one_of", "the first sentence names the answer and no other label", "BABILong, arXiv 2406.10149",
        one_of, detail="kitchen|garden",
    ),
    # Questions with several answers.
    Judge("items", "right items over the larger of items listed and items wanted", _OURS, items),
    Judge(
        "match_all", "string_match_all: the share of the answers that stand in the reply", _RULER,
        match_all, guessable=True,
    ),
    Judge(
        "match_part", "string_match_part: any answer stands in the reply", _RULER,
        AnyAnswer(str, lambda found, answer: answer.lower() in found.lower()), guessable=True,
    ),
    # Numbers.
    Judge(
        "first_number", "the first number equals an answer", _INFINITEBENCH,
        AnyAnswer(formulas.first_number, formulas.same_number),
    ),
    Judge(
        "last_number", "the last number, sign included, equals an answer", _INFINITEBENCH,
        AnyAnswer(formulas.last_number, formulas.same_number),
    ),
    Judge("number_share", "the share of the reply's numbers that are right", _LONGBENCH, number_share),
    Judge(
        "sequence", "the share of a list of numbers before the first error", _INFINITEBENCH,
        AnyAnswer(box_or_all, formulas.right_before_error),
    ),
    # Longer texts.
    Judge("rouge_l", "F of ROUGE-L", _LONGBENCH, AnyAnswer(box_or_all, formulas.rouge_l)),
    Judge(
        "rouge_recall", "mean recall of ROUGE-1, -2 and -L", _MEMAGENT,
        AnyAnswer(box_or_all, formulas.rouge_recall), guessable=True,
    ),
    Judge(
        "characters", "F1 over letters and digits, for languages without spaces", _INFINITEBENCH,
        AnyAnswer(box_or_all, formulas.character_f1),
    ),
    Judge("similar", "difflib's ratio for the first line of code", _LONGBENCH,
          AnyAnswer(formulas.code_line, formulas.likeness)),
    Judge(
        "word", "an answer is one of the reply's words", _INFINITEBENCH,
        AnyAnswer(str, formulas.is_word), guessable=True,
    ),
    Judge(
        "classes", "1 over the classes that the first line names, if the right one is among them", _LONGBENCH,
        classes, detail="kitchen|garden",
    ),
    # Long contexts and memories.
    Judge("graphwalks", "F1 of the nodes in the last line's Final Answer: [...]", _OPENAI,
          AnyAnswer(long_context.named_nodes, long_context.node_f1)),
    Judge("mrcr", "difflib's ratio after a prefix with which the reply must begin", _OPENAI, mrcr, detail="g"),
    Judge("oolong", "the text after the last colon; 0.75 ** error for numbers", _OOLONG, oolong, detail="numeric"),
    Judge("oolong_real", "the box: 0.75 ** error, the share of a list, or an equal text", _OOLONG,
          AnyAnswer(long_context.oolong_real_answer, long_context.oolong_real_value)),
    Judge("substring_match", "an answer stands in the reply, both in SQuAD's normal form", _MEMORYAGENTBENCH,
          AnyAnswer(box_or_all, long_context.substring_match), guessable=True),
    Judge("exact_match", "the reply or its Answer: line equals an answer in SQuAD's normal form", _MEMORYAGENTBENCH,
          AnyAnswer(box_or_all, long_context.exact_match)),
    Judge("abstains", "the reply says that the document does not state the answer", _OURS, long_context.abstains),
    Judge("first_line", "another rule for the first line only", _LONGBENCH, first_line, detail="f1"),
)  # fmt: skip

JUDGES: dict[str, Judge] = {judge.name: judge for judge in _DECLARED}
"""Every judge by name. None needs more than the reply and the accepted answers."""


def judge_named(rule: str) -> Rule:
    """Return the scoring function for a rule.

    A rule is a judge's name, a name with its detail (``first_line:f1``), or ``FILE.py:NAME`` for your own function or
    :class:`Judge`. Raises ``ValueError`` for any other rule, and ``MissingFile`` for a missing file.
    """
    name, colon, detail = rule.partition(":")
    judge = JUDGES.get(name)
    if judge and not judge.detail and not colon:
        return judge.function
    if judge and judge.detail and detail:
        return judge.function(detail)
    if is_plugin(rule):
        return _in_file(rule)
    known = [f"{judge.name}:..." if judge.detail else judge.name for judge in _DECLARED]
    listed = ", ".join(sorted(known))
    raise ValueError(
        f"no judge {rule!r}; choose from {listed}, or name a function: FILE.py:NAME "
        f"(a model judges only evaluations: memagent evaluate --judge){nearest(rule, JUDGES)}"
    )


def judge_name(rule: str) -> str:
    """Return the name of a rule's judge without what a record adds to it: ``mrcr`` for ``mrcr:PREFIX``."""
    name, _, detail = rule.partition(":")
    if name not in JUDGES or not detail:
        return rule
    return f"{name}:{judge_name(detail)}" if JUDGES[name].detail in JUDGES else name


def is_guessable(rule: str) -> bool:
    """Return whether the judge named by ``rule`` is declared to accept a list of guesses."""
    name, _, detail = rule.partition(":")
    if name == "first_line" and detail:
        return is_guessable(detail)
    if name in JUDGES:
        return JUDGES[name].guessable
    try:
        return getattr(load_plugin(rule), "guessable", False) is True
    except (ValueError, OSError):  # named by whoever needs the judge itself
        return False


def guess_warning(rules: Iterable[str]) -> str:
    """Return a warning about the rules that accept a list of guesses, or "" if there are none."""
    open_to_guesses = [rule for rule in dict.fromkeys(rules) if is_guessable(rule)]
    if not open_to_guesses:
        return ""
    names = ", ".join(map(repr, open_to_guesses))
    return (
        f"a list of guesses satisfies the judge {names}, and reinforcement finds that out; for training choose "
        "boxed, exact, contains or, for several answers, items (memagent data ... --rule contains)"
    )


def judge_hash(rule: str) -> str:
    """Return a hash (16 hex digits) of the file that contains your own judge, or "" for a judge of the library."""
    name, _, detail = rule.partition(":")
    if name in JUDGES:
        return judge_hash(detail) if is_plugin(detail) else ""
    return plugin_hash(rule)


def score(rule: str, reply: str, answers: Sequence[str]) -> Score:
    """Score a reply with the judge named by ``rule``.

    Raises ``ValueError`` if there is no accepted answer, if one is empty, or if the judge returns an invalid score.
    """
    judge = judge_named(rule)
    if not answers or not all(answers):
        raise ValueError("the example has no accepted answer, or an empty one; give at least one, and none empty")
    found = judge(reply, answers)
    if not isinstance(found, Score) or not 0 <= found.value <= 1:
        needed = "a memagent_lib.scoring.Score with a value in [0, 1]"
        raise ValueError(f"the judge {rule!r} returned {found!r}; it has to return {needed}")
    return found


def _in_file(rule: str) -> Rule:
    found = load_plugin(rule)
    if isinstance(found, Judge) and not found.detail:
        return found.function
    if not callable(found) or isinstance(found, type):
        needed = "a function of a reply and its accepted answers, or a memagent_lib.scoring.Judge without detail"
        raise ValueError(f"{rule} is of type {type(found).__name__}; a judge in a file is {needed}")
    return found


def _listed(answers: Sequence[str]) -> str:
    named = ", ".join(map(repr, answers[:_NAMED_ANSWERS]))
    more = len(answers) - _NAMED_ANSWERS
    if more > 0:
        named += f" and {more} more"
    return named
