"""Turn a TOML or JSON table into a small frozen dataclass, or raise an error that explains what would be right.

Values must have the exact type, except that an integer is accepted as a float, a list as a tuple, and a string as the
member of an enum. :func:`to_toml` and :func:`toml_value` go the other way.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from memagent_lib.errors import UserError, nearest, nearest_path

T = TypeVar("T")
_BARE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
# pydantic's names of errors.
_UNKNOWN = "unexpected_keyword_argument"
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


class SettingsError(UserError, ValueError):
    """A setting is invalid. The message gives its key, its value and a correct value."""


def parse(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build the dataclass ``cls``, and those nested in it, from ``table``. Error messages call the table ``where``.

    Raises :class:`SettingsError` for an unknown key or an invalid value. The message lists the known keys, or includes
    the message of ``__post_init__`` if that raised an error.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import to_json

    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} must be a table, got {table!r}")
    try:
        # By way of JSON: from Python objects, strict mode takes no list for a tuple and no dict for a dataclass.
        document = to_json(dict(table), inf_nan_mode="constants", fallback=repr)
        return TypeAdapter(cls).validate_json(document, strict=True, extra="forbid")
    except ValidationError as refused:
        raise SettingsError("; ".join(dict.fromkeys(_messages(cls, where, refused)))) from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys: ``{"a": {"b": 1}, "c.d": 2}`` becomes ``{"a.b": 1, "c.d": 2}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:  # an empty table is a value, or it would vanish
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def require_at_least(table: Any, least: float, *names: str) -> None:
    """Raise :class:`ValueError` if a field in ``names`` is not finite or is less than ``least``."""
    for name in names:
        value = getattr(table, name)
        if not value >= least or value == math.inf:  # "not >=" also catches nan
            raise ValueError(f"{name} must be at least {least}, got {value}")


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises :class:`SettingsError` if the file is missing (the message calls it ``what``), or is not valid TOML in UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise SettingsError(f"no {what} at {path}{nearest_path(path)}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows write a byte order mark
    except UnicodeDecodeError as broken:
        line = broken.object.count(b"\n", 0, broken.start) + 1
        byte = broken.object[broken.start]
        raise SettingsError(f"{path} is not UTF-8: byte {byte:#x} in line {line}; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as broken:
        raise SettingsError(f"{path} is not TOML: {broken}") from broken


def key_value(text: str) -> tuple[str, Any]:
    """Split ``key=value`` and parse the value as TOML; a value that is not TOML is used as a string.

    Raises :class:`SettingsError` if ``text`` has no ``=``.
    """
    key, found, value = text.partition("=")
    if not found:
        raise SettingsError(f"a setting is key=value, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as TOML; ``None`` is left out.

    Dots in a key stay: TOML reads them as tables in tables, which is what a recipe means by them.
    """
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [_assignment(key, value) for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines).strip()


def toml_value(value: Any) -> str:
    """Return a string, number, boolean, list or table as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(_assignment(*entry) for entry in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # JSON has other names for nan and inf
    # JSON's strings are TOML's, except that TOML forbids DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _assignment(key: str, value: Any) -> str:
    name = key if _BARE_KEY.fullmatch(key) else toml_value(key)
    return f"{name} = {toml_value(value)}"


def _messages(cls: type, where: str, refused: Any) -> Iterator[str]:
    for error in refused.errors():
        *path, last = error["loc"] or ("",)
        named = ".".join(map(str, error["loc"]))
        if error["type"] == _UNKNOWN:
            known = sorted(_fields(cls, path))
            listed = f"it has {', '.join(known)}{nearest(last, known)}"
            yield f"{_in(where, '.'.join(map(str, path)))} has no key {last}; {listed}"
        elif error["type"] in _MISSING:
            yield f"{_in(where, '.'.join(map(str, path)))} needs {last}"
        elif error["type"] in ("value_error", "assertion_error"):
            yield f"{_in(where, named)}: {error['ctx']['error']}"
        else:
            right = error["msg"].replace("Input should be", "must be").replace("greater than or equal to", "at least")
            right = right.replace("less than or equal to", "at most")
            yield f"{_in(where, named)} {right}, got {error['input']!r}"


def _in(where: str, path: str) -> str:
    return f"{where}: {path}" if path else where


def _fields(cls: type, path: list[str | int]) -> list[str]:
    """Return the fields of the dataclass at ``path`` below ``cls``; indices and tags of a union are passed over."""
    for part in path:
        hint = get_type_hints(cls).get(part) if isinstance(part, str) else None
        kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
        cls = kinds[0] if kinds else cls
    return [field.name for field in dataclasses.fields(cls)]
