"""LongMemEval (Wu et al. 2025): questions about dated chat sessions; ``longmemeval_s``, ``_m`` and ``_oracle`` alike.

LongMemEval asks a model whether a reply is right, as ``memagent evaluate --judge`` does for these examples. Beside it,
rules score them: ``contains``, and ``abstains`` for questions about what no session states, whose ids end in ``_abs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, field_of, records
from memagent_lib.data.layout import join

_EXPECTED = "LongMemEval's records with question, answer, question_type and haystack_sessions"
_ABSTENTION = "_abs"
_PREFERENCE = "single-session-preference"


def read_longmemeval(path: str | Path) -> Iterator[Example]:
    """Yield the examples of a file, with the sessions in its order. Evidence is every message marked ``has_answer``."""
    for record in records(path, _EXPECTED):
        id = record.get("question_id", str)
        kind = record.get("question_type", str)
        is_false = id.endswith(_ABSTENTION)
        document, evidence = _sessions(record)
        yield record.example(
            id=f"longmemeval-{id}",
            task=f"longmemeval/{'abstention' if is_false else kind}",
            question=f"Current date: {record.get('question_date', str)}\n{record.get('question', str).strip()}",
            document=document,
            answers=record.texts("answer"),
            rule="abstains" if is_false else "contains",
            evidence=evidence,
            metadata={"category": kind, "sessions": len(record.get("haystack_sessions", list))},
        )


def _sessions(record: Record) -> tuple[str, tuple[Span, ...]]:
    """Return all sessions as one text, each under its date, and the spans of the messages that have the answer."""
    sessions = record.get("haystack_sessions", list)
    dates = record.get("haystack_dates", list)
    if len(sessions) != len(dates):
        raise ValueError(f"{record.where}: {len(sessions)} sessions and {len(dates)} dates; expected a date for each")
    lines: list[str] = []
    positions: list[int] = []
    for date, session in zip(dates, sessions, strict=True):
        lines.append(f"Session of {date}")
        for message in session:
            role = field_of(message, "role", str, record.where)
            content = field_of(message, "content", str, record.where, may_be_empty=True)
            if message.get("has_answer") is True:
                positions.append(len(lines))
            lines.append(f"{role}: {content}".rstrip())
        lines.append("")
    layout = join(lines, positions, "\n")
    return layout.text.rstrip(), tuple(layout.spans)


def _note(path: str | Path) -> str:
    vague = sum(record.fields.get("question_type") == _PREFERENCE for record in records(path, _EXPECTED))
    note = "LongMemEval's own judge is a model: memagent evaluate --judge"
    if vague:
        note += f"; the rule fails nearly all replies to {vague:,} questions of preference, whose answer is a rubric"
    return note


FORMAT = Format(
    name="longmemeval",
    files="LongMemEval's records",
    fields=("question_id", "question_type", "question", "answer", "haystack_sessions"),
    read=read_longmemeval,
    note=_note,
)
