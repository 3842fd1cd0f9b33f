"""The pocket policy's world: things and people with codes, keepers and friends. Every statement is a short sentence.

Six kinds of questions use the same sentences, so no kind of sentence is always worth remembering. A question is about
one code among those of things with half-matching names, several codes of one thing, the codes of two things, a two-hop
bridge, the last of several updates, or a chain. Every document also has decoys, the complete answers to questions of
the same kind about other keys. They are stated as often as the answer.

These documents show what their question is about, because only its key shares words with many others. Published rows
of the studies are from this world; new work uses ``fair_world.py``. Nothing here depends on a model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from memagent_lib.data import (
    Example,
    ExampleKey,
    Layout,
    Length,
    Meter,
    NotNegative,
    Preset,
    Share,
    Span,
    end_of_chunks,
    fill_chunks,
    join,
    terms,
)
from memagent_lib.text import Tokenizer

# Each of these words is one token of the committed weights, so the lists are fixed and are not the library's own.
ADJECTIVES = terms(
    "amber bold brave bright bronze calm clever copper coral cosy crimson curly dusty eager fancy fierce gentle golden "
    "happy hazel humble ivory jolly lively lucky mellow merry misty noble olive proud quiet rusty scarlet shy silver "
    "sleepy swift velvet violet"
)
NOUNS = terms(
    "badger beaver camel cheetah crab crane dolphin donkey eagle falcon ferret finch gecko goat heron hornet ibis "
    "jackal koala lemur lizard llama lobster magpie mole moose newt otter owl panda parrot pigeon rabbit raven "
    "salmon seal spider swan tiger walrus"
)
FILLER = (
    "A small boat drifts past the old mill.",
    "Rain taps on the roof all night.",
    "The baker opens his shop at dawn.",
    "Two children fly a kite on the hill.",
    "Smoke curls up from a distant chimney.",
    "A train hums across the long bridge.",
    "Leaves gather beside the garden wall.",
    "The clock in the hall has stopped.",
    "Someone left a lamp on by the stairs.",
    "Fresh snow covers the road to town.",
    "The choir sings every Sunday morning.",
    "A dog sleeps in the shade of a cart.",
)
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
UNKNOWN = "unknown"
"""What a memory and an answer state as the value if no text states one."""
WORDS = (*ADJECTIVES, *NOUNS, *NAMES, *CODES)
MOST_APART = 0.2  # a share of the document, which must fit the five statements of a chain
SHORTEST_SENTENCE_TOKENS = 6


class QuestionKind(StrEnum):
    NEEDLE = "needle"
    MULTIVALUE = "multivalue"
    MULTIKEY = "multikey"
    BRIDGE = "bridge"
    UPDATE = "update"
    CHAIN = "chain"


_WORDING = {
    QuestionKind.NEEDLE: "What is the code of {}?",
    QuestionKind.MULTIVALUE: "What are all codes of {}?",
    QuestionKind.MULTIKEY: "What are the codes of {} and {}?",
    QuestionKind.UPDATE: "What is the last code of {}?",
    QuestionKind.BRIDGE: "What is the code of the keeper of {}?",
    QuestionKind.CHAIN: "What is the code after the friends of {}?",
}


@dataclass(frozen=True, slots=True)
class Triple:
    """A statement: ``The {relation} of {key} is {value}.`` A thing's key has two words; a person's key is a name."""

    relation: str
    key: str
    value: str

    @property
    def text(self) -> str:
        return f"The {self.relation} of {with_article(self.key)} is {self.value}."


def with_article(key: str) -> str:
    """Return a key as it is written in a sentence: a thing with its article, a person without one."""
    return f"the {key}" if " " in key else key


def question_text(kind: QuestionKind, keys: Sequence[str]) -> str:
    """Return the text of a question. A question of the kind ``multikey`` has two keys, any other has one."""
    return _WORDING[kind].format(*map(with_article, keys))


@dataclass(frozen=True, slots=True)
class Question:
    """A question about ``keys``, the triples that its answer requires, and the accepted answers.

    The triples of an ``ordered`` question must be stated in this order.
    """

    kind: QuestionKind
    keys: tuple[str, ...]
    triples: tuple[Triple, ...]
    answers: tuple[str, ...]
    ordered: bool = False

    @property
    def text(self) -> str:
        return question_text(self.kind, self.keys)

    @property
    def rule(self) -> str:
        """The name of the judge. If there are several answers, the score is the share of them that the reply has."""
        if self.kind in (QuestionKind.MULTIVALUE, QuestionKind.MULTIKEY):
            return "items"
        return "boxed"


def random_thing(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def random_question(kind: QuestionKind, rng: random.Random, backward: float = 0.5) -> Question:
    """Draw a question with its triples. ``backward`` is the probability that a bridge's second hop is stated first."""
    if kind is QuestionKind.BRIDGE:
        return _bridge(rng, backward)
    if kind is QuestionKind.CHAIN:
        return _chain(rng)
    if kind is QuestionKind.MULTIKEY:
        adjectives = rng.sample(ADJECTIVES, 2)
        nouns = rng.sample(NOUNS, 2)
        keys = tuple(map(" ".join, zip(adjectives, nouns, strict=True)))
        codes = tuple(rng.sample(CODES, 2))
        return Question(kind, keys, tuple(Triple("code", *pair) for pair in zip(keys, codes, strict=True)), codes)
    # Both numbers are drawn for every kind, because the committed data sets depend on this order of draws.
    counts = {
        QuestionKind.NEEDLE: 1,
        QuestionKind.MULTIVALUE: rng.randint(2, 3),
        QuestionKind.UPDATE: rng.randint(2, 4),
    }
    key = random_thing(rng)
    codes = rng.sample(CODES, counts[kind])
    is_update = kind is QuestionKind.UPDATE
    answers = codes[-1:] if is_update else codes
    triples = tuple(Triple("code", key, code) for code in codes)
    return Question(kind, (key,), triples, tuple(answers), ordered=is_update)


