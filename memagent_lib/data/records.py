"""Read the records of a file as objects, their accepted answers in any of the shapes that data sets use, and own files.

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
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example

_DELIMITERS = ",;\t|"
_NAMES = {"question": ("question",), "document": ("document", "context"), "answers": ("answers", "answer")}
_PASSAGE_TEXTS = ("text", "paragraph_text", "content", "page_content")
_CHOICES = ("choices", "options", "choice_A", "answerKey")
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
    elif listed := _only_list(path, head):
        yield from listed
    else:
        with open(path, encoding="utf-8-sig") as file:
            for line in file:  # one line in memory at a time
                if line.strip():
                    yield json.loads(line)


def _only_list(path: Path, head: bytes) -> list[Any] | None:
    """Return the records of a file that is one object with nothing but them: ``{"data": [{...}, ...]}``."""
    if re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"[^"]*"\s*:\s*\[\s*\{', head):
        with suppress(ValueError):  # of several keys, or of lines
            ((_, listed),) = json.loads(utf8_text(path)).items()
            return listed
    return None


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


# A user's own records.


def own_examples(
    record: Mapping[str, Any],
    number: int,
    path: Path,
    rule: str = "contains",
    question: str | None = None,
    document: str | None = None,
    answers: str | None = None,
) -> Iterator[Example | None]:
    """Yield the example of a record of a user's own file, with ``question``, ``document``, ``answers``, perhaps ``id``.

    The document may be called ``context``, and the answers ``answer``; the options name fields that are called
    otherwise. A document may also be a list of texts, or of objects with ``text`` and optionally ``title``, which are
    joined by empty lines. In a CSV file, where a list becomes a text such as ``['one', 'two']``, it is recognised. A
    record that is marked as unanswerable, as in SQuAD v2 and MuSiQue, gives None.
    """
    question = question or _field(record, "question")
    document = document or _field(record, "document")
    answers = answers or _field(record, "answers")
    if any(record.get(name) for name in _CHOICES if name not in (question, document, answers)):
        raise ValueError(
            "is a multiple-choice question, which plain records are not; write the options into the question and the "
            "right one's letter and text into answers, and set rule=choice"
        )
    try:
        accepted = _accepted(record, answers)
    except NoAnswer:
        yield None
        return
    ids = (record.get(name) for name in ("id", "_id", "qid", "question_id"))
    yield Example(
        id=str(next((id for id in ids if id is not None), f"{path.stem}-{number}")),
        task=path.stem,
        question=record[question],
        document=_document(record[document]),
        answers=accepted,
        rule=rule,
    )


def _field(record: Mapping[str, Any], part: str) -> str:
    found = [name for name in _NAMES[part] if record.get(name) is not None]
    if len(found) != 1:
        filled = ", ".join(name for name, value in record.items() if value is not None)
        raise ValueError(f"no {part}, or more than one, among {filled}; name the field with {part}=FIELD")
    return found[0]


def _accepted(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the accepted answers, with the aliases that the record lists beside them."""
    if record.get("answerable") is False or record.get("is_impossible") is True or record.get("unanswerable") is True:
        raise NoAnswer("the question is marked as unanswerable")
    found = accepted_answers(record[name])
    for other in ("answer_aliases", "aliases"):
        if record.get(other):
            found += accepted_answers(record[other])
    return tuple(dict.fromkeys(found))


def _document(value: Any) -> str:
    if isinstance(value, str):
        written = written_value(value)
        if not written or not all(isinstance(part, str) for part in written):
            return value
        value = written
    return "\n\n".join(map(_passage, value if isinstance(value, list) else [value]))


def _passage(value: Any) -> str:
    if isinstance(value, Mapping):
        text = next(value[key] for key in _PASSAGE_TEXTS if key in value)
        return f"{value['title']}\n{text}" if value.get("title") else text
    return value
