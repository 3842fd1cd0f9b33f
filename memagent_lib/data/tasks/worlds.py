"""A generated world: people, films, novels, companies and cities, each with a document that states its relations.

Every name is unique and every relation has one value, so a question about a chain of relations has exactly one answer.
All names and values are random, so only the documents can reveal that answer. A world is a pure function of its seed,
number and size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, count, islice
from typing import NamedTuple

from memagent_lib.data.layout import join
from memagent_lib.data.tasks.words import distinct, english, terms

KINDS = ("person", "film", "novel", "company", "city")
BLOCK = 4096
# The share of each kind of entity in a block.
_ENDS = [round(BLOCK * share) for share in accumulate((0.40, 0.18, 0.14, 0.13, 0.15))]
_OF_BLOCK = [kind for kind, start, end in zip(KINDS, (0, *_ENDS), _ENDS, strict=False) for _ in range(start, end)]
_TRADES = terms(
    "engineer surveyor violinist botanist printer chemist translator cartographer judge sculptor pilot historian"
)
_STYLES = terms("comedy drama thriller western mystery romance satire documentary")
_GOODS = terms("clocks bicycles porcelain pianos lanterns textiles pumps telescopes paper glass tools boats")
_ONSETS = terms("b br c d dr f g gl h k kr l m n p pr r s st t tr v w z")
_VOWELS = terms("a e i o u ai ea ou")
_CODAS = terms("l n r s m nd rt ck lm th")
_CITY_ENDS = terms("ford ton mere wick haven stead burgh minster dale port")


class Relation(NamedTuple):
    """A relation of an entity to a ``value``, stated in ``document[start:end]`` of the entity.

    ``target`` is the number of the entity that ``value`` names, or None if ``value`` is not an entity's name.
    """

    value: str
    start: int
    end: int
    target: int | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """A person or thing in a world. Its document is its name, followed by sentences that state its ``relations``."""

    name: str
    kind: str
    document: str = field(repr=False)
    relations: dict[str, Relation] = field(repr=False)


class World:
    """A world of ``blocks`` blocks of entities. ``documents[i]`` is the document of entity number ``i``.

    ``entities``, ``by_kind`` and :meth:`alike` cover the first block only. Relations stay within a block, and a larger
    world begins with the same blocks as a smaller one, so questions about the first block are the same at every size.
    """

    def __init__(self, seed: int, number: int, blocks: int):
        made = list(islice(_blocks(f"world/{seed}/{number}"), blocks))
        self.entities = made[0]
        self.documents: Sequence[str] = tuple(entity.document for block in made for entity in block)
        self.by_kind = _by_kind(0)
        self._by_word: dict[tuple[str, str], list[int]] = {}
        for i, entity in enumerate(self.entities):
            for word in _own_words(entity.name):
                self._by_word.setdefault((entity.kind, word), []).append(i)

    def alike(self, i: int) -> list[int]:
        """Return the numbers of the entities of the same kind as entity ``i`` that share a word of its name."""
        entity = self.entities[i]
        found = {j for word in _own_words(entity.name) for j in self._by_word[entity.kind, word]}
        return sorted(found - {i})


def _own_words(name: str) -> list[str]:
    # The words left out are those of the patterns below, which all names of a kind share.
    return [word for word in name.split() if word not in ("The", "of", "the", "Works")]


def world(seed: int, number: int, size: int) -> World:
    """Return world ``number`` of a seed, with at least ``size`` entities. The two most recent worlds are cached."""
    return _world(seed, number, max(1, -(-size // BLOCK)))


_world = lru_cache(maxsize=2)(World)


def _blocks(seed: str) -> Iterator[list[Entity]]:
    """Yield the blocks of one world. No name is repeated, even in another block."""
    rng = random.Random(seed)
    taken: set[str] = set()
    first, last = (distinct(lambda draw: _syllables(draw) + draw.choice(_CODAS), n, rng) for n in (300, 900))
    for offset in count(0, BLOCK):
        # A generator per block, so that a block does not depend on how many others are made.
        rng = random.Random(f"{seed}/{offset // BLOCK}")
        make = _names(first, last, rng)
        by_kind = _by_kind(offset)
        names: dict[int, str] = {}
        for kind, members in by_kind.items():
            names |= zip(members, distinct(make[kind], len(members), rng, taken), strict=True)
            taken.update(names.values())
        links = _links(by_kind, rng)
        yield [_entity(names, kind, i, links, rng) for i, kind in enumerate(_OF_BLOCK, offset)]


def _names(first: Sequence[str], last: Sequence[str], rng: random.Random) -> dict[str, Callable[[random.Random], str]]:
    """Return a function per kind that draws a name. It uses so few words that many names have a word in common."""
    adjectives = rng.sample(english("adjective"), 100)
    nouns = rng.sample(english("noun"), 400)
    houses = rng.sample(last, 150)
    return {
        "person": lambda rng: f"{rng.choice(first)} {rng.choice(last)}",
        "film": lambda rng: f"The {rng.choice(adjectives).capitalize()} {rng.choice(nouns).capitalize()}",
        "novel": lambda rng: f"{rng.choice(nouns).capitalize()} of the {rng.choice(nouns).capitalize()}",
        "company": lambda rng: f"{rng.choice(houses)} {rng.choice(houses)} Works",
        "city": lambda rng: f"{_syllables(rng)}{rng.choice(_CITY_ENDS)}",
    }


def _by_kind(offset: int) -> dict[str, list[int]]:
    return {kind: [i for i, k in enumerate(_OF_BLOCK, offset) if k == kind] for kind in KINDS}


def _syllables(rng: random.Random) -> str:
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2)).capitalize()


def _links(by_kind: dict[str, list[int]], rng: random.Random) -> dict[str, dict[int, int]]:
    """Draw who is related to whom, as a table per relation from one entity's number to another's.

    Nobody founds two companies, so that the inverse relation also has one value.
    """
    people = by_kind["person"]
    cities = by_kind["city"]

    def any_of(pool: list[int], members: Sequence[int]) -> dict[int, int]:
        return {i: rng.choice(pool) for i in members}

    founders = rng.sample(people, len(by_kind["company"]))
    # A teacher comes earlier in the list, so that no chain of teachers closes.
    elders = {person: people[rng.randrange(i)] for i, person in enumerate(people) if i}
    return {
        "born in": any_of(cities, people),
        "taught by": elders,
        "directed by": any_of(people, by_kind["film"]),
        "written by": any_of(people, by_kind["novel"]),
        "founded by": dict(zip(by_kind["company"], founders, strict=True)),
        "founder of": dict(zip(founders, by_kind["company"], strict=True)),
        "based in": any_of(cities, by_kind["company"]),
        "governed by": any_of(people, cities),
    }


def _entity(
    names: Mapping[int, str], kind: str, i: int, links: dict[str, dict[int, int]], rng: random.Random
) -> Entity:
    draws, templates = _ABOUT[kind]
    targets = {relation: table[i] for relation, table in links.items() if i in table}
    values = {"name": names[i]} | {name: draw(rng) for name, draw in draws.items()}
    values |= {relation: names[target] for relation, target in targets.items()}
    stated = [(template, relation) for template, relation in templates if relation is None or relation in values]
    positions = [position for position, (_, relation) in enumerate(stated) if relation]
    title = f"{names[i]}\n"
    body = join([template.format(**values) for template, _ in stated], positions, " ")
    relations = {}
    for position, span in zip(positions, body.spans, strict=True):
        relation = stated[position][1]
        start, end = (len(title) + offset for offset in span)
        relations[relation] = Relation(values[relation], start, end, targets.get(relation))
    return Entity(names[i], kind, title + body.text, relations)


Draws = dict[str, Callable[[random.Random], str]]


def _number(least: int, below: int, form: str = "") -> Callable[[random.Random], str]:
    return lambda rng: format(rng.randrange(least, below), form)


def _one_of(things: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(things)


def _work(noun: str, relation: str, released: str) -> tuple[Draws, tuple[tuple[str, str | None], ...]]:
    draws = {"year": _number(1800, 2020), "style": _one_of(_STYLES), "stars": _number(1, 10)}
    return draws, (
        (f"{{name}} is a {noun} in the manner of a {{style}}.", None),
        (f"The {noun} {{name}} was {relation} {{{relation}}}.", relation),
        (f"{{name}} was first {released} in {{year}}.", "year"),
        ("Reviewers gave it {stars} stars out of ten, and it was soon forgotten by most.", None),
    )


_ABOUT: dict[str, tuple[Draws, tuple[tuple[str, str | None], ...]]] = {
    "person": (
        {"birth year": _number(1700, 2000), "trade": _one_of(_TRADES), "boxes": _number(2, 60)},
        (
            ("{name} is known as a {trade} and as a patient correspondent.", None),
            ("{name} was born in the city of {born in}.", "born in"),
            ("The year of birth of {name} is {birth year}.", "birth year"),
            ("The teacher of {name} was {taught by}.", "taught by"),
            ("{name} founded the company {founder of}.", "founder of"),
            ("Letters by {name} are kept in {boxes} boxes and have not been printed.", None),
        ),
    ),
    "film": _work("film", "directed by", "shown"),
    "novel": _work("novel", "written by", "printed"),
    "company": (
        {"year": _number(1750, 2020), "goods": _one_of(_GOODS), "staff": _number(12, 9000, ",")},
        (
            ("{name} is a company that makes {goods} and little else.", None),
            ("{name} was founded by {founded by}.", "founded by"),
            ("{name} opened its doors in {year}.", "year"),
            ("The head office of {name} is in the city of {based in}.", "based in"),
            ("Some {staff} people work there, most of them by day.", None),
        ),
    ),
    "city": (
        {
            "river": lambda rng: f"{_syllables(rng)}{_syllables(rng).lower()}",
            "bridges": _number(3, 90),
            "minutes": _number(4, 30),
        },
        (
            ("{name} is a city with {bridges} bridges and a weekly market.", None),
            ("The mayor of {name} is {governed by}.", "governed by"),
            ("{name} lies on the river {river}.", "river"),
            ("Its trams run every {minutes} minutes except on holidays.", None),
        ),
    ),
}
"""For each kind of entity: the random values of its document, and its sentences, each with the relation that it states.

If an entity lacks a relation, its document lacks the sentence.
"""
