"""LongBench v2 (Bai et al. 2024): questions with four options, in both of its forms on the Hugging Face Hub.

    memagent data --from longbench_v2 data.json --out longbench_v2.parquet

The authors' form (zai-org/LongBench-v2) has ``choice_A`` to ``choice_D`` and a letter as ``answer``. The form that
lm-eval loads (recursal/longbench-v2) has a list ``choices``; a number as ``answer`` counts from 0, as in lm-eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from memagent_lib.data import Example, Format

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


def multiple_choice(question: str, options: Sequence[str], answer: str) -> tuple[str, tuple[str, str]]:
    """Return the question with a line for each option, and the text and letter of the right one, as a reply may give.

    ``answer`` is the text or the letter. Raises ``ValueError`` if it is not among the options.
    """
    letters = ascii_uppercase[: len(options)]
    if answer in list(letters):
        answer = options[letters.index(answer)]
    if answer not in options:
        raise ValueError(f"the answer {answer!r} is not among the options {list(options)}")
    lines = [question, *(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))]
    return "\n".join(lines), (answer, letters[options.index(answer)])


FORMAT = Format(files="LongBench v2's records", examples=examples)
