"""A user's own file: records with a question, a document, accepted answers, and optionally an ``id``.

:data:`NAMES` lists the recognised field names; the first record decides which ones the whole file uses. A document may
also be a list of texts, or of objects with ``text`` and optionally ``title``, which are joined by empty lines. In a CSV
file, where a list becomes a text such as ``['one', 'two']``, a list of texts is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.answers import NoAnswer, written_value
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, table_records

NAMES = {
    "question": ("question", "query", "prompt", "instruction", "user_input", "input"),
    "document": (
        "document", "context", "passage", "article", "text", "documents", "contexts", "passages", "paragraphs", "ctxs",
        "retrieved_contexts", "input",
    ),
    "answers": (
        "answers", "answer", "outputs", "output", "target", "gold", "references", "reference", "ground_truth",
        "expected_answer", "response",
    ),
}  # fmt: skip
"""The recognised names of each field. The first name always wins. ``input`` (a question or a document) is used only if
no other name is present. Two other names in one record are an error, because either could be meant."""
_IDS = ("id", "_id", "qid", "question_id")
_ALIASES = ("answer_aliases", "aliases")
_PASSAGE_TEXTS = ("text", "paragraph_text", "content", "page_content")
_CHOICES = ("choices", "options", "choice_A", "answerKey")
_EXPECTED = "records with question, document and answers"


class Fields(NamedTuple):
    """The names of the fields that contain the question, the document and the answers."""

    question: str
    document: str
    answers: str

    @classmethod
    def of(cls, record: Record, **stated: str | None) -> Fields:
        """Find the fields of a record that contain the question, the document and the answers.

        ``stated`` has the names that the caller knows, such as ``question="query"``. Raises ``ValueError`` if one of
        the others is not found, or if two fields could be meant.
        """
        taken = {name for name in stated.values() if name}
        # Spreadsheets and CSV files often capitalise their names, and leave blanks around them. Reversed, so that the
        # first of two names that differ only in this wins.
        written = {str(name).strip().casefold(): name for name in reversed(record.fields)}
        found: dict[str, str | None] = {}
        for part, names in NAMES.items():
            spelt = [name if name in record.fields else written.get(name) for name in names]
            present = [name for name in spelt if name is not None and name not in taken]
            # A field that is null in this record is used only if there is no other.
            free = [name for name in present if record.fields[name] is not None] or present[:1]
            rivals = [name for name in free if name.strip().casefold() != "input"]
            if not stated.get(part) and len(rivals) > 1 and rivals[0].strip().casefold() != part:
                raise ValueError(
                    f"{record.where}: {' and '.join(rivals)} may both be the {part}; choose one with {part}={rivals[0]}"
                )
            found[part] = stated.get(part) or next(iter(free), None)
            taken.add(found[part])
        missing = [part for part, name in found.items() if name is None]
        if missing:
            part = missing[0]
            raise ValueError(
                f"{record.where}: missing field {part!r}; found {', '.join(record.fields) or 'no fields'}. It may be "
                f"called {', '.join(NAMES[part])}; name another with {part}=FIELD"
            )
        return cls(**found)


def read_plain(
    path: str | Path,
    rule: str = "contains",
    question: str | None = None,
    document: str | None = None,
    answers: str | None = None,
    sheet: str | None = None,
) -> Iterator[Example]:
    """Yield the examples of a file: JSON, parquet, CSV, TSV or a spreadsheet.

    ``question``, ``document`` and ``answers`` name the fields; those not named are recognised by :data:`NAMES`.
    ``sheet`` names a spreadsheet's sheet. Records that are marked as unanswerable, as in SQuAD v2, are left out;
    :func:`unanswerable` counts them.
    """
    name = Path(path).stem
    fields = None
    for record in table_records(path, _EXPECTED, sheet):
        fields = fields or Fields.of(record, question=question, document=document, answers=answers)
        _refuse_choices(record, fields)
        try:
            accepted = _accepted(record, fields.answers)
        except NoAnswer:
            continue
        yield record.example(
            id=record.id(*_IDS) or f"{name}-{record.number}",
            task=name,
            question=record.get(fields.question, str),
            document=_document(record, fields.document),
            answers=accepted,
            rule=rule,
        )


def unanswerable(path: str | Path, rule: str | None = None, sheet: str | None = None, **stated: str | None) -> int:
    """Return the number of records that are marked as unanswerable. The options are those of :func:`read_plain`."""
    count = 0
    fields = None
    for record in table_records(path, _EXPECTED, sheet):
        fields = fields or Fields.of(record, **stated)
        try:
            _accepted(record, fields.answers)
        except NoAnswer:
            count += 1
    return count


def fields_note(path: str | Path, rule: str | None = None, sheet: str | None = None, **stated: str | None) -> str:
    """Return a note of which fields were read, or "" if all of them have our own names.

    The options are those of :func:`read_plain`.
    """
    fields = Fields.of(next(table_records(path, _EXPECTED, sheet)), **stated)
    pairs = zip(Fields._fields, fields, strict=True)
    taken = ", ".join(f"{part} from {name!r}" for part, name in pairs if name != part)
    return f"{path}: {taken}" if taken else ""


def is_plain(fields: Mapping[str, Any]) -> bool:
    """Return whether a record has a question and a document, under any recognised field names.

    Unless these are called ``question`` and ``document``, the record must also have readable answers or be marked as
    unanswerable, and it must not be a multiple-choice question.
    """
    if {"question", "document"} <= fields.keys():
        return True
    record = Record(dict(fields), 1, "record 1")
    try:
        found = Fields.of(record)
        _refuse_choices(record, found)
        record.get(found.question, str)
        _document(record, found.document)
        _accepted(record, found.answers)
    except NoAnswer:
        return True
    except ValueError:
        return False
    return True


def _accepted(record: Record, name: str) -> tuple[str, ...]:
    """Return the accepted answers, with the aliases that the record lists beside them.

    Raises :class:`NoAnswer` if the record is marked as unanswerable, as in MuSiQue and SQuAD v2.
    """
    marked = record.fields.get("answerable") is False
    if marked or any(record.fields.get(flag) is True for flag in ("is_impossible", "unanswerable")):
        raise NoAnswer(f"{record.where}: the question is marked as unanswerable")
    answers = record.answers(name)
    for other in _ALIASES:
        if other != name and record.fields.get(other):
            answers += record.answers(other)
    return tuple(dict.fromkeys(answers))


def _document(record: Record, name: str) -> str:
    value = record.get(name, object)
    if isinstance(value, str):
        return "\n\n".join(_written_texts(value)) or value
    parts = value if isinstance(value, list) else [value]
    texts = [_passage(part, name, record.where) for part in parts]
    if len(texts) > 1 and all(len(text) == 1 for text in texts):
        raise ValueError(f"{record.where}: {name!r} looks like one text split into its letters; join them")
    return "\n\n".join(texts)


def _written_texts(text: str) -> list[str]:
    """Return the texts of a list that was written as a text, as pandas writes it to CSV; [] if it is no such list."""
    stripped = text.strip()
    if not stripped.startswith(("['", '["')) or not stripped.endswith("]"):
        return []
    parts = written_value(stripped)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return []
    return parts


def _passage(value: Any, name: str, where: str) -> str:
    if isinstance(value, Mapping):
        text = next((value[key] for key in _PASSAGE_TEXTS if isinstance(value.get(key), str)), None)
        title = value.get("title")
        if text is not None and isinstance(title, str) and title:
            return f"{title}\n{text}"
        value = value if text is None else text
    if not isinstance(value, str):
        raise ValueError(
            f"{where}: expected a text as {name!r}, or a list of texts or of objects with 'text', found {value!r:.60}"
        )
    return value


def _refuse_choices(record: Record, fields: Sequence[str]) -> None:
    """Raise ``ValueError`` for a multiple-choice record, because the question would lack its options."""
    for name in _CHOICES:
        if name not in fields and record.fields.get(name):
            raise ValueError(
                f"{record.where}: is a multiple-choice question (it has {name!r}), which plain records are not; write "
                "the options into the question and the right one's letter and text into answers, and set rule=choice"
            )


FORMAT = Format(
    name="plain",
    files="your own records with question, document and answers",
    fields=(),
    fits=is_plain,
    read=read_plain,
    note=fields_note,
    unanswerable=unanswerable,
)
