"""What a task is: parameters that plan an example, and its entry in the catalogue.

The type of a parameter states its bounds, which ``memagent_lib.settings`` checks when a task is configured.
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
    """An example whose document is not written yet, such as a :class:`memagent_lib.data.DocumentPlan`.

    Its evidence is what a memory needs at the end for the answer to follow: of several updates, only the last.
    """

    def example(self, key: ExampleKey, meter: Meter) -> Example: ...


class Task(Protocol):
    """A task with its parameters: a frozen dataclass."""

    def plan(self, key: ExampleKey) -> Plan:
        """Plan example ``key``: a pure function of the key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """An entry of the catalogue: a task with its parameters, one line of description, and what a user should know.

    ``needs`` names files that the user brings, ``chance`` is the score of a guess, and ``chunk_tokens`` the chunk
    length unless another is requested.
    """

    task: Task
    description: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = 5000

    @property
    def parameters(self) -> str:
        """The task's own parameters with their values, as ``memagent data`` takes them."""
        return ", ".join(f"{field.name}={getattr(self.task, field.name)!r}" for field in fields(self.task))
