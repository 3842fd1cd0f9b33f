"""A user's own file: records with ``question``, ``document``, ``answers``, and optionally an ``id``.

The document may be called ``context``, and the answers ``answer``; other names are stated as options.

A document may also be a list of texts, or of objects with ``text`` and optionally ``title``, which are joined by empty
lines. In a CSV file, where a list becomes a text such as ``['one', 'two']``, it is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.records import NoAnswer, accepted_answers, written_value

_NAMES = {"question": ("question",), "document": ("document", "context"), "answers": ("answers", "answer")}
_PASSAGE_TEXTS = ("text", "paragraph_text", "content", "page_content")
_CHOICES = ("choices", "options", "choice_A", "answerKey")


def examples(
    record: Mapping[str, Any],
    number: int,
    path: Path,
    rule: str = "contains",
    question: str | None = None,
    document: str | None = None,
    answers: str | None = None,
) -> Iterator[Example | None]:
    """Yield the example of a record. ``question``, ``document`` and ``answers`` name fields that are called otherwise.

    A record that is marked as unanswerable, as in SQuAD v2 and MuSiQue, gives None.
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
        raise ValueError(f"no {part}, or more than one, among {', '.join(record)}; name the field with {part}=FIELD")
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
