"""A user's own file: records with a question, a document, accepted answers, and optionally an ``id``.

:data:`NAMES` lists the recognised field names. A document may also be a list of texts, or of objects with ``text`` and
optionally ``title``, which are joined by empty lines. In a CSV file, where a list becomes a text such as ``['one',
'two']``, it is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.records import NoAnswer, accepted_answers, records, written_value

NAMES = {
    "question": ("question", "query", "prompt", "instruction", "user_input", "input"),
    "document": (
        "document", "context", "passage", "article", "text", "documents", "contexts", "passages", "paragraphs", "ctxs",
        "retrieved_contexts", "input",
    ),
    "answers": (
        "answers", "answer", "outputs", "output", "target", "gold", "references", "reference", "ground_truth",
        "expected_answer",
    ),
}  # fmt: skip
"""The recognised names of each field. The first one that a record has is used; :func:`note` tells which it was."""
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
    sheet: str | None = None,
) -> Iterator[Example | None]:
    """Yield the example of a record. ``question``, ``document`` and ``answers`` name fields that are called otherwise.

    ``sheet`` names a spreadsheet's sheet. A record that is marked as unanswerable, as in SQuAD v2 and MuSiQue, gives
    None.
    """
    names = _fields(record, question=question, document=document, answers=answers)
    if any(record.get(name) for name in _CHOICES if name not in names.values()):
        raise ValueError(
            "is a multiple-choice question, which plain records are not; write the options into the question and the "
            "right one's letter and text into answers, and set rule=choice"
        )
    try:
        accepted = _accepted(record, names["answers"])
    except NoAnswer:
        yield None
        return
    ids = (record.get(name) for name in ("id", "_id", "qid", "question_id"))
    yield Example(
        id=str(next((id for id in ids if id is not None), f"{path.stem}-{number}")),
        task=path.stem,
        question=record[names["question"]],
        document=_document(record[names["document"]]),
        answers=accepted,
        rule=rule,
    )


def note(path: str | Path, rule: str = "", sheet: str | None = None, **stated: str) -> str:
    """Return a note of which fields were read, or "" if all of them have our own names."""
    fields = _fields(next(records(path, sheet)), **stated)
    taken = ", ".join(f"{part} from {name!r}" for part, name in fields.items() if name != part)
    return f"{path}: {taken}" if taken else ""


def _fields(record: Mapping[str, Any], **stated: str | None) -> dict[str, str]:
    """Return the names of the fields with the question, the document and the answers."""
    found: dict[str, str] = {}
    for part, names in NAMES.items():
        taken = {*found.values(), *stated.values()}
        present = [name for name in names if record.get(name) is not None and name not in taken]
        name = stated.get(part) or next(iter(present), None)
        if name is None:
            raise ValueError(f"no {part} among {', '.join(record)}; name its field with {part}=FIELD")
        found[part] = name
    return found


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
