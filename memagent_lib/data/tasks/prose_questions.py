"""Questions in plain English about people who are mentioned between the sentences of a real text.

Every statement and question has several wordings (``prose_wording.toml``), so that knowing a template is not enough.
The names of a question and its decoys come from a small grid of first and last names, so that other people often share
one of them. The people of a question and of its decoys are drawn alike, and so are the positions of the statements
about them, so that only the question distinguishes them.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval

from memagent_lib.data.examples import Example
from memagent_lib.data.layout import Meter, Statement
from memagent_lib.data.plans import DocumentPlan, ExampleKey, Filler, Preset, Share, Task
from memagent_lib.data.tasks.texts import sentences

_WORDING = tomllib.loads(Path(__file__).with_name("prose_wording.toml").read_text(encoding="utf-8"))
FIRST, LAST, TOWNS, TRADES, LINKS = (_WORDING[name].split() for name in ("first", "last", "towns", "trades", "links"))
_DRAWS: dict[str, Callable[[random.Random], str]] = {
    "town": lambda rng: rng.choice(TOWNS),
    "trade": lambda rng: rng.choice(TRADES),
    "room": lambda rng: str(rng.randrange(100, 1000)),
}


class Attribute(NamedTuple):
    """Something that can be stated about a person: its values, and how statements, changes and questions are worded."""

    draw: Callable[[random.Random], str]
    statements: Sequence[str]
    changes: Sequence[str]
    questions: Sequence[str]


RELATIONS = {name: Attribute(_DRAWS[name], **wording) for name, wording in _WORDING["relations"].items()}
UNSTATED = "unknown"
"""The accepted answer to a question that the document does not answer."""
_OR_UNSTATED = f"{{question}} If the text does not say, answer: {UNSTATED}."
_NEAR = 4  # the people of a question and its decoys come from a grid of this many first and last names


class _Subject:
    """The people of one example, and the ``kind`` of relation that its question is about.

    The question is about the first of ``named``, its decoys are about the others. Those ``near`` share their names with
    one another, the rest less. ``rng`` makes the example's further draws.
    """

    def __init__(self, key: ExampleKey, decoys: int):
        self.rng = key.rng()
        self._first = self.rng.sample(FIRST, len(FIRST))
        self._last = self.rng.sample(LAST, len(LAST))
        # Each of their names belongs to several people, so neither a first nor a last name finds an answer.
        self.near = [f"{first} {last}" for first in self._first[:_NEAR] for last in self._last[:_NEAR]]
        self.rng.shuffle(self.near)
        self.named = self.near[: decoys + 1]
        self.kind = self.rng.choice(list(RELATIONS))
        self.relation = RELATIONS[self.kind]

    def _other(self, rng: random.Random) -> str:
        """Draw a person who is not near the question. Half of them share a first or a last name with those who are."""
        first = rng.choice(self._first[_NEAR:])
        last = rng.choice(self._last[_NEAR:])
        chance = rng.random()
        if chance < 0.25:
            first = rng.choice(self._first[:_NEAR])
        elif chance < 0.5:
            last = rng.choice(self._last[:_NEAR])
        return f"{first} {last}"

    def filler(self, text: str, crowd: float) -> Filler:
        """Return the sentences of ``text`` from a random one on, and among them statements about people not near.

        The text begins anew after its last sentence. Half of the statements are of the question's ``kind``. What is
        stated of a person and a relation is always the same value.
        """
        seed = self.rng.getrandbits(64)

        def units() -> Iterator[str]:
            rng = random.Random(seed)
            prose = sentences(text)
            at = rng.randrange(len(prose))
            while True:
                if rng.random() < crowd:
                    name = self._other(rng)
                    relation = rng.choice([self.kind, rng.choice(list(RELATIONS))])
                    value = RELATIONS[relation].draw(random.Random(f"{seed}/{name}/{relation}"))
                    yield _worded(RELATIONS[relation].statements, rng, name, value)
                else:
                    yield prose[at % len(prose)]
                    at += 1

        return Filler(units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    """Questions about one statement. The document makes the same kind of statement about ``decoys`` other people.

    About a share ``crowd`` of the other sentences are statements about yet other people; the rest are the text's own.
    """

    text: str = "opticks"
    decoys: Annotated[int, Interval(ge=0, le=_NEAR * _NEAR - 1)] = 3
    crowd: Share = 0.25

    def plan(self, key: ExampleKey) -> DocumentPlan:
        subject = _Subject(key, self.decoys)
        rng = subject.rng
        relation = subject.relation
        named = subject.named
        values = [relation.draw(rng) for _ in named]
        stated = [_worded(relation.statements, rng, name, value) for name, value in zip(named, values, strict=True)]
        question = rng.choice(relation.questions).format(name=named[0])
        statements = [Statement.needed(text, rng.random(), i == 0) for i, text in enumerate(stated)]
        filler = subject.filler(self.text, self.crowd)
        return _plan(question, values[0], statements, filler, relation=subject.kind, text=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstated:
    """Questions that a share ``absent`` of the documents does not answer; every question allows for that.

    Each of the people that a question could be about, the ``decoys`` included, is left out with the same probability,
    so a document does not show whether it answers its question. It says something else of all of them, so that their
    names show nothing either. ``crowd`` is as in :class:`Needles`. Examples without an answer are a task of their own,
    ``prose_absent``; the others are ``prose_stated``.
    """

    text: str = "opticks"
    absent: Share = 0.5
    decoys: Annotated[int, Interval(ge=1, le=_NEAR * _NEAR - 1)] = 5
    crowd: Share = 0.1

    def plan(self, key: ExampleKey) -> _OfTask:
        subject = _Subject(key, self.decoys)
        rng = subject.rng
        relation = subject.relation
        named = subject.named
        statements: list[Statement] = []
        answer = UNSTATED
        for name in named:
            value = relation.draw(rng)
            depth = rng.random()
            if rng.random() >= self.absent:
                statements.append(
                    Statement.needed(_worded(relation.statements, rng, name, value), depth, name == named[0])
                )
                if name == named[0]:
                    answer = value
            other = RELATIONS[rng.choice([each for each in RELATIONS if each != subject.kind])]
            text = _worded(other.statements, rng, name, other.draw(rng))
            statements.append(Statement.needed(text, rng.random(), False))
        question = _OR_UNSTATED.format(question=rng.choice(relation.questions).format(name=named[0]))
        filler = subject.filler(self.text, self.crowd)
        plan = _plan(question, answer, statements, filler, relation=subject.kind, text=self.text)
        return _OfTask("prose_absent" if answer == UNSTATED else "prose_stated", plan)


class _OfTask(NamedTuple):
    """A plan whose example belongs to another task than its key."""

    task: str
    document: DocumentPlan

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        return replace(self.document.example(key, meter), task=self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronicle:
    """Questions about a value after ``changes`` changes. The values of ``decoys`` other people change as often.

    ``crowd`` is as in :class:`Needles`.
    """

    text: str = "opticks"
    changes: Annotated[int, Interval(ge=1, le=20)] = 2
    decoys: Annotated[int, Interval(ge=0, le=_NEAR * _NEAR - 1)] = 2
    crowd: Share = 0.1

    def plan(self, key: ExampleKey) -> DocumentPlan:
        subject = _Subject(key, self.decoys)
        rng = subject.rng
        relation = subject.relation
        named = subject.named
        statements: list[Statement] = []
        latest: dict[str, str] = {}
        stale: list[str] = []
        for name in named:
            depths = sorted(rng.random() for _ in range(self.changes + 1))  # the first is that of the first value
            for number, depth in enumerate(depths):
                value = _other_than(latest.get(name), relation.draw, rng)
                if number and name == named[0]:
                    stale.append(latest[name])
                latest[name] = value
                text = _worded(relation.changes if number else relation.statements, rng, name, value)
                statements.append(Statement.needed(text, depth, name == named[0] and number == self.changes))
        latest_of = rng.choice(_WORDING["in_the_end"])
        question = latest_of.format(question=rng.choice(relation.questions).format(name=named[0]))
        filler = subject.filler(self.text, self.crowd)
        metadata = {"relation": subject.kind, "changes": self.changes, "stale": stale, "text": self.text}
        return _plan(question, latest[named[0]], statements, filler, **metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoHops:
    """Questions about a person who is named only by a link to another, such as the teacher of someone.

    The document states ``decoys`` more chains of the same link and relation. In ``forward`` order each link comes
    before the statement that it leads to, so a reader knows whom to look for; ``any`` order is random. ``crowd`` is as
    in :class:`Needles`.
    """

    text: str = "opticks"
    decoys: Annotated[int, Interval(ge=0, le=_NEAR * _NEAR // 2 - 1)] = 2
    crowd: Share = 0.1
    order: Literal["forward", "any"] = "forward"

    def plan(self, key: ExampleKey) -> DocumentPlan:
        subject = _Subject(key, self.decoys)
        rng = subject.rng
        relation = subject.relation
        named = subject.named
        link = rng.choice(LINKS)
        linked = subject.near[-self.decoys - 1 :]  # ``decoys`` is so limited that nobody is in both groups
        values = [relation.draw(rng) for _ in named]
        statements: list[Statement] = []
        for name, other, value in zip(named, linked, values, strict=True):
            depths = [rng.random(), rng.random()]
            if self.order == "forward":
                depths.sort()
            first = rng.choice(_WORDING["linked"]).format(link=link, name=name, value=other)
            second = _worded(relation.statements, rng, other, value)
            is_needed = name == named[0]
            statements.append(Statement.needed(first, depths[0], is_needed))
            statements.append(Statement.needed(second, depths[1], is_needed))
        question = rng.choice(relation.questions).format(name=f"the {link} of {named[0]}")
        filler = subject.filler(self.text, self.crowd)
        metadata = {"relation": subject.kind, "link": link, "order": self.order, "text": self.text}
        return _plan(question, values[0], statements, filler, **metadata)


def _worded(wordings: Sequence[str], rng: random.Random, name: str, value: str) -> str:
    return rng.choice(wordings).format(name=name, value=value)


def _other_than(value: str | None, draw: Callable[[random.Random], str], rng: random.Random) -> str:
    drawn = draw(rng)
    while drawn == value:
        drawn = draw(rng)
    return drawn


def _plan(question: str, answer: str, statements: Sequence[Statement], filler: Filler, **metadata: Any) -> DocumentPlan:
    return DocumentPlan(
        question=question,
        answers=(answer,),
        statements=tuple(statements),
        filler=filler,
        rule="boxed",
        separator=" ",
        metadata=metadata,
    )


def _preset(task: Task, description: str, chance: float = 0.0) -> Preset:
    return Preset(task=task, description=description, family="prose", chance=chance, chunk_tokens=128)


PRESETS = {
    "prose_needle": _preset(Needles(), "one statement about a person, in real prose", 0.04),
    "prose_update": _preset(Chronicle(), "a value after its changes, in real prose", 0.04),
    "prose_hop": _preset(TwoHops(), "a person named by a link to another, in real prose"),
    "prose_unstated": _preset(Unstated(), "half of the questions are about what the real prose does not state", 0.5),
}
