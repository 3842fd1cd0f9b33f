"""The pocket policy's world: things and people with codes, keepers and friends, told one short sentence a fact.

Six tasks share its sentences, so that no kind of sentence is always worth keeping: one fact among half-matching ones,
several values of one key, two keys, a two-hop bridge, the last of several updates, a chain. A document is a pure
function of its seed and length; where the needed facts stand is recorded. Decoys (complete structures of the asked task
about other keys, told as often) make frequency useless. Knows the chunker; knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from memagent_lib.data.drafting import ExampleKey, Length, Meter, end_of_chunks
from memagent_lib.data.examples import Example, Span
from memagent_lib.data.tasks.pocket_words import ADJECTIVES, CODES, FILLER, NAMES, NOUNS
from memagent_lib.data.tasks.presets import Preset
from memagent_lib.text import Tokenizer

_SHORTEST_SENTENCE = 6
"""Tokens; no sentence of this world is shorter."""


class Ask(StrEnum):
    """The six tasks."""

    NEEDLE = "needle"
    MULTIVALUE = "multivalue"
    MULTIKEY = "multikey"
    BRIDGE = "bridge"
    UPDATE = "update"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class PocketFact:
    """``The {relation} of {key} is {value}.``; the key of a thing is two words, that of a person one name."""

    relation: str
    key: str
    value: str

    @property
    def text(self) -> str:
        return f"The {self.relation} of {told(self.key)} is {self.value}."


def told(key: str) -> str:
    """A key with its article: people have none."""
    return f"the {key}" if " " in key else key


@dataclass(frozen=True, slots=True)
class Riddle:
    """A question about ``keys``, the facts that it needs, and the accepted answers. ``ordered`` facts keep their order
    in a document.
    """

    ask: Ask
    keys: tuple[str, ...]
    facts: tuple[PocketFact, ...]
    answers: tuple[str, ...]
    ordered: bool = False

    @property
    def question(self) -> str:
        return pocket_question(self.ask, self.keys)

    @property
    def rule(self) -> str:
        """All answers are asked for where there are several: the share of them counts."""
        return "items" if self.ask in (Ask.MULTIVALUE, Ask.MULTIKEY) else "boxed"


def random_thing(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def pocket_question(ask: Ask, keys: Sequence[str]) -> str:
    """The wording of a task; ``multikey`` takes two keys, the others one."""
    if ask is Ask.MULTIKEY:
        return f"What are the codes of the {keys[0]} and the {keys[1]}?"
    return {
        Ask.NEEDLE: "What is the code of {0}?",
        Ask.MULTIVALUE: "What are all codes of {0}?",
        Ask.UPDATE: "What is the last code of {0}?",
        Ask.BRIDGE: "What is the code of the keeper of {0}?",
        Ask.CHAIN: "What is the code after the friends of {0}?",
    }[ask].format(told(keys[0]))


def riddle(ask: Ask, rng: random.Random, backward: float = 0.5) -> Riddle:
    """A random question with its facts. ``backward``: the share of bridges whose second hop is told first."""
    if ask is Ask.BRIDGE:
        thing, person, code = random_thing(rng), rng.choice(NAMES), rng.choice(CODES)
        facts = (PocketFact("keeper", thing, person), PocketFact("code", person, code))
        return Riddle(ask, (thing,), facts[::-1] if rng.random() < backward else facts, (code,), ordered=True)
    if ask is Ask.CHAIN:
        people, code = rng.sample(NAMES, rng.randint(2, 4)), rng.choice(CODES)
        links = tuple(PocketFact("friend", a, b) for a, b in pairwise(people))
        return Riddle(ask, (people[0],), (*links, PocketFact("code", people[-1], code)), (code,), ordered=True)
    if ask is Ask.MULTIKEY:
        keys, codes = distinct_things(rng, 2), rng.sample(CODES, 2)
        return Riddle(
            ask, tuple(keys), tuple(PocketFact("code", k, c) for k, c in zip(keys, codes, strict=True)), tuple(codes)
        )
    count = {Ask.NEEDLE: 1, Ask.MULTIVALUE: rng.randint(2, 3), Ask.UPDATE: rng.randint(2, 4)}[ask]
    key, codes = random_thing(rng), rng.sample(CODES, count)
    answers = tuple(codes[-1:]) if ask is Ask.UPDATE else tuple(codes)
    return Riddle(ask, (key,), tuple(PocketFact("code", key, c) for c in codes), answers, ordered=ask is Ask.UPDATE)


def distinct_things(rng: random.Random, count: int) -> list[str]:
    """Things of which no two share a word."""
    return [f"{a} {n}" for a, n in zip(rng.sample(ADJECTIVES, count), rng.sample(NOUNS, count), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How crowded a text is: the share of sentences that tell a fact, and of those the share about a thing that has one
    word of an asked key (``half_matching``) or that gives a key told before another value (``repeated``).
    """

    density: float = 0.5
    half_matching: float = 0.35
    repeated: float = 0.25

    def sentences(self, rng: random.Random, asked: Riddle, decoys: Sequence[Riddle], count: int) -> list[str]:
        """``count`` sentences of filler and of facts that answer neither the riddle nor its decoys."""
        kept = {fact.key for one in (asked, *decoys) for fact in one.facts}
        things = [fact.key for fact in asked.facts if " " in fact.key] or [random_thing(rng)]
        recent: list[PocketFact] = []
        return [
            self._fact(rng, asked.ask, kept, things, recent) if rng.random() < self.density else rng.choice(FILLER)
            for _ in range(count)
        ]

    def _fact(
        self, rng: random.Random, ask: Ask, kept: set[str], things: Sequence[str], recent: list[PocketFact]
    ) -> str:
        if recent and rng.random() < self.repeated:
            old = rng.choice(recent)
            return PocketFact(old.relation, old.key, other(rng, _values(old.relation), {old.value})).text
        kind = rng.choices(
            ("thing", "keeper", "person", "friend"), (0.5, 0.2, 0.15 if ask is not Ask.BRIDGE else 0.0, 0.15)
        )[0]
        if kind in ("person", "friend"):
            relation, key = "code" if kind == "person" else "friend", other(rng, NAMES, kept)
        else:
            relation, key = "code" if kind == "thing" else "keeper", self._thing(rng, kept, things)
        fact = PocketFact(relation, key, rng.choice(_values(relation)))
        if relation == "code" and " " in key:
            recent.append(fact)
            del recent[:-8]
        return fact.text

    def _thing(self, rng: random.Random, kept: set[str], things: Sequence[str]) -> str:
        while True:
            adjective, noun = random_thing(rng).split()
            if rng.random() < self.half_matching:
                shared = rng.choice(things).split()
                adjective, noun = rng.choice(((shared[0], noun), (adjective, shared[1])))
            if f"{adjective} {noun}" not in kept:
                return f"{adjective} {noun}"


