"""KeyChain (LoongRL, Wang et al. 2025): the true question is hidden in the document, at the end of a chain of keys.

Works on top of any example: entries, each a key and what it leads to, go between its sentences. One chain leads to the true
question, the others to questions about other things. What stood in the document before still stands there, word for word.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.tasks.drafting import Length, Meter
from memagent_lib.data.tasks.generation import Task, generator
from memagent_lib.data.tasks.words import distinct, identifier

_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")
_TIGHT_BREAK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """Another task's examples behind chains of ``links`` keys; ``decoys`` more chains end in questions of other examples."""

    inner: Task
    links: int = 4
    decoys: int = 3

    def __post_init__(self) -> None:
        if self.links < 1 or self.decoys < 0:
            raise ValueError(f"links must be at least 1 and decoys at least 0, got {self.links} and {self.decoys}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        rng_seed = generator(name, seed, index).getrandbits(64)
        short = Length(tokens=min(1500, length.limit)) if length.documents is None else length
        others = [self._other(name, seed, index, k, short, meter).question for k in range(1, self.decoys + 1)]
        if length.documents is not None:
            return wrapped(
                self.inner.example(name, seed, index, length, meter), others, self.links, random.Random(rng_seed)
            )
        return self._fitted(name, seed, index, length, meter, others, rng_seed)

    def _other(self, name: str, seed: int, index: int, k: int, short: Length, meter: Meter) -> Example:
        return self.inner.example(f"{name} decoy", seed, index * self.decoys + k, short, meter)

    def _fitted(
        self, name: str, seed: int, index: int, length: Length, meter: Meter, others: list[str], rng_seed: int
    ) -> Example:
        """The chains take their room from the filler: the inner example is made shorter until both fit."""
        keys = " ".join(_entries(["x"] * (len(others) + 1), self.links, random.Random(rng_seed))[0])
        reserve = meter.tokenizer.count(keys + " ".join(others)) + meter.tokenizer.count(" ".join(others))
        for _ in range(8):
            room = length.limit - reserve
            if room < 1:
                break
            inner = self.inner.example(name, seed, index, Length(tokens=room), meter)
            made = wrapped(inner, others, self.links, random.Random(rng_seed))
            added = (
                meter.tokenizer.count(made.document) - meter.tokenizer.count(inner.document)
                if room < 60_000
                else reserve
            )
            tokens = inner.metadata["tokens"] + added
            over = _over(made, tokens, length, meter)
            if over <= 0:
                return _labelled(made, tokens, length, name, seed, index)
            reserve += over + 8
        raise ValueError(
            f"task {name!r}: its chains of keys need {reserve:,} tokens and {length.limit:,} were asked for; ask for more"
        )


def _over(made: Example, tokens: int, length: Length, meter: Meter) -> int:
    """By how many tokens an example is too long; 0 or less where it is not."""
    if length.chunks is None:
        return tokens - length.limit
    from memagent_lib.text import chunks

    pieces = chunks(made.document, meter.tokenizer, length.chunk_tokens)
    return sum(piece.tokens for piece in pieces[length.chunks :])


def _labelled(made: Example, tokens: int, length: Length, name: str, seed: int, index: int) -> Example:
    facts = dict(made.metadata) | {"tokens": tokens}
    if length.chunks is not None:
        facts |= {"chunks": length.chunks, "chunk_tokens": length.chunk_tokens}
    return replace(made, id=f"{name}-{length.label}-{seed}-{index}", metadata=facts)


def wrapped(example: Example, decoys: Sequence[str], links: int, rng: random.Random) -> Example:
    """The example with its question hidden behind ``links`` keys, and each of ``decoys`` behind as many."""
    entries, starts = _entries([example.question, *decoys], links, rng)
    document, entry_spans, moved = _inserted(example.document, entries, example.evidence, rng)
    question = (
        f"The document holds entries of the form [key -> next]. Begin with the key {starts[0]} and follow the entries until one leads "
        "to a question instead of a key. Answer that question from the document."
    )
    depths = [round(span.start / len(document), 4) for span in moved]
    facts = dict(example.metadata) | {
        "hidden_question": example.question,
        "links": links,
        "decoys": len(decoys),
        "depths": depths,
    }
    return replace(
        example, question=question, document=document, evidence=(*entry_spans[:links], *moved), metadata=facts
    )


def _entries(questions: Sequence[str], links: int, rng: random.Random) -> tuple[list[str], list[str]]:
    """The entries of all chains, the first chain's first, and each chain's first key."""
    keys = distinct(identifier, links * len(questions), rng)
    entries, starts = [], []
    for chain, question in enumerate(questions):
        own = keys[chain * links : (chain + 1) * links]
        starts.append(own[0])
        entries += [f"[{key} -> {following}]" for key, following in zip(own, [*own[1:], question], strict=True)]
    return entries, starts


def _inserted(
    document: str, entries: Sequence[str], evidence: Sequence[Span], rng: random.Random
) -> tuple[str, list[Span], tuple[Span, ...]]:
    """The document with the entries between sentences, the entries' spans, and where the evidence has moved to."""
    places = _places(document, evidence)
    chosen = sorted((rng.choice(places), i) for i in range(len(entries)))
    parts, spans, before, at = [], [Span(0, 0)] * len(entries), 0, 0
    shifts: list[tuple[int, int]] = []
    for place, i in chosen:
        parts += [document[before:place], entries[i], " "]
        at += place - before
        spans[i] = Span(at, at + len(entries[i]))
        at, before = at + len(entries[i]) + 1, place
        shifts.append((place, at - place))
    parts.append(document[before:])
    marks = [place for place, _ in shifts]

    def moved(position: int) -> int:
        earlier = bisect_left(marks, position + 1)
        return position + (shifts[earlier - 1][1] if earlier else 0)

    return "".join(parts), spans, tuple(Span(moved(s.start), moved(s.start) + s.end - s.start) for s in evidence)


def _places(document: str, evidence: Sequence[Span]) -> list[int]:
    """Where a sentence begins and no evidence is cut; where a text has no sentences, where a word begins."""
    spans = sorted(evidence)
    starts = [span.start for span in spans]

    def free(place: int) -> bool:
        near = bisect_left(starts, place) - 1
        return near < 0 or spans[near].end <= place

    for pattern in (_BREAK, _TIGHT_BREAK):
        found = [m.end() for m in pattern.finditer(document) if free(m.end())]
        if len(found) > 8:
            return [0, *found]
    return [0, *found]
