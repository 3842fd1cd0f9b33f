"""BEAM (Tavakoli et al. 2025, Mohammadta/BEAM and BEAM-10M on the Hub): questions of ten kinds about one long chat.

    memagent data --from beam 100K.parquet --out beam.parquet

``chat`` nests messages in sessions, and in the 10M set also in plans. ``probing_questions`` is an object, often as text
in Python's notation, with a list of questions for each kind. BEAM asks a model which points of a ``rubric`` a reply
meets; here rules score it: ``abstains`` for abstention, and ``f1`` against the ideal answer for the other kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, Span, join, written_value

_ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield an example for each probing question. Its evidence is the messages that ``source_chat_ids`` names."""
    document, spans = _chat(record["chat"])
    probing = record["probing_questions"]
    kinds = written_value(probing) if isinstance(probing, str) else probing
    for kind, questions in kinds.items():
        for at, question in enumerate(questions or [], 1):
            wanted = set(_numbers(question.get("source_chat_ids")))
            yield Example(
                id=f"beam-{record['conversation_id']}-{kind}-{at}",
                task=f"beam/{kind}",
                question=question["question"].strip(),
                document=document,
                answers=(str(next(question[name] for name in _ANSWERS if question.get(name))),),
                rule="abstains" if kind == "abstention" else "f1",
                evidence=tuple(span for id, span in spans if id in wanted),
                metadata={"difficulty": question.get("difficulty"), "rubric": question.get("rubric") or []},
            )


def _chat(chat: Any) -> tuple[str, list[tuple[Any, Span]]]:
    """Return the messages as one text, with a line for each new date, and each message's id and span.

    Ids that several messages have are left out, as they name none of them.
    """
    lines: list[str] = []
    ids: list[Any] = []
    positions: list[int] = []
    date = None
    for message in _messages(chat):
        if message.get("time_anchor") not in (None, "", date):
            date = message["time_anchor"]
            lines.append(f"[{date}]")
        ids.append(message.get("id"))
        positions.append(len(lines))
        lines.append(f"{message['role']}: {message['content']}")
    layout = join(lines, positions, "\n")
    times = Counter(ids)
    return layout.text, [(id, span) for id, span in zip(ids, layout.spans, strict=True) if times[id] == 1]


def _messages(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the messages of nested lists and objects, in order."""
    if isinstance(value, Mapping) and "role" in value:
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _messages(part)


def _numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers of nested lists and objects."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)


NOTE = "BEAM's own judge is a model that checks a rubric: memagent evaluate --judge"
FORMAT = Format(files="BEAM's records", examples=examples, note=NOTE)