def other(rng: random.Random, words: Sequence[str], taken: set[str]) -> str:
    """A word that is not ``taken``."""
    while (word := rng.choice(words)) in taken:
        pass
    return word


def _values(relation: str) -> Sequence[str]:
    return CODES if relation == "code" else NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketTask:
    """One of the six tasks at any length in chunks, or, where ``ask`` lists several, one drawn for each example.
    ``backward`` is the share of bridges whose second hop is told first; their documents give the codes of no more
    people than the needed one and the ``decoys``', so that a memory can hold them all.
    """

    ask: str = "needle"
    density: float = 0.5
    half_matching: float = 0.35
    repeated: float = 0.25
    decoys: int = 2
    backward: float = 0.5

    def __post_init__(self) -> None:
        if not set(self.ask.split(",")) <= set(Ask):
            raise ValueError(f"ask must be one of {', '.join(Ask)}, or several with commas, got {self.ask!r}")
        for name in ("density", "half_matching", "repeated", "backward"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")
        if self.decoys < 0:
            raise ValueError(f"decoys must be at least 0, got {self.decoys}")

    def plan(self, key: ExampleKey) -> PocketPlan:
        if key.length.chunks is None:
            raise ValueError(
                f"it is made in whole chunks; give chunks (and chunk_tokens) instead of {key.length.label}"
            )
        return PocketPlan(self)


@dataclass(frozen=True, slots=True)
class PocketPlan:
    """One example of the pocket world; a pure function of its key."""

    task: PocketTask

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        task, rng = self.task, key.rng()
        ask = Ask(rng.choice(task.ask.split(",")))
        asked, decoys = disjoint_riddles(ask, rng, task.decoys, task.backward)
        crowd = Crowd(density=task.density, half_matching=task.half_matching, repeated=task.repeated)
        text, evidence = laid_out(asked, decoys, crowd, rng, key.length, meter.tokenizer)
        if ask is Ask.UPDATE:
            evidence = evidence[-1:]  # a memory need not hold what is no longer true
        return Example(
            id=key.id,
            task=f"pocket_{ask}",
            question=asked.question,
            document=text,
            answers=asked.answers,
            rule=asked.rule,
            evidence=evidence,
            metadata={
                "tokens": key.length.limit,
                "chunks": key.length.chunks,
                "chunk_tokens": key.length.chunk_tokens,
                "seed": key.seed,
                "facts": len(evidence),
                "depths": [round(span.start / len(text), 4) for span in evidence],
            },
        )


def disjoint_riddles(ask: Ask, rng: random.Random, decoys: int, backward: float) -> tuple[Riddle, list[Riddle]]:
    """A riddle and decoys of the same kind; no two of them have a key or a person in common."""
    found: list[Riddle] = []
    taken: set[str] = set()
    while len(found) <= decoys:
        one = riddle(ask, rng, backward)
        words = {fact.key for fact in one.facts} | {fact.value for fact in one.facts}
        if not words & taken:
            taken |= words
            found.append(one)
    return found[0], found[1:]


def laid_out(
    asked: Riddle, decoys: Sequence[Riddle], world: Crowd, rng: random.Random, length: Length, tokenizer: Tokenizer
) -> tuple[str, tuple[Span, ...]]:
    """A document of the wanted length and where the asked facts stand in it.

    Facts take the places of sentences, drawn uniformly. Decoys that find no place in a very short document are left
    out.
    """
    sentences = world.sentences(rng, asked, decoys, length.limit // _SHORTEST_SENTENCE + 2)
    text = " ".join(sentences)
    fits = text.count(".", 0, end_of_chunks(text, length, tokenizer))  # every sentence ends in its only full stop
    told_by = [
        one for one in (asked, *decoys) if one is asked or fits >= 4 * sum(len(d.facts) for d in (asked, *decoys))
    ]
    depths = [_depths(one, rng) for one in told_by]
    while True:
        placed = _placed(sentences, told_by, depths, fits)
        text = " ".join(placed[0])
        text = text[: end_of_chunks(text, length, tokenizer)].rstrip()
        starts = _starts(placed[0], placed[1])
        spans = tuple(Span(start, start + len(fact.text)) for start, fact in zip(starts, asked.facts, strict=True))
        if max(span.end for span in spans) <= len(text):
            return text, spans
        if fits <= len(asked.facts):
            raise ValueError(f"{length.label} is too short for {len(asked.facts)} facts; ask for more or longer chunks")
        fits -= 1


def _depths(one: Riddle, rng: random.Random) -> list[float]:
    depths = [rng.random() for _ in one.facts]
    return sorted(depths) if one.ordered else depths


def _placed(
    sentences: Sequence[str], riddles: Sequence[Riddle], depths: Sequence[Sequence[float]], fits: int
) -> tuple[list[str], list[int]]:
    """The sentences with facts among the first ``fits``, and the places of the first riddle's. Two facts never share a
    place.
    """
    placed, used, first = list(sentences), {}, []
    for one, at in zip(riddles, depths, strict=True):
        after = -1
        for fact, depth in zip(one.facts, at, strict=True):
            place = int(depth * fits)
            place = max(place, after + 1) if one.ordered else place
            while place in used:
                place += 1
            used[place], placed[place], after = True, fact.text, place
            if one is riddles[0]:
                first.append(place)
    return placed, first


def _starts(sentences: Sequence[str], places: Sequence[int]) -> list[int]:
    starts, at, wanted = {}, 0, set(places)
    for place, sentence in enumerate(sentences):
        if place in wanted:
            starts[place] = at
        at += len(sentence) + 1
    return [starts[place] for place in places]


def _preset(asks: str, ask: str, chance: float = 0.01) -> Preset:
    return Preset(task=PocketTask(ask=ask), asks=asks, family="pocket world", chance=chance, chunk_tokens=96)


PRESETS = {
    "pocket_needle": _preset("one fact among half-matching ones", "needle"),
    "pocket_multivalue": _preset("all of two or three values of one key", "multivalue"),
    "pocket_multikey": _preset("the values of two keys", "multikey"),
    "pocket_bridge": _preset("two hops, told in either order", "bridge", chance=1 / 3),
    "pocket_update": _preset("the last of two to four values", "update"),
    "pocket_chain": _preset("a chain of two to four links", "chain"),
    "pocket_mix": _preset("one of the six, drawn for each example", ",".join(Ask)),
}
