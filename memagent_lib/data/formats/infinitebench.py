"""InfiniteBench's jsonl (Zhang et al. 2024): ``id``, ``context`` (or ``content``), ``input``, ``answer``, ``options``.

The judges score the same parts of a reply as InfiniteBench's own metrics (the first number, a word, a letter). One
metric differs: summaries are scored by ROUGE-L instead of ROUGE-Lsum.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.choices import LETTERS, option_answers, with_options
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records

RULES = {
    "code_debug": "choice_infinitebench",
    "code_run": "last_number",
    "kv_retrieval": "word",
    "longbook_choice_eng": "choice_infinitebench",
    "longbook_qa_chn": "characters",
    "longbook_qa_eng": "f1",
    "longbook_sum_eng": "rouge_l",
    "longdialogue_qa_eng": "word",
    "math_calc": "sequence",
    "math_find": "first_number",
    "number_string": "first_number",
    "passkey": "first_number",
}
"""The judge of each task. A file is named after its task."""
_QUESTIONS = {
    "code_debug": "Which of these functions has a deliberate error?",
    "longbook_sum_eng": "Summarise the book.",
    "longdialogue_qa_eng": "Which character's name was replaced by $$MASK$$?",
    "math_calc": "What are the intermediate results, one after each operation?",
}


def read_infinitebench(path: str | Path, task: str | None = None) -> Iterator[Example]:
    """Yield the examples of an InfiniteBench file. By default, ``task`` is the file's name without its suffix."""
    name = task or Path(path).stem
    if name not in RULES:
        raise ValueError(f"{path}: no InfiniteBench task {name!r}; set task= to one of {', '.join(RULES)}")
    for record in records(path, "InfiniteBench's JSON lines with context, input and answer"):
        options = record.fields.get("options") or []
        yield record.example(
            id=f"{name}-{record.id('id') or record.number - 1}",
            task=f"infinitebench/{name}",
            question=with_options(_question(name, record), options),
            document=record.get("context", str, "content"),
            answers=_answers(name, record, options),
            rule=RULES[name],
            metadata={"line": record.number},
        )


def _question(name: str, record: Record) -> str:
    if name not in _QUESTIONS:
        return record.get("input", str).strip()
    return f"{_QUESTIONS[name]}\n{str(record.fields.get('input') or '').strip()}".strip()


def _answers(name: str, record: Record, options: list[str]) -> tuple[str, ...]:
    if name == "math_calc":
        return (str(record.get("answer", list)),)
    answers = record.texts("answer")
    if RULES[name] != "choice_infinitebench" or any(answer in LETTERS for answer in answers):
        return answers
    return option_answers(answers[0], options, record.where)


FORMAT = Format(
    name="infinitebench",
    files="InfiniteBench's JSON lines",
    fields=("context", "input", "answer", "options"),
    read=read_infinitebench,
)
