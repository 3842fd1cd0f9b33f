"""The pocket policy's world: things and people with codes, keepers and friends, told one short sentence a fact.

Six tasks share its sentences, so that no kind of sentence is always worth keeping: one fact among half-matching ones,
several values of one key, two keys, a two-hop bridge, the last of several updates, a chain. Decoys (complete structures
of the asked task about other keys, told as often) make frequency useless. Knows the chunker; knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from memagent_lib.data import (
    ADJECTIVES,
    FILLER,
    NOUNS,
    Example,
    ExampleKey,
    Length,
    Meter,
    NotNegative,
    Preset,
    Share,
    Span,
    end_of_chunks,
    starts_of,
    terms,
)
from memagent_lib.text import Tokenizer

_SHORTEST_SENTENCE = 6  # tokens
# Each word is one token of the pocket tokenizer, and none means two things.
NAMES = terms(
    "Ada Adam Alma Amos Anna Asa Axel Basil Bella Ben Bruno Cara Carl Celia Cleo Clive Cora Cyrus Dana Dara Dean "
    "Della Dora Duke Edda Eden Edith Edwin Ella Elmo Elsa Emil Emma Enid Erik Esme Ethan Eva Ezra Fay Felix Fern "
    "Finn Flora Floyd Frank Freya Gail Gina Glen Grace Gus Hal Hanna Hans Hector Helga Henry Hilda Hugo"
)

CODES = terms(
    "acorn anchor anvil apron arrow atlas axle bamboo banjo barrel basket beacon bell bottle bracket brick bucket "
    "button cabin cable candle canvas carpet castle cedar cello chalk cherry cinder clover cobalt compass cotton "
    "cradle cricket crystal cypress dagger daisy diamond drum ember fabric feather fiddle flint flute forest fossil "
    "fountain garlic ginger glacier glove granite guitar hammer harbor harp helmet hinge honey jasmine jewel kettle "
    "ladder lantern lavender lemon lily linen magnet maple marble meadow melon mirror mosaic needle nutmeg oasis "
    "onion orchid paddle pebble pepper piano pillow pistol plum pumpkin quartz quilt ribbon saddle saffron sapphire "
    "satin scarf shovel"
)
MOST_APART = 0.2  # of a document; a chain of four links has five facts
UNKNOWN = "unknown"  # the value, and the answer, of what no text told
WORDS = (*ADJECTIVES, *NOUNS, *NAMES, *CODES)


class Ask(StrEnum):
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
    """A question about ``keys``, the facts that it needs, which may be ``ordered``, and the accepted answers."""

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
    return {
        Ask.NEEDLE: "What is the code of {}?",
        Ask.MULTIVALUE: "What are all codes of {}?",
        Ask.MULTIKEY: "What are the codes of {} and {}?",
        Ask.UPDATE: "What is the last code of {}?",
        Ask.BRIDGE: "What is the code of the keeper of {}?",
        Ask.CHAIN: "What is the code after the friends of {}?",
    }[ask].format(*map(told, keys))


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
        keys = tuple(map(" ".join, zip(rng.sample(ADJECTIVES, 2), rng.sample(NOUNS, 2), strict=True)))
        codes = tuple(rng.sample(CODES, 2))
        return Riddle(ask, keys, tuple(PocketFact("code", k, c) for k, c in zip(keys, codes, strict=True)), codes)
    count = {Ask.NEEDLE: 1, Ask.MULTIVALUE: rng.randint(2, 3), Ask.UPDATE: rng.randint(2, 4)}[ask]
    key, codes = random_thing(rng), rng.sample(CODES, count)
    answers = tuple(codes[-1:]) if ask is Ask.UPDATE else tuple(codes)
    return Riddle(ask, (key,), tuple(PocketFact("code", key, c) for c in codes), answers, ordered=ask is Ask.UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How crowded a text is: the share of sentences that tell a fact, and of those the share about a thing that has one
    word of an asked key (``half_matching``), that tells something else of an asked key (``same_key``: the keeper of a
    thing whose code is asked) or that gives a key told before another value (``repeated``).
    """

    density: Share = 0.5
    half_matching: Share = 0.35
    same_key: Share = 0.05
    repeated: Share = 0.25

    def sentences(self, rng: random.Random, asked: Riddle, decoys: Sequence[Riddle], count: int) -> list[str]:
        """``count`` sentences of filler and of facts that answer neither the riddle nor its decoys."""
        kept = {fact.key for one in (asked, *decoys) for fact in one.facts}
        things = [fact.key for fact in asked.facts if " " in fact.key] or [random_thing(rng)]
        besides, recent = _besides(asked), list[PocketFact]()

        def fact() -> str:
            if besides and rng.random() < self.same_key:
                relation, key = rng.choice(besides)
                return PocketFact(relation, key, rng.choice(_values(relation))).text
            return self._fact(rng, asked.ask, kept, things, recent)

        return [fact() if rng.random() < self.density else rng.choice(FILLER) for _ in range(count)]

    def _fact(
        self, rng: random.Random, ask: Ask, kept: set[str], things: Sequence[str], recent: list[PocketFact]
    ) -> str:
        if recent and rng.random() < self.repeated:
            old = rng.choice(recent)
            return PocketFact(old.relation, old.key, other(rng, _values(old.relation), {old.value})).text
        kinds = (("code", True), ("keeper", True), ("code", False), ("friend", False))
        of_people = 0.0 if ask is Ask.BRIDGE else 0.15  # their codes are what its second hop is about
        relation, of_thing = rng.choices(kinds, (0.5, 0.2, of_people, 0.15))[0]
        key = self._thing(rng, kept, things) if of_thing else other(rng, NAMES, kept)
        fact = PocketFact(relation, key, rng.choice(_values(relation)))
        if relation == "code" and of_thing:
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


