"""Multi-hop questions about a generated world, in HotpotQA's shape: bridges, chains and comparisons.

An example has the chain of documents that answers its question (two chains for a comparison), and decoys: complete
chains of the same relations, with similar names and other answers. Only the names in the question distinguish its
chains from the decoys.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval

from memagent_lib.data.examples import Span
from memagent_lib.data.layout import DOCUMENT_SEPARATOR, Statement
from memagent_lib.data.plans import DocumentPlan, ExampleKey, Filler, Preset
from memagent_lib.data.pools import PoolSpan, other_documents
from memagent_lib.data.tasks.worlds import World, world

TOKENS_PER_DOCUMENT = 64
"""An underestimate, so that a world always has more documents than the example that is made from it."""
QUESTIONS_PER_WORLD = 500


class Route(NamedTuple):
    """A kind of question: the kind of its first entity, the relations that it follows, and its wording."""

    kind: str
    relations: tuple[str, ...]
    words: str


ROUTES = (
    Route("film", ("directed by", "born in"), "In which city was the director of the film {} born?"),
    Route("novel", ("written by", "taught by"), "Who was the teacher of the author of the novel {}?"),
    Route("company", ("based in", "governed by"), "Who is the mayor of the city where the head office of {} is?"),
    Route(
        "film",
        ("directed by", "born in", "river"),
        "On which river lies the city where the director of the film {} was born?",
    ),
    Route(
        "novel",
        ("written by", "taught by", "born in"),
        "In which city was the teacher of the author of the novel {} born?",
    ),
    Route("person", ("taught by", "taught by", "taught by"), "Who taught the teacher of the teacher of {}?"),
    Route(
        "film",
        ("directed by", "taught by", "born in", "river"),
        "On which river lies the city where the teacher of the director of the film {} was born?",
    ),
    Route(
        "company",
        ("founded by", "taught by", "born in", "governed by"),
        "Who is the mayor of the city where the teacher of the founder of {} was born?",
    ),
    Route(
        "person",
        ("taught by", "taught by", "taught by", "born in"),
        "In which city was the teacher of the teacher of the teacher of {} born?",
    ),
)
COMPARISONS = (
    Route("film", ("year",), "Which film was shown {when}, {a} or {b}?"),
    Route("novel", ("year",), "Which novel was printed {when}, {a} or {b}?"),
    Route("person", ("birth year",), "Who was born {when}, {a} or {b}?"),
    Route("film", ("directed by", "birth year"), "Which film has the director who was born {when}, {a} or {b}?"),
)
"""Routes that two entities of one kind follow; the question compares the years at which they end."""
HOPS = {"bridge": (2,), "chain": (3, 4), "comparison": (2, 4)}


class Walk(NamedTuple):
    """A chain of documents that leads from an entity's name to a value."""

    name: str
    steps: tuple[PoolSpan, ...]
    value: str

    @property
    def documents(self) -> set[int]:
        """The numbers of the documents on the walk."""
        return {step.document for step in self.steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHop:
    """Questions that need ``hops`` documents, hidden among ``decoys`` similar chains about other entities."""

    hops: int = 2
    shape: Literal["bridge", "chain", "comparison"] = "bridge"
    decoys: Annotated[int, Interval(ge=0, le=64)] = 5  # candidates are drawn from the entities of one block

    def __post_init__(self) -> None:
        known = HOPS[self.shape]
        if self.hops not in known:
            raise ValueError(f"a {self.shape} question has {' or '.join(map(str, known))} hops, got {self.hops}")

    def plan(self, key: ExampleKey) -> DocumentPlan:
        """Plan a question about a world. Each world serves :data:`QUESTIONS_PER_WORLD` consecutive examples."""
        number, index = divmod(key.index, QUESTIONS_PER_WORLD)
        documents = key.length.documents
        # Twice as many, because the documents of the question and of its decoys are not filler.
        size = key.length.limit // TOKENS_PER_DOCUMENT if documents is None else 2 * documents
        of = world(key.seed, number, size)
        rng = key.rng(f"{self.shape} {self.hops}")
        if self.shape == "comparison":
            return self._comparison(of, rng, key.seed, index)
        return self._chain(of, rng)

    def _chain(self, of: World, rng: random.Random) -> DocumentPlan:
        route = rng.choice([route for route in ROUTES if len(route.relations) == self.hops])
        walks: list[Walk] = []
        while len(walks) <= self.decoys:  # some centers have too few walks without a document in common
            walks = alike_walks(of, route, rng.choice(of.by_kind[route.kind]), self.decoys + 1, rng)
        rng.shuffle(walks)  # nothing but the question distinguishes the first one from the others
        gold, *decoys = walks
        question, *others = (route.words.format(walk.name) for walk in walks)
        return self._plan(of, rng, route, [gold], decoys, question, gold.value, tuple(others))

    def _comparison(self, of: World, rng: random.Random, seed: int, index: int) -> DocumentPlan:
        """Plan a comparison of two entities, never of the same two again within a world.

        The entities form a circle. The second of a pair is less than half a circle ahead of the first, so no pair
        occurs in both orders.
        """
        route = rng.choice([route for route in COMPARISONS if 2 * len(route.relations) == self.hops])
        circle = list(of.by_kind[route.kind])
        random.Random(f"circle/{seed}/{route.kind}").shuffle(circle)
        first = circle[index % len(circle)]
        ahead = [circle[(index + steps) % len(circle)] for steps in range(1, len(circle) // 2)]
        pair: list[Walk] = []
        while len(pair) < 2:
            pair = different([first, rng.choice(ahead)], of, route.relations, 2)
        decoys = alike_walks(of, route, pair[0].steps[0].document, self.decoys + 1, rng, pair)[: self.decoys]
        # In four consecutive examples, picking the first name is right twice, and so is the first in the alphabet.
        block = random.Random(f"habits/{seed}/{index // 4}").sample([(a, b) for a in (0, 1) for b in (0, 1)], 4)
        by_name, named_first = block[index % 4]
        # by_name decides whether the right name is the first or the last in the alphabet.
        right, wrong = sorted(pair, key=lambda walk: walk.name, reverse=bool(by_name))
        when = "earlier" if int(right.value) < int(wrong.value) else "later"
        a = right if named_first else wrong
        b = wrong if named_first else right
        question = route.words.format(when=when, a=a.name, b=b.name)
        return self._plan(of, rng, route, [a, b], decoys, question, right.name)

    def _plan(
        self,
        of: World,
        rng: random.Random,
        route: Route,
        gold: Sequence[Walk],
        beside: Sequence[Walk],
        question: str,
        answer: str,
        decoys: tuple[str, ...] = (),
    ) -> DocumentPlan:
        steps = [step for walk in gold for step in walk.steps]
        near = [step.document for walk in beside for step in walk.steps]
        statements = [Statement(of.documents[i], rng.random(), (Span(start, end),)) for i, start, end in steps]
        statements += [Statement(of.documents[i], rng.random()) for i in near]
        rest = other_documents(of.documents, [*near, *(step.document for step in steps)], rng.getrandbits(64))
        metadata = {
            "shape": self.shape,
            "hops": self.hops,
            "gold_names": [of.entities[step.document].name for step in steps],
            "relations": list(route.relations),
        }
        compares = self.shape == "comparison"
        metadata |= {"chance": 0.5} if compares else {}
        return DocumentPlan(
            question=question,
            answers=(answer,),
            statements=tuple(statements),
            filler=Filler(rest, "the world"),
            rule="exact" if compares else "contains",  # a reply that names both of a pair is no answer
            separator=DOCUMENT_SEPARATOR,
            numbered=True,
            metadata=metadata,
            decoys=decoys,
        )


def alike_walks(
    of: World, route: Route, center: int, n: int, rng: random.Random, beside: Sequence[Walk] = ()
) -> list[Walk]:
    """Return up to ``n`` walks along a route that are :func:`different` from each other and from ``beside``.

    The first candidate is the walk from ``center``. Walks from entities that share a word of its name follow, and then
    walks from random entities of the route's kind.
    """
    alike = of.alike(center)
    rng.shuffle(alike)
    # Far more candidates than are needed, because many walks end early or share a document.
    return different([center, *alike, *rng.sample(of.by_kind[route.kind], 8 * n)], of, route.relations, n, beside)


def different(
    starts: Sequence[int], of: World, relations: tuple[str, ...], n: int, beside: Sequence[Walk] = ()
) -> list[Walk]:
    """Return up to ``n`` walks from ``starts`` that share no document or value with each other or with ``beside``."""
    found: list[Walk] = []
    for start in starts:
        walk = walked(of, start, relations)
        others = [*beside, *found]
        if walk and not any(walk.value == other.value or walk.documents & other.documents for other in others):
            found.append(walk)
        if len(found) == n:
            break
    return found


def walked(of: World, start: int, relations: tuple[str, ...]) -> Walk | None:
    """Return the walk from entity ``start`` along ``relations``, or None if it ends early or repeats a document."""
    steps: list[PoolSpan] = []
    at = start
    value = ""
    for name in relations:
        relation = of.entities[at].relations.get(name)
        if relation is None or any(step.document == at for step in steps):  # a circle would need fewer documents
            return None
        steps.append(PoolSpan(at, relation.start, relation.end))
        value = relation.value
        if relation.target is not None:
            at = relation.target
    return Walk(of.entities[start].name, tuple(steps), value)


def _preset(description: str, task: MultiHop, chance: float = 0.0) -> Preset:
    return Preset(task=task, description=description, family="world", chance=chance)


PRESETS = {
    "multihop_2": _preset("bridge questions over two documents of a generated world", MultiHop()),
    "multihop_3": _preset("chains of three documents", MultiHop(hops=3, shape="chain")),
    "multihop_4": _preset("chains of four documents", MultiHop(hops=4, shape="chain")),
    "comparison": _preset("which of two came first", MultiHop(shape="comparison"), 0.5),
    "comparison_4": _preset("which of two, by way of their makers", MultiHop(hops=4, shape="comparison"), 0.5),
}
