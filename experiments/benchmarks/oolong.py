"""OOLONG (Bertsch et al. 2025, arXiv 2511.02817): questions that count or compare over a whole document.

    memagent data --from oolong oolong-synth.parquet --out oolong.parquet

The records of oolong-synth have an ``answer_type`` and their answer as a Python list of one value; their judge is
``oolong:TYPE``. The records of oolong-real have a plain answer, which a reply gives in a box. Many records share one
``context_window_text``; each is an example of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, written_value
from memagent_lib.scoring import AnyAnswer, Rule, box_or_all

_DATE = re.compile(r"\[datetime\.date\((\d+), (\d+), (\d+)\)\]")
_RECORDED = ("context_window_id", "context_len", "task_group", "dataset", "input_subset", "question_type")
_SHORT_CHARS = 20
_COMPARISONS = ("more common", "less common", "same frequency")
_UNDERFLOW = 5000
_BOXES = (re.compile(r"\\boxed\{\\text\{([^}]*)\}\}"), re.compile(r"\\boxed[\{]+([^}]*)[\}]+"))
_UNBOXED = "not in a box: "


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record, judged by ``oolong`` with the answer's type, or by ``oolong/real``."""
    is_synthetic = "answer_type" in record
    rule = task = "oolong/real"
    answer = str(record["answer"])
    if is_synthetic:
        rule = f"oolong:{record['answer_type'].rpartition('.')[2].lower()}"
        task = f"oolong/{record.get('task_group') or record['task']}"
        date = _DATE.fullmatch(answer.strip())
        (value,) = ["{:0>4}-{:0>2}-{:0>2}".format(*date.groups())] if date else written_value(answer)
        answer = str(value)
    yield Example(
        id=f"oolong-{record.get('id') or number}",
        task=task,
        question=record["question"].strip(),
        document=record["context_window_text"],
        answers=(answer,),
        rule=rule,
        metadata={name: record[name] for name in _RECORDED if record.get(name) is not None},
    )


def stated(reply: str) -> str:
    """Return what OOLONG takes as the answer: the text after the last colon, or a short reply, or the last word."""
    text = box_or_all(reply)
    if ":" not in text:
        words = text.split()
        return text if len(text) < _SHORT_CHARS or not words else words[-1]
    answer = re.sub(r"[*\[\]]", "", text.split(":")[-1].strip())
    if len(answer) < _SHORT_CHARS:
        return answer
    return next((words for words in _COMPARISONS if words in answer), answer)


def of_type(kind: str) -> Rule:
    """Return the rule for an answer type: ``numeric``, ``date``, or any other, whose answers have to be equal.

    A number that is wrong by n scores 0.75 ** n. A comparison (``more common``) may be a part of the accepted answer.
    """

    def compare(found: str, answer: str) -> float:
        if found == answer:
            return 1.0
        if found in _COMPARISONS:
            return float(found in answer)
        if kind == "numeric":
            return _near(found, answer)
        return float(kind == "date" and _date(found) is not None and _date(found) == _date(answer))

    return AnyAnswer(stated, compare)


def _near(found: str, answer: str) -> float:
    try:
        difference = abs(int(found) - int(answer))
    except ValueError:
        return 0.0
    return 0.75 ** min(difference, _UNDERFLOW)  # a float for numbers of any size


def _date(text: str) -> object | None:
    import pandas as pd

    # OOLONG uses dateutil, to which pandas leaves all dates that are not in ISO form.
    try:
        return pd.Timestamp(text).to_pydatetime().replace(tzinfo=None)
    except (ValueError, TypeError, OverflowError, AttributeError):
        return None


def boxed_text(reply: str) -> str:
    r"""Return the content of the first ``\boxed{\text{...}}`` or ``\boxed{...}``, or the whole reply after a mark.

    OOLONG's real split reads a number or a list only from a box.
    """
    found = next(filter(None, (box.search(reply) for box in _BOXES)), None)
    return found[1] if found else f"{_UNBOXED}{reply}"


def real_value(found: str, answer: str) -> float:
    """Return OOLONG's score for its real split.

    Numbers score 0.75 ** difference, lists the share of accepted entries. Texts have to be equal, ignoring case.
    """
    gold = _parsed(answer)
    value = found.removeprefix(_UNBOXED) if found.startswith(_UNBOXED) else _parsed(found)
    if isinstance(gold, int) and isinstance(value, int):
        return 0.75 ** min(abs(gold - value), _UNDERFLOW)
    if isinstance(gold, str) and isinstance(value, str):
        return float(bool(value.strip()) and gold.strip().lower() == value.strip().lower())
    if isinstance(gold, list) and isinstance(value, list) and gold:
        return len(set(gold) & set(value)) / len(gold)
    return 0.0


def _parsed(text: str) -> int | str | list[str]:
    if re.fullmatch(r"\s*[-+]?\d{1,4000}\s*", text):
        return int(text)
    return [entry.strip() for entry in text.split(",") if entry.strip()] if "," in text else text


FORMAT = Format(files="OOLONG's records", examples=examples)
JUDGES = {"oolong": of_type, "oolong/real": AnyAnswer(boxed_text, real_value)}
