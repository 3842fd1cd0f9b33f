"""Supervised turns: how to copy statements from a text and a memory into a new memory, and how to answer from it.

Read turns are blind to the question: their target is a random subset, of up to as many statements as a memory has room
for, of those in old memory and chunk, in order. Nothing is chosen, so nothing about choosing is learnt, nor about how
much to remember. An ``aware`` teacher writes the ideal memory instead, for the upper bound: what an answer would recite
of everything read so far, and nothing else. Answer turns look the needed statements up in memory, following links, or
answer unknown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from experiments.pocket import world
from experiments.pocket.world import Crowd, Question, QuestionKind, Triple
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk, Tokenizer
from memagent_lib.trace import Kind, Prompt

T = TypeVar("T")
MEMORY_STATEMENTS = 4
_OF_ONE_KEY = (QuestionKind.MULTIVALUE, QuestionKind.UPDATE)
_STATEMENT = re.compile(r"The (\w+) of (?:the )?([\w ]+?) is (\w+)\.")


class Supervised(NamedTuple):
    """One supervised conversation as token ids; ``weights`` has one entry per id of the reply."""

    kind: str
    prompt: list[int]
    reply: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Shares:
    """The mix of turns, as shares from 0 to 1.

    ``direct`` of all turns answer from a chunk, ``answers`` of the others from a memory, and the rest read. In the
    share ``several`` of read turns, and half of it of answer turns, the question's key has several values, so that the
    value to copy next is the one not copied yet. In the share ``twice`` of turns the memory repeats statements; replies
    never do.
    """

    answers: float = 0.4
    several: float = 0.0
    twice: float = 0.0
    direct: float = 0.0


class Teacher:
    """Writes supervised turns in the wording of a template; a pure function of the generator passed to each call."""

    def __init__(self, tokenizer: Tokenizer, aware: bool = False, template: str = "short"):
        self.tokenizer = tokenizer
        self.template = Template.load(template)
        self.aware = aware
        self.end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
        self.verb = tokenizer.encode(" is")[-1]
        self.words = [tokenizer.encode(f" {word}")[0] for word in world.WORDS]
        self.costs = {text: tokenizer.count(f" {text}") for text in world.FILLER}

    def turn(self, rng: random.Random, width: int, shares: Shares = Shares()) -> Supervised:
        """Draw a turn with a chunk of at most ``width`` tokens, or an answer turn, in the ``shares``."""
        if shares.direct and rng.random() < shares.direct:
            return self.direct(rng, width)
        if rng.random() < shares.answers:
            return self.answer(rng, shares.several / 2, shares.twice)
        read = self.ideal_read if self.aware else self.read
        return read(rng, width, shares.several, shares.twice)

    def read(self, rng: random.Random, width: int, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """Draw a read turn whose reply is a random subset of the statements in memory and chunk, in order.

        Half of the turns contain statements that the question needs, which are treated as any other.
        """
        of_one_key = several > 0 and rng.random() < several
        question = world.random_question(rng.choice(_OF_ONE_KEY if of_one_key else list(QuestionKind)), rng)
        remembered: list[Triple] = []
        new: list[Triple] = []
        if of_one_key or rng.random() < 0.5:
            remembered, new = _dealt(question, rng)
        memory = self._memory(rng, question, remembered, twice)
        if of_one_key:
            crowd = Crowd(density=rng.uniform(0.0, 0.3), half_matching=0.6)
        else:
            crowd = Crowd(density=rng.uniform(0.3, 0.7))
        text = self._chunk(rng, question, new, int(width * rng.uniform(0.75, 1.0)), crowd)
        known = without_repeats([*memory, *statements_in(text)])
        reply = subset(known, rng, rng.randint(0, MEMORY_STATEMENTS))
        return self._read_turn("read", question, memory, text, reply)

    def ideal_read(self, rng: random.Random, width: int, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """Draw a read turn whose reply is the ideal memory, after a memory (ideal or crowded) and a crowded chunk.

        In four turns in five these contain something that the question needs, as a rule beside complete decoys.
        """
        of_one_key = several > 0 and rng.random() < several
        kind = rng.choice(_OF_ONE_KEY if of_one_key else list(QuestionKind))
        question, decoys = world.disjoint_questions(kind, rng, 2)
        remembered, new = _dealt(question, rng) if rng.random() < 0.8 else ([], [])
        for decoy in decoys:
            before, after = _dealt(decoy, rng)
            remembered = merged(remembered, before, rng)
            new = merged(new, after[:1], rng)
        recalled: list[Triple] = []
        if rng.random() < 0.85:
            recalled = parsed(ideal(question, [triple.text for triple in remembered]))
        memory = self._memory(rng, question, recalled, twice)
        crowd = _hard_crowd(rng)
        text = self._chunk(rng, question, new, int(width * rng.uniform(0.75, 1.0)), crowd, decoys)
        return self._read_turn("ideal", question, memory, text, ideal(question, [*memory, *statements_in(text)]))

    def answer(self, rng: random.Random, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """Draw an answer turn; two memories in three contain something that the question needs."""
        # Of updates only the last value counts, so only several values ask for a choice in the answer.
        kinds = [QuestionKind.MULTIVALUE] if several and rng.random() < several else list(QuestionKind)
        question = world.random_question(rng.choice(kinds), rng)
        chance = rng.random()
        remembered: list[Triple] = []
        if chance < 0.5:
            remembered = list(question.triples)
        elif chance < 0.75:
            remembered, _ = _dealt(question, rng)
        memory = self._memory(rng, question, remembered, twice)
        if self.aware and rng.random() < 0.5:
            memory = ideal(question, memory)
        prompt = Prompt(Kind.ANSWER, question.text, " ".join(memory))
        return self._turn(str(question.kind), prompt, answer_from(question, memory))

    def direct(self, rng: random.Random, width: int) -> Supervised:
        """Draw an answer from a chunk that is crowded with statements about half-matching keys and the key itself.

        Half of the chunks lack what the question needs, or some of it.
        """
        question = world.random_question(rng.choice(list(QuestionKind)), rng)
        whole = rng.random() < 0.5
        stated = [triple for triple in question.triples if whole or rng.random() < 0.4]
        crowd = _hard_crowd(rng)
        text = self._chunk(rng, question, stated, int(width * rng.uniform(0.5, 1.0)), crowd)
        prompt = Prompt(Kind.DIRECT, question.text, chunk=Chunk(0, text, 0, len(text), 0))
        return self._turn("direct", prompt, answer_from(question, statements_in(text)))

    def drill(self, rng: random.Random, size: int = 6) -> Supervised:
        """Draw statements, then the same in another order: a value can only be looked up, by both words of its key."""
        adjectives = rng.sample(world.ADJECTIVES, 3)
        nouns = rng.sample(world.NOUNS, 3)
        keys = rng.sample([f"{adjective} {noun}" for adjective in adjectives for noun in nouns], size)
        codes = rng.sample(world.CODES, size)
        statements = [f" {Triple('code', key, code).text}" for key, code in zip(keys, codes, strict=True)]
        reply = self.tokenizer.encode("".join(rng.sample(statements, size)))
        weights = [0.1] * len(reply)  # the order of keys is random, so only values can be learnt in full
        for i, token in enumerate(reply):
            if token == self.verb:
                weights[i + 1] = 1.0
        return Supervised("drill", self.tokenizer.encode("".join(statements)), reply, weights)

    def repeat(self, rng: random.Random, length: int) -> Supervised:
        """Draw random words, twice: the densest lesson in copying."""
        words = [rng.choice(self.words) for _ in range(length)]
        # The first word repeats nothing that was begun, so it cannot be foreseen.
        return Supervised("repeat", words, words[:], [0.0, *[1.0] * (length - 1)])

    def _read_turn(
        self, kind: str, question: Question, memory: Sequence[str], text: str, reply: Sequence[str]
    ) -> Supervised:
        prompt = Prompt(Kind.READ, question.text, " ".join(memory), Chunk(0, text, 0, len(text), 0))
        return self._turn(kind, prompt, " ".join(reply) or self.template.empty_memory)

    def _turn(self, kind: str, prompt: Prompt, reply: str) -> Supervised:
        ids = [*self.tokenizer.encode(reply), self.end]
        return Supervised(kind, self.tokenizer.chat(self.template.render(prompt)), ids, [1.0] * len(ids))

    def _memory(self, rng: random.Random, question: Question, remembered: Sequence[Triple], twice: float) -> list[str]:
        """Return the statements of a memory: those ``remembered`` in order, among others that fill it up."""
        size = rng.randint(0, MEMORY_STATEMENTS)
        crowd = Crowd(density=1.0, half_matching=0.5)
        others = crowd.sentences(rng, question, (), max(0, size - len(remembered)))
        memory = merged([triple.text for triple in remembered], others, rng)
        if memory and rng.random() < twice:
            return with_repeats(memory, rng)
        return memory

    def _chunk(
        self,
        rng: random.Random,
        question: Question,
        stated: Sequence[Triple],
        width: int,
        crowd: Crowd,
        decoys: Sequence[Question] = (),
    ) -> str:
        """Return a text of about ``width`` tokens with all ``stated`` triples in order."""
        needed = {triple.text for triple in stated}
        others = crowd.sentences(rng, question, decoys, width // 6)
        room = width - sum(self._cost(text) for text in needed)
        chosen = []
        for text in merged([triple.text for triple in stated], others, rng):
            if text not in needed:
                room -= self._cost(text)
            if room >= 0 or text in needed:
                chosen.append(text)
        return " ".join(chosen)

    def _cost(self, text: str) -> int:
        """Return the tokens of a sentence; every word of a statement and its full stop are one token each."""
        return self.costs.get(text, 9 if " the " in text else 7)


def _dealt(question: Question, rng: random.Random) -> tuple[list[Triple], list[Triple]]:
    """Deal the needed triples to memory and chunk: some of the earlier ones, and some of the later ones."""
    cut = rng.randint(0, len(question.triples))
    remembered = [triple for triple in question.triples[:cut] if rng.random() < 0.8]
    new = [triple for triple in question.triples[cut:] if rng.random() < 0.8]
    return remembered[-MEMORY_STATEMENTS:], new[:3]


def _hard_crowd(rng: random.Random) -> Crowd:
    """Draw a crowd of up to nothing but statements, most about half-matching keys and some about the key itself."""
    return Crowd(density=rng.uniform(0.3, 1.0), half_matching=rng.uniform(0.35, 0.95), same_key=0.1)


def merged(one: Sequence[T], other: Sequence[T], rng: random.Random) -> list[T]:
    """Merge two lists at random; the order within each stays."""
    total = len(one) + len(other)
    from_one = set(rng.sample(range(total), len(one)))
    first = iter(one)
    second = iter(other)
    return [next(first) if i in from_one else next(second) for i in range(total)]


def with_repeats(statements: Sequence[str], rng: random.Random) -> list[str]:
    """Draw a full memory of one to three of the statements, some of them more than once, in any order."""
    few = rng.sample(statements, min(len(statements), rng.randint(1, MEMORY_STATEMENTS - 1)))
    return rng.sample([*few, *rng.choices(few, k=MEMORY_STATEMENTS - len(few))], MEMORY_STATEMENTS)


def without_repeats(statements: Sequence[str]) -> list[str]:
    """Return each statement once, at its last position."""
    return list(dict.fromkeys(reversed(statements)))[::-1]


def subset(known: Sequence[str], rng: random.Random, most: int = MEMORY_STATEMENTS) -> list[str]:
    """Draw ``most`` of the statements, or all if there are fewer, in order."""
    return [known[i] for i in sorted(rng.sample(range(len(known)), min(most, len(known))))]


def ideal(question: Question, known: Sequence[str]) -> list[str]:
    """Return the memory of a reader that knows the question: the statements that the answer would recite.

    The missing one is stated as unknown. In a bridge whose first hop is unknown yet, the last
    :data:`MEMORY_STATEMENTS` - 1 codes of people follow.
    """
    recited, _ = recital(question, known)
    if question.kind is QuestionKind.BRIDGE and recited[0].value == world.UNKNOWN:
        triples = parsed(without_repeats(known))
        codes = [triple for triple in triples if triple.relation == "code" and " " not in triple.key]
        recited = [recited[0], *codes[1 - MEMORY_STATEMENTS :]]
    return [triple.text for triple in recited[-MEMORY_STATEMENTS:]]


def statements_in(text: str) -> list[str]:
    """Return the sentences of a text that are statements."""
    return [match.group() for match in _STATEMENT.finditer(text)]


def parsed(statements: Sequence[str]) -> list[Triple]:
    """Return the triples of statements; other sentences are skipped."""
    matches = [_STATEMENT.fullmatch(text) for text in statements]
    return [Triple(*match.groups()) for match in matches if match]


def recital(question: Question, memory: Sequence[str]) -> tuple[list[Triple], list[str]]:
    """Return the triples that an answer recites from a memory, each value right after its key, and the boxed values."""
    known = [triple for triple in parsed(without_repeats(memory)) if triple.value != world.UNKNOWN]
    recited: list[Triple] = []

    def find(relation: str, key: str) -> list[Triple]:
        return [triple for triple in known if (triple.relation, triple.key) == (relation, key)]

    def recite(relation: str, key: str) -> str:
        """Recite and return the last such value in memory, or unknown."""
        found = find(relation, key)
        recited.append(found[-1] if found else Triple(relation, key, world.UNKNOWN))
        return recited[-1].value

    key = question.keys[0]
    if question.kind is QuestionKind.MULTIVALUE:
        codes = find("code", key)
        if codes:
            return codes, [triple.value for triple in codes]
    if question.kind is QuestionKind.BRIDGE:
        key = recite("keeper", key)
    # A memory's false link may close a circle: a recital is never longer than a memory.
    while question.kind is QuestionKind.CHAIN and find("friend", key) and len(recited) < MEMORY_STATEMENTS:
        key = recite("friend", key)
    if question.kind in (QuestionKind.BRIDGE, QuestionKind.CHAIN):
        return recited, [recite("code", key) if key != world.UNKNOWN else world.UNKNOWN]
    return recited, [recite("code", each) for each in question.keys]


def answer_from(question: Question, memory: Sequence[str]) -> str:
    """Return the reply that a memory allows: what it recites, then the box."""
    recited, values = recital(question, memory)
    return " ".join([*(triple.text for triple in recited), rf"\boxed{{ {', '.join(values)}}}"])
