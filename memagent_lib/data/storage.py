"""Write and read parquet files of examples as a stream. A document with several consecutive questions is stored once.

The ``document`` column is dictionary encoded: a row group stores each distinct text once and its rows refer to it, so
a thousand questions about one book take the space of one book. Any parquet reader, verl's included, sees a plain string
column. A row group ends only at a new document, unless its rows would expand to more than a billion characters. A
text is stored again after such a cut, or if it recurs in a later row group. Storing each text exactly once per file
would need a column of references, which verl does not resolve.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data.examples import Example
from memagent_lib.data.formats import FORMATS, likely_format
from memagent_lib.errors import MissingFile, one_line
from memagent_lib.paths import replacing, require_replaceable

GROUP_ROWS = 4096
GROUP_CHARS = 1 << 24
"""A row group ends before a new document that would take its stored text beyond this, which bounds memory."""
READ_CHARS = 1 << 30
"""A row group always ends before its expanded rows exceed this, because some readers stop at 2 GB."""
COLUMNS = ("data_source", "agent_name", "ability", "prompt", "reward_model", "document", "extra_info")


def save(examples: Iterable[Example], path: str | Path) -> Path:
    """Write examples to a parquet file, atomically and one row group at a time; return its path.

    Raises ``ValueError`` if an id is repeated, there is no example, or the name does not end in ``.parquet``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_parquet(path)
    written = 0
    schema = _schema()
    with replacing(path) as unfinished, pq.ParquetWriter(unfinished, schema, **_WRITER) as writer:
        for group in _groups(examples):
            table = pa.Table.from_pylist([example.to_record() for example in group], schema)
            writer.write_table(table, row_group_size=len(group))
            written += len(group)
        if not written:
            raise ValueError(f"no examples to write to {path}")
    return Path(path)


