"""Reading JSON of others: every error names the file, the line, what was expected and what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.ruler import utf8

T = TypeVar("T")
_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number"}


def json_file(path: str | Path, kind: type[T], what: str) -> T:
    """One JSON value of a ``kind``."""
    text = utf8(Path(path))
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}: expected {what}, found text that is not JSON ({error.msg})"
        ) from error
    if not isinstance(value, kind):
        raise ValueError(f"{path}: expected {what}, found {_found(value)}")
    return value


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers, one line in memory at a time. Empty lines are passed over."""
    lines = 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            lines += 1
            yield number, _json_line(raw, f"{path}, line {number}")
    if not lines:
        raise ValueError(f"{path}: expected JSON lines, found an empty file")


def _json_line(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x} at offset {error.start:,} of the line"
        raise ValueError(f"{where}: {byte} is not UTF-8; convert the file, for instance with iconv -t utf-8") from error
    except json.JSONDecodeError as error:
        shown = raw[:60].decode("utf-8", "replace").strip()
        raise ValueError(f"{where}: expected one JSON object to a line, found {shown!r} ({error.msg})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, found {_found(value)}")
    return value


def field_of(record: Any, name: str, kind: type[T], where: str) -> T:
    """The field ``name`` of a record; an error where it is missing, null or of another kind."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: expected an object, found {_found(record)}")
    if record.get(name) is None:
        raise ValueError(f"{where}: missing field {name!r}; found {', '.join(record) or 'no fields'}")
    if not isinstance(value := record[name], kind):
        raise ValueError(f"{where}: expected {_NAMES.get(kind, kind.__name__)} as {name!r}, found {_found(value)}")
    return value


def texts(record: Any, name: str, where: str) -> list[str]:
    """The field ``name`` as a list of texts: of a list its members, of a single value that one. Never empty."""
    values = field_of(record, name, object, where)
    found = [str(value) for value in (values if isinstance(values, list) else [values])]
    if not found or not all(text.strip() for text in found):
        raise ValueError(f"{where}: the answer list {name!r} is empty or holds an empty answer: {found[:3]}")
    return found


def named_texts(examples: Iterator[Example], path: str | Path) -> Iterator[Example]:
    """The examples, with an error at the first id that comes twice."""
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise ValueError(f"{path}: two examples have the id {example.id!r}; ids must differ")
        seen.add(example.id)
        yield example


def _found(value: Any) -> str:
    return f"{_NAMES.get(type(value), type(value).__name__)} {str(value)[:60]!r}"