def _besides(asked: Riddle) -> list[tuple[str, str]]:
    """Relations and keys of facts that share a key with the needed ones and do not bear on the answer. A chain has
    none: what else is told of its people would make it longer.
    """
    needed = {(fact.relation, fact.key) for fact in asked.facts}
    keys = () if asked.ask is Ask.CHAIN else sorted({key for _, key in needed})
    told_of = {key: ("code", "keeper") if " " in key else ("code", "friend") for key in keys}
    return [(relation, key) for key in keys for relation in told_of[key] if (relation, key) not in needed]


def other(rng: random.Random, words: Sequence[str], taken: set[str]) -> str:
    """A word that is not ``taken``."""
    while (word := rng.choice(words)) in taken:
        pass
    return word


def _values(relation: str) -> Sequence[str]:
    return CODES if relation == "code" else NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketTask(Crowd):
    """One of the six tasks, or, where ``ask`` lists several, one drawn for each example.

    ``backward`` is the share of bridges whose second hop is told first; their documents give the codes of no more
    people than the needed one and the ``decoys``', so that a memory can hold them all. ``untold`` is the share of
    examples whose text tells nothing of what is asked: the answer is ``unknown``, and a memory that takes a
    half-matching fact for the asked one is wrong. ``apart`` is the least distance between facts that are told in
    order, such as the values of an update, as a share of the document: above 1 / chunks, no chunk tells two of them.
    """

    ask: str = "needle"
    decoys: NotNegative = 2
    backward: Share = 0.5
    untold: Share = 0.0
    apart: Share = 0.0

    def __post_init__(self) -> None:
        if not set(self.ask.split(",")) <= set(Ask):
            raise ValueError(f"ask must be one of {', '.join(Ask)}, or several with commas, got {self.ask!r}")
        if self.apart > MOST_APART:
            raise ValueError(f"apart must be at most {MOST_APART}, as some tasks tell five facts, got {self.apart}")

    def plan(self, key: ExampleKey) -> PocketTask:
        return self

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        chunks, rng = key.length.whole_chunks, key.rng()
        ask = Ask(rng.choice(self.ask.split(",")))
        asked, decoys = disjoint_riddles(ask, rng, self.decoys, self.backward)
        untold = self.untold > 0 and rng.random() < self.untold  # no draw at 0: those documents stay what they were
        text, evidence = laid_out(asked, decoys, self, rng, key.length, meter.tokenizer, untold, self.apart)
        if ask is Ask.UPDATE:
            evidence = evidence[-1:]  # a memory need not hold what is no longer true
        return Example(
            id=key.id,
            task=f"pocket_{ask}",
            question=asked.question,
            document=text,
            answers=(UNKNOWN,) if untold else asked.answers,
            rule=asked.rule,
            evidence=evidence,
            metadata={
                "tokens": key.length.limit,
                "chunks": chunks,
                "chunk_tokens": key.length.chunk_tokens,
                "seed": key.seed,
                "facts": len(evidence),
                "depths": [round(span.start / len(text), 4) for span in evidence],
            },
        )


