"""RULER's retrieval, tracing and question tasks (arXiv 2404.06654), with RULER's parameters and our own sentences.

qa_1, qa_2 and RULER-HQA take their questions and documents from the user's copies of SQuAD and HotpotQA.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, pairwise
from typing import Literal

from memagent_lib.data.formats import read_pool
from memagent_lib.data.layout import Statement
from memagent_lib.data.plans import AtLeastOne, DocumentPlan, ExampleKey, Filler, Preset, Share, Task, in_order
from memagent_lib.data.pools import Pool, PoolQuestion, shuffled
from memagent_lib.data.tasks.words import compound, distinct, drawn, files_of, identifier, listed, noise, number, prose
from memagent_lib.errors import MissingFile
from memagent_lib.paths import expanded

KeyKind = Literal["words", "numbers", "uuids"]
KINDS = {"words": (compound, "word"), "numbers": (number, "number"), "uuids": (identifier, "identifier")}
"""The kinds of keys and values in RULER, each with the function that draws one and its name in sentences."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SOURCES = {
    "squad": "SQuAD v2's dev-v2.0.json from rajpurkar.github.io/SQuAD-explorer",
    "hotpot": "HotpotQA's hotpot_dev_distractor_v1.json from hotpotqa.github.io",
}
_ESSAY_HELP = (
    "set haystack_path to a text file or a folder of .txt files, such as the essays that RULER fetches "
    "(github.com/NVIDIA/RULER), or haystack='prose' for generated prose (then not comparable with RULER)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Niah:
    """RULER's niah: ``keys`` keys with ``values`` values each. The question names ``queries`` of the keys.

    Each value has its own needle, a sentence. ``depth`` (0 to 1) fixes the depth of all needles; without it, each depth
    is uniformly random.
    """

    haystack: Literal["noise", "needles", "essays", "prose"] = "noise"
    key_kind: KeyKind = "words"
    value_kind: KeyKind = "numbers"
    keys: int = 1
    values: AtLeastOne = 1
    queries: AtLeastOne = 1
    depth: Share | None = None
    haystack_path: str | None = None

    def __post_init__(self) -> None:
        if self.queries > self.keys:
            raise ValueError(f"queries must be at most keys, as each names one; got {self.queries} and {self.keys}")

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        keys = distinct(KINDS[self.key_kind][0], self.keys, rng)
        values = distinct(KINDS[self.value_kind][0], self.keys * self.values, rng)
        owners = [name for name in keys for _ in range(self.values)]
        queried = keys[: self.queries]  # keys are drawn at random, so their order reveals nothing
        statements = []
        for owner, value in zip(owners, values, strict=True):
            depth = rng.random() if self.depth is None else self.depth
            statements.append(Statement.needed(self._needle(owner, value), depth, owner in queried))
        return DocumentPlan(
            question=self._question(queried),
            answers=tuple(value for owner, value in zip(owners, values, strict=True) if owner in queried),
            statements=tuple(statements),
            filler=self._filler(rng, keys),
            separator=" " if self.haystack in ("essays", "prose") else "\n",
            metadata={"haystack": self.haystack, "keys": self.keys, "values": self.values, "asked": queried},
        )

    def _needle(self, key: str, value: str) -> str:
        return f"The registered {KINDS[self.value_kind][1]} of {key} is {value}."

    def _question(self, queried: list[str]) -> str:
        noun = KINDS[self.value_kind][1]
        answers = self.queries * self.values
        if answers == 1:
            return f"What is the registered {noun} of {queried[0]}?"
        return f"Which registered {noun}s does the document give for {listed(queried)}? Name all {answers} of them."

    def _filler(self, rng: random.Random, keys: list[str]) -> Filler:
        seed = rng.getrandbits(64)
        if self.haystack == "noise":
            return noise()
        if self.haystack == "prose":
            return prose(seed)
        if self.haystack == "essays":
            sentences = essay_sentences(self.haystack_path)
            return Filler(lambda: cycle(sentences))  # again and again, as in RULER
        # Other needles as filler, none of them about a key of the example.
        draw_key = KINDS[self.key_kind][0]
        draw_value = KINDS[self.value_kind][0]
        return drawn(lambda draw: self._needle(distinct(draw_key, 1, draw, keys)[0], draw_value(draw)), seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """RULER's vt: ``chains`` chains of variables. In each, one variable gets a value, and ``hops`` others copy it.

    The question is which variables have the first chain's value.
    """

    chains: AtLeastOne = 1
    hops: AtLeastOne = 4

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        links = self.hops + 1
        variables = distinct(lambda draw: "".join(draw.choices(string.ascii_uppercase, k=5)), self.chains * links, rng)
        values = distinct(lambda draw: number(draw, 5), self.chains, rng)
        statements: list[Statement] = []
        for chain, value in enumerate(values):
            own = variables[chain * links : (chain + 1) * links]
            texts = [f"Let {own[0]} be {value}.", *(f"Let {b} be the same as {a}." for a, b in pairwise(own))]
            # Links of a chain stay in order, so that one reading from front to back can follow them.
            statements += in_order(texts, () if chain else range(links), rng)
        return DocumentPlan(
            question=(
                f"Which variables have the value {values[0]}, directly or by way of others? Name all {links} of them."
            ),
            answers=tuple(variables[:links]),
            statements=tuple(statements),
            filler=noise(),
            metadata={"chains": self.chains, "hops": self.hops},
        )


@lru_cache(maxsize=4)
def essay_sentences(path: str | None) -> tuple[str, ...]:
    """Return the sentences of a text file, or of all .txt files in a folder in order of their names.

    Raises :class:`MissingFile` if there are none.
    """
    # As in RULER, line breaks and other white space become single spaces.
    text = " ".join(" ".join(text.split()) for text in files_of(path or "")).strip()
    if not text:
        raise MissingFile(f"no text at haystack_path={path}; {_ESSAY_HELP}")
    return tuple(_SENTENCE_END.split(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentQuestions:
    """The questions of a file, each over as many of the file's documents as the length requires.

    The seed determines the order of the questions.
    """

    kind: Literal["squad", "hotpot"]
    pool_path: str | None = None
    rule: str = "contains"

    def plan(self, key: ExampleKey) -> DocumentPlan:
        if not self.pool_path:
            raise ValueError(f"this task takes its questions from a file; set pool_path to {_SOURCES[self.kind]}")
        pool = read_pool(expanded(self.pool_path), self.kind)
        questions = _ordered(pool, key.seed)
        if key.index >= len(questions):
            raise ValueError(f"{self.pool_path} has {len(questions):,} questions; request fewer examples")
        return pool.plan(questions[key.index], key, self.rule)


@lru_cache(maxsize=2)
def _ordered(pool: Pool, seed: int) -> list[PoolQuestion]:
    return shuffled(pool.questions, seed)


def _preset(description: str, task: Task, family: str = "RULER") -> Preset:
    needs = ""
    if isinstance(task, Niah) and task.haystack == "essays":
        needs = "haystack_path: essays"
    elif isinstance(task, DocumentQuestions):
        needs = f"pool_path: {_SOURCES[task.kind]}"
    return Preset(task=task, description=description, family=family, needs=needs)


PRESETS = {
    "niah_single_1": _preset("one number in noise", Niah()),
    "niah_single_2": _preset("one number in essays", Niah(haystack="essays")),
    "niah_single_3": _preset("one identifier in essays", Niah(haystack="essays", value_kind="uuids")),
    "niah_multikey_1": _preset("one of four needles in essays", Niah(haystack="essays", keys=4)),
    "niah_multikey_2": _preset("one needle among needles", Niah(haystack="needles")),
    "niah_multikey_3": _preset("one pair among pairs", Niah(haystack="needles", key_kind="uuids", value_kind="uuids")),
    "niah_multivalue": _preset("all four values of one key", Niah(haystack="essays", values=4)),
    "niah_multiquery": _preset("the values of four keys", Niah(haystack="essays", keys=4, queries=4)),
    "vt": _preset("all variables that take over a value", Tracing()),
    "qa_1": _preset("SQuAD questions", DocumentQuestions(kind="squad", rule="match_part")),
    "qa_2": _preset("HotpotQA questions", DocumentQuestions(kind="hotpot", rule="match_part")),
    "ruler_hqa": _preset("HotpotQA questions, many documents", DocumentQuestions(kind="hotpot"), "RULER-HQA"),
}
