"""Which examples a step trains on: one stage after the other, and equally many prompts from each share of a stage.

A function of seed, step and prompt number, and of nothing that was drawn before, so that a resumed run draws exactly
the examples that it would have drawn. Knows rows by number and tasks by name; knows no file and no trainer.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice


@dataclass(frozen=True, slots=True)
class Curriculum:
    """``stages`` holds for each stage its steps and its shares of row numbers; a step draws ``prompts`` rows.

    Of ``s`` shares, prompt ``k`` of a stage (counted over its steps, from 0) is number ``k // s`` of share ``k % s``,
    so no two shares are ever more than one prompt apart. A share is shuffled, used up, and shuffled again.
    """

    stages: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    prompts: int
    seed: int

    def row(self, step: int, number: int) -> int:
        """Return the row of prompt ``number`` (from 0) of ``step`` (from 1); the last stage has no end.

        Numbers from ``prompts`` on replace prompts of the same step (dynamic sampling). They follow the step's own
        order, so they may draw a row that the stage has used or will use.
        """
        stage = 0
        before = 0
        while stage + 1 < len(self.stages) and step > before + self.stages[stage][0]:
            before += self.stages[stage][0]
            stage += 1
        shares = self.stages[stage][1]
        fresh = number >= self.prompts
        drawn = number - self.prompts if fresh else (step - 1 - before) * self.prompts + number
        at, share = divmod(drawn, len(shares))
        rows = shares[share]
        epoch, at = divmod(at, len(rows))
        name = (self.seed, stage, share, epoch) + ((step,) if fresh else ())
        return rows[_order(name, len(rows))[at]]


def numbered(counts: Mapping[str, int], tasks: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the rows (number, task) of each file, from their counts and the tasks of all rows in the same order."""
    rows = iter(enumerate(tasks))
    return {file: list(islice(rows, count)) for file, count in counts.items()}


def shares_of(files: Sequence[Sequence[tuple[int, str]]], mix: str) -> tuple[tuple[int, ...], ...]:
    """Return the row numbers of some files in one share per task, one per file, or one for all, as ``mix`` says."""
    if mix == "files":
        return tuple(tuple(row for row, _ in file) for file in files if file)
    shares: dict[str, list[int]] = defaultdict(list)
    for row, task in chain.from_iterable(files):
        shares[task if mix == "tasks" else ""].append(row)
    return tuple(tuple(shares[task]) for task in sorted(shares))


@lru_cache(maxsize=64)
def _order(name: tuple[int, ...], count: int) -> list[int]:
    order = list(range(count))
    random.Random(repr(name)).shuffle(order)
    return order
