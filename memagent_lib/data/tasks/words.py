"""Words, numbers and generated prose from which tasks are built.

English words come from ``wonderwords``, without its profanities, and its version is pinned: other words would change
the examples of a seed.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from memagent_lib.data.plans import DocumentPlan, Filler, in_order
from memagent_lib.data.records import utf8_text
from memagent_lib.paths import expanded

NOISE_LINE = "The pond is still. The gate is open. The lamp is lit. Nobody comes. It is an ordinary day."
"""One line of noise, in our own words, with about as many tokens as RULER's."""


def terms(text: str) -> tuple[str, ...]:
    """Split a text into terms, at vertical bars if it has any, else at white space."""
    parts = text.split("|") if "|" in text else text.split()
    return tuple(part.strip() for part in parts)


_SUBJECTS = terms(
    "the old baker | a tired clerk | the harbour pilot | a young gardener | the night watchman | a travelling tailor | "
    "the schoolmaster | an idle fisherman | the miller's daughter | a retired captain | the town crier | "
    "a quiet lodger | the beekeeper | a passing doctor"
)
_VERBS = terms(
    "looked for | talked about | had forgotten | often praised | once painted | carried home | never trusted | "
    "wrote a letter about | could not stop thinking of | laughed at | paid far too much for | kept a drawing of | "
    "dreamt of | complained about"
)
_THINGS = terms(
    "the crooked staircase | a basket of early plums | the new bridge | last winter's flood | an unpaid bill | "
    "the bell of the chapel | a borrowed umbrella | the smell of fresh paint | some dusty atlas | "
    "the long road north | a lame horse | the price of candles"
)
_ENDINGS = terms(
    "after supper | before the rain began | while the others slept | without saying why | as people do | "
    "for the better part of an hour | on the way to market | in spite of the cold | and then thought no more of it | "
    "until the candle went out | more than once | that spring"
)
_STOCK_SEED = 20250703  # fixed: the sentences are part of what every seed means
_STOCK_SIZE = 4096
MOST_IN_VAIN = 10_000


@lru_cache(maxsize=3)
def english(*categories: str) -> tuple[str, ...]:
    """Return the lower-case words of ``categories`` (``noun``, ``adjective``, ``verb``), sorted.

    Words that are shorter than three letters or have other characters are left out.
    """
    from wonderwords import RandomWord, is_profanity

    found = RandomWord().filter(include_categories=list(categories), regex="[a-z]{3,}")
    return tuple(sorted(word for word in set(found) if not is_profanity(word)))


def compound(rng: random.Random) -> str:
    """Draw an adjective and a noun, joined by a hyphen. There are about six million such pairs."""
    return f"{rng.choice(english('adjective'))}-{rng.choice(english('noun'))}"


def number(rng: random.Random, digits: int = 7) -> str:
    """Draw a number of exactly ``digits`` digits, as text. The first digit is not 0."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def identifier(rng: random.Random) -> str:
    """Draw a UUID of version 4."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def distinct(draw: Callable[[random.Random], str], n: int, rng: random.Random, taken: Iterable[str] = ()) -> list[str]:
    """Draw ``n`` different words, none of which is in ``taken``.

    Raises ``ValueError`` if :data:`MOST_IN_VAIN` draws in a row yield no new word.
    """
    seen = set(taken)
    found: dict[str, None] = {}
    in_vain = 0
    while len(found) < n:
        word = draw(rng)
        in_vain += 1
        if word not in seen and word not in found:
            found[word] = None
            in_vain = 0
        elif in_vain == MOST_IN_VAIN:
            raise ValueError(f"{n} different words were requested and {len(found)} like {word!r} found; request fewer")
    return list(found)


def listed(things: Sequence[str]) -> str:
    """Join words into an English list: ``a``, ``a and b``, ``a, b and c``."""
    if len(things) == 1:
        return things[0]
    return f"{', '.join(things[:-1])} and {things[-1]}"


def noise() -> Filler:
    """Return filler that repeats one line of noise."""
    return Filler(lambda: repeat(NOISE_LINE))


def drawn(draw: Callable[[random.Random], str], seed: int) -> Filler:
    """Return filler whose units come from repeated calls of ``draw``, with a generator seeded by ``seed``."""

    def units() -> Iterator[str]:
        rng = random.Random(seed)
        while True:
            yield draw(rng)

    return Filler(units)


def prose(seed: int) -> Filler:
    """Return filler of everyday prose unrelated to any task. Its sentences repeat, so each is tokenised only once."""

    def units() -> Iterator[str]:
        rng = random.Random(seed)
        stock = prose_stock()
        while True:
            yield from rng.choices(stock, k=256)

    return Filler(units)


def story(texts: Sequence[str], needed: Container[int], rng: random.Random, **plan: Any) -> DocumentPlan:
    """Return the plan of a document that states ``texts`` in order, among everyday prose.

    A text is evidence if its index is in ``needed``. ``plan`` sets the other fields of :class:`DocumentPlan`.
    """
    statements = in_order(texts, needed, rng)
    return DocumentPlan(statements=statements, filler=prose(rng.getrandbits(64)), separator=" ", **plan)


@lru_cache(maxsize=1)
def prose_stock() -> tuple[str, ...]:
    """Return several thousand sentences of everyday prose, the same for every seed."""
    return tuple(distinct(_sentence, _STOCK_SIZE, random.Random(_STOCK_SEED)))


def _sentence(rng: random.Random) -> str:
    text = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_ENDINGS)}"
    if rng.random() < 0.3:
        text = f"{rng.choice(_ENDINGS)}, {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_THINGS)}"
    return f"{text[0].upper()}{text[1:]}."


def files_of(path: str) -> list[str]:
    """Return the text of a file, or of all .txt files in a folder in order of their names; none if there is none."""
    source = expanded(path)
    files = [source] if source.is_file() else sorted(source.rglob("*.txt")) if path else []
    return [utf8_text(file) for file in files if file.is_file()]
