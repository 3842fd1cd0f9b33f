"""A user's own file: records with ``question``, ``document``, ``answers`` (or ``answer``), and perhaps ``id``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import records


def read_plain(path: str | Path, rule: str = "contains") -> Iterator[Example]:
    """Yield the examples of a file of JSON lines, a JSON list or parquet."""
    name = Path(path).stem
    for record in records(path, "records with question, document and answers"):
        answers = "answer" if "answer" in record.fields and "answers" not in record.fields else "answers"
        yield Example(
            id=str(record.fields.get("id", f"{name}-{record.number}")),
            task=name,
            question=record.get("question", str),
            document=record.get("document", str),
            answers=record.texts(answers),
            rule=rule,
        )


FORMAT = Format(
    name="plain",
    files="your own records with question, document and answers",
    fields=("question", "document"),
    read=read_plain,
)