def require_parquet(path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path``, a file to write, ends in ``.parquet`` and can be written.

    A file that is there is replaced only if it has examples, or is empty or damaged.
    """
    if Path(path).suffix != ".parquet":
        raise ValueError(
            f"examples are written as parquet, which verl and pandas read; end the name {path} in .parquet"
        )
    require_replaceable(path)
    if Path(path).is_file() and _has_something_else(Path(path)):
        raise ValueError(
            f"{path} is there already and is no file of examples; choose another name, or remove that file"
        )


def _has_something_else(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not _begins_like_parquet(path):
        return path.stat().st_size > 0
    try:
        return not set(COLUMNS) <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):  # damaged; the errors of reading it advise to make it again
        return False


def load(path: str | Path, limit: int | None = None) -> list[Example]:
    """Return the examples of a parquet file in order, at most ``limit`` of them.

    Examples in one row group that have the same document share one string.
    """
    return list(stream(path, limit))


class QuestionKey(NamedTuple):
    """A question's id in its source, and its text. Two data sets may give one question other ids, or reuse an id."""

    id: str
    text: str


def question_keys(path: str | Path) -> list[QuestionKey]:
    """Return the key of every example's question. Where no id in the source is recorded, it has the example's id."""
    keys = []
    for record in stream_records(path):
        extra = record["extra_info"]
        id = json.loads(extra["metadata"]).get("question_id", extra["id"])
        keys.append(QuestionKey(id, record["prompt"][0]["content"]))
    return keys


def stream(path: str | Path, limit: int | None = None) -> Iterator[Example]:
    """Yield the examples of a parquet file in order, at most ``limit`` of them.

    Only one row group's documents are in memory at a time. Raises :class:`MissingFile` if there is no such file, and
    ``ValueError`` if it is damaged or does not contain examples, or if ``limit`` is negative.
    """
    import pyarrow.parquet as pq

    if limit is not None and limit < 0:
        raise ValueError(f"limit must be at least 0, or None for all examples, got {limit}")
    file = pq.ParquetFile(_checked(path), read_dictionary=["document"])
    yielded = 0
    for group in range(file.num_row_groups):
        # pyarrow and the records raise any of these for a file whose end was lost or whose bytes changed.
        try:
            for example in _read_group(file, group):
                if yielded == limit:
                    return
                yield example
                yielded += 1
        except (OSError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path} is damaged after example {yielded:,} ({error}); make it again") from error
        except ValueError as error:
            raise ValueError(f"{path}, example {yielded + 1:,}: {error}") from error


def stream_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as records, without the documents, which are not read."""
    import pyarrow.parquet as pq

    columns = [name for name in COLUMNS if name != "document"]
    file = pq.ParquetFile(_checked(path))
    with _damage_named(path):
        for batch in file.iter_batches(GROUP_ROWS, columns=columns):
            yield from batch.to_pylist()


def is_as_saved(path: str | Path) -> bool:
    """Return whether a file has exactly the columns and types that :func:`save` writes.

    verl loads several files as one through Hugging Face datasets, so all files need the same schema. A file that pandas
    rewrote has a different one (large strings, sometimes an index).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    saved = _schema().set(COLUMNS.index("document"), pa.field("document", pa.string()))
    return bool(pq.read_schema(_checked(path)).remove_metadata() == saved)


def copy_without(path: str | Path, ids: Container[str], target: str | Path) -> Path:
    """Copy a file to ``target`` in the schema of :func:`save`, without the examples whose id is in ``ids``.

    Rows are not validated.
    """
    import pyarrow.parquet as pq

    schema = _schema()
    file = pq.ParquetFile(_checked(path), read_dictionary=["document"])
    with replacing(target) as unfinished, pq.ParquetWriter(unfinished, schema, **_WRITER) as writer:
        for group in range(file.num_row_groups):
            with _damage_named(path):
                table = file.read_row_group(group, columns=list(COLUMNS)).select(COLUMNS).cast(schema)
            rest = table.filter([extra["id"] not in ids for extra in table["extra_info"].to_pylist()])
            if rest.num_rows:
                writer.write_table(rest, row_group_size=rest.num_rows)
    return Path(target)


def count(path: str | Path) -> int:
    """Return the number of examples in a parquet file, from its metadata alone."""
    import pyarrow.parquet as pq

    return pq.read_metadata(_checked(path)).num_rows


def document_bytes(path: str | Path) -> int:
    """Return the bytes of a parquet file's documents before compression, each text once, from its metadata alone."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(_checked(path))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == "document")


_WRITER: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["document"],
    "dictionary_pagesize_limit": 1 << 30,  # past its limit the writer would fall back to storing every row's text
    "store_schema": False,  # readers then see strings, not Arrow dictionaries, which Hugging Face datasets cannot take
    "write_statistics": False,  # a group's first and last documents in sort order would be stored twice
    "write_batch_size": 64,
}


def _groups(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Divide examples into row groups, each of which is stored and read as a whole."""
    ids: set[str] = set()
    group: list[Example] = []
    documents: set[str] = set()
    stored_chars = 0
    read_chars = 0
    for example in examples:
        if example.id in ids:
            raise ValueError(f"two examples are called {example.id!r}; ids must differ")
        ids.add(example.id)
        size = len(example.document)
        is_new = example.document not in documents
        is_full = stored_chars + size > GROUP_CHARS or len(group) >= GROUP_ROWS
        if group and ((is_new and is_full) or read_chars + size > READ_CHARS):
            yield group
            group = []
            documents = set()
            stored_chars = 0
            read_chars = 0
            is_new = True  # each group stores its documents itself
        group.append(example)
        documents.add(example.document)
        read_chars += size
        if is_new:
            stored_chars += size
    if group:
        yield group


def _schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    span = pa.list_(pa.int64())
    message = pa.struct([("role", text), ("content", text)])
    extra = pa.struct([("id", text), ("rule", text), ("evidence", pa.list_(span)), ("metadata", text)])
    reward = pa.struct([("style", text), ("ground_truth", pa.list_(text))])
    types = (text, text, text, pa.list_(message), reward, pa.dictionary(pa.int32(), text), extra)
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def _read_group(file: Any, group: int) -> Iterator[Example]:
    texts: dict[int, str] = {}
    for batch in file.iter_batches(batch_size=256, row_groups=[group]):  # indices into texts, not the texts again
        column = batch.column("document")
        if not hasattr(column, "indices"):
            raise TypeError("its documents are not texts")
        rows = batch.drop_columns(["document"]).to_pylist()
        for row, (index, record) in enumerate(zip(column.indices.to_pylist(), rows, strict=True)):
            if index not in texts:
                texts[index] = column[row].as_py()
            if texts[index] is None:
                raise TypeError("a document is null")
            yield Example.from_record(record | {"document": texts[index]})


def _checked(path: str | Path) -> Path:
    """Return ``path`` if the file has the columns of examples; otherwise raise an error that says what to do."""
    import pyarrow.parquet as pq

    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the files of examples in it, as {path}/*.parquet")
    if not path.is_file():
        raise MissingFile(f"no examples at {path}; make some with: memagent data TASK --out {shlex.quote(str(path))}")
    if not _begins_like_parquet(path):
        raise ValueError(f"{path} is not a parquet file of examples; {_conversion(path)}")
    with _damage_named(path):
        found = pq.read_schema(path).names
    missing = [name for name in COLUMNS if name not in found]
    if not missing:
        return path
    if {"score", "policy"} <= set(found):
        raise ValueError(f"{path} has the results of an evaluation; name the file of examples that it read")
    raise ValueError(
        f"{path} lacks the column {', '.join(missing)}; it has {', '.join(found[:10])}; {_conversion(path)}"
    )


@contextmanager
def _damage_named(path: str | Path) -> Iterator[None]:
    """Turn the errors that pyarrow raises for a damaged file into a ``ValueError`` that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is a damaged or unfinished parquet file ({one_line(error)}); make it again"
        ) from error


def _begins_like_parquet(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _conversion(path: Path) -> str:
    """Return a phrase with the command that converts another project's file."""
    form = likely_format(path)
    looks = "if it is another project's (memagent data --list)"
    if form:
        looks = f"it looks like {FORMATS[form].files}"
    source, out = shlex.quote(str(path)), shlex.quote(f"{path.stem}_examples.parquet")
    return f"{looks}, convert it: memagent data --from {form or 'FORMAT'} {source} --out {out}"
