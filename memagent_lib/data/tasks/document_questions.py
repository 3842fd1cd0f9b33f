"""RULER's qa_1 and qa_2, and RULER-HQA with 50 to 25,600 documents, from the user's copies of SQuAD and HotpotQA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from memagent_lib.data.formats import read_pool
from memagent_lib.data.layout import DocumentPlan, ExampleKey
from memagent_lib.data.pools import Pool, PoolQuestion, shuffled
from memagent_lib.data.tasks.presets import NotNegative, Preset
from memagent_lib.paths import expanded

_SOURCES = {
    "squad": "SQuAD v2's dev-v2.0.json from rajpurkar.github.io/SQuAD-explorer",
    "hotpot": "HotpotQA's hotpot_dev_distractor_v1.json from hotpotqa.github.io",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentQuestions:
    """The questions of a file, each over as many of the file's documents as the length requires.

    The seed determines the order of the questions, and the examples begin with question number ``first`` of that order.
    Data sets of one seed share no question if their ranges of numbers do not overlap.
    """

    kind: Literal["squad", "hotpot"]
    pool_path: str | None = None
    first: NotNegative = 0
    rule: str = "contains"

    def plan(self, key: ExampleKey) -> DocumentPlan:
        if not self.pool_path:
            raise ValueError(
                f"this task takes its questions from a file, and none is named; set pool_path to {_SOURCES[self.kind]}"
            )
        pool = read_pool(expanded(self.pool_path), self.kind)
        questions = _ordered(pool, key.seed)
        number = self.first + key.index
        if number >= len(questions):
            raise ValueError(
                f"{self.pool_path} has {len(questions):,} questions and number {number + 1:,} was requested; "
                "request fewer examples"
            )
        return pool.plan(questions[number], key, self.rule)


@lru_cache(maxsize=2)
def _ordered(pool: Pool, seed: int) -> list[PoolQuestion]:
    return shuffled(pool.questions, seed)


def _preset(description: str, kind: str, family: str, rule: str) -> Preset:
    needs = {"squad": "pool_path: SQuAD dev-v2.0.json", "hotpot": "pool_path: HotpotQA dev distractor JSON"}[kind]
    return Preset(task=DocumentQuestions(kind=kind, rule=rule), description=description, family=family, needs=needs)


PRESETS = {
    "qa_1": _preset("SQuAD questions", "squad", "RULER", "match_part"),
    "qa_2": _preset("HotpotQA questions", "hotpot", "RULER", "match_part"),
    "ruler_hqa": _preset("HotpotQA questions over 50 to 25,600 documents", "hotpot", "RULER-HQA", "contains"),
}
