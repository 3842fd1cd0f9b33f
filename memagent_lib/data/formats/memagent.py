"""MemAgent's files (Yu et al. 2025): its training parquet, ``eval_50.json``, ``eval_niah_single_1_8192.json``.

All have ``context``. The parquet has verl's columns beside it; the evaluation files have ``input`` and ``answers``, or,
for RULER's tasks, ``outputs``. Above some length ``context`` lists numbers of documents of HotpotQA's or SQuAD's pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from memagent_lib.data.drafting import joined
from memagent_lib.data.examples import Example
from memagent_lib.data.formats.hotpot import read_hotpot_pool
from memagent_lib.data.formats.records import Record, field_of, records
from memagent_lib.data.formats.squad import read_squad_pool
from memagent_lib.data.pools import Pool

_WHAT = "MemAgent's parquet, or its evaluation JSON with context and input"
_POOLS = "hotpot_dev_distractor_v1.json (dev-v2.0.json for qa_1)"
_RULER = re.compile(r"eval_(.+)_\d+$")


def read_memagent(path: str | Path, pool: str | Path | None = None) -> Iterator[Example]:
    """The examples of a file in any of MemAgent's forms; ``pool`` is the file that numbers of documents point into.

    The judges are the reference's own: ``boxed`` in training; in evaluation ``lenient`` on the first answer, its
    headline score, and ``match_all`` for RULER's tasks but its qa.
    """
    for record in records(path, _WHAT):
        yield _trained(record) if "reward_model" in record.fields else _evaluated(record, Path(path), pool)


def _trained(record: Record) -> Example:
    extra = record.fields.get("extra_info") or {}
    prompt = record.get("prompt", list)
    question = field_of(prompt[0] if prompt else None, "content", str, record.where)
    rewarded = Record(record.get("reward_model", dict), record.number, record.where)
    return Example(
        id=f"memagent-{extra.get('num_docs')}-{extra.get('index', record.number - 1)}",
        task=str(record.fields.get("data_source") or "hotpotqa"),
        question=question,
        document=record.get("context", str),
        answers=rewarded.texts("ground_truth"),
        rule="boxed",
        metadata={"documents": extra.get("num_docs"), "index": extra.get("index"), "question_id": question},
    )


def _evaluated(record: Record, path: Path, pool: str | Path | None) -> Example:
    question, fields = record.get("input", str), record.fields
    of_ruler = "outputs" in fields
    answers = record.texts("outputs" if of_ruler else "answers")
    context = record.get("context", object)
    document = _joined(context, question, pool, record.where) if isinstance(context, list) else context
    if not isinstance(document, str):
        raise ValueError(f"{record.where}: expected a text or numbers of documents as 'context', found {context!r:.60}")
    task = found[1] if of_ruler and (found := _RULER.match(path.stem)) else "ruler" if of_ruler else "hotpotqa"
    exact = of_ruler and not task.startswith("qa")
    number = fields.get("index", record.number - 1)
    return Example(
        id=f"{task}-{path.stem}-{record.number}" if of_ruler else f"hqa-{fields.get('num_docs')}-{number}",
        task=f"ruler/{task}" if of_ruler else task,
        question=question,
        document=document,
        answers=answers if exact else answers[:1],
        rule="match_all" if exact else "lenient",
        metadata={"documents": fields.get("num_docs"), "index": number, "question_id": question},
    )


def _joined(numbers: Sequence[Any], question: str, path: str | Path | None, where: str) -> str:
    """The documents that numbers point to, from a pool that asks the question and has its gold documents there."""
    if path is None:
        raise ValueError(
            f"{where}: 'context' lists {len(numbers):,} numbers of documents instead of their text; "
            f"give pool=, the {_POOLS} that they point into"
        )
    pool = _pool(str(path))
    if bad := [i for i in numbers if not isinstance(i, int) or not 0 <= i < len(pool.documents)]:
        raise ValueError(
            f"{where}: document {bad[0]!r} is not in the pool {path} of {len(pool.documents):,}; is it the {_POOLS}?"
        )
    gold = [set(asked.gold) for asked in pool.questions if asked.question == question]
    if not any(documents <= set(numbers) for documents in gold):
        lacks = "has the question's documents at other numbers" if gold else "does not ask this question"
        raise ValueError(
            f"{where}: the pool {path} {lacks}, so it is not the one that the file was made from; give {_POOLS}"
        )
    return joined([pool.documents[i] for i in numbers])


@lru_cache(maxsize=1)
def _pool(path: str) -> Pool:
    with open(path, "rb") as file:
        squad = file.read(64).lstrip().startswith((b'{"version"', b'{"data"'))
    return read_squad_pool(path) if squad else read_hotpot_pool(path)
