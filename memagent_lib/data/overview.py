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
    *("example", "task", "question", "answers", "n_answers", "rule"),
    *("tokens", "chunks", "characters", "documents", "facts", "chance"),
]
DEPTH_COLUMNS = ["example", "task", "fact", "depth", "start", "end", "text"]
GOLD_COLUMNS = ["example", "task", "gold", "place", "documents", "depth"]


def data_examples(examples: Iterable[Example], tokenizer: Tokenizer | None = None) -> pd.DataFrame:
    """One row per example: what is asked, how it is judged, and how long the document is. ``facts`` counts the needed
    facts.

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
    """One row per needed fact: ``depth`` is where it stands, as a share of its document's characters; ``text`` is its
    words.
    """
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


def data_files(
    paths: Iterable[str | Path], limit: int | None = None, tokenizer: Tokenizer | None = None
) -> dict[str, pd.DataFrame]:
    """The three frames (``examples``, ``depths``, ``gold``) of some files; the column ``file`` names each row's.

    One example at a time is in memory.
    """

    parts: dict[str, list[pd.DataFrame]] = {"examples": [], "depths": [], "gold": []}
    for path in paths:
        for example in stream(path, limit):
            made = (data_examples([example], tokenizer), data_depths([example]), data_gold_places([example]))
            for name, frame in zip(parts, made, strict=True):
                parts[name].append(frame.assign(file=Path(path).stem))
    if not parts["examples"]:
        raise ValueError("no file to describe; give at least one")
    return {name: _below(frames) for name, frames in parts.items()}


def _below(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]
