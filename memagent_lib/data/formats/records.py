"""Read the records of other projects' files: JSON, JSON lines or parquet.

Errors name the file and, if a single record is wrong, its line or number and the value that was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.answers import accepted_answers, scalar_answer
from memagent_lib.data.formats.table_rows import CSV_SUFFIXES, SHEET_SUFFIXES, csv_rows, sheet_rows
from memagent_lib.data.pools import AnyQuestion
from memagent_lib.errors import MissingFile, one_line
from memagent_lib.text import whole_characters

T = TypeVar("T")
# The first bytes of compressed files.
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number"}
_UTF8_MARK = b"\xef\xbb\xbf"


class Record(NamedTuple):
    """One record of a file, with its ``number`` (from 1), and its position in words (``where``) for error messages."""

    fields: dict[str, Any]
    number: int
    where: str

    def get(self, name: str, kind: type[T], *others: str, may_be_empty: bool = False) -> T:
        """Return the field ``name``, or the first of ``others`` if it is missing or null. See :func:`field_of`."""
        found = next((other for other in (name, *others) if self.fields.get(other) is not None), name)
        return field_of(self.fields, found, kind, self.where, may_be_empty=may_be_empty)

    def id(self, *names: str) -> str:
        """Return the first of the fields ``names`` that is neither missing nor null, as text, or "" if all are."""
        values = (self.fields.get(name) for name in names)
        return next((str(value) for value in values if value is not None), "")

    def example(self, *, question: str, document: str, **others: Any) -> Example:
        """Return an example made from this record. Raises ``ValueError`` if its question or document is empty."""
        refuse_empty(question, "the question", self.where)
        refuse_empty(document, "the document", self.where)
        return Example(question=question, document=document, **others)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the field ``name`` as one or more texts; it may be a list or a single value.

        Raises ``ValueError`` if the field is missing or null, if the list or one of its texts is empty, or if a value
        is not a text, number or date.
        """
        values = self.get(name, object)
        found = tuple(
            scalar_answer(value, f"{self.where}, {name!r}")
            for value in (values if isinstance(values, list) else [values])
        )
        if not found or not all(text.strip() for text in found):
            raise ValueError(
                f"{self.where}: the answer list {name!r} is empty or has an empty answer: {list(found[:3])}"
            )
        return found

    def answers(self, name: str) -> tuple[str, ...]:
        """Return the accepted answers in the field ``name``, which may have any of the shapes in :mod:`.answers`."""
        return accepted_answers(self.get(name, object), f"{self.where}, {name!r}")


