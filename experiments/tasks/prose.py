"""Questions in plain English about people who are mentioned between the sentences of a real text.

Every statement and question has several wordings (``prose_wording.toml``), so that knowing a template is not enough.
The names of a question and its decoys come from a small grid of first and last names, so that other people often share
one of them. The people of a question and of its decoys are drawn alike, and so are the positions of the statements
about them, so that only the question distinguishes them. The text is a book that an installed package carries, pinned
by the hash of its file, or a user's own.
"""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval

from memagent_lib.data import DocumentPlan, Example, ExampleKey, Filler, Meter, Preset, Share, Statement, files_of
from memagent_lib.errors import MissingFile

_WORDING = tomllib.loads(Path(__file__).with_name("prose_wording.toml").read_text(encoding="utf-8"))
FIRST, LAST, TOWNS, TRADES, LINKS = (_WORDING[name].split() for name in ("first", "last", "towns", "trades", "links"))
_DRAWS: dict[str, Callable[[random.Random], str]] = {
    "town": lambda rng: rng.choice(TOWNS),
    "trade": lambda rng: rng.choice(TRADES),
    "room": lambda rng: str(rng.randrange(100, 1000)),
}


# The text, sentence by sentence.

NAMED = "opticks"
"""Isaac Newton, Opticks, fourth edition, London 1730 (public domain), from a package that vLLM installs."""
_PACKAGE = "apache-tvm-ffi"
_PATH = "tvm_ffi/3rdparty/libbacktrace/Isaac.Newton-Opticks.txt"
_SHA256 = "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"
_BEGIN = "Advertisement I\n"  # what stands before it is the title page
FEWEST_SENTENCES = 50
"""A shorter text would repeat several times within one document of a few thousand tokens."""
_PARAGRAPH = re.compile(r"\n\s*\n")
_NOTE = re.compile(r"\[[^\]]*\]")  # footnotes and captions of pictures that a plain text lacks
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z])")
_ABBREVIATED = re.compile(
    r"\b(?:[A-Z]|Mr|Mrs|Dr|St|Fig|Figs|Prop|Prob|Theor|Exper|Obs|Sect|Lect|Def|Vol|No|viz|lib|cap|p|&c)\.$"
)
"""Text that ends so is followed by the rest of its sentence."""
_FEWEST_WORDS = 4
_MOST_WORDS = 60  # a longer sentence would fill a chunk of a small model by itself


@lru_cache(maxsize=4)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of ``text`` in order: the text :data:`NAMED`, a text file, or a folder of ``.txt`` files.

    Only prose is read: headings, tables, listings, footnotes, and sentences of fewer than 4 or more than 60 words are
    left out. Raises :class:`MissingFile` if there is no such file or the named text's package is not installed, and
    ``ValueError`` if the named text is another edition or if fewer than :data:`FEWEST_SENTENCES` sentences are found.
    """
    raw = _named() if text == NAMED else "\n\n".join(files_of(text))
    found = tuple(chain.from_iterable(map(_of_paragraph, _PARAGRAPH.split(raw))))
    if len(found) < FEWEST_SENTENCES:
        raise ValueError(
            f"{text} has {len(found)} sentences of prose and at least {FEWEST_SENTENCES} are needed; set text to a "
            f"text file, a folder of .txt files, or {NAMED}"
        )
    return found


def _named() -> str:
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_PATH)))
    except PackageNotFoundError:
        raise MissingFile(f"the text {NAMED!r} comes with the package {_PACKAGE}; install it, or set text") from None
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise ValueError(f"{path} is another edition, so a seed would mean other documents; set text to the file")
    raw = data.decode().replace("\r\n", "\n")
    return raw[raw.index(_BEGIN) + len(_BEGIN) :]


def _of_paragraph(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph of prose, each on one line. Any other paragraph has none."""
    lines = _NOTE.sub("", paragraph).strip("\n").split("\n")
    if any(line.startswith("    ") for line in lines):  # a table, a listing or a centred heading
        return []
    plain = " ".join(" ".join(lines).replace("_", "").split())
    if not plain.endswith((".", "!", "?")) or plain.upper() == plain:
        return []
    found = []
    begun = ""
    for part in _SENTENCE_END.split(plain):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATED.search(begun):
            found.append(begun)
            begun = ""
    found.append(begun)
    return [sentence for sentence in found if _FEWEST_WORDS <= len(sentence.split()) <= _MOST_WORDS]


