"""What every generated task shares: an example is a pure function of task, seed and place; the length only adds filler.

So one seed asks the same questions at every length, and any worker can make any example.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.drafting import Length, Meter, Plan, write
from memagent_lib.text import Tokenizer


class Task(Protocol):
    """A task with its parameters, usually a frozen dataclass."""

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        """Example number ``index`` of the data set that ``seed`` stands for; ``name`` is what the catalogue calls the task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A plan with the question that it answers."""

    plan: Plan
    question: str
    answers: tuple[str, ...]
    rule: str = "match_all"
    metadata: Mapping[str, Any]


def generator(name: str, seed: int, index: int) -> random.Random:
    """The one source of chance for an example. It does not depend on the length, the platform or the other examples."""
    return random.Random(f"{name}/{seed}/{index}")


def example_id(name: str, seed: int, index: int, length: Length) -> str:
    return f"{name}-{length.label}-{seed}-{index}"


def planned(asked: Asked, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
    """The example that an asked plan makes at a length."""
    try:
        draft = write(asked.plan, length, meter)
    except ValueError as error:
        raise ValueError(f"task {name!r}: {error}") from error
    return Example(
        id=example_id(name, seed, index, length),
        task=name,
        question=asked.question,
        document=draft.text,
        answers=asked.answers,
        rule=asked.rule,
        evidence=draft.evidence,
        metadata=length_facts(length, draft.tokens)
        | {"depths": list(draft.depths), "seed": seed}
        | dict(asked.metadata),
    )


def length_facts(length: Length, tokens: int) -> dict[str, Any]:
    """What an example records about its length: ``chunks`` and ``chunk_tokens`` where it was asked for in chunks."""
    facts: dict[str, Any] = {"tokens": tokens}
    if length.chunks is not None:
        facts |= {"chunks": length.chunks, "chunk_tokens": length.chunk_tokens}
    return facts


def make_examples(task: Task, name: str, n: int, seed: int, tokenizer: Tokenizer, length: Length) -> Iterator[Example]:
    """``n`` examples one after the other, in this process."""
    meter = Meter(tokenizer)
    for index in range(n):
        yield task.example(name, seed, index, length, meter)


__all__ = ["Asked", "Task", "example_id", "generator", "length_facts", "make_examples", "planned"]
