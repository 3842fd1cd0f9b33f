"""All generated data sets by name, and :func:`make` and :func:`make_splits`, which generate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib import settings
from memagent_lib.data.examples import Example, data_hash, save
from memagent_lib.data.layout import Length, Meter
from memagent_lib.data.plans import ExampleKey, Preset, Task
from memagent_lib.data.tasks import changes, counting, multihop, needles, retrieval
from memagent_lib.errors import nearest
from memagent_lib.paths import absolute
from memagent_lib.plugins import is_plugin, load_plugin, plugin_name, shipped_module, shipped_names
from memagent_lib.scoring import judge_named
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = (needles, retrieval, counting, multihop, changes)
"""The library's families of tasks: modules with ``PRESETS``. Others are files of ``experiments/tasks``."""


_OWN: Mapping[str, Preset] = {name: preset for family in FAMILIES for name, preset in family.PRESETS.items()}


def presets() -> dict[str, Preset]:
    """Return all tasks that are not in a user's own file; ``memagent data --list`` prints them."""
    found = dict(_OWN)
    for name in shipped_names("tasks"):
        found |= shipped_module("tasks", name).PRESETS
    return found


def preset(name: str) -> Preset:
    """Return the preset called ``name``; ``FILE.py:NAME`` means a variable of that file or a key of its ``PRESETS``.

    Raises ``ValueError`` if there is no such preset.
    """
    found = load_plugin(name, "PRESETS") if is_plugin(name) else _OWN.get(name) or presets().get(name)
    if not isinstance(found, Preset):
        known = presets()
        raise ValueError(
            f"no task {name!r}; choose from {', '.join(known)}, or name a memagent_lib.data.Preset in a file, "
            f"FILE.py:NAME{nearest(name, known)}"
        )
    return found


def configured(name: str, **parameters: Any) -> Task:
    """Return the task called ``name``, with ``parameters`` instead of its preset values."""
    task = preset(name).task
    if not parameters:
        return task
    return settings.parse(type(task), asdict(task) | parameters, f"task {name!r}")


def make(
    name: str,
    n: int,
    seed: int,
    tokenizer: Tokenizer,
    *,
    length_tokens: int | None = None,
    chunks: int | None = None,
    documents: int | None = None,
    chunk_tokens: int | None = None,
    rule: str | None = None,
    **parameters: Any,
) -> Iterator[Example]:
    """Return an iterator over ``n`` examples of a task. The length is in tokens, chunks or, for a pool, documents.

    A seed yields the same questions at every length, except for the task ``needle``. ``rule`` replaces the task's
    judge. Invalid arguments raise an error at once; a missing file, or a length that the task cannot have, raises one
    only at the first example.
    """
    task = configured(name, **parameters)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if rule:
        judge_named(rule)
    if chunk_tokens is None:
        chunk_tokens = preset(name).chunk_tokens
    length = Length(tokens=length_tokens, chunks=chunks, documents=documents, chunk_tokens=chunk_tokens)
    key = ExampleKey(plugin_name(name), seed, 0, length)
    meter = Meter(tokenizer)

    def example(index: int) -> Example:
        own = key._replace(index=index)
        try:
            made = task.plan(own).example(own, meter)
        except ValueError as error:
            raise ValueError(f"task {key.name!r}: {error}") from error
        return replace(made, rule=rule) if rule else made

    return map(example, range(n))


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
        rows.append((name, chunks, n, path.stat().st_size >> 10, data_hash(path), path))
    return pd.DataFrame(rows, columns=["split", "chunks", "examples", "kilobytes", "hash", "file"])


def split_file(folder: str | Path, split: str, chunks: int) -> Path:
    """Return the path to which :func:`make_splits` writes ``split`` at a length of ``chunks`` chunks."""
    return absolute(folder) / f"{split}_{chunks}.parquet"
