"""Which examples a step trains on: stages of training one after the other, the shares of each in equal numbers.

A function of seed, step and number and of nothing that was drawn before, so that a resumed run meets the very examples
that it would have met. Knows rows by their numbers and tasks by their names; knows no file and no trainer.
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
    """``stages``: for each, its steps and its shares, which are row numbers. A step draws ``prompts`` of them.

    Of ``s`` shares, prompt ``k`` of a stage (counted over its steps, from 0) is number ``k // s`` of share ``k % s``:
    no two shares are ever more than one prompt apart. A share is shuffled, used up, and shuffled anew.
    """

    stages: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    prompts: int
    seed: int

    def row(self, step: int, number: int) -> int:
        """The row of prompt ``number`` (from 0) of ``step`` (from 1). A step past the end belongs to the last stage.

        Numbers from ``prompts`` on replace prompts of the same step (dynamic sampling). They come from an order of the
        step's own and so may name a row that the stage has used or will use.
        """
        stage, before = 0, 0
        while stage + 1 < len(self.stages) and step > before + self.stages[stage][0]:
            before += self.stages[stage][0]
            stage += 1
        shares, fresh = self.stages[stage][1], number >= self.prompts
        drawn = number - self.prompts if fresh else (step - 1 - before) * self.prompts + number
        at, share = divmod(drawn, len(shares))
        rows = shares[share]
        epoch, at = divmod(at, len(rows))
        name = (self.seed, stage, share, epoch) + ((step,) if fresh else ())
        return rows[_order(name, len(rows))[at]]


def numbered(counts: Mapping[str, int], tasks: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """The rows (number, task) of each file, from how many each has and the tasks of all, in the same order."""
    rows = iter(enumerate(tasks))
    return {file: list(islice(rows, count)) for file, count in counts.items()}


def shares_of(files: Sequence[Sequence[tuple[int, str]]], mix: str) -> tuple[tuple[int, ...], ...]:
    """The rows (number, task) of some files in one share for each task, in one for each file, or in one for all."""
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
