"""Judges against second, slow implementations of the published formulas, on a table of replies with near misses."""

from __future__ import annotations

import re
import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_lib.scoring import boxed, normalise, score

GOLDS = [
    ("Greenwich Village",),
    ("Greenwich Village, New York City", "Greenwich Village"),
    ("yes",),
    ("7",),
    ("1234567", "7654321"),
    ("The Beatles",),
]
REPLIES = [
    "", " ", "the", "a", "A.", "Paris", "greenwich village", "Greenwich Village.", "The Greenwich Village",
    "Greenwich", "Village Greenwich", "greenwichvillage", "Greenwich-Village",
    "I think it is Greenwich Village, in New York City.",
    "\\boxed{Greenwich Village}", "\\boxed{greenwich village}", "\\boxed{ Greenwich\nVillage }",
    "\\boxed{Paris} no, \\boxed{Greenwich Village}", "\\boxed{Greenwich Village} no, \\boxed{Paris}",
    "\\boxed{Greenwich Village", "\\boxed Greenwich Village", "\\fbox{Greenwich Village}",
    "\\boxed{\\text{Greenwich Village}}", "\\boxed{{Greenwich Village}}", "\\boxed{}", "\\boxed{the}",
    "Therefore, the answer is Greenwich Village.", "Therefore, the answer is **Greenwich Village**.",
    "The answer is Greenwich Village", "the answer is Paris. No, the answer is Greenwich Village, New York City.",
    "the answer is (Greenwich Village)", "the answer is", "the answer is G",
    "yes", "Yes.", "YES, it is", "no", "noanswer", "\\boxed{yes}", "yes and no", "the answer is yes", "yesterday",
    "7", "07", "7.0", "seven", "77", "\\boxed{7\\%}", "\\boxed{ 7 }", "number 7, not 8",
    "1234567", "1234567 and 7654321", "7654321, 1234567", "12345678", "\\boxed{1234567, 7654321}",
    "Beatles", "The Beatles", "beatles, the", "The Beetles", "théâtre Beatles", "the answer is The Beatles",
]  # fmt: skip


