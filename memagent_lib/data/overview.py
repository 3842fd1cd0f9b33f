"""Frames that describe a data set: how long its documents are, how deep its facts stand, where its gold documents are.

One tidy frame per figure; :func:`memagent_lib.plots.data_overview` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.data.examples import Example
from memagent_lib.data.storage import stream
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "examples": (
        *("example", "task", "question", "answers", "n_answers", "rule"),
        *("tokens", "chunks", "characters", "documents", "facts", "chance", "file"),
    ),
    "depths": ("example", "task", "fact", "depth", "start", "end", "text", "file"),
    "gold": ("example", "task", "gold", "place", "documents", "depth", "file"),
}


def data_files(paths: Iterable[str | Path], tokenizer: Tokenizer | None = None) -> dict[str, pd.DataFrame]:
    """Three frames of some files of examples, one example at a time in memory; ``file`` names each row's file.

    ``examples``: a row per example, what is asked and how long the document is (``tokenizer`` counts tokens where the
    example does not record them). ``depths``: a row per needed fact, its words and its place as a share of the
    document's characters. ``gold``: a row per gold document, its place among the documents, counted from 0.
    """
    import pandas as pd

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
    for path in paths:
        for example in stream(path):
            made = ([_example(example, tokenizer)], _depths(example), _gold(example))
            for found, new in zip(rows.values(), made, strict=True):
                found += [(example.id, example.task, *row, Path(path).stem) for row in new]
    if not rows["examples"]:
        raise ValueError("no file to describe; give at least one")
    return {name: pd.DataFrame(rows[name], columns=columns) for name, columns in COLUMNS.items()}


def _example(e: Example, tokenizer: Tokenizer | None) -> tuple[Any, ...]:
    known = e.metadata.get
    tokens = known("tokens") or (tokenizer.count(e.document) if tokenizer else None)
    asked = (e.question, " | ".join(e.answers), len(e.answers), e.rule)
    return (*asked, tokens, known("chunks"), len(e.document), known("documents"), len(e.evidence), known("chance", 0.0))


def _depths(e: Example) -> Iterator[tuple[Any, ...]]:
    for i, (start, end) in enumerate(e.evidence):
        yield i, start / max(1, len(e.document)), start, end, e.document[start:end]


def _gold(e: Example) -> Iterator[tuple[Any, ...]]:
    for i, place in enumerate(e.metadata.get("gold_places", ())):
        yield i, place, e.metadata["documents"], place / max(1, e.metadata["documents"] - 1)
