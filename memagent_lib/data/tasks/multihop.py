"""Multi-hop questions about a generated world, in HotpotQA's shape: bridges, chains and comparisons over 2 to 4 documents.

The hard distractors are documents that state the same relation of another entity with a similar name; the rest is the world.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.drafting import Length, Meter
from memagent_lib.data.tasks.generation import generator
from memagent_lib.data.tasks.pooled import Place, PoolQuestion, pooled_example
from memagent_lib.data.tasks.world import World, world

TOKENS_PER_DOCUMENT = 64
"""A low guess, so that a world is always larger than the longest document asked of it."""
QUESTIONS_PER_WORLD = 500
T = TypeVar("T")


class Route(NamedTuple):
    """A question as a walk: where it starts, the relations it follows, and the words in which it is asked."""

    kind: str
    relations: tuple[str, ...]
    words: str


ROUTES = (
    Route("film", ("directed by", "born in"), "In which city was the director of the film {start} born?"),
    Route("novel", ("written by", "taught by"), "Who was the teacher of the author of the novel {start}?"),
    Route("company", ("based in", "governed by"), "Who is the mayor of the city where the head office of {start} is?"),
    Route(
        "film",
        ("directed by", "born in", "river"),
        "On which river lies the city where the director of the film {start} was born?",
    ),
    Route(
        "novel",
        ("written by", "taught by", "born in"),
        "In which city was the teacher of the author of the novel {start} born?",
    ),
    Route("person", ("taught by", "taught by", "taught by"), "Who taught the teacher of the teacher of {start}?"),
    Route(
        "film",
        ("directed by", "taught by", "born in", "river"),
        "On which river lies the city where the teacher of the director of the film {start} was born?",
    ),
    Route(
        "company",
        ("founded by", "taught by", "born in", "governed by"),
        "Who is the mayor of the city where the teacher of the founder of {start} was born?",
    ),
    Route(
        "person",
        ("taught by", "taught by", "taught by", "born in"),
        "In which city was the teacher of the teacher of the teacher of {start} born?",
    ),
)


class Comparison(NamedTuple):
    """Two entities of a kind, each first followed along ``relations``, compared by the years in their documents."""

    kind: str
    relations: tuple[str, ...]
    year: str
    words: str


COMPARISONS = (
    Comparison("film", (), "year", "Which film was shown {when}, {a} or {b}?"),
    Comparison("novel", (), "year", "Which novel was printed {when}, {a} or {b}?"),
    Comparison("person", (), "birth year", "Who was born {when}, {a} or {b}?"),
    Comparison("film", ("directed by",), "birth year", "Which film has the director who was born {when}, {a} or {b}?"),
)
SHAPES = ("bridge", "chain", "comparison")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHop:
    """Questions over ``hops`` documents (2 to 4). ``shape`` is one of bridge (2 hops), chain (3 or 4) and comparison (2 or 4).

    ``distractors`` hard distractors are in every document, for each gold document.
    """

    hops: int = 2
    shape: str = "bridge"
    distractors: int = 4

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"no shape {self.shape!r}; choose from {', '.join(SHAPES)}")
        known = self._known_hops()
        if self.hops not in known:
            raise ValueError(f"a {self.shape} question has {' or '.join(map(str, known))} hops, got {self.hops}")
        if self.distractors < 0:
            raise ValueError(f"distractors must be at least 0, got {self.distractors}")

    def _known_hops(self) -> list[int]:
        if self.shape == "comparison":
            return sorted({2 * (1 + len(c.relations)) for c in COMPARISONS})
        return [2] if self.shape == "bridge" else [3, 4]

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        """Every :data:`QUESTIONS_PER_WORLD` examples a new world begins; a longer document only adds people who are not asked about."""
        about = world(seed, index // QUESTIONS_PER_WORLD, world_size(length))
        return pooled_example(Questions(about, self), name, seed, index, length, meter)


def world_size(length: Length) -> int:
    return 2 * length.documents if length.documents is not None else length.limit // TOKENS_PER_DOCUMENT


@dataclass(frozen=True, slots=True)
class Questions:
    """A pool: a world's documents, and the questions of a task about them."""

    world: World
    task: MultiHop

    @property
    def documents(self) -> Any:
        return self.world.documents

    def question(self, seed: int, index: int) -> PoolQuestion:
        if self.task.shape == "comparison":
            return self._comparison(generator(f"comparison {self.task.hops}", seed, index // 2), index % 2 == 0)
        return self._route(generator(f"multihop {self.task.hops}", seed, index))

    def _route(self, rng: random.Random) -> PoolQuestion:
        route = rng.choice([r for r in ROUTES if len(r.relations) == self.task.hops])
        walk = _until(lambda: walked(self.world, rng.choice(self.world.by_kind[route.kind]), route.relations))
        question = route.words.format(start=self.world.entities[walk[0].document].name)
        answer = self.world.entities[walk[-1].document].facts[route.relations[-1]].value
        return self._asked(question, answer, walk, rng, {"relations": list(route.relations)})

    def _comparison(self, rng: random.Random, plain: bool) -> PoolQuestion:
        """Two examples in a row ask about the same two things, which was earlier and which was later, in the same words.

        So whoever answers by the names or by their order, without the document, is right exactly every other time.
        """
        asked = rng.choice([c for c in COMPARISONS if 2 * (1 + len(c.relations)) == self.task.hops])
        relations = (*asked.relations, asked.year)
        a, b, walk = _until(lambda: _pair(self.world, rng, asked.kind, relations))
        years = [
            int(self.world.entities[end.document].facts[asked.year].value)
            for end in (walk[len(relations) - 1], walk[-1])
        ]
        early = (rng.random() < 0.5) == plain
        right = a if (years[0] < years[1]) == early else b
        names = [self.world.entities[i].name for i in (a, b)]
        question = asked.words.format(when="earlier" if early else "later", a=names[0], b=names[1])
        return self._asked(
            question, self.world.entities[right].name, walk, rng, {"relations": list(relations), "chance": 0.5}
        )

    def _asked(
        self, question: str, answer: str, walk: list[Place], rng: random.Random, facts: dict[str, Any]
    ) -> PoolQuestion:
        gold = tuple(dict.fromkeys(place.document for place in walk))
        near = [j for i in gold for j in self._near(i, gold, rng)]
        names = [self.world.entities[i].name for i in gold]
        shape = {"shape": self.task.shape, "hops": self.task.hops, "gold_names": names}
        rule = "exact" if self.task.shape == "comparison" else "contains"  # to name both candidates is no answer
        return PoolQuestion(
            question=question,
            answers=(answer,),
            gold=gold,
            near=tuple(near),
            evidence=tuple(walk),
            rule=rule,
            metadata=shape | facts,
        )

    def _near(self, i: int, gold: tuple[int, ...], rng: random.Random) -> list[int]:
        """Documents like gold document ``i``: first those whose names are half alike, then others of its kind."""
        alike = [j for j in self.world.alike(i) if j not in gold]
        rng.shuffle(alike)
        same = rng.sample(self.world.by_kind[self.world.entities[i].kind], 3 * self.task.distractors)
        more = [j for j in same if j not in gold and j not in alike]
        return [*alike, *more][: self.task.distractors]


def walked(of: World, start: int, relations: tuple[str, ...]) -> list[Place] | None:
    """The facts met on a walk; ``None`` where it ends early or comes by a document twice."""
    walk, at = [], start
    for relation in relations:
        fact = of.entities[at].facts.get(relation)
        if fact is None or any(place.document == at for place in walk):
            return None
        walk.append(Place(at, fact.start, fact.end))
        at = fact.target if fact.target is not None else at
    return walk


def _pair(of: World, rng: random.Random, kind: str, relations: tuple[str, ...]) -> tuple[int, int, list[Place]] | None:
    a, b = rng.sample(of.by_kind[kind], 2)
    first, second = walked(of, a, relations), walked(of, b, relations)
    if not first or not second or {p.document for p in first} & {p.document for p in second}:
        return None
    values = [of.entities[walk[-1].document].facts[relations[-1]].value for walk in (first, second)]
    return (a, b, first + second) if values[0] != values[1] else None


def _until(attempt: Callable[[], T | None]) -> T:
    while (found := attempt()) is None:
        pass
    return found


def hotpot_records(of: MultiHop, n: int, seed: int, size: int = 1) -> list[dict[str, Any]]:
    """Questions as records of HotpotQA's distractor file: gold and near documents, titles and sentences, supporting facts."""
    pool = Questions(world(seed, 0, size), of)
    return [_hotpot_record(pool, f"world-{seed}-{index}", pool.question(seed, index)) for index in range(n)]


def _hotpot_record(pool: Questions, name: str, asked: PoolQuestion) -> dict[str, Any]:
    context, support = [], []
    for i in (*asked.gold, *asked.near):
        title, _, body = pool.documents[i].partition("\n")
        context.append([title, [sentence if not k else f" {sentence}" for k, sentence in enumerate(_sentences(body))]])
    for place in asked.evidence:
        document = pool.documents[place.document]
        title, _, _ = document.partition("\n")
        sentences = _sentences(document[len(title) + 1 :])
        support.append([title, sentences.index(document[place.start : place.end])])
    kind = "comparison" if asked.metadata["shape"] == "comparison" else "bridge"
    return {
        "_id": name,
        "question": asked.question,
        "answer": asked.answers[0],
        "type": kind,
        "level": "hard",
        "supporting_facts": support,
        "context": context,
    }


def _sentences(body: str) -> list[str]:
    return [part if part.endswith(".") else f"{part}." for part in body.split(". ")]
