"""Examples: a question, a document, accepted answers, and the positions of the evidence in the document.

An example's record has the columns that verl reads, so one file serves training and evaluation. How records are stored
is not decided here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.errors import one_line
from memagent_lib.scoring import judge_named


class Span(NamedTuple):
    """A piece of evidence: the characters ``document[start:end]``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One question about one document.

    ``rule`` names the judge, and ``metadata`` holds any JSON values. ``document`` is empty if only the question
    matters, as in tables of results.
    """

    id: str
    task: str
    question: str
    document: str
    answers: tuple[str, ...]
    rule: str = "boxed"
    evidence: tuple[Span, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError(f"example {self.id!r} has an empty question")
        is_texts = isinstance(self.answers, tuple) and all(isinstance(answer, str) for answer in self.answers)
        if not is_texts or not self.answers or not all(self.answers):
            raise ValueError(f"example {self.id!r} has no accepted answer, or an empty one: {self.answers!r:.60}")
        judge_named(self.rule)
        # A document that is left out has no length to check against.
        outside = [(a, b) for a, b in self.evidence if self.document and not 0 <= a < b <= len(self.document)]
        if outside:
            raise ValueError(
                f"example {self.id!r}: evidence {outside[0]} lies outside its document of {len(self.document):,} "
                "characters"
            )

    def to_record(self) -> dict[str, Any]:
        """Return the example as a parquet row: verl's columns, the document, and all other fields in ``extra_info``."""
        return {
            "data_source": self.task,
            "agent_name": "memagent",  # selects our agent loop in verl
            "ability": "memory",
            "prompt": [{"role": "user", "content": self.question}],
            "reward_model": {"style": "rule", "ground_truth": list(self.answers)},
            "document": self.document,
            "extra_info": {
                "id": self.id,
                "rule": self.rule,
                "evidence": [list(span) for span in self.evidence],
                "metadata": json.dumps(dict(self.metadata), sort_keys=True),  # parquet needs the same keys in every row
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Example:
        """Return the example from a row that :meth:`to_record` made."""
        extra = record["extra_info"]
        return cls(
            id=extra["id"],
            task=record["data_source"],
            question=record["prompt"][0]["content"],
            document=record["document"],
            answers=tuple(map(str, record["reward_model"]["ground_truth"])),
            rule=extra["rule"],
            evidence=tuple(Span(int(start), int(end)) for start, end in extra["evidence"]),
            metadata=json.loads(extra["metadata"]),
        )


def data_hash(path: str | Path) -> str:
    """Return the first 16 hex digits of a file's SHA-256. Runs log it to identify their data."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def naming_errors(where: str | Path, expected: str) -> Iterator[None]:
    """Turn any error that a foreign or damaged file causes into a ``ValueError`` that names its place."""
    try:
        yield
    except Exception as error:  # a record may have any shape
        reason = f"no field {error}" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"{where}: not {expected}, or damaged: {reason}") from error
