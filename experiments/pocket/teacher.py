"""What supervision shows: how to copy facts from a text and a memory into a new memory, and how to answer from it.

Read turns are blind to the question: their target is a random subset, of none to as many facts as a memory holds, of
the facts in old memory and chunk, in order. Nothing is chosen, so nothing about choosing is learnt, nor about how much
to keep. An ``aware`` teacher shows the ideal memory instead, for the upper bound: what an answer would recite of all
that was told so far, and nothing else. Answer turns look the asked facts up among those in memory, following links, or
say unknown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from experiments.pocket import world
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt

T = TypeVar("T")
MEMORY_FACTS = 4
_OF_ONE_KEY = (world.Ask.MULTIVALUE, world.Ask.UPDATE)
_FACT = re.compile(r"The (\w+) of (?:the )?([\w ]+?) is (\w+)\.")


class Supervised(NamedTuple):
    """One supervised conversation as token ids; ``weights`` has one entry per id of the reply."""

    kind: str
    prompt: list[int]
    reply: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Shares:
    """How often a turn is what, as shares from 0 to 1: ``direct`` of all turns answer from a chunk, ``answers`` of the
    others from a memory, and the rest read.

    In the share ``several`` of read turns, and half of it of answer turns, the asked key has several values: what is
    copied next is the one that was not copied yet. In the share ``twice`` of turns the memory tells facts more than
    once; replies tell each fact once.
    """

    answers: float = 0.4
    several: float = 0.0
    twice: float = 0.0
    direct: float = 0.0


class Teacher:
    """Writes supervised turns in the pocket wording; a pure function of the generator it is given."""

    def __init__(self, tokenizer: Tokenizer, aware: bool = False, template: str = "short"):
        self.tokenizer, self.template, self.aware = tokenizer, Template.load(template), aware
        self.end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
        self.verb = tokenizer.encode(" is")[-1]
        self.words = [tokenizer.encode(f" {word}")[0] for word in world.WORDS]
        self.costs = {text: tokenizer.count(f" {text}") for text in world.FILLER}

    def turn(self, rng: random.Random, width: int, shares: Shares = Shares()) -> Supervised:
        """A turn with a chunk of at most ``width`` tokens, or an answer turn, drawn in the ``shares``."""
        if shares.direct and rng.random() < shares.direct:
            return self.direct(rng, width)
        if rng.random() < shares.answers:
            return self.answer(rng, shares.several / 2, shares.twice)
        read = self.ideal_read if self.aware else self.read
        return read(rng, width, shares.several, shares.twice)

    def read(self, rng: random.Random, width: int, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """Some facts of memory and chunk, in order; those that the question needs, in half of the turns, are as any."""
        of_one_key = several > 0 and rng.random() < several
        asked = world.riddle(rng.choice(_OF_ONE_KEY if of_one_key else list(world.Ask)), rng)
        dealt = of_one_key or rng.random() < 0.5
        held, shown = _dealt(asked, rng) if dealt else ([], [])
        memory = self._memory(rng, asked, held, twice)
        crowd = (
            world.Crowd(density=rng.uniform(0.0, 0.3), half_matching=0.6)
            if of_one_key
            else world.Crowd(density=rng.uniform(0.3, 0.7))
        )
        text = self._chunk(rng, asked, shown, int(width * rng.uniform(0.75, 1.0)), crowd)
        kept = subset(once([*memory, *facts_in(text)]), rng, rng.randint(0, MEMORY_FACTS))
        return self._read_turn("read", asked, memory, text, kept)

    def ideal_read(self, rng: random.Random, width: int, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """The ideal memory after a memory, ideal or crowded, and a chunk, crowded as that of :meth:`direct`; in four
        turns in five the two hold something that the question needs, as a rule beside complete decoys of its kind.
        """
        of_one_key = several > 0 and rng.random() < several
        asked, decoys = world.disjoint_riddles(rng.choice(_OF_ONE_KEY if of_one_key else list(world.Ask)), rng, 2)
        held, shown = _dealt(asked, rng) if rng.random() < 0.8 else ([], [])
        for decoy in decoys:
            before, after = _dealt(decoy, rng)
            held, shown = merged(held, before, rng), merged(shown, after[:1], rng)
        held = parsed(ideal(asked, [fact.text for fact in held])) if rng.random() < 0.85 else []
        memory = self._memory(rng, asked, held, twice)
        crowd = _hard_crowd(rng)
        text = self._chunk(rng, asked, shown, int(width * rng.uniform(0.75, 1.0)), crowd, decoys)
        return self._read_turn("ideal", asked, memory, text, ideal(asked, [*memory, *facts_in(text)]))

    def answer(self, rng: random.Random, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """The answer that a memory allows; two turns in three hold something that the question needs."""
        asks = [world.Ask.MULTIVALUE] if several and rng.random() < several else list(world.Ask)
        asked = world.riddle(rng.choice(asks), rng)
        chance = rng.random()
        held = [*asked.facts] if chance < 0.5 else _dealt(asked, rng)[0] if chance < 0.75 else []
        memory = self._memory(rng, asked, held, twice)
        if self.aware and rng.random() < 0.5:
            memory = ideal(asked, memory)
        return self._turn(
            f"{asked.ask}", Prompt(Kind.ANSWER, asked.question, " ".join(memory)), answer_from(asked, memory)
        )

    def direct(self, rng: random.Random, width: int) -> Supervised:
        """The answer that a chunk allows, crowded with facts that share a word with the asked key, or the key itself;
        half of the chunks lack what the question needs, or some of it.
        """
        asked = world.riddle(rng.choice(list(world.Ask)), rng)
        whole = rng.random() < 0.5
        shown = [fact for fact in asked.facts if whole or rng.random() < 0.4]
        crowd = _hard_crowd(rng)
        text = self._chunk(rng, asked, shown, int(width * rng.uniform(0.5, 1.0)), crowd)
        prompt = Prompt(Kind.DIRECT, asked.question, chunk=Chunk(0, text, 0, len(text), 0))
        return self._turn("direct", prompt, answer_from(asked, facts_in(text)))

    def drill(self, rng: random.Random, facts: int = 6) -> Supervised:
        """Facts, then the same in another order: a value can only be looked up, and only by both words of its key."""
        adjectives, nouns = rng.sample(world.ADJECTIVES, 3), rng.sample(world.NOUNS, 3)
        keys = rng.sample([f"{adjective} {noun}" for adjective in adjectives for noun in nouns], facts)
        told = [
            f" {world.PocketFact('code', key, code).text}"
            for key, code in zip(keys, rng.sample(world.CODES, facts), strict=True)
        ]
        reply = self.tokenizer.encode("".join(rng.sample(told, facts)))
        weights = [0.1] * len(reply)
        for at in (i for i, token in enumerate(reply) if token == self.verb):
            weights[at + 1] = 1.0
        return Supervised("drill", self.tokenizer.encode("".join(told)), reply, weights)

    def repeat(self, rng: random.Random, length: int) -> Supervised:
        """Random words, twice: the densest lesson in copying."""
        words = [rng.choice(self.words) for _ in range(length)]
        return Supervised("repeat", words, words[:], [0.0, *[1.0] * (length - 1)])

    def _read_turn(
        self, kind: str, asked: world.Riddle, memory: Sequence[str], text: str, kept: Sequence[str]
    ) -> Supervised:
        prompt = Prompt(Kind.READ, asked.question, " ".join(memory), Chunk(0, text, 0, len(text), 0))
        return self._turn(kind, prompt, " ".join(kept) or self.template.empty_memory)

    def _turn(self, kind: str, prompt: Prompt, reply: str) -> Supervised:
        said = [*self.tokenizer.encode(reply), self.end]
        return Supervised(kind, self.tokenizer.chat(self.template.render(prompt)), said, [1.0] * len(said))

    def _memory(
        self, rng: random.Random, asked: world.Riddle, held: Sequence[world.PocketFact], twice: float
    ) -> list[str]:
        size = rng.randint(0, MEMORY_FACTS)
        crowd = world.Crowd(density=1.0, half_matching=0.5)
        told = merged([fact.text for fact in held], crowd.sentences(rng, asked, (), max(0, size - len(held))), rng)
        return crowded(told, rng) if told and rng.random() < twice else told

    def _chunk(
        self,
        rng: random.Random,
        asked: world.Riddle,
        shown: Sequence[world.PocketFact],
        width: int,
        crowd: world.Crowd,
        decoys: Sequence[world.Riddle] = (),
    ) -> str:
        sentences = merged([fact.text for fact in shown], crowd.sentences(rng, asked, decoys, width // 6), rng)
        needed = {fact.text for fact in shown}
        room = width - sum(self._cost(text) for text in needed)
        chosen = []
        for text in sentences:
            room -= 0 if text in needed else self._cost(text)
            if room >= 0 or text in needed:
                chosen.append(text)
        return " ".join(chosen)

    def _cost(self, text: str) -> int:
        return self.costs.get(text, 9 if " the " in text else 7)


def _dealt(asked: world.Riddle, rng: random.Random) -> tuple[list[world.PocketFact], list[world.PocketFact]]:
    """The needed facts that memory and chunk hold: some of the earlier ones, some of the later ones."""
    at = rng.randint(0, len(asked.facts))
    held = [fact for fact in asked.facts[:at] if rng.random() < 0.8]
    return held[-MEMORY_FACTS:], [fact for fact in asked.facts[at:] if rng.random() < 0.8][:3]


def _hard_crowd(rng: random.Random) -> world.Crowd:
    """Up to nothing but facts, most of which share a word with the asked key, some the key itself."""
    return world.Crowd(density=rng.uniform(0.3, 1.0), half_matching=rng.uniform(0.35, 0.95), same_key=0.1)


def merged(one: Sequence[T], other: Sequence[T], rng: random.Random) -> list[T]:
    """Both lists in one, the order within each kept."""
    places = set(rng.sample(range(len(one) + len(other)), len(one)))
    first, second = iter(one), iter(other)
    return [next(first) if place in places else next(second) for place in range(len(one) + len(other))]


def crowded(facts: Sequence[str], rng: random.Random) -> list[str]:
    """A full memory of one to three of the facts, some of them told more than once, in any order."""
    few = rng.sample(facts, min(len(facts), rng.randint(1, MEMORY_FACTS - 1)))
    return rng.sample([*few, *rng.choices(few, k=MEMORY_FACTS - len(few))], MEMORY_FACTS)


def once(facts: Sequence[str]) -> list[str]:
    """Each fact once, where it is told last."""
    return list(dict.fromkeys(reversed(facts)))[::-1]


def subset(known: Sequence[str], rng: random.Random, most: int = MEMORY_FACTS) -> list[str]:
    """As many of the facts as a memory holds, or ``most``, drawn at random, in order."""
    return [known[i] for i in sorted(rng.sample(range(len(known)), min(most, len(known))))]


def ideal(asked: world.Riddle, known: Sequence[str]) -> list[str]:
    """What a reader that knows the question notes of the facts that it was told: those that the answer would recite,
    the missing one as unknown, and in a bridge whose lead is not told yet the codes of people, the last
    :data:`MEMORY_FACTS` - 1.
    """
    recited, _ = recital(asked, known)
    if asked.ask is world.Ask.BRIDGE and recited[0].value == world.UNKNOWN:
        codes = [fact for fact in parsed(once(known)) if fact.relation == "code" and " " not in fact.key]
        recited = [recited[0], *codes[1 - MEMORY_FACTS :]]
    return [fact.text for fact in recited[-MEMORY_FACTS:]]


def facts_in(text: str) -> list[str]:
    """The sentences of a text that tell a fact."""
    return [match.group() for match in _FACT.finditer(text)]


def parsed(texts: Sequence[str]) -> list[world.PocketFact]:
    """The facts that sentences tell."""
    return [world.PocketFact(*match.groups()) for text in texts if (match := _FACT.fullmatch(text))]


def recital(asked: world.Riddle, memory: Sequence[str]) -> tuple[list[world.PocketFact], list[str]]:
    """The facts that an answer recites from a memory, each value right after its key, and the values that it boxes."""
    facts, recited = [fact for fact in parsed(once(memory)) if fact.value != world.UNKNOWN], list[world.PocketFact]()

    def told(relation: str, key: str) -> list[world.PocketFact]:
        return [fact for fact in facts if (fact.relation, fact.key) == (relation, key)]

    def recite(relation: str, key: str) -> str:
        """The last such value in memory, or unknown."""
        known = told(relation, key)
        recited.append(known[-1] if known else world.PocketFact(relation, key, world.UNKNOWN))
        return recited[-1].value

    at = asked.keys[0]
    if asked.ask is world.Ask.MULTIVALUE and (several := told("code", at)):
        return several, [fact.value for fact in several]
    if asked.ask is world.Ask.BRIDGE:
        at = recite("keeper", at)
    while asked.ask is world.Ask.CHAIN and told("friend", at) and len(recited) < MEMORY_FACTS:
        at = recite("friend", at)
    if asked.ask in (world.Ask.BRIDGE, world.Ask.CHAIN):
        values = [recite("code", at) if at != world.UNKNOWN else world.UNKNOWN]
    else:
        values = [recite("code", key) for key in asked.keys]
    return recited, values


def answer_from(asked: world.Riddle, memory: Sequence[str]) -> str:
    """The reply that a memory allows: what it recites, then the box."""
    recited, values = recital(asked, memory)
    return " ".join([*(fact.text for fact in recited), rf"\boxed{{ {', '.join(values)}}}"])