def disjoint_riddles(ask: Ask, rng: random.Random, decoys: int, backward: float = 0.5) -> tuple[Riddle, list[Riddle]]:
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
    asked: Riddle,
    decoys: Sequence[Riddle],
    world: Crowd,
    rng: random.Random,
    length: Length,
    tokenizer: Tokenizer,
    untold: bool = False,
    apart: float = 0.0,
) -> tuple[str, tuple[Span, ...]]:
    """A document of the wanted length and where the asked facts stand in it, nowhere where they are ``untold``; a very
    short one has no decoys.

    Facts take the places of sentences, drawn uniformly.
    """
    sentences = world.sentences(rng, asked, decoys, length.limit // _SHORTEST_SENTENCE + 2)
    if untold:
        asked = replace(asked, facts=())
    text = " ".join(sentences)
    fits = text.count(".", 0, end_of_chunks(text, length, tokenizer))  # every sentence ends in its only full stop
    told_by = [asked, *decoys]
    if fits < 4 * sum(len(one.facts) for one in told_by):
        told_by = [asked]
    depths = [_depths(one, rng, apart) for one in told_by]
    while True:
        placed, places = _placed(sentences, told_by, depths, fits)
        text = " ".join(placed)
        text = text[: end_of_chunks(text, length, tokenizer)].rstrip()
        starts = starts_of(placed, " ")
        spans = tuple(
            Span(starts[at], starts[at] + len(fact.text)) for at, fact in zip(places, asked.facts, strict=True)
        )
        if all(span.end <= len(text) for span in spans):
            return text, spans
        if fits <= len(asked.facts):
            raise ValueError(f"{length.label} is too short for {len(asked.facts)} facts; ask for more or longer chunks")
        fits -= 1


def _depths(one: Riddle, rng: random.Random, apart: float) -> list[float]:
    depths = [rng.random() for _ in one.facts]
    if not one.ordered:
        return depths
    free = 1 - apart * (len(depths) - 1)
    return [depth * free + apart * before for before, depth in enumerate(sorted(depths))]


def _placed(
    sentences: Sequence[str], riddles: Sequence[Riddle], depths: Sequence[Sequence[float]], fits: int
) -> tuple[list[str], list[int]]:
    """The sentences with facts among the first ``fits``, no two in one place, and the places of the first riddle's."""
    placed, used, first = list(sentences), set[int](), []
    for one, at in zip(riddles, depths, strict=True):
        after = -1
        for fact, depth in zip(one.facts, at, strict=True):
            place = int(depth * fits)
            place = max(place, after + 1) if one.ordered else place
            while place in used:
                place += 1
            used.add(place)
            placed[place], after = fact.text, place
            if one is riddles[0]:
                first.append(place)
    return placed, first


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
