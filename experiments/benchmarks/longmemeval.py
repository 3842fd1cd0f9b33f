r"""LongMemEval (Wu et al. 2025, arXiv 2410.10813): questions about dated chat sessions; ``_s``, ``_m`` and ``_oracle``.

    memagent data --from longmemeval longmemeval_s.json --out longmemeval.parquet
    memagent evaluate longmemeval.parquet --model MODEL --out runs/longmemeval --judge JUDGE \
        --judge-prompt experiments/benchmarks/longmemeval.py:judge_prompt

LongMemEval asks a model whether a reply is right, by the kind of question, and takes a reply with ``yes`` in it as
right. :data:`WORDS` state its criteria (``evaluate_qa.py`` of xiaowu0162/LongMemEval, MIT) in our own words. Rules
score replies as well: ``contains``, and ``abstains`` for questions about what no session states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, Span, join, texts

_DATE_LINE = "Current date: "
_ALSO = re.compile(r"(.+?)\. (.+?) *(?:\(.*\) *)?(?:is|are) also acceptable\.?")
_FRAME = """{task}

Question: {{question}}

{label}: {{answers}}

Response: {{reply}}

{ask} Reply with yes or no only."""
_RIGHT = (
    "Below are a question, its correct answer, and a response from a model. Reply yes if the response contains the "
    "correct answer, and no otherwise."
)
_EQUAL = (
    f"{_RIGHT} A response that means the same as the correct answer, or that has all the intermediate steps that lead "
    "to it, counts as yes. A response that has only a part of the information that the answer requires counts as no."
)
_PLAIN = _FRAME.format(task=_EQUAL, label="Correct answer", ask="Is the response correct?")
WORDS = {
    **dict.fromkeys(("single-session-user", "single-session-assistant", "multi-session"), _PLAIN),
    "temporal-reasoning": _FRAME.format(
        task=f"{_EQUAL} Where the question is about a number of days, weeks, months or the like, a number that is off "
        "by one is no error: 19 days instead of 18 is still correct.",
        label="Correct answer",
        ask="Is the response correct?",
    ),
    "knowledge-update": _FRAME.format(
        task=f"{_RIGHT} A response that also names earlier information counts as correct, as long as its updated "
        "answer is the one that is required.",
        label="Correct answer",
        ask="Is the response correct?",
    ),
    "single-session-preference": _FRAME.format(
        task="Below are a question, a rubric that describes the personal response that is wanted, and a response from "
        "a model. Reply yes if the response satisfies the rubric, and no otherwise. It need not reflect every point "
        "of the rubric: it is correct as long as it recalls the user's personal information and uses it correctly.",
        label="Rubric",
        ask="Is the response correct?",
    ),
    "abstention": _FRAME.format(
        task="Below are a question that cannot be answered, an explanation, and a response from a model. Reply yes if "
        "the response correctly recognises that the question cannot be answered, and no otherwise. It may say that "
        "the information is incomplete, or that other information is there, but not what the question is about.",
        label="Explanation",
        ask="Does the response correctly recognise that the question cannot be answered?",
    ),
}
"""What a model judge decides by, for each kind of question."""


def examples(record: Mapping[str, Any], number: int, path: Path) -> Iterator[Example]:
    """Yield the example of a record. Its evidence is every message marked ``has_answer``."""
    is_false = record["question_id"].endswith("_abs")
    document, evidence = _sessions(record)
    yield Example(
        id=f"longmemeval-{record['question_id']}",
        task=f"longmemeval/{'abstention' if is_false else record['question_type']}",
        question=f"{_DATE_LINE}{record['question_date']}\n{record['question'].strip()}",
        document=document,
        answers=tuple(text for answer in texts(record["answer"]) for text in _accepted(answer)),
        rule="abstains" if is_false else "contains",
        evidence=evidence,
        metadata={"category": record["question_type"], "sessions": len(record["haystack_sessions"])},
    )


def _accepted(answer: str) -> tuple[str, ...]:
    """Return the accepted answers: ``7 days. 8 days (including the last day) is also acceptable.`` has two."""
    found = _ALSO.fullmatch(answer.strip())
    return found.groups() if found else (answer,)


def _sessions(record: Mapping[str, Any]) -> tuple[str, tuple[Span, ...]]:
    """Return all sessions as one text, each under its date, and the spans of the messages that have the answer."""
    lines: list[str] = []
    positions: list[int] = []
    for date, session in zip(record["haystack_dates"], record["haystack_sessions"], strict=True):
        lines.append(f"Session of {date}")
        for message in session:
            if message.get("has_answer") is True:
                positions.append(len(lines))
            lines.append(f"{message['role']}: {message['content']}".rstrip())
        lines.append("")
    layout = join(lines, positions, "\n")
    return layout.text.rstrip(), tuple(layout.spans)


def judge_prompt(example: Example, reply: str) -> str:
    """Return the prompt of a model judge, by the kind of question and without the date."""
    kind = "abstention" if example.task.endswith("abstention") else example.metadata.get("category", "")
    question = example.question
    if question.startswith(_DATE_LINE):
        question = question.partition("\n")[2]
    return WORDS.get(kind, _PLAIN).format(question=question, answers="\n".join(example.answers), reply=reply)


NOTE = (
    "LongMemEval's own judge is a model (experiments/benchmarks/longmemeval.py); the rule fails nearly all replies "
    "to questions of preference, whose answer is a rubric"
)
FORMAT = Format(files="LongMemEval's records", examples=examples, note=NOTE)
