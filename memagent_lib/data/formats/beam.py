"""BEAM (Tavakoli et al. 2025, Mohammadta/BEAM and BEAM-10M on the Hub): questions of ten kinds about one long chat.

``chat`` nests messages in sessions, and in the 10M set also in plans. ``probing_questions`` is an object, often as text
in Python's notation, with a list of questions for each kind. BEAM asks a model which points of a ``rubric`` a reply
meets; here rules score it: ``abstains`` for abstention, and ``f1`` against the ideal answer for the other kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.formats.answers import written_value
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records
from memagent_lib.data.layout import join

_ABSTENTION = "abstention"
_ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")


def read_beam(path: str | Path) -> Iterator[Example]:
    """Yield an example for each probing question. Its evidence is the messages that ``source_chat_ids`` names."""
    for record in records(path, "BEAM's records with conversation_id, chat and probing_questions"):
        chat = record.get("conversation_id", object)
        document, spans = _chat(record)
        probing = _value(record)
        for kind, questions in probing.items():
            for number, question in enumerate(questions, 1):
                part = Record(question, number, f"{record.where}, {kind} {number}")
                wanted = set(_numbers(question.get("source_chat_ids")))
                yield part.example(
                    id=f"beam-{chat}-{kind}-{number}",
                    task=f"beam/{kind}",
                    question=part.get("question", str).strip(),
                    document=document,
                    answers=(_answer(question, part.where),),
                    rule="abstains" if kind == _ABSTENTION else "f1",
                    evidence=tuple(span for id, span in spans if id in wanted),
                    metadata={"difficulty": question.get("difficulty"), "rubric": question.get("rubric") or []},
                )


def _chat(record: Record) -> tuple[str, list[tuple[Any, Span]]]:
    """Return the messages as one text, with a line for each new date, and each message's id and span.

    Ids that several messages have are left out, as they name none of them.
    """
    lines: list[str] = []
    ids: list[Any] = []
    positions: list[int] = []
    date = None
    for message in _messages(record.get("chat", list)):
        new_date = message.get("time_anchor")
        if new_date and new_date != date:
            date = new_date
            lines.append(f"[{date}]")
        ids.append(message.get("id"))
        positions.append(len(lines))
        lines.append(f"{message['role']}: {message['content']}")
    layout = join(lines, positions, "\n")
    times = Counter(ids)
    return layout.text, [(id, span) for id, span in zip(ids, layout.spans, strict=True) if times[id] == 1]


def _messages(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of nested lists and objects, in order."""
    if isinstance(value, Mapping):
        if isinstance(value.get("role"), str) and isinstance(value.get("content"), str):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _messages(part)


def _value(record: Record) -> Mapping[str, Any]:
    found = record.get("probing_questions", object)
    if isinstance(found, str):  # the files on the Hub have it in Python's notation
        found = written_value(found)
    if not isinstance(found, Mapping):
        raise ValueError(f"{record.where}: 'probing_questions' must be an object with a list for each kind")
    return {kind: questions for kind, questions in found.items() if questions}


def _answer(question: Mapping[str, Any], where: str) -> str:
    for name in _ANSWERS:
        if question.get(name):
            return str(question[name])
    raise ValueError(f"{where}: has none of {', '.join(_ANSWERS)}; found {', '.join(question)}")


def _numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers of nested lists and objects."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        yield from _numbers(list(value.values()))
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)


def _note(path: str | Path) -> str:
    return "BEAM's own judge is a model that checks a rubric: memagent evaluate --judge"


FORMAT = Format(
    name="beam",
    files="BEAM's records",
    fields=("conversation_id", "chat", "probing_questions"),
    read=read_beam,
    note=_note,
)