def squad_form(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def oracle_f1(reply: str, gold: str) -> float:
    p, g = squad_form(reply if boxed(reply) is None else boxed(reply)), squad_form(gold)
    p, g = p.split(), g.split()
    same = sum(min(p.count(w), g.count(w)) for w in set(p))
    return 2 * same / (len(p) + len(g)) if same else 0.0


def oracle_stated(reply: str) -> str:
    """The reference's extraction: the box, else what follows the last ``the answer is``."""
    if boxed(reply) is not None:
        return boxed(reply)
    plain = reply.replace("*", "")
    return plain[plain.rindex("the answer is") + 13 :].strip().strip(".").strip() if "the answer is" in plain else ""


def oracle_lenient(reply: str, gold: str) -> float:
    """The reference's sub-EM, from its published description: either is inside the other, in SQuAD's normal form."""
    found = oracle_stated(reply)
    p, g = squad_form(found), squad_form(gold)
    return float(bool(found) and (p in g or g in p))


def oracle_strict(reply: str, gold: str) -> float:
    stated = oracle_stated(reply)
    found = squad_form(re.sub(r"\\text\{([^{}]*)\}", r"\1", stated))
    return float(bool(stated and re.search(rf"(^|\s){re.escape(squad_form(gold))}(\s|$)", found)))


def any_of(formula):
    return lambda reply, gold: max(formula(reply, one) for one in gold)


ORACLES = {
    "f1": any_of(oracle_f1),
    "sub_em": any_of(oracle_strict),
    "lenient": any_of(oracle_lenient),
    "match_all": lambda reply, gold: sum(1.0 if g.lower() in reply.lower() else 0.0 for g in gold) / len(gold),
    "match_part": any_of(lambda reply, gold: float(gold.lower() in reply.lower())),
}


@pytest.mark.parametrize("rule", ORACLES)
def test_a_judge_agrees_with_its_published_formula(rule):
    pairs = [(reply, gold) for reply in REPLIES for gold in GOLDS]
    wrong = [(r, g, got) for r, g in pairs if (got := score(rule, r, g).value) != pytest.approx(ORACLES[rule](r, g))]
    assert not wrong
    assert len({score(rule, r, g).value for r, g in pairs}) > 1


@given(st.text(alphabet="ab the.\\boxed{}7 $", max_size=60), st.sampled_from(GOLDS))
def test_judges_agree_with_their_formulas_on_any_text(reply, gold):
    for rule, oracle in ORACLES.items():
        assert score(rule, reply, gold).value == pytest.approx(oracle(reply, gold)), rule


NAMES = [
    "New York City", "Hawai'i", "O'Connor–Smith", '"Weird Al" Yankovic', "José Ángel", "St. John's", "AT&T",
    "100 % Silk", "Ma Liang-shun",
]  # fmt: skip
QUOTES = str.maketrans({"'": "\u2019", '"': "\u201d", "-": "\u2013"})
RULES_OF_ONE_ANSWER = ("boxed", "exact", "contains", "sub_em", "lenient")
SHAPES = {  # reply to NAME: by boxed, exact, contains, sub_em and lenient
    r"So it is \boxed{ NAME }.": (1, 1, 1, 1, 1),
    r"\boxed{name}": (1, 1, 1, 1, 1),
    r"\boxed{\mathrm{\text{NAME}}}": (1, 1, 1, 1, 1),
    r"\boxed{NAME.}": (1, 1, 1, 1, 1),
    r"\boxed{the NAME}": (0, 1, 1, 1, 1),
    r"\boxed{NAME, or so}": (0, 0, 1, 1, 1),
    r"\boxed{NAMEish}": (0, 0, 0, 0, 1),
    r"\boxed{xNAME}": (0, 0, 0, 0, 1),
    r"\boxed{elsewhere}, not NAME": (0, 0, 0, 0, 0),
    r"\boxed{the}": (0, 0, 0, 0, 1),
    r"\boxed{}": (0, 0, 0, 0, 0),
    r"\boxed{elsewhere} or rather \boxed{NAME}": (1, 1, 1, 1, 1),
    r"\boxed{NAME": (0, 0, 0, 0, 0),
    r"\fbox{NAME}": (1, 1, 1, 0, 0),
    "Therefore, the answer is **NAME**": (0, 1, 1, 1, 1),
    "Therefore, the answer is NAME, I think": (0, 0, 1, 1, 1),
    "The answer is NAME": (0, 1, 1, 0, 0),
    "NAME": (0, 0, 0, 0, 0),
    "It could be NAME, London or Berlin.": (0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_our_verdicts_on_shapes_of_replies(shape):
    for name in NAMES:
        reply = shape.replace("NAME", name).replace("name", name.lower())
        assert tuple(score(rule, reply, (name,)).value for rule in RULES_OF_ONE_ANSWER) == SHAPES[shape], reply


@pytest.mark.parametrize("name", NAMES)
def test_invisible_spelling_does_not_count_against_an_answer(name):
    decomposed = unicodedata.normalize("NFD", name)
    for other in (decomposed, name.translate(QUOTES), name.replace(" ", "~"), name.replace("&", "\\&")):
        for reply, answer in ((f"\\boxed{{{other}}}", name), (f"\\boxed{{{name}}}", other)):
            for rule in RULES_OF_ONE_ANSWER:
                assert score(rule, reply, (answer,)).value == 1, (rule, reply, answer)


def test_the_normal_form_and_the_last_closed_box():
    assert normalise("  The  U.S.-led, a an THE theatre ") == "usled theatre"
    assert all(normalise(reply) == squad_form(reply) for reply in REPLIES)
    assert boxed(r"\boxed{a} then \boxed{b{c}d}") == "b{c}d"
    assert boxed(r"\boxed{never closed") is None
