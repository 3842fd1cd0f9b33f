"""Parquet files of examples: written and read as a stream, each document stored once for all questions in a row.

The ``document`` column is dictionary encoded: a row group holds every different text once and the rows point to
it, so a thousand questions about one book cost one book. Any parquet reader, verl's included, sees a plain string
column. A row group ends only where a new document begins; a text is stored again where questions come back to it after
16 million characters of others, or where its rows would read as more than a billion. Storing it once per file whatever
the order would take a column of references, which verl does not resolve.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats import FORMATS, likely_format
from memagent_lib.errors import MissingFile
from memagent_lib.paths import replacing

GROUP_ROWS = 4096
GROUP_CHARS = 1 << 24
"""A row group closes before a new document once it holds this much text: what reading and writing keep in memory."""
READ_CHARS = 1 << 30
"""A row group closes in any case once a plain reader would need this much for its rows: they stop at 2 GB."""
COLUMNS = ("data_source", "agent_name", "ability", "prompt", "reward_model", "document", "extra_info")


def save(examples: Iterable[Example], path: str | Path) -> Path:
    """Write examples to one parquet file, atomically, one row group at a time. Two examples of one id are an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_parquet(path)
    written, schema = 0, _schema()
    with replacing(path) as unfinished, pq.ParquetWriter(unfinished, schema, **_WRITER) as writer:
        for group in _groups(examples):
            table = pa.Table.from_pylist([example.to_record() for example in group], schema)
            writer.write_table(table, row_group_size=len(group))
            written += len(group)
        if not written:
            raise ValueError(f"no examples to write to {path}")
    return Path(path)


def require_parquet(path: str | Path) -> None:
    """``ValueError`` where the name of a file says that it is not parquet, which is what examples are written as."""
    if Path(path).suffix != ".parquet":
        raise ValueError(
            f"examples are written as parquet, which verl and pandas read; end the name {path} in .parquet"
        )


def load(path: str | Path, limit: int | None = None) -> list[Example]:
    """The examples of a parquet file, in order. Examples about one document share one string."""
    return list(stream(path, limit))


def question_ids(path: str | Path) -> list[str]:
    """The ids of a file's questions: those that its examples have from their source, else their own."""
    extras = (record["extra_info"] for record in stream_records(path))
    return [json.loads(extra["metadata"]).get("question_id", extra["id"]) for extra in extras]


def stream(path: str | Path, limit: int | None = None) -> Iterator[Example]:
    """The examples of a parquet file one at a time, in order; at most a row group's documents are in memory."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(_checked(path), read_dictionary=["document"])
    given = 0
    for group in range(file.num_row_groups):
        try:
            for example in _read_group(file, group):
                if given == limit:
                    return
                yield example
                given += 1
        except (OSError, KeyError, TypeError, AttributeError, IndexError) as odd:
            raise ValueError(f"{path} is damaged after example {given:,} ({odd}); make it again") from odd


def stream_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a file one at a time, as they are and without their documents, which are not read."""
    import pyarrow.parquet as pq

    columns = [name for name in COLUMNS if name != "document"]
    for batch in pq.ParquetFile(_checked(path)).iter_batches(GROUP_ROWS, columns=columns):
        yield from batch.to_pylist()


