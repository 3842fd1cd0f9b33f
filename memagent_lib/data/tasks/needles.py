"""Needles in filler: codes of things, hidden among sentences that say nothing, or among codes of other things.

The pocket policy's task. Every document is a pure function of its seed, its length is counted by the policy's own chunker,
and the place of the needle is uniform over the document and recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import accumulate, islice

from memagent_lib.data.examples import Example, Span
from memagent_lib.text import Tokenizer, chunk_stream

ADJECTIVES = [
    "amber",
    "bold",
    "brave",
    "bright",
    "bronze",
    "calm",
    "clever",
    "copper",
    "coral",
    "cosy",
    "crimson",
    "curly",
    "dusty",
    "eager",
    "fancy",
    "fierce",
    "gentle",
    "golden",
    "happy",
    "hazel",
    "humble",
    "ivory",
    "jolly",
    "lively",
    "lucky",
    "mellow",
    "merry",
    "misty",
    "noble",
    "olive",
    "proud",
    "quiet",
    "rusty",
    "scarlet",
    "shy",
    "silver",
    "sleepy",
    "swift",
    "velvet",
    "violet",
]
NOUNS = [
    "badger",
    "beaver",
    "camel",
    "cheetah",
    "crab",
    "crane",
    "dolphin",
    "donkey",
    "eagle",
    "falcon",
    "ferret",
    "finch",
    "gecko",
    "goat",
    "heron",
    "hornet",
    "ibis",
    "jackal",
    "koala",
    "lemur",
    "lizard",
    "llama",
    "lobster",
    "magpie",
    "mole",
    "moose",
    "newt",
    "otter",
    "owl",
    "panda",
    "parrot",
    "pigeon",
    "rabbit",
    "raven",
    "salmon",
    "seal",
    "spider",
    "swan",
    "tiger",
    "walrus",
]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleTask:
    """How hard the search is.

    ``distractors`` is how many codes of *other* things a chunk holds on average; ``half_matching`` is the share of them
    that have the asked thing's adjective or its noun, never both; ``half_alike`` is the share of their codes that begin with
    one digit or more of the code asked for.
    """

    chunk_tokens: int = 128
    chunks: int = 4
    distractors: float = 3.0
    half_matching: float = 0.25
    half_alike: float = 0.0
    digits: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value, share = getattr(self, field.name), field.name.startswith("half_")
            least = 0 if share or field.name == "distractors" else 1
            if value < least or (share and value > 1):
                raise ValueError(
                    f"{field.name} must be at least {least}{' and at most 1' if share else ''}, got {value}"
                )


def needle(key: tuple[str, str], value: str) -> str:
    return f"The code of the {' '.join(key)} is {value}."


def question(key: tuple[str, str]) -> str:
    return f"What is the code of the {' '.join(key)}?"


def make_needles(task: NeedleTask, n: int, seed: int, tokenizer: Tokenizer) -> Iterator[Example]:
    """``n`` examples of exactly ``task.chunks`` chunks each; the same for the same seed, whatever ``n`` is."""
    for index in range(n):
        yield make_needle(task, f"{seed}-{index}", tokenizer)


def make_needle(task: NeedleTask, seed: str, tokenizer: Tokenizer) -> Example:
    """One example. ``seed`` may be any string; the document is as long as ``task.chunks`` chunks can hold."""
    rng = random.Random(f"needle {seed} {task.chunks} {task.chunk_tokens}")
    key, value, depth = random_key(rng), random_value(rng, task.digits), rng.random()
    enough = task.chunks * task.chunk_tokens // _SHORTEST_SENTENCE + 2
    sentences = [_sentence(task, rng, key, value) for _ in range(enough)]

    room = _chunk_end(sentences, task, tokenizer)
    fact, place = (
        needle(key, value),
        round(depth * sum(1 for end in accumulate(len(s) + 1 for s in sentences) if end <= room)),
    )
    while True:
        text = " ".join((*sentences[:place], fact, *sentences[place:]))
        text = text[: _chunk_end([text], task, tokenizer)].rstrip()
        start = sum(len(s) + 1 for s in sentences[:place])
        if start + len(fact) <= len(text):
            break
        place -= 1
    return Example(
        id=f"needle-{task.chunks}x{task.chunk_tokens}-{seed}",
        task="needle",
        question=question(key),
        document=text,
        answers=(value,),
        evidence=(Span(start, start + len(fact)),),
        metadata={
            "chunks": task.chunks,
            "chunk_tokens": task.chunk_tokens,
            "depth": round(start / len(text), 4),
            "half_matching": task.half_matching,
            "half_alike": task.half_alike,
        },
    )


def _chunk_end(sentences: list[str], task: NeedleTask, tokenizer: Tokenizer) -> int:
    """The character at which the last of ``task.chunks`` chunks ends."""
    *_, last = islice(chunk_stream([" ".join(sentences)], tokenizer, task.chunk_tokens), task.chunks)
    return last.end


_SHORTEST_SENTENCE = 7  # tokens; no sentence of this world is shorter
_SENTENCES_PER_TOKEN = 1 / 11


def _sentence(task: NeedleTask, rng: random.Random, key: tuple[str, str], value: str) -> str:
    if rng.random() < task.distractors / (task.chunk_tokens * _SENTENCES_PER_TOKEN):
        return needle(other_key(rng, key, task.half_matching), other_value(rng, value, task.half_alike))
    return rng.choice(FILLER)


def random_key(rng: random.Random) -> tuple[str, str]:
    return rng.choice(ADJECTIVES), rng.choice(NOUNS)


def other_key(rng: random.Random, key: tuple[str, str], half_matching: float) -> tuple[str, str]:
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
    """A code of as many digits as ``value``, which in the share ``half_alike`` of cases begins like it, by one digit to all but one."""
    same = rng.randint(1, len(value) - 1) if len(value) > 1 and half_alike and rng.random() < half_alike else 0
    return value[:same] + random_value(rng, len(value) - same)
