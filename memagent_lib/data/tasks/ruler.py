"""RULER's retrieval and tracing tasks (Hsieh et al. 2024, arXiv 2404.06654) in our own wording: needles, and variables that
take their value from one another.

Parameters, kinds of keys and values, and the number of things asked for are RULER's; its sentences are not.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.drafting import Bank, Drawn, Filler, Length, Meter, Plan, Repeated, Running
from memagent_lib.data.tasks.generation import Asked, generator, planned
from memagent_lib.data.tasks.words import KINDS, NOISE_LINE, distinct, listed, number, prose_stock

HAYSTACKS = ("noise", "needles", "essays", "prose")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ESSAY_HELP = (
    "give haystack_path a text file or a folder of .txt files, such as the essays that download_paulgraham_essay.py of RULER fetches "
    "(github.com/NVIDIA/RULER, scripts/data/synthetic/json), or set haystack='prose' for generated prose (then not comparable with RULER)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Niah:
    """RULER's niah: ``keys`` needles, each with ``values`` values, of which ``asked`` keys are asked for.

    ``depth`` fixes how deep the needles stand (0 to 1); left out, each depth is drawn uniformly.
    """

    haystack: str = "noise"
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    asked: int = 1
    depth: float | None = None
    haystack_path: str | None = None
    repeat_haystack: bool = False

    def __post_init__(self) -> None:
        for name, kind, known in (
            ("haystack", self.haystack, HAYSTACKS),
            ("key_kind", self.key_kind, tuple(KINDS)),
            ("value_kind", self.value_kind, tuple(KINDS)),
        ):
            if kind not in known:
                raise ValueError(f"no {name} {kind!r}; choose from {', '.join(known)}")
        if not 1 <= self.asked <= self.keys or self.values < 1:
            raise ValueError(
                f"at least one value and one asked key, and not more asked than there are; got {self.values}, {self.asked} of {self.keys}"
            )
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth must be a share between 0 and 1, got {self.depth}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        return planned(self.ask(generator(name, seed, index)), name, seed, index, length, meter)

    def ask(self, rng: random.Random) -> Asked:
        keys = distinct(KINDS[self.key_kind], self.keys, rng)
        values = distinct(KINDS[self.value_kind], self.keys * self.values, rng)
        owners = [key for key in keys for _ in range(self.values)]
        asked = keys[: self.asked]  # keys are drawn at random, so their order says nothing
        needles = [self._needle(key, value) for key, value in zip(owners, values, strict=True)]
        depths = tuple(rng.random() for _ in needles) if self.depth is None else (self.depth,) * len(needles)
        needed = tuple(i for i, owner in enumerate(owners) if owner in asked)
        plan = Plan(
            sentences=tuple(needles),
            depths=depths,
            needed=needed,
            filler=self._filler(rng, keys),
            separator=self._separator,
        )
        facts = {"haystack": self.haystack, "keys": self.keys, "values": self.values, "asked": asked}
        return Asked(
            plan=plan, question=self._question(asked), answers=tuple(values[i] for i in needed), metadata=facts
        )

    def _needle(self, key: str, value: str) -> str:
        return f"The registered {self._thing} of {key} is {value}."

    @property
    def _thing(self) -> str:
        return {"words": "word", "numbers": "number", "uuids": "identifier"}[self.value_kind]

    @property
    def _separator(self) -> str:
        return " " if self.haystack in ("essays", "prose") else "\n"

    def _question(self, asked: list[str]) -> str:
        if self.asked * self.values == 1:
            return f"What is the registered {self._thing} of {asked[0]}?"
        return f"Which registered {self._thing}s does the document give for {listed(asked)}? Name all {self.asked * self.values} of them."

    def _filler(self, rng: random.Random, keys: list[str]) -> Filler:
        seed = rng.getrandbits(64)
        if self.haystack == "noise":
            return Repeated(NOISE_LINE)
        if self.haystack == "prose":
            return Bank(prose_stock(), seed)
        if self.haystack == "needles":
            return Drawn(
                lambda draw: self._needle(
                    distinct(KINDS[self.key_kind], 1, draw, keys)[0], KINDS[self.value_kind](draw)
                ),
                seed,
            )
        return Running(essays(self.haystack_path), str(self.haystack_path), self.repeat_haystack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """RULER's vt: ``chains`` variables get a value, and ``hops`` more in a row take it over; who ends up with the asked value?"""

    chains: int = 1
    hops: int = 4

    def __post_init__(self) -> None:
        for name in ("chains", "hops"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        return planned(self.ask(generator(name, seed, index)), name, seed, index, length, meter)

    def ask(self, rng: random.Random) -> Asked:
        links = self.hops + 1
        variables = distinct(lambda draw: "".join(draw.choices(string.ascii_uppercase, k=5)), self.chains * links, rng)
        values = distinct(lambda draw: number(draw, 5), self.chains, rng)
        sentences, depths = [], []
        for chain, value in enumerate(values):
            own = variables[chain * links : (chain + 1) * links]
            sentences += [f"Let {own[0]} be {value}.", *(f"Let {b} be the same as {a}." for a, b in pairwise(own))]
            depths += sorted(rng.random() for _ in own)
        plan = Plan(
            sentences=tuple(sentences), depths=tuple(depths), needed=tuple(range(links)), filler=Repeated(NOISE_LINE)
        )
        question = (
            f"Which variables have the value {values[0]}, directly or by way of others? Name all {links} of them."
        )
        return Asked(
            plan=plan,
            question=question,
            answers=tuple(variables[:links]),
            metadata={"chains": self.chains, "hops": self.hops},
        )


@lru_cache(maxsize=4)
def essays(path: str | None) -> tuple[str, ...]:
    """The sentences of a text file, or of a folder's .txt files in the order of their names."""
    if path is None:
        raise ValueError(f"this task hides its needles in essays, and no file is named; {_ESSAY_HELP}")
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"no haystack at {path}; {_ESSAY_HELP}")
    files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not files:
        raise ValueError(f"the haystack folder {path} holds no .txt file; {_ESSAY_HELP}")
    text = " ".join(" ".join(utf8(file).split()) for file in files).strip()
    if not text:
        raise ValueError(f"the haystack {path} holds no text; {_ESSAY_HELP}")
    return tuple(_SENTENCE_END.split(text))


def utf8(path: Path) -> str:
    """The text of a file; an error with the place of the first byte that is not UTF-8."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} at offset {error.start:,} is not UTF-8; "
            "convert the file, for instance with iconv -t utf-8"
        ) from error
