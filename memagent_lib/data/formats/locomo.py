"""LoCoMo (Maharana et al. 2024): questions about the dated sessions of two people; ``locomo10.json``.

LoCoMo scores most replies by F1 of stemmed words, and takes the answers of multi-hop questions apart at commas. Here
``f1`` scores them: with words as they are, and whole. Adversarial questions are about what nobody says; LoCoMo offers
``Not mentioned in the conversation`` and a wrong answer to choose from. Here the question stands alone, and
``abstains`` scores the reply. Images are read by their captions, as in LoCoMo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example, Span
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, field_of, records
from memagent_lib.data.layout import join

_EXPECTED = "LoCoMo's records with sample_id, conversation and qa"
# By LoCoMo's numbers. Its paper lists them in another order; these follow from the questions in the file.
_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_ADVERSARIAL = "adversarial"
_NOT_MENTIONED = "Not mentioned in the conversation"
_WITH_DATE = "{question} Answer with a date, which may be approximate; every session states its own."
_SESSION = re.compile(r"session_(\d+)")
_MESSAGE = re.compile(r"D:?(\d+):(\d+)")


def read_locomo(path: str | Path) -> Iterator[Example]:
    """Yield an example for each question. Its evidence is the messages that the record names."""
    for record in records(path, _EXPECTED):
        sample = record.id("sample_id")
        document, spans = _conversation(record)
        for number, entry in enumerate(record.get("qa", list), 1):
            part = Record(entry, number, f"{record.where}, question {number}")
            category = _category(part)
            wanted = _named(part)
            yield part.example(
                id=f"locomo-{sample}-{number}",
                task=f"locomo/{category}",
                question=_question(part, category),
                document=document,
                answers=_answers(part, category),
                rule="abstains" if category == _ADVERSARIAL else "f1",
                evidence=tuple(spans[name] for name in spans if name in wanted),
                metadata={"sample": sample, "evidence_messages": sorted(wanted)},
            )


def _conversation(record: Record) -> tuple[str, dict[str, Span]]:
    """Return all sessions as one text, each under its date, and the span of each message by its id."""
    conversation = record.get("conversation", dict)
    numbers = sorted(int(found[1]) for found in map(_SESSION.fullmatch, conversation) if found)
    lines: list[str] = []
    positions: dict[str, int] = {}
    for number in numbers:
        where = f"{record.where}, session {number}"
        date = field_of(conversation, f"session_{number}_date_time", str, where)
        lines.append(f"Session of {date}")
        for message in field_of(conversation, f"session_{number}", list, where):
            line = _line(message, where)
            positions[field_of(message, "dia_id", str, where)] = len(lines)
            lines.append(line)
        lines.append("")
    layout = join(lines, list(positions.values()), "\n")
    return layout.text.rstrip(), dict(zip(positions, layout.spans, strict=True))


def _line(message: Mapping[str, Any], where: str) -> str:
    speaker = field_of(message, "speaker", str, where)
    text = field_of(message, "text", str, where, may_be_empty=True)
    caption = message.get("blip_caption")
    line = f"{speaker}: {' '.join(text.split())}"
    return f"{line} [shares an image: {caption}]" if caption else line.rstrip()


def _category(part: Record) -> str:
    number = part.get("category", int)
    if number not in _CATEGORIES:
        raise ValueError(f"{part.where}: category must be 1 to 5, got {number}")
    return _CATEGORIES[number]


def _question(part: Record, category: str) -> str:
    question = part.get("question", str).strip()
    return _WITH_DATE.format(question=question) if category == "temporal" else question


def _answers(part: Record, category: str) -> tuple[str, ...]:
    if category == _ADVERSARIAL:
        return (_NOT_MENTIONED,)
    answers = part.texts("answer")
    if category == "open-domain":  # reasons follow a semicolon
        return tuple(answer.split(";")[0].strip() for answer in answers)
    return answers


def _named(part: Record) -> set[str]:
    """Return the ids of the messages in ``evidence``, where one text may name several, and a few are misspelt."""
    named = part.fields.get("evidence") or []
    return {f"D{int(found[1])}:{int(found[2])}" for text in named for found in _MESSAGE.finditer(str(text))}


def _note(path: str | Path) -> str:
    return (
        "LoCoMo's own F1 is of stemmed words, and its adversarial questions offer two answers; most reports have a "
        "model as the judge (memagent evaluate --judge), and leave the adversarial questions out"
    )


FORMAT = Format(
    name="locomo",
    files="LoCoMo's records",
    fields=("sample_id", "conversation", "qa"),
    read=read_locomo,
    note=_note,
)
