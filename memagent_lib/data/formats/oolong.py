"""OOLONG (Bertsch et al. 2025): questions that count or compare over a whole document, in its two sets on the Hub.

The records of oolong-synth have an ``answer_type`` and their answer as a Python list of one value. The records of
oolong-real have a plain answer. Many records share one ``context_window_text``; each is an example of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.answers import written_value
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records

_DATE = re.compile(r"\[datetime\.date\((\d+), (\d+), (\d+)\)\]")
_RECORDED = ("context_window_id", "context_len", "task_group", "dataset", "input_subset", "question_type")


def read_oolong(path: str | Path) -> Iterator[Example]:
    """Yield the examples of a file, judged by ``oolong`` with the answer's type, or by ``oolong_real``."""
    for record in records(path, "OOLONG's records with context_window_text, question and answer"):
        is_synthetic = "answer_type" in record.fields
        rule = "oolong_real"
        task = "oolong_real"
        if is_synthetic:
            kind = record.get("answer_type", str).rpartition(".")[2].lower()
            rule = f"oolong:{kind}"
            task = f"oolong/{record.get('task_group', str, 'task')}"
        yield record.example(
            id=f"oolong-{record.id('id') or record.number}",
            task=task,
            question=record.get("question", str).strip(),
            document=record.get("context_window_text", str),
            answers=(_value(record) if is_synthetic else str(record.get("answer", object)),),
            rule=rule,
            metadata={name: record.fields[name] for name in _RECORDED if record.fields.get(name) is not None},
        )


def _value(record: Record) -> str:
    """Return the only value of a list in Python's notation, a date in ISO form."""
    answer = record.get("answer", str)
    date = _DATE.fullmatch(answer.strip())
    if date:
        year, month, day = map(int, date.groups())
        return f"{year:04}-{month:02}-{day:02}"
    values = written_value(answer)
    if not isinstance(values, list) or len(values) != 1:
        raise ValueError(
            f"{record.where}: 'answer' must be a list of one value, such as ['spam'], found {answer!r:.60}"
        )
    return str(values[0])


FORMAT = Format(
    name="oolong",
    files="OOLONG's records",
    fields=("context_window_text", "question", "answer", "context_window_id"),
    read=read_oolong,
)
