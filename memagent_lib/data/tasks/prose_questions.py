"""Questions in plain English: about people who are mentioned between the sentences of a real text, or about its words.

Every statement and question has several wordings, so that knowing a template is not enough. The names of a question and
its decoys come from a small grid of first and last names, so that other people often share one of them. The people of a
question and of its decoys are drawn alike, and so are the positions of the statements about them, so that only the
question distinguishes them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval

from memagent_lib.data.examples import Example
from memagent_lib.data.layout import DocumentPlan, ExampleKey, Filler, Meter, Statement
from memagent_lib.data.tasks.presets import AtLeastOne, Preset, Share
from memagent_lib.data.tasks.prose_wording import FIRST, IN_THE_END, LAST, LINKED, LINKS, RELATIONS
from memagent_lib.data.tasks.texts import sentences

UNSTATED = "unknown"
"""The accepted answer to a question that the document does not answer."""
_OR_UNSTATED = f"{{question}} If the text does not say, answer: {UNSTATED}."
_NEAR = 4  # the people of a question and its decoys come from a grid of this many first and last names
# Not a part of a word, a date or a decimal.
_NUMBER = re.compile(r"(?<![\w.,/-])\d{2,5}(?![\w/-]|[.,]\d)")
# Only inside a sentence, where a capital letter means a name.
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}(?![\w'-])")


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
        wording = rng.choice(relation.questions)
        statements = [_placed(text, rng.random(), i == 0) for i, text in enumerate(stated)]
        filler = subject.filler(self.text, self.crowd)
        return _plan(wording, named, values[0], statements, filler, relation=subject.kind, text=self.text)


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
                statements.append(_placed(_worded(relation.statements, rng, name, value), depth, name == named[0]))
                if name == named[0]:
                    answer = value
            other = RELATIONS[rng.choice([each for each in RELATIONS if each != subject.kind])]
            text = _worded(other.statements, rng, name, other.draw(rng))
            statements.append(_placed(text, rng.random(), False))
        wording = _OR_UNSTATED.format(question=rng.choice(relation.questions))
        filler = subject.filler(self.text, self.crowd)
        plan = _plan(wording, named, answer, statements, filler, relation=subject.kind, text=self.text)
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
                statements.append(_placed(text, depth, name == named[0] and number == self.changes))
        wording = rng.choice(IN_THE_END).format(question=rng.choice(relation.questions))
        filler = subject.filler(self.text, self.crowd)
        metadata = {"relation": subject.kind, "changes": self.changes, "stale": stale, "text": self.text}
        return _plan(wording, named, latest[named[0]], statements, filler, **metadata)


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
            first = rng.choice(LINKED).format(link=link, name=name, value=other)
            second = _worded(relation.statements, rng, other, value)
            statements += [_placed(first, depths[0], name == named[0]), _placed(second, depths[1], name == named[0])]
        wording = rng.choice(relation.questions)
        filler = subject.filler(self.text, self.crowd)
        described = [f"the {link} of {name}" for name in named]
        metadata = {"relation": subject.kind, "link": link, "order": self.order, "text": self.text}
        return _plan(wording, described, values[0], statements, filler, **metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Questions about a number or a name that is left out of a quoted sentence; the document has the sentence whole.

    The rest of the document consists of the text's other sentences in order. They begin at a random point before the
    quoted sentence, and start over at the end of the text. The quoted sentence has at least ``least_words`` words, and
    what is left out occurs at most ``most_uses`` times in the whole text. The idea is MemTrain's masked entities. The
    baseline ``blind`` measures how many gaps can be filled without the document. A text has only some hundred sentences
    that fit, so data sets of different seeds share questions; for a test apart from training, set ``text`` to another.
    """

    text: str = "opticks"
    least_words: AtLeastOne = 8
    most_uses: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        text = sentences(self.text)
        for at in rng.sample(range(len(text)), len(text)):
            masked = self._mask(text[at], rng)
            if masked is not None:
                break
        else:
            raise ValueError(
                f"{self.text} has no sentence of {self.least_words} words or more with a number or a name that occurs "
                f"at most {self.most_uses} times; set text to a longer text, or set most_uses higher"
            )
        quoted, answer = masked
        depth = rng.random()
        start = rng.randrange(at + 1)

        def units() -> Iterator[str]:
            while True:  # a document takes as many sentences as its length needs
                yield from text[start:at]
                yield from text[at + 1 :]
                yield from text[:start]

        return DocumentPlan(
            question=f"Which word stands in the place of the gap in this sentence of the text? {quoted}",
            answers=(answer,),
            statements=(_placed(text[at], depth, True),),
            filler=Filler(units),
            rule="boxed",
            separator=" ",
            metadata={"text": self.text},
        )

    def _mask(self, sentence: str, rng: random.Random) -> tuple[str, str] | None:
        """Return the sentence with a gap, and the word that fills it; ``None`` if it has none that fits."""
        if len(sentence.split()) < self.least_words:
            return None
        found = [*_NUMBER.finditer(sentence), *_NAME.finditer(sentence)]
        uses = _uses(self.text)
        # A word that the sentence has twice would fill its own gap.
        rare = [
            match for match in found if uses[match.group()] <= self.most_uses and sentence.count(match.group()) == 1
        ]
        if not rare:
            return None
        chosen = rng.choice(rare)
        return f'"{sentence[: chosen.start()]}____{sentence[chosen.end() :]}"', chosen.group()


@lru_cache(maxsize=4)
def _uses(text: str) -> Counter[str]:
    """Return how often each word and number occurs in a text."""
    return Counter(word for sentence in sentences(text) for word in re.findall(r"\w+", sentence))


def _worded(wordings: tuple[str, ...], rng: random.Random, name: str, value: str) -> str:
    return rng.choice(wordings).format(name=name, value=value)


def _other_than(value: str | None, draw: Callable[[random.Random], str], rng: random.Random) -> str:
    drawn = draw(rng)
    while drawn == value:
        drawn = draw(rng)
    return drawn


def _placed(text: str, depth: float, needed: bool) -> Statement:
    if needed:
        return Statement.needed(text, depth)
    return Statement(text, depth)


def _plan(
    wording: str, names: Sequence[str], answer: str, statements: Sequence[Statement], filler: Filler, **metadata: Any
) -> DocumentPlan:
    """Return the plan of a question about the first of ``names``; the same questions about the others are decoys."""
    question, *decoys = (wording.format(name=name) for name in names)
    return DocumentPlan(
        question=question,
        answers=(answer,),
        statements=tuple(statements),
        filler=filler,
        rule="boxed",
        separator=" ",
        metadata=metadata,
        decoys=tuple(decoys),
    )


PRESETS = {
    "prose_needle": Preset(
        task=Needles(),
        description="one statement about a person, in real prose",
        family="prose",
        chance=0.04,
        chunk_tokens=128,
    ),
    "prose_update": Preset(
        task=Chronicle(),
        description="a value after its changes, in real prose",
        family="prose",
        chance=0.04,
        chunk_tokens=128,
    ),
    "prose_hop": Preset(
        task=TwoHops(),
        description="a person named by a link to another, in real prose",
        family="prose",
        chunk_tokens=128,
    ),
    "prose_unstated": Preset(
        task=Unstated(),
        description="half of the questions are about what the real prose does not state",
        family="prose",
        chance=0.5,
        chunk_tokens=128,
    ),
    "prose_masked": Preset(
        task=Masked(),
        description="a word left out of a sentence of real prose; seeds share questions, so test on another text",
        family="prose",
        chance=0.04,
        chunk_tokens=128,
    ),
}
