"""Nothing but the question tells the answer: who ignores a part of it does no better than a pick among candidates."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from typing import NamedTuple

import pytest
from oracles import prose_value, read
from pocket import fair_task, triples_in

from experiments.pocket.word_tokenizer import build_tokenizer
from experiments.pocket.world import QuestionKind
from memagent_lib.data import Example, make
from memagent_lib.data.tasks.multihop import ROUTES
from memagent_lib.scoring import boxed, score
from memagent_lib.text import Tokenizer

FEW = (30, 0.2)
MANY = pytest.param((300, 0.05), marks=pytest.mark.long)
"""How many examples, and how far above chance their noise may take a guess."""
STARTS = {"film": r"The film (.+?) was directed by", "novel": r"The novel (.+?) was written by",
          "company": r"(?m)^Document \d+:\n(.+ Works)$", "person": r"The year of birth of (.+?) is \d"}  # fmt: skip


def all_values(pattern: str):
    return lambda _, document: re.findall(pattern, document)


def last_prices(_: str, document: str) -> list[str]:
    return list(dict(re.findall(r"The price of (\S+) (?:has changed and is now|is) (\d+)\.", document)).values())


def chain_ends(question: str, document: str) -> list[str]:
    """The ends of all complete chains of the question's relations, in the order of the document."""
    route = next(r for r in ROUTES if re.fullmatch(re.escape(r.words).replace(r"\{\}", ".+"), question))
    names = re.findall(STARTS[route.kind], document)
    ends = [_end(route.words.format(name), document) for name in names]
    return [end for end in ends if end]


def _end(question: str, document: str) -> str | None:
    try:
        return boxed(read("multihop", question, document))
    except TypeError:  # a chain that leaves the document
        return None


def hidden_questions(_: str, document: str) -> list[str]:
    ends = re.findall(r"\[[0-9a-f-]{36} -> ([^\]]*\?)\]", document)
    answers = [_end(end, document) for end in ends]
    return [answer for answer in answers if answer]


def nth_loads(question: str, document: str) -> list[str]:
    """The load of the question's ordinal, of every port."""
    ports = dict.fromkeys(re.findall(r"to (Port \w+)\.", document))
    wording = re.sub(r"Port \w+", "{}", question)
    return [boxed(read("ordering", wording.format(port), document)) for port in ports]


