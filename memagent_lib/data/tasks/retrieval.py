"""RULER's retrieval and tracing tasks (Hsieh et al. 2024, arXiv 2404.06654): its parameters, in our own sentences."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from memagent_lib.data.drafting import DraftPlan, ExampleKey, Fact, Filler, in_order
from memagent_lib.data.formats import utf8_text
from memagent_lib.data.tasks.presets import AtLeastOne, Preset, Share
from memagent_lib.data.tasks.words import compound, distinct, drawn, identifier, listed, noise, number, prose
from memagent_lib.errors import MissingFile

KeyKind = Literal["words", "numbers", "uuids"]
KINDS = {"words": (compound, "word"), "numbers": (number, "number"), "uuids": (identifier, "identifier")}
"""The kinds of keys and values that RULER uses: what draws one, and what it is called."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ESSAY_HELP = (
    "give haystack_path a text file or a folder of .txt files, such as the essays that download_paulgraham_essay.py of "
    "RULER fetches (github.com/NVIDIA/RULER, scripts/data/synthetic/json), or set haystack='prose' for generated prose "
    "(then not comparable with RULER)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Niah:
    """RULER's niah: ``keys`` needles, each with ``values`` values, of which ``asked`` keys are asked for.

    ``depth`` fixes how deep the needles stand (0 to 1); left out, each depth is drawn uniformly.
    """

    haystack: Literal["noise", "needles", "essays", "prose"] = "noise"
    key_kind: KeyKind = "words"
    value_kind: KeyKind = "numbers"
    keys: int = 1
    values: AtLeastOne = 1
    asked: AtLeastOne = 1
    depth: Share | None = None
    haystack_path: str | None = None
    repeat_haystack: bool = False

    def __post_init__(self) -> None:
        if self.asked > self.keys:
            raise ValueError(f"not more keys can be asked for than there are; got {self.asked} of {self.keys}")

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng = key.rng()
        keys = distinct(KINDS[self.key_kind][0], self.keys, rng)
        values = distinct(KINDS[self.value_kind][0], self.keys * self.values, rng)
        owners = [name for name in keys for _ in range(self.values)]
        asked = keys[: self.asked]  # keys are drawn at random, so their order says nothing
        depths = [rng.random() if self.depth is None else self.depth for _ in owners]
        facts = [
            (Fact.needed if owner in asked else Fact)(self._needle(owner, value), depth)
            for owner, value, depth in zip(owners, values, depths, strict=True)
        ]
        return DraftPlan(
            question=self._question(asked),
            answers=tuple(value for owner, value in zip(owners, values, strict=True) if owner in asked),
            facts=tuple(facts),
            filler=self._filler(rng, keys),
            separator=" " if self.haystack in ("essays", "prose") else "\n",
            metadata={"haystack": self.haystack, "keys": self.keys, "values": self.values, "asked": asked},
        )

    def _needle(self, key: str, value: str) -> str:
        return f"The registered {KINDS[self.value_kind][1]} of {key} is {value}."

    def _question(self, asked: list[str]) -> str:
        thing = KINDS[self.value_kind][1]
        if (wanted := self.asked * self.values) == 1:
            return f"What is the registered {thing} of {asked[0]}?"
        return f"Which registered {thing}s does the document give for {listed(asked)}? Name all {wanted} of them."

    def _filler(self, rng: random.Random, keys: list[str]) -> Filler:
        seed = rng.getrandbits(64)
        key_of, value_of = KINDS[self.key_kind][0], KINDS[self.value_kind][0]
        if self.haystack == "noise":
            return noise()
        if self.haystack == "prose":
            return prose(seed)
        if self.haystack == "needles":
            return drawn(lambda draw: self._needle(distinct(key_of, 1, draw, keys)[0], value_of(draw)), seed)
        return essays(self.haystack_path, self.repeat_haystack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """RULER's vt: ``chains`` variables get a value, ``hops`` more in a row take it over; which have the asked one?"""

    chains: AtLeastOne = 1
    hops: AtLeastOne = 4

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng, links = key.rng(), self.hops + 1
        variables = distinct(lambda draw: "".join(draw.choices(string.ascii_uppercase, k=5)), self.chains * links, rng)
        values = distinct(lambda draw: number(draw, 5), self.chains, rng)
        facts = []
        for chain, value in enumerate(values):
            own = variables[chain * links : (chain + 1) * links]
            said = [f"Let {own[0]} be {value}.", *(f"Let {b} be the same as {a}." for a, b in pairwise(own))]
            facts += in_order(said, () if chain else range(links), rng)
        return DraftPlan(
            question=(
                f"Which variables have the value {values[0]}, directly or by way of others? Name all {links} of them."
            ),
            answers=tuple(variables[:links]),
            facts=tuple(facts),
            filler=noise(),
            metadata={"chains": self.chains, "hops": self.hops},
        )


def essays(path: str | None, repeat: bool) -> Filler:
    """The sentences of a text file or folder in their order; where they end they may begin again."""
    sentences = essay_sentences(path)

    def units() -> Iterator[str]:
        yield from sentences
        while repeat:
            yield from sentences

    more = "add files to it, ask for a shorter document, or set repeat_haystack=true to start again (as RULER does)"
    return Filler(units, f"the haystack {path}", more)


@lru_cache(maxsize=4)
def essay_sentences(path: str | None) -> tuple[str, ...]:
    """The sentences of a text file, or of a folder's .txt files in the order of their names."""
    if path is None:
        raise ValueError(f"this task hides its needles in essays, and no file is named; {_ESSAY_HELP}")
    place = Path(path)
    if not place.exists():
        raise MissingFile(f"no haystack at {path}; {_ESSAY_HELP}")
    files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not files:
        raise ValueError(f"the haystack folder {path} holds no .txt file; {_ESSAY_HELP}")
    text = " ".join(" ".join(utf8_text(file).split()) for file in files).strip()
    if not text:
        raise ValueError(f"the haystack {path} holds no text; {_ESSAY_HELP}")
    return tuple(_SENTENCE_END.split(text))


def _preset(asks: str, task: Niah | Tracing) -> Preset:
    needs = "haystack_path: essays" if getattr(task, "haystack", None) == "essays" else ""
    return Preset(task=task, asks=asks, family="RULER", needs=needs)


PRESETS = {
    "niah_single_1": _preset("one number in noise", Niah()),
    "niah_single_2": _preset("one number in essays", Niah(haystack="essays")),
    "niah_single_3": _preset("one identifier in essays", Niah(haystack="essays", value_kind="uuids")),
    "niah_multikey_1": _preset("one of four needles in essays", Niah(haystack="essays", keys=4)),
    "niah_multikey_2": _preset("one needle among needles", Niah(haystack="needles")),
    "niah_multikey_3": _preset(
        "one pair of identifiers among such pairs", Niah(haystack="needles", key_kind="uuids", value_kind="uuids")
    ),
    "niah_multivalue": _preset("all four values of one key", Niah(haystack="essays", values=4)),
    "niah_multiquery": _preset("the values of four keys", Niah(haystack="essays", keys=4, asked=4)),
    "vt": _preset("all variables that take over a value", Tracing()),
}
