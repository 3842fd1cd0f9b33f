"""LongBench's jsonl (Bai et al. 2023): ``input``, ``context``, ``answers``, ``dataset``, ``all_classes``, ``_id``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.json_files import field_of, json_lines, texts

RULES = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), "f1"),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news"), "rouge_l"),
    "triviaqa": "first_line:f1",
    "samsum": "first_line:rouge_l",
    "passage_retrieval_en": "number_share",
    "passage_count": "number_share",
    "lcc": "similar",
    "repobench-p": "similar",
    "trec": "classes",
}
"""LongBench's own metric for each English and code task; ``_e`` in a name is LongBench-E's, with the same metric."""
_CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
_ASK = {
    "gov_report": "Write a one-page summary of this government report.",
    "multi_news": "Write a one-page summary of all these news articles.",
    "passage_count": "How many different paragraphs does the document have, not counting repeats? Answer with the number.",
    "lcc": "What is the next line of this code?",
    "repobench-p": "What is the next line of this code?",
}
"""Questions, in our own words, for tasks whose ``input`` is empty."""


def read_longbench(path: str | Path, rule: str | None = None) -> Iterator[Example]:
    """A LongBench file with its own metrics; ``rule`` scores all of it otherwise (``contains`` and ``rouge_recall`` are MemAgent's)."""
    for line, record in json_lines(path):
        where = f"{path}, line {line}"
        dataset = field_of(record, "dataset", str, where)
        asked = field_of(record, "input", str, where)
        yield Example(
            id=f"{dataset}-{record.get('_id', line)}",
            task=f"longbench/{dataset}",
            question=_question(dataset.removesuffix("_e"), asked),
            document=field_of(record, "context", str, where),
            answers=tuple(texts(record, "answers", where)),
            rule=rule or _rule(dataset.removesuffix("_e"), record, where),
            metadata={"length": record.get("length"), "language": record.get("language")},
        )


def _question(dataset: str, asked: str) -> str:
    extra = _ASK.get(dataset)
    return f"{extra}\n\n{asked}".strip() if extra else asked


def _rule(dataset: str, record: dict[str, Any], where: str) -> str:
    if dataset in _CHINESE:
        raise ValueError(
            f"{where}: LongBench scores {dataset!r} on segmented Chinese, which no judge here does; give rule='characters' to score it so"
        )
    if dataset not in RULES:
        raise ValueError(f"{where}: no LongBench task {dataset!r}; expected one of {', '.join(sorted(RULES))}")
    if RULES[dataset] == "classes":
        return "classes:" + "|".join(field_of(record, "all_classes", list, where))
    return RULES[dataset]
