"""LongBench v2 (Bai et al. 2024): questions with four options, in both of its forms on the Hugging Face Hub.

The authors' form (zai-org/LongBench-v2) has ``choice_A`` to ``choice_D`` and a letter as ``answer``. The form that
lm-eval loads (recursal/longbench-v2) has a list ``choices``; a number as ``answer`` counts from 0, as in lm-eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.formats.choices import LETTERS, option_answers, with_options
from memagent_lib.data.formats.format import Format
from memagent_lib.data.formats.records import Record, records

_COLUMNS = tuple(f"choice_{letter}" for letter in LETTERS)
_RECORDED = ("domain", "sub_domain", "difficulty", "length")


def read_longbench_v2(path: str | Path, rule: str = "choice") -> Iterator[Example]:
    """Yield the examples of a JSON, JSON lines or parquet file. Each question includes its options."""
    for record in records(path, "LongBench v2's records with question, context, options and answer"):
        options = _options(record)
        yield record.example(
            id=f"longbench_v2-{record.id('_id') or record.number}",
            task="longbench_v2",
            question=with_options(record.get("question", str).strip(), options),
            document=record.get("context", str),
            answers=option_answers(_answer(record, options), options, record.where),
            rule=rule,
            metadata={name: record.fields.get(name) for name in _RECORDED},
        )


def _options(record: Record) -> list[str]:
    if "choices" not in record.fields:
        return [record.get(name, str) for name in _COLUMNS]
    options = list(record.texts("choices"))
    if len(options) != len(LETTERS):
        raise ValueError(f"{record.where}: expected {len(LETTERS)} options as 'choices', found {len(options)}")
    return options


def _answer(record: Record, options: list[str]) -> str:
    answer = record.get("answer", object)
    if isinstance(answer, bool):  # in Python, true is the number 1
        raise ValueError(f"{record.where}: expected a letter, an option or its number as 'answer', found {answer}")
    if isinstance(answer, int) and 0 <= answer < len(options):
        return LETTERS[answer]
    return str(answer)


def _has_options(fields: Mapping[str, Any]) -> bool:
    choices = fields.get("choices")
    return set(_COLUMNS) <= fields.keys() or (isinstance(choices, list) and len(choices) == len(LETTERS))


FORMAT = Format(
    name="longbench_v2",
    files="LongBench v2's records",
    fields=("question", "context", "answer", "difficulty", "domain"),
    fits=_has_options,
    read=read_longbench_v2,
)
