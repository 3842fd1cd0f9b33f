"""BABILong (Kuratov et al. 2024), as exported from Hugging Face: records with ``input``, ``question``, ``target``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import records

_ROOMS = "bathroom bedroom garden hallway kitchen office"
_LABELS = {
    **dict.fromkeys(("qa1", "qa2", "qa3", "qa4", "qa11", "qa12", "qa13"), _ROOMS),
    "qa5": "Bill Fred Jeff Mary apple football milk",
    **dict.fromkeys(("qa6", "qa9", "qa17", "qa18"), "no yes"),
    "qa7": "none one three two",
    "qa8": "apple football milk nothing",
    "qa10": "maybe no yes",
    "qa14": "bedroom cinema kitchen office park school",
    "qa15": "cat mouse sheep wolf",
    "qa16": "gray green white yellow",
    "qa19": "e,e e,n e,s n,e n,n n,w s,e s,s s,w w,n w,s w,w",
    "qa20": "bedroom bored garden hungry kitchen thirsty tired",
}
"""The possible answers of each task, as in BABILong's metric."""


def read_babilong(path: str | Path, task: str | None = None) -> Iterator[Example]:
    """Yield the examples of a BABILong file.

    By default, ``task`` (``qa1``, ...) is the one in the name of the file's folder or of the file. Raises
    ``ValueError`` if there is none.
    """
    name = task or _task_of(Path(path))
    if name not in _LABELS:
        known = ", ".join(sorted(_LABELS, key=lambda label: int(label.removeprefix("qa"))))
        if task:
            raise ValueError(f"{path}: no BABILong task {task!r}; choose from {known}")
        raise ValueError(f"{path}: its name does not state a BABILong task; set task= to one of {known}")
    for record in records(path, "BABILong's records with input, question and target"):
        question = record.get("question", str)
        target = record.get("target", str)
        # As in BABILong's metric, a label that the question names is no second answer, unless it is the target.
        open_labels = [
            label
            for label in _LABELS[name].split()
            if label.lower() not in question.lower() or label.lower() == target.lower()
        ]
        yield record.example(
            id=f"{name}-{Path(path).stem}-{record.number}",
            task=f"babilong/{name}",
            question=question,
            document=record.get("input", str),
            answers=(target,),
            rule="one_of:" + "|".join(open_labels),
            metadata={"line": record.number},
        )


def _task_of(path: Path) -> str:
    # A file may be called 0000.jsonl, in a folder that names the task.
    found = re.search(r"qa(?:1\d|20|[1-9])(?!\d)", "/".join(path.parts[-2:]))
    return found.group() if found else ""


def _has_label(fields: Mapping[str, Any]) -> bool:
    return any(fields["target"] in labels.split() for labels in _LABELS.values())


FORMAT = Format(
    name="babilong",
    files="BABILong's records",
    fields=("input", "question", "target"),
    fits=_has_label,
    read=read_babilong,
)