def require_file(path: str | Path, form: str) -> None:
    """Raise an error that says what to do if ``path``, a file in the format ``form``, is not a regular file."""
    file = Path(path)
    if file.is_file():
        return
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the files in it, as {path}/*.jsonl")
    if file.exists():
        raise ValueError(f"{path} is a pipe or device; write its content to a file and name that")
    if str(path) == "-":
        raise MissingFile("- stands for a pipe, which is not read; write its content to a file and name that")
    theirs = "; these files are their projects' own and are not shipped with memagent"
    if form == "plain":
        theirs = ""
    raise MissingFile(f"no file at {path}{theirs}")


def records(path: str | Path, expected: str) -> Iterator[Record]:
    """Yield the records of a file: parquet, JSON lines or a JSON list. ``expected`` describes the file in errors."""
    path = Path(path)
    with open(path, "rb") as file:
        head = file.read(1 << 16)  # the content decides, not the suffix, because downloads are often renamed
    if path.suffix.lower() in SHEET_SUFFIXES:
        raise ValueError(f"{path}: expected {expected}, found a spreadsheet")
    for mark, name in _PACKED.items():
        if head.startswith(mark):
            raise ValueError(f"{path}: expected {expected}, found a file compressed by {name}; decompress it first")
    if head.startswith(b"PAR1"):
        found = _parquet(path)
    elif head.removeprefix(_UTF8_MARK).lstrip().startswith(b"["):
        found = _listed(path, expected)
    else:
        found = _lines(path, expected)
    first = next(found, None)
    if first is None:
        raise ValueError(f"{path}: expected {expected}, found a file without records")
    yield first
    yield from found


def table_records(path: str | Path, expected: str, sheet: str | None = None) -> Iterator[Record]:
    """Yield the records of a table in CSV, TSV or a spreadsheet, or of any file that :func:`records` reads."""
    path = Path(path)
    suffix = path.suffix.lower()
    if sheet is not None and suffix not in SHEET_SUFFIXES:
        raise ValueError(f"{path}: sheet={sheet} is for spreadsheets ({', '.join(SHEET_SUFFIXES)}); leave it out")
    if suffix in SHEET_SUFFIXES:
        rows = sheet_rows(path, sheet)
        unit = "row"
    elif suffix in CSV_SUFFIXES:
        rows = csv_rows(path)
        unit = "line"
    else:
        yield from records(path, expected)
        return
    number = 0
    try:
        for number, (position, fields) in enumerate(rows, 1):
            yield Record(fields, number, f"{path}, {unit} {position}")
    except UnicodeDecodeError:
        utf8_text(path)  # raises with the line and the byte
        raise
    if not number:
        raise ValueError(f"{path}: expected {expected}, found a table without a row below its names")


def json_value(path: str | Path, kind: type[T], expected: str) -> T:
    """Return the JSON value in a file. Raises ``ValueError`` if the file is not JSON or its value is not a ``kind``."""
    text = utf8_text(Path(path))
    if not text.strip():
        raise ValueError(f"{path}: expected {expected}, found an empty file")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = str(path)
        hint = ""
        if isinstance(error, json.JSONDecodeError):
            where += f", line {error.lineno}"
            if error.msg == "Extra data":
                hint = "; these are JSON lines, one object to a line"
        raise ValueError(f"{where}: expected {expected}, found {_unreadable(error, 'text that')}{hint}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{path}: expected {expected}, found {_found(value)}")
    _refuse_half_characters(value, text, str(path))
    return value


def field_of(record: Any, name: str, kind: type[T], where: str, *, may_be_empty: bool = False) -> T:
    """Return the field ``name`` of an object.

    Raises ``ValueError`` if ``record`` is not an object, or if the field is missing, null, not of type ``kind`` or,
    unless it ``may_be_empty``, a text of nothing but white space.
    """
    fields = _object(record, where)
    value = fields.get(name)
    if value is None:
        null = " (it is null)" if name in fields else ""
        raise ValueError(f"{where}: missing field {name!r}{null}; found {', '.join(fields) or 'no fields'}")
    is_truth = kind is int and isinstance(value, bool)  # in Python, truth values are whole numbers
    if is_truth or not isinstance(value, kind):
        raise ValueError(f"{where}: expected {_NAMES.get(kind, kind.__name__)} as {name!r}, found {_found(value)}")
    if isinstance(value, str) and not may_be_empty:
        refuse_empty(value, repr(name), where)
    return value


def refuse_empty(text: str, what: str, where: str) -> None:
    """Raise ``ValueError`` if there is nothing but white space in ``text``, which ``what`` names in words."""
    if not text.strip():
        raise ValueError(f"{where}: {what} is empty; fill it in, or remove the record")


def unique(questions: Iterable[AnyQuestion], *paths: str | Path) -> Iterator[AnyQuestion]:
    """Yield the questions or examples of files unchanged. Raises ``ValueError`` at the first repeated id."""
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            files = ", ".join(map(str, paths))
            fix = "convert the files one by one" if len(paths) > 1 else "change one of them"
            raise ValueError(f"{files}: the id {question.id!r} comes twice; ids must differ: {fix}")
        seen.add(question.id)
        yield question


def utf8_text(path: Path) -> str:
    """Return the text of a file. Raises ``ValueError``, which names the line, if a byte is not UTF-8."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(_not_utf8(f"{path}, line {line}", raw, error.start)) from error


def _listed(path: Path, expected: str) -> Iterator[Record]:
    for number, value in enumerate(json_value(path, list, expected), 1):
        where = f"{path}, record {number}"
        yield Record(_object(value, where), number, where)


def _lines(path: Path, expected: str) -> Iterator[Record]:
    """Yield the records of JSON lines, with one line in memory at a time. Empty lines are skipped."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            where = f"{path}, line {number}"
            try:
                text = raw.decode("utf-8-sig")
                value = json.loads(text)
            except UnicodeDecodeError as error:
                raise ValueError(_not_utf8(where, raw, error.start)) from error
            except (ValueError, RecursionError) as error:
                begins = repr(raw[:60].decode("utf-8", "replace").strip())
                found = _unreadable(error, f"{begins}, which")
                if number == 1 and isinstance(error, json.JSONDecodeError):
                    found += "; write one list of objects, or one object to a line"
                raise ValueError(f"{where}: expected {expected}, found {found}") from error
            _refuse_half_characters(value, text, where)
            yield Record(_object(value, where), number, where)


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=16):  # few rows, because each may be a book
            for record in batch.to_pylist():
                number += 1
                yield Record(record, number, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: begins like a parquet file and cannot be read as one after {number:,} rows "
            f"({one_line(error)}); get the file again"
        ) from error


def _unreadable(error: Exception, text: str) -> str:
    """Return what was found instead of readable JSON, without its position. ``text`` begins the phrase."""
    if isinstance(error, json.JSONDecodeError):
        return f"{text} is not JSON ({error.msg})"
    if isinstance(error, RecursionError):
        return "lists or objects that are nested too deeply"
    return f"a whole number of more than {sys.get_int_max_str_digits():,} digits; write it as a text, in quotes"


def _refuse_half_characters(value: Any, text: str, where: str) -> None:
    """Raise ``ValueError`` if a JSON text escapes half a surrogate pair, which no UTF-8 file can store."""
    if "\\ud" not in text.lower():  # half a pair can only come from an escape, and escapes are rare
        return
    decoded = json.dumps(value, ensure_ascii=False)
    if whole_characters(decoded) != decoded:
        raise ValueError(
            f"{where}: has half a character (an escape such as \\ud83e without its other half); repair or remove it"
        )


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a JSON object, found {_found(value)}")
    return value


def _not_utf8(where: str, raw: bytes, at: int) -> str:
    byte = f"byte 0x{raw[at]:02x} at offset {at:,}"
    return f"{where}: {byte} is not UTF-8; convert the file, for instance with iconv -t utf-8"


def _found(value: Any) -> str:
    return f"{_NAMES.get(type(value), type(value).__name__)} {str(value)[:60]!r}"
