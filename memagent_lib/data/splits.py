"""Write training and test files of several lengths, and describe files of examples in frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.data.examples import data_hash
from memagent_lib.data.storage import save, stream
from memagent_lib.data.tasks import make
from memagent_lib.paths import absolute, shortest_ends
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "examples": ("example", "task", "tokens", "characters", "facts", "file"),
    "depths": ("example", "task", "fact", "depth", "text", "file"),
    "gold": ("example", "task", "gold", "place", "documents", "depth", "file"),
}


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
    arguments raise ``ValueError`` before a file is written.
    """
    import pandas as pd

    planned = []
    for number, (name, (lengths, counts)) in enumerate(splits.items()):
        if len(set(lengths)) < len(lengths) or (lengths and len(counts) not in (1, len(lengths))):
            raise ValueError(f"{name}: set different lengths, and a number of examples for each or for all")
        for chunks, n in zip(lengths, counts * len(lengths) if len(counts) == 1 else counts, strict=False):
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


def data_files(paths: Iterable[str | Path], tokenizer: Tokenizer | None = None) -> dict[str, pd.DataFrame]:
    """Return three frames that describe files of examples; :func:`memagent_lib.plots.data_overview` draws them.

    ``examples`` has a row per example; ``tokenizer`` counts its tokens if they are not recorded. ``depths`` has a row
    per piece of evidence, with its depth as a share of the document's characters. ``gold`` has a row per gold document
    whose position among the documents is recorded, from 0. The column ``file`` has the name of the row's file without
    its suffix, with as much of its folder as tells it from the others.
    """
    import pandas as pd

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
    for path, end in shortest_ends(paths).items():
        file = str(Path(end).with_suffix(""))
        for example in stream(path):
            named = (example.id, example.task)
            tokens = example.metadata.get("tokens")
            if not tokens and tokenizer:
                tokens = tokenizer.count(example.document)
            size = len(example.document)
            rows["examples"].append((*named, tokens, size, len(example.evidence), file))
            for i, (start, end) in enumerate(example.evidence):
                rows["depths"].append((*named, i, start / size, example.document[start:end], file))
            for i, place in enumerate(example.metadata.get("gold_places", ())):
                documents = example.metadata["documents"]
                depth = place / max(1, documents - 1)  # the only document has depth 0
                rows["gold"].append((*named, i, place, documents, depth, file))
    return {name: pd.DataFrame(rows[name], columns=columns) for name, columns in COLUMNS.items()}
