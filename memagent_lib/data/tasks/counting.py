"""RULER's counting tasks: name the most common words in a list (cwe), or in a text of made-up words (fwe).

A memory that is overwritten at every chunk is bad at counting by design, and a benchmark must show that too.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.layout import Meter, longest
from memagent_lib.data.plans import AtLeastOne, ExampleKey, Preset
from memagent_lib.data.tasks.words import compound, distinct, english

SHORT_TOKENS = 4096
"""In documents shorter than this, the words of cwe are repeated less often, as in RULER."""
_REPEATS = (30, 3)
_SHORT_REPEATS = (6, 1)
_FULL_STOPS = "...."  # the most frequent word of fwe is noise
_QUESTION = "The document is a {}. Which {} {} occur most often in it? Name all {}.{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsPlan:
    """A text of words that can have any length; the answers are its most frequent words, apart from noise.

    ``build(n)`` returns a text whose length grows about linearly with ``n``. ``runner_up`` is the most frequent word
    after the answers; a text in which it is as frequent as the last answer is too short.
    """

    question: str
    answers: tuple[str, ...]
    build: Callable[[int], str]
    rule: str = "match_all"
    runner_up: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """Return the example. Raises ``ValueError`` if its text is too short to separate the answers from the rest."""
        # A low guess, because a high one builds and counts texts that are longer than needed.
        guess = max(1, key.length.limit // 32)
        n, tokens = longest(self.build, lambda n: meter.count(self.build(n)), guess, key.length, meter)
        text = self.build(n)
        counts = Counter(text.split())
        if self.runner_up and counts[self.runner_up] >= counts[self.answers[-1]]:
            raise ValueError(f"{key.length.limit:,} tokens are too few to rank the words; request more")
        evidence = []
        for answer in self.answers:
            before = text.find(f" {answer} ")  # a whole word, not a part of another
            if before >= 0:
                evidence.append(Span(before + 1, before + 1 + len(answer)))
        metadata = {
            "tokens": tokens,
            "counts": [counts[answer] for answer in self.answers],
            "evidence": "first occurrence of each answer; the counts need all of them",
        }
        return key.example(self, text, evidence, metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonWords:
    """RULER's cwe: a list in which ``common`` words occur 30 times, others 3 times; if short, 6 times and once."""

    common: AtLeastOne = 10

    def plan(self, key: ExampleKey) -> WordsPlan:
        often, rarely = _SHORT_REPEATS if key.length.limit < SHORT_TOKENS else _REPEATS
        # Two generators: the pool grows with the length, and the order of its words must not depend on that.
        order_seed = key.rng().getrandbits(64)
        rng = key.rng(f"{key.name} words")
        pool = list(english("noun", "adjective", "verb"))
        rng.shuffle(pool)

        def first(n: int) -> list[str]:
            """Return ``n`` different words: English words in random order, then compounds of two."""
            pool.extend(distinct(compound, n - len(pool), rng, pool))
            return pool[:n]

        def build(others: int) -> str:
            words = first(self.common) * often + first(self.common + others)[self.common :] * rarely
            random.Random(order_seed).shuffle(words)
            return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))

        return WordsPlan(
            question=_QUESTION.format("list of words", self.common, "words", self.common, ""),
            answers=tuple(first(self.common)),
            build=build,
            metadata={"common_repeats": often, "other_repeats": rarely},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequentWords:
    """RULER's fwe: made-up words whose frequencies follow Zipf's law with exponent ``alpha``.

    The most frequent word is noise; the next ``top`` words are the answers.
    """

    alpha: Annotated[float, Gt(1)] = 2.0
    top: AtLeastOne = 3
    letters: AtLeastOne = 6
    tokens_per_word: AtLeastOne = 50

    def plan(self, key: ExampleKey) -> WordsPlan:
        from scipy.special import zeta

        rng = key.rng()
        order_seed = rng.getrandbits(64)
        size = max(self.top + 2, key.length.limit // self.tokens_per_word)
        code_words = distinct(lambda draw: "".join(draw.choices(string.ascii_lowercase, k=self.letters)), size - 1, rng)
        vocabulary = [_FULL_STOPS, *code_words]
        whole = float(zeta(self.alpha))  # the sum of the frequencies of an endless vocabulary
        shares = [rank**-self.alpha / whole for rank in range(1, size + 1)]

        def build(n: int) -> str:
            words = [word for word, share in zip(vocabulary, shares, strict=True) for _ in range(int(n * share))]
            random.Random(order_seed).shuffle(words)
            return " ".join(words)

        dots = f" Leave out the dots {_FULL_STOPS!r}."
        return WordsPlan(
            question=_QUESTION.format("text in code words", self.top, "code words", self.top, dots),
            answers=tuple(vocabulary[1 : 1 + self.top]),  # the first entry is the noise
            build=build,
            runner_up=vocabulary[1 + self.top],
            metadata={"alpha": self.alpha},
        )


PRESETS = {
    "cwe": Preset(task=CommonWords(), description="the ten most common words of a list", family="RULER"),
    "fwe": Preset(task=FrequentWords(), description="the three most frequent code words", family="RULER"),
}