def is_as_saved(path: str | Path) -> bool:
    """Whether a file has the columns and types that :func:`save` writes, and no others.

    What pandas wrote again has not (large strings, at times an index), and Hugging Face datasets, through which verl
    loads several files as one, takes files of one kind only.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    saved = _schema().set(COLUMNS.index("document"), pa.field("document", pa.string()))
    return bool(pq.read_schema(_checked(path)).remove_metadata() == saved)


def copy_without(path: str | Path, ids: Container[str], target: str | Path) -> Path:
    """Copy a file, as :func:`save` writes, without the rows of these ids; rows that are no examples can be left out."""
    import pyarrow.parquet as pq

    schema = _schema()
    file = pq.ParquetFile(_checked(path), read_dictionary=["document"])
    with replacing(target) as unfinished, pq.ParquetWriter(unfinished, schema, **_WRITER) as writer:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(COLUMNS)).select(COLUMNS).cast(schema)
            kept = table.filter([extra["id"] not in ids for extra in table["extra_info"].to_pylist()])
            if kept.num_rows:
                writer.write_table(kept, row_group_size=kept.num_rows)
    return Path(target)


def count(path: str | Path) -> int:
    """How many examples a parquet file holds; none of them is read."""
    import pyarrow.parquet as pq

    return pq.read_metadata(_checked(path)).num_rows


_WRITER: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["document"],
    "dictionary_pagesize_limit": 1 << 30,  # past its limit the writer would fall back to storing every row's text
    "store_schema": False,  # readers then see strings, not Arrow dictionaries, which Hugging Face datasets cannot take
    "write_statistics": False,  # the least and greatest document of a group would be stored twice
    "write_batch_size": 64,
}


def _groups(examples: Iterable[Example]) -> Iterator[list[Example]]:
    seen: set[str] = set()
    group: list[Example] = []
    held: dict[str, int] = {}
    text = read = 0
    for example in examples:
        if example.id in seen:
            raise ValueError(f"two examples are called {example.id!r}; ids must differ")
        seen.add(example.id)
        size = len(example.document)
        new = example.document not in held
        full = new and (text + size > GROUP_CHARS or len(group) >= GROUP_ROWS)
        if group and (full or read + size > READ_CHARS):
            yield group
            group, held, text, read, new = [], {}, 0, 0, True
        group.append(example)
        held[example.document] = size
        text, read = text + size * new, read + size
    if group:
        yield group


def _schema() -> Any:
    import pyarrow as pa

    span, text = pa.list_(pa.int64()), pa.string()
    message = pa.struct([("role", text), ("content", text)])
    extra = pa.struct([("id", text), ("rule", text), ("evidence", pa.list_(span)), ("metadata", text)])
    reward = pa.struct([("style", text), ("ground_truth", pa.list_(text))])
    types = (text, text, text, pa.list_(message), reward, pa.dictionary(pa.int32(), text), extra)
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def _read_group(file: Any, group: int) -> Iterator[Example]:
    texts: dict[int, str] = {}
    for batch in file.iter_batches(batch_size=256, row_groups=[group]):
        column = batch.column("document")
        if not hasattr(column, "indices"):
            raise TypeError("its documents are no texts")
        for row, (place, record) in enumerate(
            zip(column.indices.to_pylist(), batch.drop_columns(["document"]).to_pylist(), strict=True)
        ):
            if place not in texts:
                texts[place] = column[row].as_py()
            if texts[place] is None:
                raise TypeError("a document is null")
            yield Example.from_record(record | {"document": texts[place]})


def _checked(path: str | Path) -> Path:
    """The path of a file that holds examples; an error that says what to do where it does not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the files of examples in it, as {path}/*.parquet")
    if not path.is_file():
        raise MissingFile(f"no examples at {path}; make some with: memagent data TASK --out {path}")
    try:
        found = pq.read_schema(path).names
    except pa.ArrowInvalid as error:
        with open(path, "rb") as file:
            if file.read(4) == b"PAR1":
                raise ValueError(f"{path} is a damaged or unfinished parquet file ({error}); make it again") from error
        raise ValueError(f"{path} is not a parquet file of examples; {_conversion(path)}") from error
    if missing := [name for name in COLUMNS if name not in found]:
        if {"score", "policy"} <= set(found):
            raise ValueError(f"{path} holds the results of an evaluation; give the file of examples that it read")
        what = f"{path} lacks the column {', '.join(missing)}; it has {', '.join(found[:10])}"
        raise ValueError(f"{what}; {_conversion(path)}")
    return path


def _conversion(path: Path) -> str:
    """The command that makes examples of another project's file."""
    form = likely_format(path)
    looks = f"it looks like {FORMATS[form].files}" if form else "if it is another project's (memagent data --list)"
    return f"{looks}, convert it: memagent data --from {form or 'FORMAT'} {path} --out {path.stem}_examples.parquet"
