"""Frames that describe a data set: how long its documents are, how deep its facts stand, where its gold documents are.

One tidy frame per picture; the pictures themselves are :mod:`memagent_lib.workbench.plots`'.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from memagent_lib.data.examples import Example
from memagent_lib.data.storage import stream
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

EXAMPLE_COLUMNS = [
    "example",
    "task",
    "question",
    "answers",
    "n_answers",
    "rule",
    "tokens",
    "chunks",
    "characters",
    "documents",
    "facts",
    "chance",
]
DEPTH_COLUMNS = ["example", "task", "fact", "depth", "start", "end", "text"]
GOLD_COLUMNS = ["example", "task", "gold", "place", "documents", "depth"]


def data_examples(examples: Iterable[Example], tokenizer: Tokenizer | None = None) -> pd.DataFrame:
    """One row per example: what is asked, how it is judged, and how long the document is. ``facts`` counts the needed facts.

    A document's tokens are what its example records; where it records none, ``tokenizer`` counts them.
    """
    import pandas as pd

    rows = [
        {
            "example": e.id,
            "task": e.task,
            "question": e.question,
            "answers": " | ".join(e.answers),
            "n_answers": len(e.answers),
            "rule": e.rule,
            "tokens": e.metadata.get("tokens") or (tokenizer.count(e.document) if tokenizer else None),
            "chunks": e.metadata.get("chunks"),
            "characters": len(e.document),
            "documents": e.metadata.get("documents"),
            "facts": len(e.evidence),
            "chance": e.metadata.get("chance", 0.0),
        }
        for e in examples
    ]
    return pd.DataFrame(rows, columns=EXAMPLE_COLUMNS)


def data_lengths(frame: pd.DataFrame) -> pd.DataFrame:
    """Of :func:`data_examples`' frame: examples, and least, mean and most tokens and characters, by task."""
    return (
        frame.groupby("task", sort=False)
        .agg(
            examples=("example", "size"),
            least_tokens=("tokens", "min"),
            mean_tokens=("tokens", "mean"),
            most_tokens=("tokens", "max"),
            mean_characters=("characters", "mean"),
        )
        .reset_index()
    )


def data_depths(examples: Iterable[Example]) -> pd.DataFrame:
    """One row per needed fact: ``depth`` is where it stands, as a share of its document's characters; ``text`` is its words."""
    import pandas as pd

    rows = [
        (e.id, e.task, i, s.start / max(1, len(e.document)), s.start, s.end, e.document[s.start : s.end])
        for e in examples
        for i, s in enumerate(e.evidence)
    ]
    return pd.DataFrame(rows, columns=DEPTH_COLUMNS)


def data_gold_places(examples: Iterable[Example]) -> pd.DataFrame:
    """One row per gold document: which of its example's documents it is, counted from 0, and that as a share."""
    import pandas as pd

    rows = [
        (e.id, e.task, i, place, e.metadata["documents"], place / max(1, e.metadata["documents"] - 1))
        for e in examples
        for i, place in enumerate(e.metadata.get("gold_places", ()))
    ]
    return pd.DataFrame(rows, columns=GOLD_COLUMNS)


def data_file(
    path: str | Path, limit: int | None = None, tokenizer: Tokenizer | None = None
) -> dict[str, pd.DataFrame]:
    """The three frames (``examples``, ``depths``, ``gold``) of a file, read one example at a time."""
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {"examples": [], "depths": [], "gold": []}
    for example in stream(path, limit):
        parts["examples"].append(data_examples([example], tokenizer))
        parts["depths"].append(data_depths([example]))
        parts["gold"].append(data_gold_places([example]))
    empty = {"examples": EXAMPLE_COLUMNS, "depths": DEPTH_COLUMNS, "gold": GOLD_COLUMNS}
    filled = {name: [f for f in frames if len(f)] for name, frames in parts.items()}
    return {
        name: pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=empty[name])
        for name, frames in filled.items()
    }


def data_files(
    paths: Iterable[str | Path], limit: int | None = None, tokenizer: Tokenizer | None = None
) -> dict[str, pd.DataFrame]:
    """:func:`data_file`'s frames of several files, one below the other, with a column ``file`` that names each row's."""
    import pandas as pd

    found = [
        {name: f.assign(file=Path(path).stem) for name, f in data_file(path, limit, tokenizer).items()}
        for path in paths
    ]
    if not found:
        raise ValueError("no file to describe; give at least one")
    parts = {name: [frames[name] for frames in found if len(frames[name])] for name in found[0]}
    return {name: pd.concat(some, ignore_index=True) if some else found[0][name] for name, some in parts.items()}
