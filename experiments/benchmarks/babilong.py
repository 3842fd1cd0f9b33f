"""BABILong (Kuratov et al. 2024, arXiv 2406.10149), as exported from Hugging Face: ``input``, ``question``, ``target``.

    memagent data --from babilong qa1/0000.jsonl --out qa1.parquet

Its judge is ``babilong:LABEL|LABEL``: the first sentence names the answer and no other label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format
from memagent_lib.scoring import AnyAnswer, Rule, box_or_all

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


def examples(record: Mapping[str, Any], number: int, path: Path, task: str = "") -> Iterator[Example]:
    """Yield the example of a record. ``task`` (``qa1``, ...) is by default named by the file or its folder."""
    named = re.search(r"qa(?:1\d|20|[1-9])(?!\d)", "/".join(path.parts[-2:]))
    name = task or (named.group() if named else "")
    if name not in _LABELS:
        raise ValueError(f"{path}: no BABILong task {name!r}; set task= to one of {', '.join(_LABELS)}")
    target = record["target"]
    question = record["question"]
    # As in BABILong's metric, a label that the question names is no second answer, unless it is the target.
    labels = [
        label
        for label in _LABELS[name].split()
        if label.lower() not in question.lower() or label.lower() == target.lower()
    ]
    yield Example(
        id=f"{name}-{path.stem}-{number}",
        task=f"babilong/{name}",
        question=question,
        document=record["input"],
        answers=(target,),
        rule=f"babilong:{'|'.join(labels)}",
        metadata={"line": number},
    )


def one_of(labels: str) -> Rule:
    """Return a rule for ``labels`` (``a|b|c``) that scores 1 if the first sentence names the answer and no other label.

    An answer with commas stands for several labels, all of which must be named.
    """
    known = {label.lower() for label in labels.split("|") if label}

    def named(reply: str) -> str:
        sentence = box_or_all(reply).lower().split(".")[0].split("<context>")[0].split("<example>")[0]
        return "|".join(sorted(label for label in known if label in sentence))

    def right(found: str, answer: str) -> bool:
        accepted = [answer.lower()]
        if "," in answer and len(answer) > 3:
            accepted = [label.strip() for label in answer.lower().split(",")]
        return set(found.split("|")) == set(accepted)

    return AnyAnswer(named, right)


FORMAT = Format(files="BABILong's records", examples=examples)
JUDGES = {"babilong": one_of}
