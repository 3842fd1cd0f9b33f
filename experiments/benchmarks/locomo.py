"""LoCoMo (Maharana et al. 2024): questions about the dated sessions of two people; ``locomo10.json``.

    memagent data --from locomo locomo10.json --out locomo.parquet

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

from memagent_lib.data import Example, Format, Span, join, texts

# By LoCoMo's numbers. Its paper lists them in another order; these follow from the questions in the file.
_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_WITH_DATE = "{question} Answer with a date, which may be approximate; every session states its own."
_MESSAGE = re.compile(r"D:?(\d+):(\d+)")


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield an example for each question. Its evidence is the messages that the record names."""
    sample = record["sample_id"]
    document, spans = _conversation(record["conversation"])
    for at, part in enumerate(record["qa"], 1):
        category = _CATEGORIES[part["category"]]
        question = part["question"].strip()
        # One text may name several messages, and a few are misspelt.
        named = [_MESSAGE.finditer(str(text)) for text in part.get("evidence") or []]
        wanted = {f"D{int(found[1])}:{int(found[2])}" for messages in named for found in messages}
        yield Example(
            id=f"locomo-{sample}-{at}",
            task=f"locomo/{category}",
            question=_WITH_DATE.format(question=question) if category == "temporal" else question,
            document=document,
            answers=_answers(part, category),
            rule="abstains" if category == "adversarial" else "f1",
            evidence=tuple(spans[name] for name in spans if name in wanted),
            metadata={"sample": sample, "evidence_messages": sorted(wanted)},
        )


def _answers(part: Mapping[str, Any], category: str) -> tuple[str, ...]:
    if category == "adversarial":
        return ("Not mentioned in the conversation",)
    answers = texts(part["answer"])
    if category == "open-domain":  # reasons follow a semicolon
        return tuple(answer.split(";")[0].strip() for answer in answers)
    return answers


def _conversation(conversation: Mapping[str, Any]) -> tuple[str, dict[str, Span]]:
    """Return all sessions as one text, each under its date, and the span of each message by its id."""
    numbers = sorted(int(name[8:]) for name in conversation if re.fullmatch(r"session_\d+", name))
    lines: list[str] = []
    positions: dict[str, int] = {}
    for number in numbers:
        lines.append(f"Session of {conversation[f'session_{number}_date_time']}")
        for message in conversation[f"session_{number}"]:
            positions[message["dia_id"]] = len(lines)
            line = f"{message['speaker']}: {' '.join(message['text'].split())}"
            caption = message.get("blip_caption")
            lines.append(f"{line} [shares an image: {caption}]" if caption else line.rstrip())
        lines.append("")
    layout = join(lines, list(positions.values()), "\n")
    return layout.text.rstrip(), dict(zip(positions, layout.spans, strict=True))


NOTE = (
    "LoCoMo's own F1 is of stemmed words, and its adversarial questions offer two answers; most reports have a "
    "model as the judge (memagent evaluate --judge), and leave the adversarial questions out"
)
FORMAT = Format(files="LoCoMo's records", examples=examples, note=NOTE)
