"""Supervised turns that teach a policy to copy statements into a new memory, and to answer from a memory.

The target of a read turn ignores the question: it is a random subset of the statements in old memory and chunk, in
order, and at most as many as a memory has room for. The policy thus learns neither what to remember nor how much. For
the upper bound, an ``aware`` teacher writes the ideal memory instead: those statements read so far that the answer
would recite, and nothing else. The target of an answer turn looks up the needed statements in memory, follows links,
or answers unknown.
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
DRILLED = 6
"""The statements of a drill."""
_OF_ONE_KEY = (QuestionKind.MULTIVALUE, QuestionKind.UPDATE)
_STATEMENT = re.compile(r"The (\w+) of (?:the )?([\w ]+?) is (\w+)\.")


class Supervised(NamedTuple):
    """A supervised conversation as token ids. ``weights`` has the loss weight of each token of the reply."""

    kind: str
    prompt: list[int]
    reply: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Shares:
    """The mix of turns, as shares from 0 to 1.

    ``direct`` is the share of turns that answer from a chunk. Of the others, ``answers`` is the share that answer from
    a memory; the rest are read turns. ``several`` is the share of read turns, and ``several / 2`` that of answer turns,
    in which the question's key has several values, so that the policy must copy the one that it has not copied yet.
    ``twice`` is the share of turns whose memory repeats statements, which replies never do.
    """

    answers: float = 0.4
    several: float = 0.0
    twice: float = 0.0
    direct: float = 0.0


class Teacher:
    """Writes supervised turns in a template's wording. Each depends only on the random generator passed to the call."""

    def __init__(self, tokenizer: Tokenizer, aware: bool = False, template: str = "short"):
        self.tokenizer = tokenizer
        self.template = Template.load(template)
        self.aware = aware
        self.end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
        self.verb = tokenizer.encode(" is")[-1]  # the value of a statement follows it
        self.words = [tokenizer.encode(f" {word}")[0] for word in world.WORDS]
        self.costs = {text: tokenizer.count(f" {text}") for text in world.FILLER}

    def turn(self, rng: random.Random, width: int, shares: Shares = Shares()) -> Supervised:
        """Draw a turn, of a kind drawn according to ``shares``. Its chunk has at most ``width`` tokens."""
        if shares.direct and rng.random() < shares.direct:
            return self.direct(rng, width)
        if rng.random() < shares.answers:
            return self.answer(rng, shares.several / 2, shares.twice)
        read = self.ideal_read if self.aware else self.read
        return read(rng, width, shares.several, shares.twice)

    def read(self, rng: random.Random, width: int, several: float = 0.0, twice: float = 0.0) -> Supervised:
        """Draw a read turn whose reply is a random subset of the statements in memory and chunk, in order.

        Half of the turns contain statements that the question needs, which are treated like any other.
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
        """Draw a read turn whose reply is the ideal memory.

        The old memory is ideal, or crowded like the chunk. In up to four of five turns, memory or chunk has something
        that the question needs, usually among complete decoys.
        """
        of_one_key = several > 0 and rng.random() < several
        kind = rng.choice(_OF_ONE_KEY if of_one_key else list(QuestionKind))
        question, decoys = world.disjoint_questions(kind, rng, 2)
        remembered: list[Triple] = []
        new: list[Triple] = []
        if rng.random() < 0.8:
            remembered, new = _dealt(question, rng)
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
        """Draw an answer turn. About two of three memories contain something that the question needs."""
        # For updates only the last value counts, so only the other kind makes an answer copy several values of a key.
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
        """Draw a turn that answers from a chunk, which is crowded with statements about half-matching keys.

        Half of the chunks lack some or all of what the question needs.
        """
        question = world.random_question(rng.choice(list(QuestionKind)), rng)
        whole = rng.random() < 0.5
        stated = [triple for triple in question.triples if whole or rng.random() < 0.4]
        crowd = _hard_crowd(rng)
        text = self._chunk(rng, question, stated, int(width * rng.uniform(0.5, 1.0)), crowd)
        prompt = Prompt(Kind.DIRECT, question.text, chunk=Chunk(0, text, 0, len(text), 0))
        return self._turn("direct", prompt, answer_from(question, statements_in(text)))

    def drill(self, rng: random.Random) -> Supervised:
        """Draw statements to be repeated in another order, so that every value must be looked up by its whole key."""
        adjectives = rng.sample(world.ADJECTIVES, 3)
        nouns = rng.sample(world.NOUNS, 3)
        keys = rng.sample([f"{adjective} {noun}" for adjective in adjectives for noun in nouns], DRILLED)
        codes = rng.sample(world.CODES, DRILLED)
        statements = [f" {Triple('code', key, code).text}" for key, code in zip(keys, codes, strict=True)]
        reply = self.tokenizer.encode("".join(rng.sample(statements, DRILLED)))
        weights = [0.1] * len(reply)  # the order of keys is random, so only values can be learnt in full
        for i, token in enumerate(reply):
            if token == self.verb:
                weights[i + 1] = 1.0
        return Supervised("drill", self.tokenizer.encode("".join(statements)), reply, weights)

    def repeat(self, rng: random.Random, length: int) -> Supervised:
        """Draw random words to be repeated: the lesson with the most copied tokens per turn."""
        words = [rng.choice(self.words) for _ in range(length)]
        # Nothing before the first word shows that the repetition begins, so it cannot be predicted.
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
        """Return the statements of a memory: ``remembered`` ones in order, with others between them up to its size."""
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
        """Return a text of about ``width`` tokens that states all triples in ``stated``, in order."""
        needed = {triple.text for triple in stated}
        others = crowd.sentences(rng, question, decoys, width // 6)  # no sentence is shorter than six tokens
        room = width - sum(self._cost(text) for text in needed)
        chosen = []
        for text in merged([triple.text for triple in stated], others, rng):
            if text not in needed:
                room -= self._cost(text)
            if room >= 0 or text in needed:
                chosen.append(text)
        return " ".join(chosen)

    def _cost(self, text: str) -> int:
        """Return how many tokens a sentence has; in a statement, each word and the full stop is one token."""
        return self.costs.get(text, 9 if " the " in text else 7)


def _dealt(question: Question, rng: random.Random) -> tuple[list[Triple], list[Triple]]:
    """Draw which of the triples that a question needs are in memory (earlier ones) and in the chunk (later ones)."""
    cut = rng.randint(0, len(question.triples))
    remembered = [triple for triple in question.triples[:cut] if rng.random() < 0.8]
    new = [triple for triple in question.triples[cut:] if rng.random() < 0.8]
    return remembered[-MEMORY_STATEMENTS:], new[:3]


def _hard_crowd(rng: random.Random) -> Crowd:
    """Draw a crowd that may have no filler, with many half-matching keys and some statements about the key itself."""
    return Crowd(density=rng.uniform(0.3, 1.0), half_matching=rng.uniform(0.35, 0.95), same_key=0.1)


def merged(one: Sequence[T], other: Sequence[T], rng: random.Random) -> list[T]:
    """Merge two lists in random order, without changing the order within either list."""
    total = len(one) + len(other)
    from_one = set(rng.sample(range(total), len(one)))
    first = iter(one)
    second = iter(other)
    return [next(first) if i in from_one else next(second) for i in range(total)]


def with_repeats(statements: Sequence[str], rng: random.Random) -> list[str]:
    """Draw a full memory that has one to three of the statements, some of them repeated, in any order."""
    few = rng.sample(statements, min(len(statements), rng.randint(1, MEMORY_STATEMENTS - 1)))
    return rng.sample([*few, *rng.choices(few, k=MEMORY_STATEMENTS - len(few))], MEMORY_STATEMENTS)


def without_repeats(statements: Sequence[str]) -> list[str]:
    """Return the statements without repeats. Of equal statements, the last one remains."""
    return list(dict.fromkeys(reversed(statements)))[::-1]


def subset(known: Sequence[str], rng: random.Random, most: int = MEMORY_STATEMENTS) -> list[str]:
    """Draw ``most`` of the statements, or all if there are fewer, without changing their order."""
    return [known[i] for i in sorted(rng.sample(range(len(known)), min(most, len(known))))]


def ideal(question: Question, known: Sequence[str]) -> list[str]:
    """Return the ideal memory for a question: those of the ``known`` statements that the answer would recite.

    A missing statement is included with the value unknown. For a bridge whose first hop is not known yet, the last
    :data:`MEMORY_STATEMENTS` - 1 codes of people are added.
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
    """Return statements as triples. Other sentences are skipped."""
    matches = [_STATEMENT.fullmatch(text) for text in statements]
    return [Triple(*match.groups()) for match in matches if match]


