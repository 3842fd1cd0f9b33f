"""The types of a task, of the plan that it makes for an example, and of its entry in the catalogue.

A parameter's type states its bounds, which ``memagent_lib.settings`` checks when a task is configured.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Protocol

from annotated_types import Ge, Interval

from memagent_lib.data.examples import Example
from memagent_lib.data.layout import ExampleKey, Meter

AtLeastOne = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]


class Plan(Protocol):
    """An example before its document is written, such as a :class:`memagent_lib.data.DocumentPlan`."""

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        """Return the example.

        Its evidence is only what the final memory needs for the answer: if a value changes, only the last change.
        """
        ...


class Task(Protocol):
    """A task: a frozen dataclass whose fields are its parameters."""

    def plan(self, key: ExampleKey) -> Plan:
        """Return the plan of example ``key``. The same key always gives the same plan."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """An entry of the catalogue: a task with its parameters, and a one-line description.

    ``needs`` names files that the user must provide, ``chance`` is the score of a guess, and ``chunk_tokens`` is the
    default chunk length.
    """

    task: Task
    description: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = 5000

    @property
    def parameters(self) -> str:
        """The task's parameters with their values, as ``memagent data`` accepts them."""
        return ", ".join(f"{field.name}={getattr(self.task, field.name)!r}" for field in fields(self.task))
