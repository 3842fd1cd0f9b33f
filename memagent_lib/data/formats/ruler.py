"""RULER's ``validation.jsonl`` (Hsieh et al. 2024): ``index``, ``input``, ``outputs``, ``length``.

RULER keeps document and question in one text, ``input``. They are told apart by fixed words of its templates; nothing
of its text is changed or left out. Where that does not succeed the whole text is the document, and the question says to
follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.records import records

ASK_ALL = "Follow the task that the document sets at its beginning and at its end."
_SPLITS = ("validation", "test", "train")
_QA = "Answer the question based on the given documents."
_ENDS = ("\nWhat are all the special magic ", "\nWhat is the special magic ", "\nQuestion: ", f"\n\n{_QA}")


def read_ruler(path: str | Path) -> Iterator[Example]:
    """The examples of a file, with RULER's own judges: ``match_part`` for its qa prompts, ``match_all`` for all others.

    They are numbered by line: in RULER's needle files ``index`` repeats. The task is the file's name, or in RULER's own
    layout (``niah_single_1/validation.jsonl``) the folder's.
    """
    file = Path(path).resolve()
    task = file.parent.name if file.stem in _SPLITS else file.stem
    for record in records(path, "RULER's JSON lines with input and outputs"):
        document, question = split_ruler(record.get("input", str))
        places = {name: record.fields[name] for name in ("length", "token_position_answer") if name in record.fields}
        yield Example(
            id=f"{task}-{record.number}",
            task=f"ruler/{task}",
            question=question,
            document=document,
            answers=record.texts("outputs"),
            rule="match_part" if _QA in record.get("input", str) else "match_all",
            metadata={"line": record.number, **places},
        )


def split_ruler(text: str) -> tuple[str, str]:
    """``(document, question)`` of a RULER ``input``, cut at the last known opening of a question."""
    place = max(text.rfind(end) for end in _ENDS)
    if place < 0:
        return text, ASK_ALL
    document, question = text[:place], text[place:].strip()
    if _QA in document.rpartition("\n\n")[2]:
        document = document.rpartition("\n\n")[0]
    return document, question