def recital(question: Question, memory: Sequence[str]) -> tuple[list[Triple], list[str]]:
    """Return the triples that an answer recites from a memory, in order, and the values that it puts in the box."""
    known = [triple for triple in parsed(without_repeats(memory)) if triple.value != world.UNKNOWN]
    recited: list[Triple] = []

    def find(relation: str, key: str) -> list[Triple]:
        return [triple for triple in known if (triple.relation, triple.key) == (relation, key)]

    def recite(relation: str, key: str) -> str:
        """Recite the last statement in memory about ``relation`` and ``key``; return its value, or unknown."""
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
    # A false link in memory may close a circle, so a recital is limited to the length of a memory.
    while question.kind is QuestionKind.CHAIN and find("friend", key) and len(recited) < MEMORY_STATEMENTS:
        key = recite("friend", key)
    if question.kind in (QuestionKind.BRIDGE, QuestionKind.CHAIN):
        return recited, [recite("code", key) if key != world.UNKNOWN else world.UNKNOWN]
    return recited, [recite("code", each) for each in question.keys]


def answer_from(question: Question, memory: Sequence[str]) -> str:
    """Return the best reply that a memory allows: the recited statements, then the box."""
    recited, values = recital(question, memory)
    return " ".join([*(triple.text for triple in recited), rf"\boxed{{ {', '.join(values)}}}"])
