"""Examples: a question, a document, accepted answers and the positions of the evidence; and the parquet files of them.

An example's record has the columns that verl reads, so one file serves training and evaluation. Files are written and
read as streams. A document with several consecutive questions is stored once: the ``document`` column is dictionary
encoded, a row group stores each distinct text once and its rows refer to it, so a thousand questions about one book
take the space of one book. Any parquet reader, verl's included, sees a plain string column. A row group ends only at a
new document, unless its rows would expand to more than a billion characters. A text is stored again after such a cut,
or if it recurs in a later row group. Storing each text exactly once per file would need a column of references, which
verl does not resolve.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.errors import MissingFile, nearest_path, one_line
from memagent_lib.paths import replacing, require_replaceable, shortest_ends
from memagent_lib.scoring import judge_named
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

GROUP_ROWS = 4096
GROUP_CHARS = 1 << 24
"""A row group ends before a new document that would take its stored text beyond this, which bounds memory."""
READ_CHARS = 1 << 30
"""A row group always ends before its expanded rows exceed this, because some readers stop at 2 GB."""
COLUMNS = ("data_source", "agent_name", "ability", "prompt", "reward_model", "document", "extra_info")
FRAMES = {
    "examples": ("example", "task", "tokens", "characters", "facts", "file"),
    "depths": ("example", "task", "fact", "depth", "text", "file"),
    "gold": ("example", "task", "gold", "place", "documents", "depth", "file"),
}
_WRITER: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["document"],
    "dictionary_pagesize_limit": 1 << 30,  # past its limit the writer would fall back to storing every row's text
    "store_schema": False,  # readers then see strings, not Arrow dictionaries, which Hugging Face datasets cannot take
    "write_statistics": False,  # a group's first and last documents in sort order would be stored twice
    "write_batch_size": 64,
}


class Span(NamedTuple):
    """A piece of evidence: the characters ``document[start:end]``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One question about one document.

    ``rule`` names the judge, and ``metadata`` holds any JSON values. ``document`` is empty if only the question
    matters, as in tables of results.
    """

    id: str
    task: str
    question: str
    document: str
    answers: tuple[str, ...]
    rule: str = "boxed"
    evidence: tuple[Span, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError(f"example {self.id!r} has an empty question")
        is_texts = isinstance(self.answers, tuple) and all(isinstance(answer, str) for answer in self.answers)
        if not is_texts or not self.answers or not all(self.answers):
            raise ValueError(f"example {self.id!r} has no accepted answer, or an empty one: {self.answers!r:.60}")
        judge_named(self.rule)
        # A document that is left out has no length to check against.
        outside = [(a, b) for a, b in self.evidence if self.document and not 0 <= a < b <= len(self.document)]
        if outside:
            raise ValueError(
                f"example {self.id!r}: evidence {outside[0]} lies outside its document of {len(self.document):,} "
                "characters"
            )

    def to_record(self) -> dict[str, Any]:
        """Return the example as a parquet row: verl's columns, the document, and all other fields in ``extra_info``."""
        return {
            "data_source": self.task,
            "agent_name": "memagent",  # selects our agent loop in verl
            "ability": "memory",
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": list(self.answers)},
            "document": self.document,
            "extra_info": {
                "id": self.id,
                "rule": self.rule,
                "evidence": [list(span) for span in self.evidence],
                "metadata": json.dumps(dict(self.metadata), sort_keys=True),  # parquet needs the same keys in every row
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Example:
        """Return the example from a row that :meth:`to_record` made."""
        extra = record["extra_info"]
        return cls(
            id=extra["id"],
            task=record["data_source"],
            question=record["prompt"][0]["content"],
            document=record["document"],
            answers=tuple(map(str, record["reward_model"]["ground_truth"])),
            rule=extra["rule"],
            evidence=tuple(Span(int(start), int(end)) for start, end in extra["evidence"]),
            metadata=json.loads(extra["metadata"]),
        )


def data_hash(path: str | Path) -> str:
    """Return the first 16 hex digits of a file's SHA-256. Runs log it to identify their data."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def naming_errors(where: str | Path, expected: str) -> Iterator[None]:
    """Turn any error that a foreign or damaged file causes into a ``ValueError`` that names its place."""
    try:
        yield
    except Exception as error:  # a record may have any shape
        reason = f"no field {error}" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"{where}: not {expected}, or damaged: {reason}") from error


def save(examples: Iterable[Example], path: str | Path) -> Path:
    """Write examples to a parquet file, atomically and one row group at a time; return its path.

    Raises ``ValueError`` if an id is repeated, there is no example, or the name does not end in ``.parquet``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_parquet(path)
    schema = _schema()
    with replacing(path) as unfinished, pq.ParquetWriter(unfinished, schema, **_WRITER) as writer:
        written = 0
        for group in _groups(examples):
            table = pa.Table.from_pylist([example.to_record() for example in group], schema)
            writer.write_table(table, row_group_size=len(group))
            written += len(group)
        if not written:
            raise ValueError(f"no examples to write to {path}")
    return Path(path)


def require_parquet(path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path``, a file to write, ends in ``.parquet`` and can be written.

    A file that is there is replaced only if it has examples.
    """
    if Path(path).suffix != ".parquet":
        raise ValueError(f"examples are written as parquet; end the name {path} in .parquet")
    require_replaceable(path)
    if Path(path).is_file() and Path(path).stat().st_size:
        try:
            _checked(path)
        except ValueError as error:
            raise ValueError(f"{path} is there already and has no examples; choose another name") from error


def load(path: str | Path, limit: int | None = None) -> list[Example]:
    """Return the examples of a parquet file in order, at most ``limit`` of them.

    Examples in one row group that have the same document share one string.
    """
    return list(stream(path, limit))


def stream(path: str | Path, limit: int | None = None) -> Iterator[Example]:
    """Yield the examples of a parquet file in order, at most ``limit`` of them.

    Only one row group's documents are in memory at a time. Raises :class:`MissingFile` if there is no such file, and
    ``ValueError`` if it is damaged or does not contain examples.
    """
    import pyarrow.parquet as pq

    file = pq.ParquetFile(_checked(path), read_dictionary=["document"])
    read = 0
    for group in range(file.num_row_groups):
        with naming_errors(f"{path}, example {read + 1:,} or later", "a file of examples"):
            for example in _read_group(file, group):
                if read == limit:
                    return
                yield example
                read += 1


def stream_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as records, without the documents, which are not read."""
    import pyarrow.parquet as pq

    columns = [name for name in COLUMNS if name != "document"]
    file = pq.ParquetFile(_checked(path))
    with naming_errors(path, "a file of examples"):
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


def count(path: str | Path) -> int:
    """Return the number of examples in a parquet file, from its metadata alone."""
    import pyarrow.parquet as pq

    return pq.read_metadata(_checked(path)).num_rows


def data_files(paths: Iterable[str | Path], tokenizer: Tokenizer | None = None) -> dict[str, pd.DataFrame]:
    """Return three frames that describe files of examples; :func:`memagent_lib.plots.data_overview` draws them.

    ``examples`` has a row per example; ``tokenizer`` counts its tokens if they are not recorded. ``depths`` has a row
    per piece of evidence, with its depth as a share of the document's characters. ``gold`` has a row per gold document
    whose position among the documents is recorded, from 0. The column ``file`` has the name of the row's file without
    its suffix, with as much of its folder as tells it from the others.
    """
    import pandas as pd

    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in FRAMES}
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
    return {name: pd.DataFrame(rows[name], columns=columns) for name, columns in FRAMES.items()}


def _groups(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Divide examples into row groups, each of which is stored and read as a whole."""
    ids: set[str] = set()
    group: list[Example] = []
    documents: set[str] = set()
    for example in examples:
        if example.id in ids:
            raise ValueError(f"two examples are called {example.id!r}; ids must differ")
        ids.add(example.id)
        size = len(example.document)
        is_full = sum(map(len, documents)) + size > GROUP_CHARS or len(group) >= GROUP_ROWS
        is_long = sum(len(other.document) for other in group) + size > READ_CHARS
        if group and ((is_full and example.document not in documents) or is_long):
            yield group
            group = []
            documents = set()
        group.append(example)
        documents.add(example.document)
    if group:
        yield group


def _schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    spans = pa.list_(pa.list_(pa.int64()))
    extra = pa.struct([("id", text), ("rule", text), ("evidence", spans), ("metadata", text)])
    reward = pa.struct([("style", text), ("ground_truth", pa.list_(text))])
    types = (text, text, text, pa.list_(message), reward, pa.dictionary(pa.int32(), text), extra)
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def _read_group(file: Any, group: int) -> Iterator[Example]:
    texts: dict[int, str] = {}
    for batch in file.iter_batches(batch_size=256, row_groups=[group]):  # indices into texts, not the texts again
        column = batch.column("document")
        rows = batch.drop_columns(["document"]).to_pylist()
        for row, (index, record) in enumerate(zip(column.indices.to_pylist(), rows, strict=True)):
            if index not in texts:
                texts[index] = column[row].as_py()
            yield Example.from_record(record | {"document": texts[index]})


def _checked(path: str | Path) -> Path:
    """Return ``path`` if the file has the columns of examples; otherwise raise an error that says what to do."""
    import pyarrow.parquet as pq

    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the files of examples in it, as {path}/*.parquet")
    if not path.is_file():
        raise MissingFile(f"no examples at {path}; `memagent data` makes some{nearest_path(path)}")
    if path.suffix in (".csv", ".json", ".jsonl", ".tsv"):
        found = []
    else:
        with naming_errors(path, "a file of examples"):
            found = pq.read_schema(path).names
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise ValueError(
            f"{path} has no examples (no column {', '.join(missing)}); convert another project's file with: "
            f"memagent data --from FORMAT {shlex.quote(str(path))} --out FILE.parquet"
        )
    return path