def _bridge(rng: random.Random, backward: float) -> Question:
    thing = random_thing(rng)
    person = rng.choice(NAMES)
    code = rng.choice(CODES)
    triples = (Triple("keeper", thing, person), Triple("code", person, code))
    if rng.random() < backward:
        triples = triples[::-1]
    return Question(QuestionKind.BRIDGE, (thing,), triples, (code,), ordered=True)


def _chain(rng: random.Random) -> Question:
    people = rng.sample(NAMES, rng.randint(2, 4))
    code = rng.choice(CODES)
    links = [Triple("friend", a, b) for a, b in pairwise(people)]
    triples = (*links, Triple("code", people[-1], code))
    return Question(QuestionKind.CHAIN, (people[0],), triples, (code,), ordered=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The sentences around a question's own statements. ``density`` is the share that are statements, not filler.

    The other fields are shares of these statements: ``half_matching`` ones are about a thing that has one word of the
    question's key; ``same_key`` ones have the question's key but another relation (the keeper of a thing whose code is
    the answer); ``repeated`` ones contradict an earlier statement about another key.
    """

    density: Share = 0.5
    half_matching: Share = 0.35
    same_key: Share = 0.05
    repeated: Share = 0.25

    def sentences(self, rng: random.Random, question: Question, decoys: Sequence[Question], count: int) -> list[str]:
        """Draw ``count`` sentences of filler and of statements that answer neither the question nor its decoys."""
        crowd = _CrowdedText(self, rng, question, decoys)
        return [crowd.statement() if rng.random() < self.density else rng.choice(FILLER) for _ in range(count)]


class _CrowdedText:
    """Draws the statements around a question's own, and remembers recent ones so that it can contradict them."""

    def __init__(self, crowd: Crowd, rng: random.Random, question: Question, decoys: Sequence[Question]):
        self.crowd = crowd
        self.rng = rng
        self.kind = question.kind
        self.reserved = {triple.key for one in (question, *decoys) for triple in one.triples}
        self.things = [triple.key for triple in question.triples if " " in triple.key] or [random_thing(rng)]
        self.beside = _beside(question)
        self.recent: list[Triple] = []

    def statement(self) -> str:
        rng = self.rng
        if self.beside and rng.random() < self.crowd.same_key:
            relation, key = rng.choice(self.beside)
            return Triple(relation, key, rng.choice(_values(relation))).text
        if self.recent and rng.random() < self.crowd.repeated:
            old = rng.choice(self.recent)
            return Triple(old.relation, old.key, other(rng, _values(old.relation), {old.value})).text
        return self._new_triple().text

    def _new_triple(self) -> Triple:
        rng = self.rng
        kinds = (("code", True), ("keeper", True), ("code", False), ("friend", False))
        people_codes = 0.0 if self.kind is QuestionKind.BRIDGE else 0.15  # a bridge's second hop is a person's code
        relation, is_thing = rng.choices(kinds, (0.5, 0.2, people_codes, 0.15))[0]
        key = self._thing() if is_thing else other(rng, NAMES, self.reserved)
        triple = Triple(relation, key, rng.choice(_values(relation)))
        if relation == "code" and is_thing:
            self.recent.append(triple)
            del self.recent[:-8]  # only a contradiction of a recent statement can confuse a memory
        return triple

    def _thing(self) -> str:
        rng = self.rng
        while True:
            adjective, noun = random_thing(rng).split()
            if rng.random() < self.crowd.half_matching:
                shared = rng.choice(self.things).split()
                adjective, noun = rng.choice(((shared[0], noun), (adjective, shared[1])))
            if f"{adjective} {noun}" not in self.reserved:
                return f"{adjective} {noun}"


def _beside(question: Question) -> list[tuple[str, str]]:
    """Return relations and keys of statements that share a key with the needed ones but do not affect the answer.

    For a chain there are none, because any other statement about its people would make it longer.
    """
    needed = {(triple.relation, triple.key) for triple in question.triples}
    if question.kind is QuestionKind.CHAIN:
        return []
    found = []
    for key in sorted({key for _, key in needed}):
        relations = ("code", "keeper") if " " in key else ("code", "friend")
        found += [(relation, key) for relation in relations if (relation, key) not in needed]
    return found


def other(rng: random.Random, words: Sequence[str], taken: set[str]) -> str:
    """Draw one of ``words`` that is not in ``taken``."""
    word = rng.choice(words)
    while word in taken:
        word = rng.choice(words)
    return word


def _values(relation: str) -> Sequence[str]:
    return CODES if relation == "code" else NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketTask(Crowd):
    """Questions of the kind ``ask``, or of a kind drawn for each example if ``ask`` lists several, separated by commas.

    ``decoys`` is the number of other questions that the document answers. ``backward`` is the share of bridges whose
    second hop is stated first. A bridge's document states codes only for the person in question and the decoys'
    people, so that a memory has room for all of them. ``untold`` is the share of examples whose text states nothing
    that the question needs: the answer is ``unknown``, and a memory that takes a half-matching statement for the right
    one is wrong. ``apart`` is the least distance between ordered statements, such as the values of an update, as a
    share of the document. If it is above 1 / chunks, no chunk has two of them. With ``about_decoy`` the documents are
    the same but the question is about their first decoy: a policy that finds the key by its frequent words is wrong.
    """

    ask: str = "needle"
    decoys: NotNegative = 2
    backward: Share = 0.5
    untold: Share = 0.0
    apart: Share = 0.0
    about_decoy: bool = False

    def __post_init__(self) -> None:
        if not set(self.ask.split(",")) <= set(QuestionKind):
            kinds = ", ".join(QuestionKind)
            raise ValueError(f"ask must be one of {kinds}, or several with commas, got {self.ask!r}")
        if self.apart > MOST_APART:
            raise ValueError(
                f"apart must be at most {MOST_APART}, as some questions need five statements, got {self.apart}"
            )

    def plan(self, key: ExampleKey) -> PocketTask:
        return self

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        chunks = key.length.whole_chunks
        rng = key.rng()
        kind = QuestionKind(rng.choice(self.ask.split(",")))
        question, decoys = disjoint_questions(kind, rng, self.decoys, self.backward)
        untold = self.untold > 0 and rng.random() < self.untold  # nothing is drawn at 0, so older documents stay
        text, evidence = document(question, decoys, self, rng, key.length, meter.tokenizer, untold, self.apart)
        name = ""
        if self.about_decoy:
            name = "_decoy"
            question, evidence = _first_stated(decoys, text, key)
        if kind is QuestionKind.UPDATE:
            evidence = evidence[-1:]  # a memory does not need values that are out of date
        return Example(
            id=f"{key.id}{name}",
            task=f"pocket_{kind}{name}",
            question=question.text,
            document=text,
            answers=(UNKNOWN,) if untold and not self.about_decoy else question.answers,
            rule=question.rule,
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


def _first_stated(decoys: Sequence[Question], text: str, key: ExampleKey) -> tuple[Question, tuple[Span, ...]]:
    """Return the first decoy that a document answers, and the spans of its statements."""
    for decoy in decoys:
        starts = [text.find(triple.text) for triple in decoy.triples]
        if min(starts) >= 0:
            lengths = [len(triple.text) for triple in decoy.triples]
            return decoy, tuple(Span(start, start + n) for start, n in zip(starts, lengths, strict=True))
    raise ValueError(f"{key.length.label} is too short for a decoy in document {key.index}; request more chunks")


def disjoint_questions(
    kind: QuestionKind, rng: random.Random, decoys: int, backward: float = 0.5
) -> tuple[Question, list[Question]]:
    """Draw a question and ``decoys`` questions of the same kind. No two of them share a key or a value."""
    found: list[Question] = []
    taken: set[str] = set()
    while len(found) <= decoys:
        question = random_question(kind, rng, backward)
        # A decoy that shares a person or a code would be evidence for the question, or contradict it.
        words = {word for triple in question.triples for word in (triple.key, triple.value)}
        if not words & taken:
            taken |= words
            found.append(question)
    return found[0], found[1:]


def document(
    question: Question,
    decoys: Sequence[Question],
    crowd: Crowd,
    rng: random.Random,
    length: Length,
    tokenizer: Tokenizer,
    untold: bool = False,
    apart: float = 0.0,
) -> tuple[str, tuple[Span, ...]]:
    """Return a document of ``length``, and the spans of the question's statements in it.

    Statements replace sentences at uniformly random positions. With ``untold``, the question's own statements are left
    out. A very short document has no decoys.
    """
    # More than can fit, so that the document ends at the cut and not because sentences ran out.
    sentences = crowd.sentences(rng, question, decoys, length.limit // SHORTEST_SENTENCE_TOKENS + 2)
    if untold:
        question = replace(question, triples=())
    room = count_sentences(sentences, length, tokenizer)
    stated = [question, *decoys]
    # With decoys, statements would fill most positions, and their depths would no longer be uniform.
    if room < 4 * sum(len(one.triples) for one in stated):
        stated = [question]
    depths = [random_depths(one, rng, apart) for one in stated]

    def lay_out(count: int) -> Layout:
        positions = positions_of(stated, depths, count)
        return replace_units(sentences, statements_at(stated, positions), positions[0], " ")

    layout = fill_chunks(lay_out, room, length, tokenizer, least=len(question.triples))
    return layout.text, tuple(layout.spans)


def count_sentences(sentences: Sequence[str], length: Length, tokenizer: Tokenizer) -> int:
    """Return how many of the sentences fit into ``length``, counting one that is cut at the end."""
    text = " ".join(sentences)
    return text.count(".", 0, end_of_chunks(text, length, tokenizer))  # every sentence ends in its only full stop


def random_depths(question: Question, rng: random.Random, apart: float) -> list[float]:
    """Draw a depth for each triple. Those of an ordered question increase by at least ``apart``."""
    depths = [rng.random() for _ in question.triples]
    if not question.ordered:
        return depths
    # Depths are drawn from the length without the gaps, which are then inserted: this is uniform over valid depths.
    free = 1 - apart * (len(depths) - 1)
    return [depth * free + apart * before for before, depth in enumerate(sorted(depths))]


def positions_of(questions: Sequence[Question], depths: Sequence[Sequence[float]], count: int) -> list[list[int]]:
    """Return the positions of each question's triples among ``count`` sentences. No two triples share one."""
    used: set[int] = set()
    return [free_positions(own, count, used, one.ordered) for one, own in zip(questions, depths, strict=True)]


def free_positions(depths: Sequence[float], count: int, used: set[int], ordered: bool = False) -> list[int]:
    """Return a position among ``count`` units for each depth, and add the positions to ``used``.

    If a depth's position is already in ``used``, the next free position is taken, even if it is beyond the last unit.
    With ``ordered``, positions increase.
    """
    found: list[int] = []
    for depth in depths:
        position = int(depth * count)
        if ordered and found:
            position = max(position, found[-1] + 1)
        # Not a new draw, so that the random numbers that follow do not depend on how crowded the document is.
        while position in used:
            position += 1
        used.add(position)
        found.append(position)
    return found


def replace_units(
    units: Sequence[str], statements: Mapping[int, str], positions: Sequence[int], separator: str
) -> Layout:
    """Replace units with ``statements`` (texts by position), join all units, and report the spans at ``positions``."""
    return join([statements.get(i, unit) for i, unit in enumerate(units)], positions, separator)


def statements_at(questions: Sequence[Question], positions: Sequence[Sequence[int]]) -> dict[int, str]:
    """Return the statements of questions by position."""
    return {
        position: triple.text
        for one, own in zip(questions, positions, strict=True)
        for triple, position in zip(one.triples, own, strict=True)
    }


def _preset(description: str, ask: str, chance: float = 0.01) -> Preset:
    task = PocketTask(ask=ask)
    return Preset(task=task, description=description, family="pocket world", chance=chance, chunk_tokens=96)


PRESETS = {
    "pocket_needle": _preset("one code among half-matching ones", "needle"),
    "pocket_multivalue": _preset("all of two or three codes of one thing", "multivalue"),
    "pocket_multikey": _preset("the codes of two things", "multikey"),
    "pocket_bridge": _preset("two hops, stated in either order", "bridge", chance=1 / 3),
    "pocket_update": _preset("the last of two to four codes", "update"),
    "pocket_chain": _preset("a chain of two to four links", "chain"),
    "pocket_mix": _preset("one of the six kinds, drawn for each example", ",".join(QuestionKind)),
}
