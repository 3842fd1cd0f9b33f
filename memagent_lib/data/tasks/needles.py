"""Needles in filler: codes of things, hidden among sentences that say nothing, or among codes of other things.

The place of the needle is uniform over the document.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from memagent_lib.data.drafting import ExampleKey, Length, Meter, end_of_chunks, starts_of
from memagent_lib.data.examples import Example, Span
from memagent_lib.data.tasks.presets import AtLeastOne, Preset, Share
from memagent_lib.data.tasks.words import terms

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
_SHORTEST_SENTENCE = 7  # tokens; no sentence of this world is shorter
_SENTENCES_PER_TOKEN = 1 / 11


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleTask:
    """A chunk holds the codes of ``distractors`` *other* things on average.

    ``half_matching`` is the share of them that have the asked thing's adjective or its noun, never both; ``half_alike``
    is the share of their codes that begin with one digit or more of the code asked for.
    """

    distractors: Annotated[float, Ge(0)] = 3.0
    half_matching: Share = 0.25
    half_alike: Share = 0.0
    digits: AtLeastOne = 4

    def plan(self, key: ExampleKey) -> NeedleTask:
        return self

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """One example; the document is as long as its chunks can hold, to the last character."""
        length, tokenizer = key.length, meter.tokenizer
        rng = random.Random(f"needle {key.seed}-{key.index} {length.whole_chunks} {length.chunk_tokens}")
        name, value, depth = random_key(rng), random_value(rng, self.digits), rng.random()
        enough = length.limit // _SHORTEST_SENTENCE + 2
        sentences = [self._sentence(length, rng, name, value) for _ in range(enough)]
        room = end_of_chunks(" ".join(sentences), length, tokenizer)
        fact = needle(name, value)
        starts = starts_of([*sentences, fact], " ")
        place = round(depth * sum(start <= room for start in starts[1:]))
        while True:
            text = " ".join((*sentences[:place], fact, *sentences[place:]))
            text = text[: end_of_chunks(text, length, tokenizer)].rstrip()
            if starts[place] + len(fact) <= len(text):
                break
            place -= 1
        return Example(
            id=key.id,
            task="needle",
            question=f"What is the code of the {' '.join(name)}?",
            document=text,
            answers=(value,),
            evidence=(Span(starts[place], starts[place] + len(fact)),),
            metadata={
                "chunks": length.chunks,
                "chunk_tokens": length.chunk_tokens,
                "depth": round(starts[place] / len(text), 4),
                "half_matching": self.half_matching,
                "half_alike": self.half_alike,
            },
        )

    def _sentence(self, length: Length, rng: random.Random, key: tuple[str, str], value: str) -> str:
        if rng.random() < self.distractors / (length.chunk_tokens * _SENTENCES_PER_TOKEN):
            other = other_key(rng, key, self.half_matching)
            return needle(other, other_value(rng, value, self.half_alike))
        return rng.choice(FILLER)


def needle(key: tuple[str, str], value: str) -> str:
    return f"The code of the {' '.join(key)} is {value}."


def random_key(rng: random.Random) -> tuple[str, str]:
    return rng.choice(ADJECTIVES), rng.choice(NOUNS)


def other_key(rng: random.Random, key: tuple[str, str], half_matching: float) -> tuple[str, str]:
    """The name of another thing, which in the share ``half_matching`` of cases has one word of ``key``."""
    adjective, noun = random_key(rng)
    while adjective == key[0]:
        adjective = rng.choice(ADJECTIVES)
    while noun == key[1]:
        noun = rng.choice(NOUNS)
    if rng.random() < half_matching:
        return (key[0], noun) if rng.random() < 0.5 else (adjective, key[1])
    return adjective, noun


def random_value(rng: random.Random, digits: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(digits))


def other_value(rng: random.Random, value: str, half_alike: float) -> str:
    """Another code, which in the share ``half_alike`` of cases has one to all but one first digits of ``value``."""
    same = rng.randint(1, len(value) - 1) if len(value) > 1 and half_alike and rng.random() < half_alike else 0
    return value[:same] + random_value(rng, len(value) - same)


PRESETS = {
    "needle": Preset(task=NeedleTask(), asks="a code among codes of other things", family="needles", chunk_tokens=128)
}
