"""RULER's counting tasks: the most common words of a list (cwe) and of a text in code words (fwe).

A memory that is overwritten is structurally weak at counting; they are here because a benchmark must report what hurts.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.tasks.drafting import COUNTED_TOKENS, Length, Meter
from memagent_lib.data.tasks.generation import example_id, generator, length_facts
from memagent_lib.data.tasks.words import compound, distinct, english
from memagent_lib.text import chunks

SHORT_TOKENS = 4096
"""Below this length cwe repeats its words less often, as RULER does."""
_SHORT_REPEATS = (6, 1)
_FULL_STOPS = "...."  # the most frequent word of fwe is noise
_ROUNDS = 24
_MARGIN = 0.993  # what is aimed at where tokens are estimated from samples; their error is a third of what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonWords:
    """RULER's cwe: ``common`` words stand ``common_repeats`` times each in a numbered list, all others ``other_repeats`` times."""

    common: int = 10
    common_repeats: int = 30
    other_repeats: int = 3

    def __post_init__(self) -> None:
        if self.common < 1 or not self.common_repeats > self.other_repeats >= 1:
            raise ValueError(
                f"common words must come more often than others; got {self.common_repeats} and {self.other_repeats} times"
            )

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        often, rarely = _SHORT_REPEATS if length.limit < SHORT_TOKENS else (self.common_repeats, self.other_repeats)
        order, pool = generator(name, seed, index), _Pool(generator(f"{name} words", seed, index))
        order_seed = order.getrandbits(64)

        def build(others: int) -> str:
            words = pool.first(self.common) * often + pool.first(self.common + others)[self.common :] * rarely
            random.Random(order_seed).shuffle(words)
            return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))

        text, tokens = longest(build, length, meter, name)
        answers = tuple(pool.first(self.common))
        facts = {"common_repeats": often, "other_repeats": rarely}
        return _counted_example(
            name, seed, index, length, text, tokens, _question("list of words", "words", self.common), answers, facts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequentWords:
    """RULER's fwe: made-up words whose frequencies follow Zipf's law with exponent ``alpha``; the ``top`` after the noise are asked for.

    The vocabulary has one word for every 50 tokens of the document, as in RULER.
    """

    alpha: float = 2.0
    top: int = 3
    letters: int = 6
    tokens_per_word: int = 50

    def __post_init__(self) -> None:
        if self.alpha <= 1:
            raise ValueError(f"alpha must be above 1, or the frequencies have no sum; got {self.alpha}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        rng = generator(name, seed, index)
        order_seed = rng.getrandbits(64)
        size = max(self.top + 2, length.limit // self.tokens_per_word)
        code_words = distinct(lambda draw: "".join(draw.choices(string.ascii_lowercase, k=self.letters)), size - 1, rng)
        vocabulary = [_FULL_STOPS, *code_words]
        shares = zipf_shares(self.alpha, size)

        def build(n: int) -> str:
            words = [word for word, share in zip(vocabulary, shares, strict=True) for _ in range(int(n * share))]
            random.Random(order_seed).shuffle(words)
            return " ".join(words)

        text, tokens = longest(build, length, meter, name)
        answers = tuple(vocabulary[1 : 1 + self.top])
        counts = [text.count(word) for word in vocabulary[1 : 2 + self.top]]
        if counts[-1] >= counts[-2]:
            raise ValueError(
                f"task {name!r}: {length.limit:,} tokens are too few to tell the {self.top} most frequent words from the next; ask for more"
            )
        question = _question("text in code words", "code words", self.top, f" Leave out the dots {_FULL_STOPS!r}.")
        return _counted_example(
            name, seed, index, length, text, tokens, question, answers, {"alpha": self.alpha, "counts": counts[:-1]}
        )


def zipf_shares(alpha: float, size: int) -> list[float]:
    """The shares of the ``size`` most frequent words of an endless vocabulary under Zipf's law; scipy's zeta is the normaliser."""
    from scipy.special import zeta

    whole = float(zeta(alpha))
    return [rank**-alpha / whole for rank in range(1, size + 1)]


def longest(build: Callable[[int], str], length: Length, meter: Meter, name: str) -> tuple[str, int]:
    """The longest text ``build(n)`` within ``length``, and its tokens, where the text grows about evenly with ``n``.

    Regula falsi inside a shrinking bracket. Texts past :data:`COUNTED_TOKENS` are measured by samples, with a margin.
    """
    low, high, n = -1, None, max(1, length.limit // 32)
    best: tuple[str, int] | None = None
    for _ in range(_ROUNDS):
        text = build(n)
        fits, tokens, goal = _measure(text, length, meter)
        if fits:
            low, best = n, (text, tokens)
            if tokens >= goal * 0.995:
                break
        else:
            high = n
        if high is not None and high - low <= 1:
            break
        n = _next(low, high, max(low + 1, int(n * goal / max(1, tokens))))
    if best is None:
        raise ValueError(
            f"task {name!r} needs {tokens:,} tokens at least and {length.limit:,} were asked for; ask for at least {tokens:,}"
        )
    return best


def _next(low: int, high: int | None, guess: int) -> int:
    if high is None:
        return guess
    if high - low <= 8:
        return (low + high) // 2
    return min(max(guess, low + 1), high - 1)


def _measure(text: str, length: Length, meter: Meter) -> tuple[bool, int, int]:
    """Whether the text is within the length, its tokens, and the tokens to aim at."""
    if length.chunks is not None:
        pieces = chunks(text, meter.tokenizer, length.chunk_tokens)
        tokens = sum(piece.tokens for piece in pieces)
        return len(pieces) <= length.chunks, tokens, tokens * length.chunks // max(1, len(pieces))
    if length.tokens <= COUNTED_TOKENS:
        tokens = meter.tokenizer.count(text)
        return tokens <= length.tokens, tokens, length.tokens
    tokens = sampled_tokens(text, meter)
    goal = int(length.tokens * _MARGIN)
    return tokens <= goal, tokens, goal


def sampled_tokens(text: str, meter: Meter, windows: int = 48) -> int:
    """The tokens of a long, even text, estimated from windows spread over it."""
    size = 4 * COUNTED_TOKENS // windows
    step = max(1, (len(text) - size) // (windows - 1))
    parts = [text[i * step : i * step + size] for i in range(windows)]
    return math.ceil(len(text) * sum(meter.tokenizer.count(part) for part in parts) / sum(map(len, parts)))


class _Pool:
    """An endless list of different words: English ones in random order, then compounds of two."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._words = list(english("noun", "adjective", "verb"))
        rng.shuffle(self._words)

    def first(self, n: int) -> list[str]:
        if n > len(self._words):
            self._words += distinct(compound, n - len(self._words), self._rng, self._words)
        return self._words[:n]


def _question(what: str, things: str, n: int, more: str = "") -> str:
    return f"The document is a {what}. Which {n} {things} occur most often in it? Name all {n}.{more}"


def _counted_example(
    name: str,
    seed: int,
    index: int,
    length: Length,
    text: str,
    tokens: int,
    question: str,
    answers: Sequence[str],
    facts: dict[str, object],
) -> Example:
    places = [(text.index(f" {answer} "), answer) for answer in answers if f" {answer} " in text]
    return Example(
        id=example_id(name, seed, index, length),
        task=name,
        question=question,
        document=text,
        answers=tuple(answers),
        rule="match_all",
        evidence=tuple(Span(at + 1, at + 1 + len(answer)) for at, answer in places),
        metadata=length_facts(length, tokens)
        | {"seed": seed, "evidence": "first occurrence of each answer; the counts need all of them"}
        | facts,
    )