def prose_values(question: str, document: str) -> list[str]:
    """What the document states last of each person of whom it states something of the question's kind."""
    names = dict.fromkeys(re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+", document))
    found = []
    for name in names:
        with contextlib.suppress(IndexError):
            found.append(prose_value(question, name, document))
    return found


def hop_ends(question: str, document: str) -> list[str]:
    """The end of each chain of the question's link: who ignores the name in the question knows these."""
    name = re.findall(r"[A-Z]\w+ [A-Z]\w+", question)[-1]
    people = dict.fromkeys(re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+", document))
    ends = []
    for person in people:
        with contextlib.suppress(IndexError, StopIteration):
            ends.append(boxed(read("prose", question.replace(name, person), document)))
    return ends


CANDIDATES = {
    "prose_needle": ({"chunks": 2, "chunk_tokens": 400}, prose_values),
    "prose_update": ({"chunks": 2, "chunk_tokens": 500}, prose_values),
    "prose_hop": ({"chunks": 2, "chunk_tokens": 500}, hop_ends),
    "needle": ({"chunks": 2, "chunk_tokens": 160}, all_values(r" is (\d{4})\.")),
    "niah_multikey_2": ({"length_tokens": 900}, all_values(r" is (\d+)\.")),
    "niah_multikey_3": ({"length_tokens": 1600}, all_values(r" is (\S+)\.")),
    "multihop_2": ({"documents": 30}, chain_ends),
    "multihop_3": ({"documents": 30}, chain_ends),
    "multihop_4": ({"documents": 40}, chain_ends),
    "keychain": ({"documents": 40}, hidden_questions),
    "updates": ({"length_tokens": 900}, last_prices),
    "ordering": ({"length_tokens": 900}, nth_loads),
}
"""How long, and what a reader that ignores the question's names takes for candidates.

Not here: RULER's single, multi-value and multi-query needles, vt, cwe and fwe, whose answers are by definition all that
the document has of a kind; comparisons, whose candidates are in the question (below); questions of files.
"""
HABITS = {
    "the first": lambda found, _: found[0],
    "the last": lambda found, _: found[-1],
    "the middle": lambda found, _: found[len(found) // 2],
    "the most frequent": lambda found, _: Counter(found).most_common(1)[0][0],
    "the least frequent": lambda found, _: Counter(found).most_common()[-1][0],
    "any": lambda found, rng: rng.choice(found),
}


@pytest.mark.parametrize("sample", [FEW, MANY])
@pytest.mark.parametrize("name", CANDIDATES)
def test_ignoring_the_questions_names_is_a_guess(name, sample, tokenizer):
    size, candidates = CANDIDATES[name]
    n, noise = sample
    n *= 1 if "documents" in size else 3  # the others cost less
    rng = random.Random(0)
    chance = 0.0
    scores = dict.fromkeys(HABITS, 0.0)
    for example in make(name, n, 11, tokenizer, **size):
        found = candidates(example.question, example.document)
        assert example.answers[0] in found
        chance += 1 / len(set(found))
        for habit, pick in HABITS.items():
            scores[habit] += _right(example, pick(found, rng))
    assert chance / n < 0.52  # a document with one candidate alone would make the bound below empty
    for habit, value in scores.items():
        assert value / n <= chance / n + noise, (habit, value / n, chance / n)


def _right(example: Example, answer: str) -> float:
    return score(example.rule, f"\\boxed{{{answer}}}", example.answers).value


@pytest.mark.parametrize("sample", [FEW, MANY])
@pytest.mark.parametrize("name", ["comparison", "comparison_4"])
def test_comparing_without_the_documents_of_the_two_is_a_guess(name, sample, tokenizer):
    n, noise = sample
    hits = Counter()
    for example in make(name, n, 11, tokenizer, documents=30):
        a, b = re.search(r", (.+) or (.+)\?", example.question).groups()
        start = {name: example.document.index(name) for name in (a, b)}
        longer = max(a, b, key=len)
        named_more = max((a, b), key=example.document.count)
        guesses = {"first": a, "last": b, "alphabet": min(a, b), "longer": longer, "named more": named_more}
        guesses["stands first"] = min(start, key=start.get)
        hits.update(habit for habit, name in guesses.items() if _right(example, name))
    assert all(0.48 - noise <= hits[habit] / n <= 0.5 + noise for habit in hits), hits


@pytest.fixture(scope="module")
def pocket_tokenizer() -> Tokenizer:
    return Tokenizer(build_tokenizer())


class Candidate(NamedTuple):
    """A key that a question of the pocket world could be about, its answer, and what a document shows of the key."""

    answer: list[str]
    position: int
    statements: int
    words: int
    links: int
    is_named: bool


def candidates_in(kind: str, document: str) -> list[Candidate]:
    """All keys of which the document answers a question of this kind, in the order of their first statements."""
    triples = triples_in(document)
    values: dict[tuple[str, str], list[str]] = {}
    for relation, key, value in triples:
        values.setdefault((relation, key), []).append(value)
    words = Counter(re.findall(r"\w+", document))
    every_value = {value for *_, value in triples}
    found = []
    for position, key in enumerate(dict.fromkeys(key for _, key, _ in triples)):
        answer, links = _pocket_answer(kind, key, values)
        if answer:
            statements = sum(key == other for _, other, _ in triples)
            common = sum(words[word] for word in key.split())
            found.append(Candidate(answer, position, statements, common, links, key in every_value))
    return found


def _pocket_answer(kind: str, key: str, values: dict[tuple[str, str], list[str]]) -> tuple[list[str], int]:
    """The codes that would answer a question about a key, and the links to them; no codes if it has no such answer."""
    if kind == "chain":
        links = 0
        while ("friend", key) in values and links < 9:
            key = values["friend", key][0]
            links += 1
        return values.get(("code", key), []) if links else [], links
    if kind == "bridge":
        keeper = values.get(("keeper", key), [""])[0]
        return values.get(("code", keeper), []), 1
    codes = values.get(("code", key), []) if " " in key else []
    if (len(codes) > 1) != (kind in ("multivalue", "update")):
        return [], 1  # contradictions of a decoy's only code
    return codes[-1:] if kind == "update" else codes, 1


POCKET_HABITS = {
    "the first": lambda one: one.position,
    "the last": lambda one: -one.position,
    "the commonest words": lambda one: -one.words,
    "the rarest words": lambda one: one.words,
    "the most statements": lambda one: -one.statements,
    "the fewest statements": lambda one: one.statements,
    "common words, and few statements": lambda one: (one.statements, -one.words),
    "the most codes": lambda one: -len(one.answer),
    "the longest chain": lambda one: -one.links,
    "the shortest chain": lambda one: one.links,
    "the longest chain from its start": lambda one: (one.is_named, -one.links),
}
"""How a reader without the question may rank the keys of a document; it takes the first, or the first two."""


def guesses(kind: str, name: str, n: int, chunk_count: int, tokenizer: Tokenizer) -> tuple[dict[str, float], float]:
    """The mean score of each habit, and of a pick among the questions that a document was made to answer."""
    scores = dict.fromkeys(POCKET_HABITS, 0.0)
    chance = 0.0
    for example in make(name, n, 11, tokenizer, chunks=chunk_count):
        found = candidates_in(kind, example.document)
        chance += 1 / example.metadata.get("candidates", len(found))
        for habit, rank in POCKET_HABITS.items():
            chosen = sorted(found, key=rank)[: 2 if kind == "multikey" else 1]
            answer = ", ".join(code for one in chosen for code in one.answer)
            scores[habit] += _right(example, answer) / n
    return scores, chance / n


@pytest.mark.parametrize("sample", [FEW, MANY])
@pytest.mark.parametrize("kind", list(QuestionKind))
def test_a_fair_document_does_not_show_its_question(kind, sample, pocket_tokenizer):
    n, noise = sample
    scores, chance = guesses(kind, fair_task(kind), 2 * n, 4, pocket_tokenizer)
    assert chance <= 0.34
    for habit, value in scores.items():
        assert value <= chance + noise, (habit, value, chance)


@pytest.mark.parametrize("sample", [FEW, MANY])
@pytest.mark.parametrize("kind", ["needle", "multikey", "bridge"])
def test_a_fair_document_does_not_show_whether_it_answers(kind, sample, pocket_tokenizer):
    always = {"unknown": 0.0} | dict.fromkeys(POCKET_HABITS, 0.0)
    n = 2 * sample[0]
    for example in make(fair_task(kind), n, 11, pocket_tokenizer, chunks=4, untold=0.5):
        found = candidates_in(kind, example.document)
        always["unknown"] += _right(example, "unknown") / n
        for habit, rank in POCKET_HABITS.items():
            chosen = sorted(found, key=rank)[: 2 if kind == "multikey" else 1]
            codes = [code for one in chosen for code in one.answer]
            # Few candidates that the document answers: the question may well be another one.
            answer = ", ".join(codes) if len(found) > 2 else "unknown"
            always[habit] += _right(example, answer) / n
    for habit, value in always.items():
        assert value <= 0.5 + sample[1], (habit, value)


@pytest.mark.parametrize("sample", [FEW, MANY])
def test_prose_does_not_show_whether_it_answers(sample, tokenizer):
    n = 2 * sample[0]
    rng = random.Random(0)
    scores = Counter()
    absent = 0
    for example in make("prose_unstated", n, 11, tokenizer, chunks=2, chunk_tokens=500):
        absent += example.task == "prose_absent"
        assert (example.answers == ("unknown",)) == (example.task == "prose_absent") == (not example.evidence)
        name = re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+", example.question)[-1]
        found = prose_values(example.question, example.document) or ["unknown"]
        scores["unknown"] += _right(example, "unknown")
        scores["any value"] += _right(example, rng.choice(found))
        scores["unknown without the name"] += _right(
            example, rng.choice(found) if name in example.document else "unknown"
        )
        scores["unknown if few are stated"] += _right(example, "unknown" if len(found) < 12 else rng.choice(found))
        assert name in example.document
    assert 0.5 - sample[1] <= absent / n <= 0.5 + sample[1]
    assert all(value / n <= 0.5 + sample[1] for value in scores.values()), scores
