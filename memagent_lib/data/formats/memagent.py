"""MemAgent's files (Yu et al. 2025): training parquet, and evaluation JSON such as ``eval_50.json``.

All of them have ``context``. The parquet also has verl's columns. The evaluation files have ``input`` and ``answers``,
or ``outputs`` for RULER's tasks. In long examples ``context`` is a list of numbers, which refer to documents of
HotpotQA or SQuAD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.pool_files import hotpot_pool, squad_pool
from memagent_lib.data.formats.records import texts
from memagent_lib.data.layout import numbered_documents
from memagent_lib.paths import expanded

_POOLS = "hotpot_dev_distractor_v1.json (dev-v2.0.json for qa_1)"


def examples(record: Mapping[str, Any], number: int, path: Path, pool: str | Path | None = None) -> Iterator[Example]:
    """Yield the example of a record in any of MemAgent's forms.

    Document numbers refer to the documents in the file ``pool``. Raises ``ValueError`` for numbers without a ``pool``,
    or if they point into another file. The judges are MemAgent's own: ``boxed`` for training files, ``match_all`` for
    RULER's tasks except qa, and ``lenient`` with the first answer for all others.
    """
    if "reward_model" in record:
        yield _training_example(record, number)
        return
    question = record["input"]
    count = record.get("num_docs")
    index = record.get("index", number - 1)
    metadata = {"documents": count, "index": index, "question_id": question}
    if "outputs" in record:
        named = re.match(r"eval_(.+)_\d+$", path.stem)  # as in eval_niah_single_1_8192.json
        name = named[1] if named else "ruler"
        task = f"ruler/{name}"
        id = f"{name}-{path.stem}-{number}"
        answers = texts(record["outputs"])
    else:
        name = "qa"
        task = "hotpotqa"
        id = f"hqa-{count}-{index}"
        answers = texts(record["answers"])
    is_exact = not name.startswith("qa")
    if is_exact:  # made questions: all of fwe are alike, so each record is a question of its own
        del metadata["question_id"]
    context = record["context"]
    yield Example(
        id=id,
        task=task,
        question=question,
        document=context if isinstance(context, str) else _pool_document(context, question, pool),
        answers=answers if is_exact else answers[:1],
        rule="match_all" if is_exact else "lenient",
        metadata=metadata,
    )


def _training_example(record: Mapping[str, Any], number: int) -> Example:
    extra = record.get("extra_info") or {}
    index = extra.get("index")
    question = record["prompt"][0]["content"]
    return Example(
        id=f"memagent-{extra.get('num_docs')}-{number - 1 if index is None else index}",
        task=str(record.get("data_source") or "hotpotqa"),
        question=question,
        document=record["context"],
        answers=texts(record["reward_model"]["ground_truth"]),
        metadata={"documents": extra.get("num_docs"), "index": index, "question_id": question},
    )


def _pool_document(numbers: Sequence[int], question: str, path: str | Path | None) -> str:
    """Join the pool's documents with the given numbers.

    Raises ``ValueError`` unless the pool has the question and ``numbers`` include its gold documents, because another
    pool would silently give other documents.
    """
    if path is None:
        raise ValueError(f"'context' lists numbers of documents; set pool= to the {_POOLS} that they point into")
    with open(expanded(path), "rb") as file:
        # SQuAD's file is one object, HotpotQA's is a list.
        is_squad = file.read(64).lstrip().startswith(b"{")
    pool = squad_pool(expanded(path)) if is_squad else hotpot_pool(expanded(path))
    gold = [set(known.gold) for known in pool.questions if known.question == question]
    if not any(documents <= set(numbers) for documents in gold):
        raise ValueError(f"the pool {path} is not the one that the file was made from; set pool= to {_POOLS}")
    return numbered_documents([pool.documents[i] for i in numbers])
