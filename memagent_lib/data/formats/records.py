"""Records of other projects' files in any container. Every error names the file, the place, and what was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memagent_lib.data.pools import Asked
from memagent_lib.text import whole_characters

T = TypeVar("T")
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number"}


class Record(NamedTuple):
    """One record of a file, its number counted from 1, and its place in words for an error."""

    fields: dict[str, Any]
    number: int
    where: str

    def get(self, name: str, kind: type[T]) -> T:
        """The field ``name``; an error where it is missing, null or of another kind."""
        return field_of(self.fields, name, kind, self.where)

    def texts(self, name: str) -> tuple[str, ...]:
        """The field ``name`` as texts: of a list its members, of a single value that one. Never empty."""
        values = self.get(name, object)
        found = tuple(str(value) for value in (values if isinstance(values, list) else [values]))
        if not found or not all(text.strip() for text in found):
            raise ValueError(
                f"{self.where}: the answer list {name!r} is empty or holds an empty answer: {list(found[:3])}"
            )
        return found


def records(path: str | Path, what: str) -> Iterator[Record]:
    """The records of a file of parquet, JSON lines or a JSON list; ``what`` says what is expected, for errors."""
    path = Path(path)
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if packed := next((name for mark, name in _PACKED.items() if head.startswith(mark)), None):
        raise ValueError(f"{path}: expected {what}, found a file compressed by {packed}; decompress it first")
    begins = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not begins and path.stat().st_size <= len(head):
        raise ValueError(f"{path}: expected {what}, found an empty file")
    if head.startswith(b"PAR1"):
        yield from _parquet(path)
    elif begins.startswith(b"["):
        for number, record in enumerate(json_value(path, list, what), 1):
            yield Record(_object(record, where := f"{path}, record {number}"), number, where)
    else:
        yield from _lines(path, what)


def json_value(path: str | Path, kind: type[T], what: str) -> T:
    """One JSON value of a ``kind``."""
    text = utf8_text(Path(path))
    if not text.strip():
        raise ValueError(f"{path}: expected {what}, found an empty file")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, why = getattr(error, "lineno", 1), _why(error)
        lines = "; these are JSON lines, one object to a line" if why == "Extra data" else ""
        raise ValueError(f"{path}, line {line}: expected {what}, found text that is not JSON ({why}){lines}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{path}: expected {what}, found {_found(value)}")
    return _whole(value, text, str(path))


def field_of(record: Any, name: str, kind: type[T], where: str) -> T:
    """The field ``name`` of an object; an error where it is missing, null or of another kind."""
    record = _object(record, where)
    if record.get(name) is None:
        raise ValueError(f"{where}: missing field {name!r}; found {', '.join(record) or 'no fields'}")
    if not isinstance(value := record[name], kind):
        raise ValueError(f"{where}: expected {_NAMES.get(kind, kind.__name__)} as {name!r}, found {_found(value)}")
    return value


def unique(things: Iterable[Asked], path: str | Path) -> Iterator[Asked]:
    """The questions or examples of a file; an error where two have one id."""
    seen: set[str] = set()
    for thing in things:
        if thing.id in seen:
            raise ValueError(f"{path}: the id {thing.id!r} comes twice; ids must differ")
        seen.add(thing.id)
        yield thing


def utf8_text(path: Path) -> str:
    """The text of a file; an error with the place of the first byte that is not UTF-8."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(_not_utf8(f"{path}, line {line}", raw, error.start)) from error


def _lines(path: Path, what: str) -> Iterator[Record]:
    """One line in memory at a time. Empty lines are passed over."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            where = f"{path}, line {number}"
            try:
                value = json.loads(text := raw.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise ValueError(_not_utf8(where, raw, error.start)) from error
            except (ValueError, RecursionError) as error:
                shown = raw[:60].decode("utf-8", "replace").strip()
                raise ValueError(
                    f"{where}: expected {what}, found {shown!r}, which is no JSON ({_why(error)})"
                ) from error
            yield Record(_object(_whole(value, text, where), where), number, where)


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: begins like a parquet file and cannot be read as one ({error})") from error
    number = 0
    for batch in file.iter_batches(batch_size=16):
        for record in batch.to_pylist():
            number += 1
            yield Record(record, number, f"{path}, row {number}")


def _why(error: Exception) -> str:
    """What is wrong with a JSON text, without its place."""
    return "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", str(error))


def _whole(value: T, text: str, where: str) -> T:
    """``value`` of a JSON ``text``; an error where the text escapes half a surrogate pair, which no file can hold."""
    if "\\ud" in text.lower() and whole_characters(shown := json.dumps(value, ensure_ascii=False)) != shown:
        raise ValueError(f"{where}: holds half a character (an escape such as \\ud83e without its other half); mend it")
    return value


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a JSON object, found {_found(value)}")
    return value


def _not_utf8(where: str, raw: bytes, at: int) -> str:
    byte = f"byte 0x{raw[at]:02x} at offset {at:,}"
    return f"{where}: {byte} is not UTF-8; convert the file, for instance with iconv -t utf-8"


def _found(value: Any) -> str:
    return f"{_NAMES.get(type(value), type(value).__name__)} {str(value)[:60]!r}"
