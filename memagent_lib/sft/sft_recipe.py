"""The recipe of a warm start: a TOML file of the tables ``model``, ``data``, ``reading``, ``sft``, ``tracking``."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from memagent_lib.data import AtLeastOne, NotNegative
from memagent_lib.rl import Files, ModelConfig, ReadingConfig, TrackingConfig, recipe_tables
from memagent_lib.settings import parse

WHOLE_SENTENCE = r"(?<![^\s])[A-Z][^.!?]*[.!?](?=\s|$)"
"""A sentence from its capital letter to its stop; a sentence that the chunk cuts does not match."""
KEY = "key"
"""The name of the group in such an expression that matches what a statement is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What the lessons are made from: ``train``, files of examples with evidence, or ``traces``, results of readings.

    ``traces`` names folders that ``memagent evaluate`` wrote, of any model. Their right readings are the lessons; of
    several right readings of one example, the one with the fewest reply tokens.
    """

    train: Files = ()
    traces: Files = ()

    def __post_init__(self) -> None:
        if bool(self.train) == bool(self.traces):
            raise ValueError("exactly one of train (files of examples) and traces (folders of results) must be set")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """How to make lessons from examples, and how to train on them.

    *Lessons.* The ``blind`` teacher ignores the question: it copies a random selection of the statements in old memory
    and chunk, so the policy learns neither what to remember nor how much; reinforcement learning has to teach both. The
    ``aware`` teacher copies the evidence, and until that comes, what is said of the same subject: of a value that
    changes, each one until the next. A statement is what the regular expression ``statements`` matches, a whole
    sentence by default; a memory holds at most ``most_statements``, or all of the evidence. If the expression has a
    group ``(?P<key>...)``, the group's match and a colon precede the statement in memory, so that the first words of a
    note say what its subject is; without one, the aware teacher knows no subject and copies the evidence alone. If the
    memory of an answer turn lacks evidence, all of it is added with the probability ``known``; otherwise the answer
    is ``unknown``. An answer has the form ``answer``, in which ``{answer}`` stands for the answer and ``{evidence}``
    for the evidence in memory.

    *Commands.* For a reader whose replies may contain commands, the teacher of its file chooses these too: the blind
    one draws them with the ``shares`` of replies, by the names in that file, and the aware one gives them where they
    are right.

    *Training.* ``steps`` optimizer steps of ``batch`` turns. The learning rate rises to ``lr`` in ``warmup_steps``,
    then falls along a line to a tenth of it. ``lora_rank`` above 0 trains adapters of that rank on all linear layers. A
    checkpoint to resume from is saved every ``save_steps``. ``threads`` is for a CPU; 0 takes all cores.
    """

    teacher: Literal["blind", "aware"] = "blind"
    statements: str = WHOLE_SENTENCE
    most_statements: AtLeastOne = 4
    known: Annotated[float, Interval(ge=0, le=1)] = 0.7
    answer: str = "\\boxed{{answer}}"
    shares: Mapping[str, float] = field(default_factory=dict)
    steps: AtLeastOne = 200
    batch: AtLeastOne = 8
    lr: Annotated[float, Interval(gt=0, lt=math.inf)] = 2e-4
    warmup_steps: NotNegative = 20
    lora_rank: NotNegative = 0
    save_steps: AtLeastOne = 50
    threads: NotNegative = 0
    seed: NotNegative = 0

    def __post_init__(self) -> None:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps must be below steps, {self.steps}, got {self.warmup_steps}")
        if "{answer}" not in self.answer:
            raise ValueError(f"answer must contain {{answer}}, which the answer replaces, got {self.answer!r}")
        if any(share < 0 for share in self.shares.values()) or sum(self.shares.values()) > 1:
            raise ValueError(f"shares are parts of all replies, together at most 1, got {dict(self.shares)}")
        try:
            re.compile(self.statements)
        except re.error as error:
            raise ValueError(f"statements must be a regular expression: {error}, in {self.statements!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRecipe:
    """All settings of a warm start. ``model`` and ``reading`` mean the same as in a recipe of ``memagent train``.

    ``chat_template`` sets arguments of the model's chat template, such as ``enable_thinking = false``.
    ``model.average_with`` and ``tracking.run_id`` belong to that command alone.
    """

    model: ModelConfig
    data: SourceConfig
    reading: ReadingConfig
    sft: SftConfig = field(default_factory=SftConfig)
    chat_template: Mapping[str, Any] = field(default_factory=dict)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if self.model.average_with or self.tracking.run_id:
            raise ValueError("model.average_with and tracking.run_id belong to memagent train; leave them out")

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> SftRecipe:
        """Read a recipe from a TOML file, and replace the settings named in ``overrides`` (``table.key=value``)."""
        return cls.from_tables(recipe_tables(path, overrides))

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> SftRecipe:
        """Build a recipe from nested dicts in the layout of the TOML file; the error names every fault."""
        return parse(cls, tables, "the recipe of a warm start")

    def to_tables(self) -> dict[str, Any]:
        """Return nested dicts, for logs and for the run's folder."""
        return dataclasses.asdict(self)
