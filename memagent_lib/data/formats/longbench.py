"""LongBench (Bai et al. 2023): its own jsonl, and the parquet mirror on Hugging Face that lm-eval loads.

In the mirror (Xnhyacinth/LongBench), the field ``question`` has the text of ``input`` with the surrounding words of
LongBench's prompt, and ``context`` includes the beginning of that prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records
from memagent_lib.data.formats.ruler import FOLLOW_DOCUMENT

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
"""LongBench's own metric for each English and code task. LongBench-E's tasks (``_e``) have the same metrics."""
_WITHOUT_INPUT = ("gov_report", "multi_news", "vcsum", "passage_count", "lcc", "repobench-p")
"""Data sets that ask the same of every document, so that their ``input`` may be empty."""
_MIRRORED = "question"
_CHINESE = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")
_QUESTIONS = {
    "gov_report": "Write a one-page summary of this government report.",
    "multi_news": "Write a one-page summary of all these news articles.",
    "passage_count": "How many different paragraphs does the document have, repeats aside? Answer with the number.",
    "passage_retrieval_en": "The document has numbered paragraphs. Which of them does this abstract summarise? "
    "Answer with its name, such as Paragraph 1.",
    "lcc": "What is the next line of this code?",
    "repobench-p": "What is the next line of this code?",
    "trec": "The document shows questions with their types. Which type has this question? Answer with the type only.",
    "triviaqa": "The document shows how questions are answered from a passage. Answer this one in the same way.",
    "samsum": "The document shows dialogues with their summaries. Summarise this dialogue in the same way.",
}
"""Questions in our own words, for data sets whose ``input`` is empty or only a question's subject."""


def read_longbench(path: str | Path, rule: str | None = None) -> Iterator[Example]:
    """Yield the examples of a file. Their judge is ``rule``, or by default LongBench's metric for the data set.

    Chinese data sets have no default. MemAgent's own evaluation of LongBench uses the rules ``contains`` and
    ``rouge_recall``.
    """
    for record in records(path, "LongBench's JSON lines with input, context and answers"):
        dataset = record.get("dataset", str)
        task = dataset.removesuffix("_e")
        ours = _QUESTIONS.get(task, "")
        theirs = record.get(
            _MIRRORED if _MIRRORED in record.fields else "input", str, may_be_empty=task in _WITHOUT_INPUT
        ).strip()
        yield record.example(
            id=f"{dataset}-{record.id('_id') or record.number}",
            task=f"longbench/{dataset}",
            question=f"{ours}\n\n{theirs}".strip() or FOLLOW_DOCUMENT,  # the mirror's vcsum has no question
            document=record.get("context", str),
            answers=record.texts("answers"),
            rule=rule or _rule(task, record),
            metadata={"length": record.fields.get("length"), "language": record.fields.get("language")},
        )


def _rule(dataset: str, record: Record) -> str:
    if dataset in _CHINESE:  # LongBench segments Chinese with jieba before it compares words
        raise ValueError(
            f"{record.where}: LongBench scores {dataset!r} on segmented Chinese, which no judge here does; "
            "set rule='characters' to score it by characters"
        )
    if dataset not in RULES:
        raise ValueError(f"{record.where}: no LongBench task {dataset!r}; expected one of {', '.join(sorted(RULES))}")
    if RULES[dataset] == "classes":
        return f"classes:{'|'.join(record.get('all_classes', list))}"
    return RULES[dataset]


def _is_longbench(fields: Mapping[str, Any]) -> bool:
    dataset = str(fields["dataset"]).removesuffix("_e")
    return dataset in {*RULES, *_CHINESE} and not fields.keys().isdisjoint(("input", _MIRRORED))


FORMAT = Format(
    name="longbench",
    files="LongBench's JSON lines, or the Hub's mirror of it",
    fields=("dataset", "context", "answers"),
    fits=_is_longbench,
    read=read_longbench,
)
