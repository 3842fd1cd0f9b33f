"""RULER's qa_1 and qa_2, and the RULER-HQA axis of 50 to 25,600 documents, from HotpotQA or SQuAD files that the user names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.originals import read_hotpot_pool, read_squad_pool
from memagent_lib.data.tasks.drafting import Length, Meter
from memagent_lib.data.tasks.pooled import FilePool, pooled_example

_READERS = {"squad": read_squad_pool, "hotpot": read_hotpot_pool}
_SOURCES = {
    "squad": "SQuAD v2's dev-v2.0.json from rajpurkar.github.io/SQuAD-explorer",
    "hotpot": "HotpotQA's hotpot_dev_distractor_v1.json from hotpotqa.github.io",
}
HQA_DOCUMENTS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
"""The lengths that MemAgent's paper reports, from 7K to 3.5M tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentQuestions:
    """The questions of a ``kind`` of file (``squad`` or ``hotpot``), each over as many of the file's documents as are asked for."""

    kind: str
    pool_path: str | None = None
    rule: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in _READERS:
            raise ValueError(f"no kind of pool {self.kind!r}; choose from {', '.join(_READERS)}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        return pooled_example(self.pool(), name, seed, index, length, meter)

    def pool(self) -> FilePool:
        """The file's documents and questions; ``ValueError`` with where to get one when none is named."""
        if self.pool_path is None:
            raise ValueError(
                f"this task asks the questions of a file, and none is named; set pool_path to {_SOURCES[self.kind]}"
            )
        return _pool(self.kind, self.pool_path, self.rule)


@lru_cache(maxsize=2)
def _pool(kind: str, path: str, rule: str | None) -> FilePool:
    return _READERS[kind](path) if rule is None else _READERS[kind](path, rule=rule)
