"""Needle tasks: find the code of one thing among filler sentences and the codes of other things.

The needle, the sentence with the answer, is at a uniformly random position in the document.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from annotated_types import Ge

from memagent_lib.data.examples import Example
from memagent_lib.data.layout import Length, Meter, Statement, end_of_chunks, fill_chunks, insert
from memagent_lib.data.plans import ExampleKey, Preset, Share
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
_SHORTEST_SENTENCE_TOKENS = 7
_SENTENCES_PER_TOKEN = 1 / 11  # on average, of filler and codes


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleTask:
    """Questions about the code of one thing. On average, a chunk also states the codes of ``distractors`` other things.

    ``half_matching`` is the share of other things whose name has the adjective or the noun of the thing in question,
    but not both.
    """

    distractors: Annotated[float, Ge(0)] = 3.0
    half_matching: Share = 0.25

    def plan(self, key: ExampleKey) -> NeedleTask:
        return self

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """Return an example whose document ends at the end of its last chunk.

        Raises ``ValueError`` if its length is not in chunks, or if the chunks are too short for the needle.
        """
        length = key.length
        # Unlike in other tasks, the question depends on the length, because existing data sets depend on this seed.
        rng = random.Random(f"needle {key.seed}-{key.index} {length.whole_chunks} {length.chunk_tokens}")
        name = random_name(rng)
        code = random_code(rng)
        needle = Statement.needed(sentence(name, code), rng.random())
        # More than can fit, so that the document ends at the cut and not because sentences ran out.
        enough = length.limit // _SHORTEST_SENTENCE_TOKENS + 2
        others = [self._other_sentence(length, rng, name) for _ in range(enough)]
        room = end_of_chunks(" ".join(others), length, meter.tokenizer)
        within = sum(end <= room for end in accumulate(len(text) + 1 for text in others))
        document, (span,), _ = fill_chunks(
            lambda n: insert(others, [needle], " ", among=n), within, length, meter.tokenizer
        )
        return Example(
            id=key.id,
            task="needle",
            question=f"What is the code of the {' '.join(name)}?",
            document=document,
            answers=(code,),
            evidence=(span,),
            metadata={
                "chunks": length.chunks,
                "chunk_tokens": length.chunk_tokens,
                "depth": round(span.start / len(document), 4),
                "half_matching": self.half_matching,
                "half_alike": 0.0,  # no other code resembles the answer, but by chance
            },
        )

    def _other_sentence(self, length: Length, rng: random.Random, name: tuple[str, str]) -> str:
        if rng.random() < self.distractors / (length.chunk_tokens * _SENTENCES_PER_TOKEN):
            return sentence(other_name(rng, name, self.half_matching), random_code(rng))
        return rng.choice(FILLER)


def sentence(name: tuple[str, str], code: str) -> str:
    return f"The code of the {' '.join(name)} is {code}."


def random_name(rng: random.Random) -> tuple[str, str]:
    return rng.choice(ADJECTIVES), rng.choice(NOUNS)


def other_name(rng: random.Random, name: tuple[str, str], half_matching: float) -> tuple[str, str]:
    """Draw a name other than ``name``. With probability ``half_matching`` it has one word of ``name``, else none."""
    adjective, noun = random_name(rng)
    while adjective == name[0]:
        adjective = rng.choice(ADJECTIVES)
    while noun == name[1]:
        noun = rng.choice(NOUNS)
    if rng.random() >= half_matching:
        return adjective, noun
    return (name[0], noun) if rng.random() < 0.5 else (adjective, name[1])


def random_code(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(4))


PRESETS = {
    "needle": Preset(
        task=NeedleTask(), description="a code among codes of other things", family="needles", chunk_tokens=128
    )
}
