"""What a task is: parameters that plan an example, and the entry that the catalogue shows.

A parameter's type bounds it: ``memagent_lib.settings`` holds what is given to it, with an error that says the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Protocol

from annotated_types import Ge, Interval

from memagent_lib.data.drafting import ExampleKey, Meter
from memagent_lib.data.examples import Example

AtLeastOne = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]


class Planned(Protocol):
    """An example but for its document, such as a :class:`memagent_lib.data.drafting.DraftPlan`.

    Its evidence is what a memory must hold at the end for the answer to follow: of several updates the last alone.
    """

    def example(self, key: ExampleKey, meter: Meter) -> Example: ...


class Task(Protocol):
    """A task with its parameters: a frozen dataclass."""

    def plan(self, key: ExampleKey) -> Planned:
        """What example ``key`` asks and must hold: a pure function of the key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A task of the catalogue: parameters, what it asks, the files it needs, what a guess without them scores."""

    task: Task
    asks: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = 5000

    @property
    def parameters(self) -> str:
        """The task's own parameters with their values, as ``memagent data`` takes them."""
        return ", ".join(f"{f.name}={getattr(self.task, f.name)!r}" for f in fields(self.task))
