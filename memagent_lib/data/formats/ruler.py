"""RULER (Hsieh et al. 2024): its own ``validation.jsonl``, and the mirror on Hugging Face (simonjegou/ruler).

RULER puts the document and the question into one field, ``input``, which is split before the fixed words that begin the
question in RULER's templates. If it has no such words, the whole text is the document, and the question is
:data:`FOLLOW_DOCUMENT`. The mirror has separate fields: ``context``, ``question``, ``answer``, ``task``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.records import texts

FOLLOW_DOCUMENT = "Follow the task that the document sets at its beginning and at its end."
_QA = "Answer the question based on the given documents."
_ENDS = ("\nWhat are all the special magic ", "\nWhat is the special magic ", "\nQuestion: ", f"\n\n{_QA}")


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record, judged as in RULER: qa tasks by ``match_part``, all others by ``match_all``.

    Ids contain the number of the record, because ``index`` repeats in RULER's needle files. The task is named by the
    mirror's records. For other files it is the file's name or, in RULER's own layout
    (``niah_single_1/validation.jsonl``), the folder's name.
    """
    if "input" in record:
        file = Path(os.path.abspath(path))  # links are not followed: the Hub's cache links names to hashes
        task = file.parent.name if file.stem in ("validation", "test", "train") else file.stem
        document, question = split_ruler(record["input"])
        is_qa = _QA in record["input"]
    else:
        task = record["task"]
        document, question = record["context"], record["question"].strip()
        is_qa = task.startswith("qa")
    recorded = {name: record[name] for name in ("length", "token_position_answer") if name in record}
    yield Example(
        id=f"{task}-{number}",
        task=f"ruler/{task}",
        question=question,
        document=document,
        answers=texts(record["outputs"] if "input" in record else record["answer"]),
        rule="match_part" if is_qa else "match_all",
        metadata={"line": number, **recorded},
    )


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
