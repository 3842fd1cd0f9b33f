"""Write training and test files of several lengths: one file per split and length, no document in two splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.data.examples import data_hash
from memagent_lib.data.storage import save
from memagent_lib.data.tasks import make
from memagent_lib.paths import absolute
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd


def make_splits(
    folder: str | Path,
    task: str,
    splits: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    tokenizer: Tokenizer,
    seed: int,
    chunk_tokens: int | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Write one file per split and length, such as ``train_4.parquet``, and return a row per file.

    ``splits`` maps a name to ``(lengths in chunks, numbers of examples)``, where a single number applies to every
    length. ``settings`` are the task's own parameters. Each split has its own seed, so no document is in two splits,
    although a task that takes its questions from a file may repeat some. All lengths of a split share its seed. Invalid
    arguments, such as a length that a split has twice, raise ``ValueError`` before a file is written.
    """
    import pandas as pd

    planned = []
    for number, (name, (lengths, counts)) in enumerate(splits.items()):
        for chunks, n in zip(lengths, _per_length(counts, lengths, name), strict=True):
            sizes = {"chunks": chunks, "chunk_tokens": chunk_tokens}
            # A seed per split: with fewer than 1,000 splits, two values of `seed` never yield the same one.
            planned.append((name, chunks, n, make(task, n, 1000 * seed + number, tokenizer, **sizes, **settings)))
    rows = []
    for name, chunks, n, examples in planned:
        path = save(examples, split_file(folder, name, chunks))
        rows.append((name, chunks, n, path.stat().st_size >> 10, data_hash(path), str(path)))
    return pd.DataFrame(rows, columns=["split", "chunks", "examples", "kilobytes", "hash", "file"])


def split_file(folder: str | Path, split: str, chunks: int) -> Path:
    """Return the path to which :func:`make_splits` writes ``split`` at a length of ``chunks`` chunks."""
    return absolute(folder) / f"{split}_{chunks}.parquet"


def _per_length(counts: Sequence[int], lengths: Sequence[int], split: str) -> Sequence[int]:
    """Return the number of examples for each length. A single number applies to every length."""
    if not lengths:  # an unused split needs no numbers
        return ()
    if len(set(lengths)) < len(lengths):
        raise ValueError(f"{split} has a length twice: {', '.join(map(str, lengths))}; name each length once")
    if len(counts) == 1:
        return list(counts) * len(lengths)
    if len(counts) != len(lengths):
        raise ValueError(
            f"{split} examples has {len(counts)} values for {len(lengths)} lengths; set one for each, or one for all"
        )
    return counts
