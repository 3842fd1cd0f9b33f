"""Frames that describe data sets: lengths of documents, and positions of evidence and gold documents.

There is one tidy frame per figure; :func:`memagent_lib.plots.data_overview` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.data.examples import Example
from memagent_lib.data.storage import stream
from memagent_lib.paths import shortest_ends
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


def data_files(paths: str | Path | Iterable[str | Path], tokenizer: Tokenizer | None = None) -> dict[str, pd.DataFrame]:
    """Return three frames that describe files of examples, read one example at a time.

    ``examples`` has a row per example, with its question and length. ``tokenizer`` counts the tokens of examples that
    do not record them; without it, these numbers are missing. ``depths`` has a row per piece of evidence, with its text
    and its depth as a share of the document's characters. ``gold`` has a row per gold document whose position among the
    documents is recorded; positions are counted from 0. The column ``file`` has the name of the row's file without its
    suffix, with as much of its folder as tells it from the others. Raises ``ValueError`` if there are no examples.
    """
    import pandas as pd

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
    if isinstance(paths, str | Path):
        paths = [paths]
    for path, end in shortest_ends(paths).items():
        file = str(Path(end).with_suffix(""))
        for example in stream(path):
            made = {"examples": [_example(example, tokenizer)], "depths": _depths(example), "gold": _gold(example)}
            for name, new in made.items():
                rows[name] += [(example.id, example.task, *row, file) for row in new]
    if not rows["examples"]:
        raise ValueError("no file to describe; name at least one")
    return {name: pd.DataFrame(rows[name], columns=columns) for name, columns in COLUMNS.items()}


def _example(example: Example, tokenizer: Tokenizer | None) -> tuple[Any, ...]:
    recorded = example.metadata.get
    tokens = recorded("tokens")
    if not tokens and tokenizer:
        tokens = tokenizer.count(example.document)
    return (
        example.question,
        " | ".join(example.answers),
        len(example.answers),
        example.rule,
        tokens,
        recorded("chunks"),
        len(example.document),
        recorded("documents"),
        len(example.evidence),
        recorded("chance", 0.0),
    )


def _depths(example: Example) -> Iterator[tuple[Any, ...]]:
    for i, (start, end) in enumerate(example.evidence):
        yield i, start / max(1, len(example.document)), start, end, example.document[start:end]


def _gold(example: Example) -> Iterator[tuple[Any, ...]]:
    for i, position in enumerate(example.metadata.get("gold_places", ())):
        documents = example.metadata["documents"]
        yield i, position, documents, position / max(1, documents - 1)  # the only document has depth 0