# The questions.


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

    def value(self) -> str:
        """Draw a value of the question's relation."""
        return self.relation.draw(self.rng)

    def statement(self, name: str, value: str) -> str:
        return _worded(self.relation.statements, self.rng, name, value)

    def question(self, name: str) -> str:
        return self.rng.choice(self.relation.questions).format(name=name)

    def plan(
        self, question: str, answer: str, statements: Sequence[Statement], text: str, crowd: float, **metadata: Any
    ) -> DocumentPlan:
        """Return the plan of a document in which ``statements`` stand among the sentences of ``text``."""
        return DocumentPlan(
            question=question,
            answers=(answer,),
            statements=tuple(statements),
            filler=self._filler(text, crowd),
            rule="boxed",
            separator=" ",
            metadata={"relation": self.kind, "text": text, **metadata},
        )

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

    def _filler(self, text: str, crowd: float) -> Filler:
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
        values = [subject.value() for _ in subject.named]
        stated = [subject.statement(name, value) for name, value in zip(subject.named, values, strict=True)]
        question = subject.question(subject.named[0])
        statements = [Statement.needed(text, subject.rng.random(), i == 0) for i, text in enumerate(stated)]
        return subject.plan(question, values[0], statements, self.text, self.crowd)


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
        target = subject.named[0]
        statements: list[Statement] = []
        answer = UNSTATED
        for name in subject.named:
            value = subject.value()
            depth = rng.random()
            if rng.random() >= self.absent:
                statements.append(Statement.needed(subject.statement(name, value), depth, name == target))
                if name == target:
                    answer = value
            other = RELATIONS[rng.choice([each for each in RELATIONS if each != subject.kind])]
            text = _worded(other.statements, rng, name, other.draw(rng))
            statements.append(Statement(text, rng.random()))
        question = _OR_UNSTATED.format(question=subject.question(target))
        plan = subject.plan(question, answer, statements, self.text, self.crowd)
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
        target = subject.named[0]
        statements: list[Statement] = []
        latest: dict[str, str] = {}
        stale: list[str] = []
        for name in subject.named:
            depths = sorted(rng.random() for _ in range(self.changes + 1))  # the first is that of the first value
            for number, depth in enumerate(depths):
                value = subject.value()
                while value == latest.get(name):
                    value = subject.value()
                if number and name == target:
                    stale.append(latest[name])
                latest[name] = value
                wordings = subject.relation.changes if number else subject.relation.statements
                is_needed = name == target and number == self.changes
                statements.append(Statement.needed(_worded(wordings, rng, name, value), depth, is_needed))
        question = rng.choice(_WORDING["in_the_end"]).format(question=subject.question(target))
        found = {"changes": self.changes, "stale": stale}
        return subject.plan(question, latest[target], statements, self.text, self.crowd, **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoHops:
    """Questions about a person who is named only by a link to another, such as the teacher of someone.

    The document states ``decoys`` more chains of the same link and relation. Each link comes before the statement that
    it leads to, so a reader knows whom to look for. ``crowd`` is as in :class:`Needles`.
    """

    text: str = "opticks"
    decoys: Annotated[int, Interval(ge=0, le=_NEAR * _NEAR // 2 - 1)] = 2
    crowd: Share = 0.1

    def plan(self, key: ExampleKey) -> DocumentPlan:
        subject = _Subject(key, self.decoys)
        rng = subject.rng
        link = rng.choice(LINKS)
        linked = subject.near[-self.decoys - 1 :]  # ``decoys`` is so limited that nobody is in both groups
        values = [subject.value() for _ in subject.named]
        statements: list[Statement] = []
        for number, (name, other, value) in enumerate(zip(subject.named, linked, values, strict=True)):
            depths = sorted((rng.random(), rng.random()))
            first = rng.choice(_WORDING["linked"]).format(link=link, name=name, value=other)
            statements.append(Statement.needed(first, depths[0], number == 0))
            statements.append(Statement.needed(subject.statement(other, value), depths[1], number == 0))
        question = subject.question(f"the {link} of {subject.named[0]}")
        found = {"link": link, "order": "forward"}
        return subject.plan(question, values[0], statements, self.text, self.crowd, **found)


def _worded(wordings: Sequence[str], rng: random.Random, name: str, value: str) -> str:
    return rng.choice(wordings).format(name=name, value=value)


def _preset(task: Any, description: str, chance: float = 0.0) -> Preset:
    return Preset(task=task, description=description, family="prose", chance=chance, chunk_tokens=128)


PRESETS = {
    "prose_needle": _preset(Needles(), "one statement about a person, in real prose", 0.04),
    "prose_update": _preset(Chronicle(), "a value after its changes, in real prose", 0.04),
    "prose_hop": _preset(TwoHops(), "a person named by a link to another, in real prose"),
    "prose_unstated": _preset(Unstated(), "half of the questions are about what the real prose does not state", 0.5),
}
