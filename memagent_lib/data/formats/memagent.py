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
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.hotpot import read_hotpot_pool
from memagent_lib.data.formats.records import Record, field_of, records, require_file
from memagent_lib.data.formats.squad import read_squad_pool
from memagent_lib.data.layout import numbered_documents
from memagent_lib.data.pools import Pool
from memagent_lib.paths import expanded

_EXPECTED = "MemAgent's parquet, or its evaluation JSON with context and input"
_POOLS = "hotpot_dev_distractor_v1.json (dev-v2.0.json for qa_1)"
_RULER_FILE = re.compile(r"eval_(.+)_\d+$")


def read_memagent(path: str | Path, pool: str | Path | None = None) -> Iterator[Example]:
    """Yield the examples of a file in any of MemAgent's forms.

    Document numbers refer to the documents in the file ``pool``. Raises ``ValueError`` for numbers without a ``pool``,
    or if they point into another file. The judges are MemAgent's own: ``boxed`` for training files, ``match_all`` for
    RULER's tasks except qa, and ``lenient`` with the first answer for all others.
    """
    for record in records(path, _EXPECTED):
        if {"prompt", "reward_model"} & record.fields.keys():
            yield _training_example(record)
        else:
            yield _evaluation_example(record, Path(path), pool)


def _training_example(record: Record) -> Example:
    extra = record._replace(fields=record.fields.get("extra_info") or {})
    documents = extra.fields.get("num_docs")
    prompt = record.get("prompt", list)
    question = field_of(prompt[0] if prompt else None, "content", str, record.where)
    reward = record._replace(fields=record.get("reward_model", dict))
    return record.example(
        id=f"memagent-{documents}-{extra.id('index') or record.number - 1}",
        task=str(record.fields.get("data_source") or "hotpotqa"),
        question=question,
        document=record.get("context", str),
        answers=reward.texts("ground_truth"),
        rule="boxed",
        metadata={"documents": documents, "index": extra.fields.get("index"), "question_id": question},
    )


def _evaluation_example(record: Record, path: Path, pool: str | Path | None) -> Example:
    fields = record.fields
    question = record.get("input", str)
    number = fields.get("index", record.number - 1)
    exact = False
    metadata = {"documents": fields.get("num_docs"), "index": number, "question_id": question}
    if "outputs" in fields:
        answers = record.texts("outputs")
        ruler_task = _task(path)
        task = f"ruler/{ruler_task}"
        id = f"{ruler_task}-{path.stem}-{record.number}"
        exact = not ruler_task.startswith("qa")
        if exact:  # made questions: all of fwe are alike, so each record is a question of its own
            del metadata["question_id"]
    else:
        number = record.get("index", int)  # LongBench's records have none, and are else like these
        answers = record.texts("answers")
        task = "hotpotqa"
        id = f"hqa-{fields.get('num_docs')}-{number}"
    return record.example(
        id=id,
        task=task,
        question=question,
        document=_document(record, question, pool),
        answers=answers if exact else answers[:1],
        rule="match_all" if exact else "lenient",
        metadata=metadata,
    )


def _task(path: Path) -> str:
    """Return the RULER task that a file's name contains, as in ``eval_niah_single_1_8192.json``."""
    found = _RULER_FILE.match(path.stem)
    return found[1] if found else "ruler"


def _document(record: Record, question: str, pool: str | Path | None) -> str:
    context = record.get("context", object)
    if context and isinstance(context, list):
        return _pool_document(context, question, pool, record.where)
    if not isinstance(context, str):
        raise ValueError(f"{record.where}: expected a text or numbers of documents as 'context', found {context!r:.60}")
    return context


def _pool_document(numbers: Sequence[Any], question: str, path: str | Path | None, where: str) -> str:
    """Join the pool's documents with the given numbers.

    Raises ``ValueError`` unless the pool has the question and ``numbers`` include its gold documents, because another
    pool would silently give other documents.
    """
    if path is None:
        raise ValueError(
            f"{where}: 'context' lists {len(numbers):,} numbers of documents instead of their text; "
            f"set pool= to the {_POOLS} that they point into"
        )
    pool = _pool(expanded(path))
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(pool.documents):
            raise ValueError(
                f"{where}: document {number!r} is not in the pool {path} of {len(pool.documents):,}; "
                f"is it the {_POOLS}?"
            )
    gold = [set(known.gold) for known in pool.questions if known.question == question]
    if not any(documents <= set(numbers) for documents in gold):
        lacks = "does not have this question"
        if gold:
            lacks = "has the question's documents at other numbers"
        raise ValueError(
            f"{where}: the pool {path} {lacks}, so it is not the one that the file was made from; use {_POOLS}"
        )
    return numbered_documents([pool.documents[i] for i in numbers])


def _pool(path: Path) -> Pool:
    require_file(path, "hotpot")
    with open(path, "rb") as file:
        # SQuAD's file is one object, HotpotQA's is a list.
        squad = file.read(64).lstrip().startswith((b'{"version"', b'{"data"'))
    if squad:
        return read_squad_pool(path)
    return read_hotpot_pool(path)


def _is_memagent(fields: Mapping[str, Any]) -> bool:
    """Return whether a record with ``context`` also has verl's messages, or an evaluation file's example number."""
    return isinstance(fields.get("prompt"), list) or {"input", "index"} <= fields.keys()


FORMAT = Format(
    name="memagent",
    files="MemAgent's parquet and evaluation JSON",
    fields=("context",),
    fits=_is_memagent,
    read=read_memagent,
)
