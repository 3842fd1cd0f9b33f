"""Choose the examples of a training step: stage after stage, equally often from each share (task or file) of a stage.

The choice depends only on seed, step and prompt number, not on earlier draws, so a resumed run draws the same examples
as an uninterrupted one. Rows are numbers and tasks are names here; the module depends on no file and no trainer.
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
    """The order in which a run draws its rows.

    ``stages`` has a pair for each stage: its number of steps, and its shares (lists of row numbers). A step draws
    ``prompts`` rows. Prompt ``k`` of a stage with ``s`` shares, counted over its steps from 0, is number ``k // s`` of
    share ``k % s``, so the shares differ by at most one prompt. A share is shuffled, used up, and shuffled again.
    """

    stages: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    prompts: int
    seed: int

    def row(self, step: int, number: int) -> int:
        """Return the row number of prompt ``number`` (from 0) in ``step`` (from 1). The last stage has no end.

        A ``number`` of ``prompts`` or more replaces a prompt of the same step (dynamic sampling). Replacements follow
        the step's own order, so they may repeat a row that the stage draws elsewhere.
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
        # Every pass through a share has its own order, and so have the replacements of a step.
        name = (self.seed, stage, share, epoch) + ((step,) if fresh else ())
        return rows[_order(name, len(rows))[at]]


def numbered(counts: Mapping[str, int], tasks: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the rows of each file as pairs of row number and task.

    ``counts`` has the number of rows of each file; ``tasks`` has the task of every row, file after file.
    """
    rows = iter(enumerate(tasks))
    return {file: list(islice(rows, count)) for file, count in counts.items()}


def shares_of(files: Sequence[Sequence[tuple[int, str]]], mix: str) -> tuple[tuple[int, ...], ...]:
    """Return the row numbers of ``files`` in shares: one per task, one per file, or a single one.

    ``mix`` is ``tasks``, ``files`` or ``examples``.
    """
    if mix == "files":
        return tuple(tuple(row for row, _ in file) for file in files if file)
    shares: dict[str, list[int]] = defaultdict(list)
    for row, task in chain.from_iterable(files):
        shares[task if mix == "tasks" else ""].append(row)
    return tuple(tuple(shares[task]) for task in sorted(shares))


@lru_cache(maxsize=64)
def _order(name: tuple[int, ...], count: int) -> list[int]:
    order = list(range(count))
    random.Random(repr(name)).shuffle(order)  # Random accepts no tuple as a seed
    return order
