"""RULER (Hsieh et al. 2024): its own ``validation.jsonl``, and the mirror on Hugging Face (simonjegou/ruler).

RULER puts the document and the question into one field, ``input``, which is split before the fixed words that begin the
question in RULER's templates. If it has no such words, the whole text is the document, and the question is
:data:`FOLLOW_DOCUMENT`. The mirror has separate fields: ``context``, ``question``, ``answer``, ``answer_prefix``,
``task``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records

FOLLOW_DOCUMENT = "Follow the task that the document sets at its beginning and at its end."
_SPLITS = ("validation", "test", "train")
_QA = "Answer the question based on the given documents."
_ENDS = ("\nWhat are all the special magic ", "\nWhat is the special magic ", "\nQuestion: ", f"\n\n{_QA}")


def read_ruler(path: str | Path) -> Iterator[Example]:
    """Yield the examples of a file, judged as in RULER: qa tasks by ``match_part``, all others by ``match_all``.

    Ids contain the line number, because ``index`` repeats in RULER's needle files. The task is named by the mirror's
    records. For other files it is the file's name or, in RULER's own layout (``niah_single_1/validation.jsonl``), the
    folder's name.
    """
    file = Path(os.path.abspath(path))  # links are not followed: the Hub's cache links names to hashes
    task = file.parent.name if file.stem in _SPLITS else file.stem
    for record in records(path, "RULER's JSON lines with input and outputs"):
        if _is_split(record.fields):
            yield _split_example(record)
            continue
        document, question = split_ruler(record.get("input", str))
        recorded = {name: record.fields[name] for name in ("length", "token_position_answer") if name in record.fields}
        yield record.example(
            id=f"{task}-{record.number}",
            task=f"ruler/{task}",
            question=question,
            document=document,
            answers=record.texts("outputs"),
            rule="match_part" if _QA in record.get("input", str) else "match_all",
            metadata={"line": record.number, **recorded},
        )


def _split_example(record: Record) -> Example:
    task = record.get("task", str)
    return record.example(
        id=f"{task}-{record.number}",
        task=f"ruler/{task}",
        question=record.get("question", str).strip(),
        document=record.get("context", str),
        answers=record.texts("answer"),
        rule="match_part" if task.startswith("qa") else "match_all",
        metadata={"line": record.number},
    )


def _is_split(fields: Mapping[str, Any]) -> bool:
    return {"context", "question", "answer", "answer_prefix", "task"} <= fields.keys()


def _is_ruler(fields: Mapping[str, Any]) -> bool:
    is_own = {"index", "input", "outputs"} <= fields.keys() and "context" not in fields  # MemAgent's files have it
    return is_own or _is_split(fields)


def split_ruler(text: str) -> tuple[str, str]:
    """Split a RULER ``input`` into ``(document, question)`` at the last words that begin a question in RULER.

    Without such words, the question is :data:`FOLLOW_DOCUMENT`. An instruction that RULER repeats right before the
    question is left out.
    """
    # At the last, because documents contain questions too.
    cut = max(text.rfind(end) for end in _ENDS)
    if cut < 0:
        return text, FOLLOW_DOCUMENT
    document = text[:cut]
    # RULER repeats its instruction right before the question of a qa prompt.
    if _QA in document.rpartition("\n\n")[2]:
        document = document.rpartition("\n\n")[0]
    return document, text[cut:].strip()


FORMAT = Format(
    name="ruler",
    files="RULER's validation.jsonl",
    fields=(),
    fits=_is_ruler,
    read=read_ruler,
)
