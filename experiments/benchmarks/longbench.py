"""LongBench (Bai et al. 2023, arXiv 2308.14508): its own jsonl, and the parquet mirror on the Hub that lm-eval loads.

    memagent data --from longbench qasper.jsonl --out qasper.parquet

In the mirror (Xnhyacinth/LongBench), the field ``question`` has the text of ``input`` with the surrounding words of
LongBench's prompt, and ``context`` includes the beginning of that prompt. A box counts as the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from memagent_lib.data import FOLLOW_DOCUMENT, Example, Format, texts
from memagent_lib.scoring import AnyAnswer, Rule, Score, box_or_all, boxed, token_f1

RULES = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), "f1"),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news"), "longbench/rouge_l"),
    "triviaqa": "longbench/line_f1",
    "samsum": "longbench/line_rouge_l",
    "passage_retrieval_en": "longbench/number_share",
    "passage_count": "longbench/number_share",
    "lcc": "longbench/similar",
    "repobench-p": "longbench/similar",
    "trec": "longbench/classes",
}
"""LongBench's own metric for each English and code task. LongBench-E's tasks (``_e``) have the same metrics."""
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


def examples(record: Mapping[str, Any], number: int, path: Path, rule: str = "") -> Iterator[Example]:
    """Yield the example of a record. Its judge is ``rule``, or by default LongBench's metric for the data set.

    Chinese data sets have none, because LongBench compares them by words; set ``infinitebench/characters``.
    """
    dataset = record["dataset"]
    task = dataset.removesuffix("_e")
    if not rule and task not in RULES:
        raise ValueError(f"no metric for LongBench's {dataset!r}; set rule=")
    theirs = record["question"] if "question" in record else record["input"]
    default = RULES.get(task, "")
    if default == "longbench/classes":
        default += f":{'|'.join(record['all_classes'])}"
    yield Example(
        id=f"{dataset}-{record.get('_id') or number}",
        task=f"longbench/{dataset}",
        question=f"{_QUESTIONS.get(task, '')}\n\n{theirs.strip()}".strip() or FOLLOW_DOCUMENT,
        document=record["context"],
        answers=texts(record["answers"]),
        rule=rule or default,
        metadata={"length": record.get("length"), "language": record.get("language")},
    )


def number_share(reply: str, answers: Sequence[str]) -> Score:
    """Score the reply by the share of its numbers that are the first number of an accepted answer."""
    numbers = re.findall(r"\d+", box_or_all(reply))
    accepted = {number for answer in answers for number in re.findall(r"\d+", answer)[:1]}
    right = sum(number in accepted for number in numbers)
    reason = f"{right} of {len(numbers)} numbers are right"
    return Score(right / max(1, len(numbers)), ", ".join(numbers[:5]), reason)


def classes(names: str) -> Rule:
    """Return a rule for class names (``a|b|c``) that scores the first line of a reply.

    The score is 1 divided by the number of classes that the line names, or 0 if the correct class is not among them. A
    class does not count as named if its name is part of the correct class's name.
    """
    known = [name for name in names.split("|") if name]

    def share(line: str, answer: str) -> float:
        counted = [name for name in known if name in line and (name == answer or name not in answer)]
        return 1 / len(counted) if answer in counted else 0.0

    return AnyAnswer(first_line, share)


def first_line(reply: str) -> str:
    """Return the first line of a reply, after any line breaks at its beginning, or of the box in a later line."""
    line = reply.lstrip("\n").split("\n")[0]
    if boxed(line) is None and boxed(reply) is not None:
        return boxed(reply).lstrip("\n").split("\n")[0]
    return box_or_all(line)


def code_line(reply: str) -> str:
    """Return the first line that is neither a comment nor a fence by LongBench's rule, or "" if none is."""
    lines = box_or_all(reply).lstrip("\n").split("\n")
    return next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")


def likeness(found: str, answer: str) -> float:
    """Return LongBench's code score: difflib's ratio, rounded to hundredths."""
    # LongBench uses fuzzywuzzy, which rounds to whole per cent; without its C extension it is difflib.
    return round(100 * SequenceMatcher(None, found, answer).ratio()) / 100


def rouge_l(found: str, answer: str) -> float:
    """Return the F-score of ROUGE-L, from the ``rouge`` package that LongBench uses; 0 where it finds no words."""
    from rouge import Rouge

    try:
        return Rouge().get_scores(found, answer)[0]["rouge-l"]["f"]
    except (ValueError, RecursionError):  # no words, or a sentence of several thousand
        return 0.0


FORMAT = Format(files="LongBench's JSON lines, or the Hub's mirror of it", examples=examples)
JUDGES = {
    "longbench/rouge_l": AnyAnswer(box_or_all, rouge_l),
    "longbench/line_f1": AnyAnswer(first_line, token_f1),
    "longbench/line_rouge_l": AnyAnswer(first_line, rouge_l),
    "longbench/number_share": number_share,
    "longbench/similar": AnyAnswer(code_line, likeness),
    "longbench/classes": classes,
}
