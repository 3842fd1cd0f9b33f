"""LongBench v2 (Bai et al. 2024): questions with four options, in both of its forms on the Hugging Face Hub.

    memagent data --from longbench_v2 data.json --out longbench_v2.parquet

The authors' form (zai-org/LongBench-v2) has ``choice_A`` to ``choice_D`` and a letter as ``answer``. The form that
lm-eval loads (recursal/longbench-v2) has a list ``choices``; a number as ``answer`` counts from 0, as in lm-eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent_lib.data import Example, Format, multiple_choice

_RECORDED = ("domain", "sub_domain", "difficulty", "length")


def examples(record: Mapping[str, Any], number: int, path: Path, rule: str = "choice") -> Iterator[Example]:
    """Yield the example of a record. Its question includes its options."""
    options = record.get("choices") or [record[f"choice_{letter}"] for letter in "ABCD"]
    answer = record["answer"]
    right = options[answer] if isinstance(answer, int) else answer
    question, answers = multiple_choice(record["question"].strip(), options, right)
    yield Example(
        id=f"longbench_v2-{record.get('_id') or number}",
        task="longbench_v2",
        question=question,
        document=record["context"],
        answers=answers,
        rule=rule,
        metadata={name: record.get(name) for name in _RECORDED},
    )


FORMAT = Format(files="LongBench v2's records", examples=examples)
