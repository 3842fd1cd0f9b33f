"""MemoryAgentBench (Hu et al. 2025, ai-hyz/MemoryAgentBench on the Hub): many questions about one context.

A record has a ``context``, the lists ``questions`` and ``answers``, and the name of its data set in ``metadata``. Each
question is an example, so the context is read once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.answers import accepted_answers
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, field_of, records

_EXPECTED = "MemoryAgentBench's records with context, questions, answers and metadata"
RULES = {
    "ruler_niah": "match_all",
    "ruler_qa": "substring_match",
    "eventqa": "match_all",
    "factconsolidation": "substring_match",
    "icl_": "exact_match",
    "detective_qa": "exact_match",
    "longmemeval": "contains",
    "infbench_sum": "rouge_l",
}
"""The judge of each data set, by the beginning of its name."""
_INSTRUCTIONS = {
    "icl_": "The document shows texts, each with the number of its label. Which number has the label of this text? "
    "Answer with the number only.",
    "factconsolidation": "The document's facts are numbered. Where two contradict each other, the one with the larger "
    "number is true. Answer from these facts alone, even if they are not so in the real world.",
}
"""Instructions in our own words, for data sets whose questions lack what the benchmark's own prompts add to them."""
_BY_MODEL = ("longmemeval", "infbench_sum")
_RECSYS = "recsys"


def read_memoryagentbench(path: str | Path, source: str = "") -> Iterator[Example]:
    """Yield the examples of a file, or those whose data set's name contains ``source``.

    Raises ``ValueError`` for recsys_redial, whose answers are numbers of films in a file that the records lack.
    """
    for record in records(path, _EXPECTED):
        name = _source(record)
        if source not in name:
            continue
        questions = record.get("questions", list)
        answers = record.get("answers", list)
        if len(questions) != len(answers):
            raise ValueError(
                f"{record.where}: {len(questions)} questions and {len(answers)} answers; expected a pair each"
            )
        for number, (question, accepted) in enumerate(zip(questions, answers, strict=True)):
            yield _example(record, name, number, question, accepted)


def _example(record: Record, name: str, number: int, question: Any, accepted: Any) -> Example:
    record = record._replace(where=f"{record.where}, question {number + 1}")
    if not isinstance(question, str):
        raise ValueError(f"{record.where}: expected a text, found {question!r:.60}")
    metadata = record.get("metadata", dict)
    kinds = metadata.get("question_types") or []
    return record.example(
        id=f"{name}-{record.number}-{number + 1}",
        task=f"memoryagentbench/{name}",
        question=_instructed(name, question.strip()),
        document=record.get("context", str),
        answers=accepted_answers(accepted, record.where),
        rule=_rule(name, record.where),
        metadata={"context": record.number, "category": kinds[number] if number < len(kinds) else name},
    )


def _instructed(name: str, question: str) -> str:
    """Return the question after the instruction of its data set, if it has one. An empty question stays empty."""
    instruction = next((text for begin, text in _INSTRUCTIONS.items() if name.startswith(begin)), "")
    return f"{instruction}\n\n{question}" if instruction and question else question


def _source(record: Record) -> str:
    return field_of(record.get("metadata", dict), "source", str, record.where)


def _rule(name: str, where: str) -> str:
    if name.startswith(_RECSYS):
        raise ValueError(
            f"{where}: {name} names films by numbers of entity2id.json, which no judge here reads; leave these records "
            "out with source=, such as source=icl"
        )
    for begin, rule in RULES.items():
        if name.startswith(begin):
            return rule
    raise ValueError(f"{where}: no MemoryAgentBench data set {name!r}; expected one of {', '.join(RULES)}")


def _note(path: str | Path, source: str = "") -> str:
    names = {_source(record) for record in records(path, _EXPECTED)}
    chosen = sorted(name for name in names if source in name)
    by_model = [name for name in chosen if name.startswith(_BY_MODEL)]
    notes = []
    if len(chosen) < len(names):
        notes.append(f"left out: {', '.join(sorted(names - set(chosen)))}")
    if by_model:
        notes.append(f"MemoryAgentBench judges {', '.join(by_model)} by a model: memagent evaluate --judge")
    return "; ".join(notes)


def _has_questions(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields["metadata"], Mapping) and "source" in fields["metadata"]


FORMAT = Format(
    name="memoryagentbench",
    files="MemoryAgentBench's records",
    fields=("context", "questions", "answers", "metadata"),
    fits=_has_questions,
    read=read_memoryagentbench,
    note=_note,
)
