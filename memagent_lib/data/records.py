"""Read the records of a file as objects, and their accepted answers in any of the shapes that data sets use.

========================================================  ==========================================================
shape                                                     accepted answers
========================================================  ==========================================================
a text, or a list of texts                                the texts
a number or a date                                        ``3.0`` is ``3``, ``0.1`` is ``0.1``; ``2024-05-01``
a truth value                                             ``yes`` and ``true``, or ``no`` and ``false``
an object with ``text``, ``value``, ``answer`` or         its value, and its ``aliases``; the answers of a list of such
``spans``                                                 objects are combined (SQuAD, TriviaQA, NQ, DROP)
a text that is one of these lists or objects in JSON or   the answers in that list or object
Python notation
========================================================  ==========================================================

Everything else raises an error: null, an empty text, a list of lists, and so on.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

_DELIMITERS = ",;\t|"
_KEYS = ("text", "value", "answer", "spans")


def records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, which is a list of JSON objects, JSON lines, parquet or CSV.

    The first row of CSV names the columns. Its cells are texts, and empty ones are None.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    with open(path, "rb") as file:
        head = file.read(1 << 16)  # the content decides, not the suffix, because downloads are often renamed
    if suffix in (".csv", ".tsv", ".tab"):
        yield from _csv(path, "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    elif head.startswith(b"PAR1"):
        yield from _parquet(path)
    elif head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from json.loads(utf8_text(path))
    else:
        with open(path, encoding="utf-8-sig") as file:
            for line in file:  # one line in memory at a time
                if line.strip():
                    yield json.loads(line)


def utf8_text(path: Path) -> str:
    """Return the text of a file. Raises ``ValueError``, which names the line, if a byte is not UTF-8."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error}); convert the file, as with iconv") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(batch_size=16):  # few rows, because each may be a book
        yield from batch.to_pylist()


def _csv(path: Path, encoding: str) -> Iterator[dict[str, Any]]:
    import pandas as pd

    with open(path, encoding=encoding) as file:
        header = file.readline()
    options = {"dtype": str, "keep_default_na": False, "na_values": [""], "encoding": encoding}
    # Without a header, because pandas takes the first cells of rows that are longer than it for row names.
    rows = pd.read_csv(path, sep=max(_DELIMITERS, key=header.count), header=None, **options)
    frame = rows[1:].set_axis([str(name).strip() for name in rows.iloc[0]], axis="columns")
    yield from frame.dropna(how="all").astype(object).where(frame.notna(), None).to_dict("records")


class NoAnswer(ValueError):
    """A record states, in its data set's own form, that its document does not answer the question."""


def accepted_answers(value: Any) -> tuple[str, ...]:
    """Return the distinct answers in ``value``.

    Raises :class:`NoAnswer` for an empty list ``text``, as in SQuAD v2, and ``ValueError`` for any other value from
    which no answer can be taken.
    """
    if isinstance(value, str):
        value = written_value(value) or value
    return _filled(_answers(value), value)


def texts(value: Any) -> tuple[str, ...]:
    """Return a value, or each value of a list, as text. Raises ``ValueError`` if one is null or empty, or none is."""
    return _filled(map(_scalar, value if isinstance(value, list) else [value]), value)


def written_value(text: str) -> list[Any] | tuple[Any, ...] | dict[Any, Any] | None:
    """Return the list or object that a text is in JSON or Python notation, or None."""
    if text.strip()[:1] in ("[", "{"):
        for read in (json.loads, ast.literal_eval):  # JSON first, because null and true are no Python
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return read(text.strip())
    return None


def _filled(answers: Iterator[str], value: Any) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(answers))
    if not found or not all(answer.strip() for answer in found):
        raise ValueError(f"there is no answer, or an empty one: {value!r:.60}")
    return found


def _answers(value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield from ("yes", "true") if value else ("no", "false")
    elif isinstance(value, Mapping):
        key = next((key for key in _KEYS if key in value), None)
        if key is None:
            raise ValueError(f"an answer is an object without {', '.join(_KEYS)}: {value!r:.60}")
        if value[key] == [] and key == "text":
            raise NoAnswer("the answer's list of texts is empty, as where SQuAD v2 has no answer")
        yield from _answers(value[key])
        yield from _answers(value.get("aliases") or [])
    elif isinstance(value, list | tuple):
        for part in value:
            if isinstance(part, list | tuple):
                raise ValueError(f"the answers are a list of lists: {value!r:.60}; list the wordings that are right")
            yield from _answers(part)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float | Decimal) and Decimal(str(value)).is_finite():
        digits = f"{Decimal(str(value)):f}"
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, date):  # and datetime, which Arrow and spreadsheets use for both
        return value.isoformat().removesuffix("T00:00:00")
    if not isinstance(value, str | int):
        raise ValueError(f"an answer is {value!r:.60}; it must be a text, a number or a date")
    return str(value)
