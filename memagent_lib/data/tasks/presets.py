"""What a task is: parameters that plan an example, and the entry that the catalogue shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from memagent_lib.data.drafting import ExampleKey, Meter
from memagent_lib.data.examples import Example


class Planned(Protocol):
    """An example but for its document, such as a :class:`memagent_lib.data.drafting.DraftPlan`."""

    def example(self, key: ExampleKey, meter: Meter) -> Example: ...


class Task(Protocol):
    """A task with its parameters: a frozen dataclass."""

    def plan(self, key: ExampleKey) -> Planned:
        """What example ``key`` asks and must hold: a pure function of the key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A task of the catalogue: its parameters, what it asks, what files it needs, and what a guess without the document
    scores.
    """

    task: Task
    asks: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = 5000


def require_at_least(least: float, **values: float) -> None:
    """``ValueError`` with name and value where a parameter is too small."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def require_known(known: tuple[str, ...], **values: str) -> None:
    """``ValueError`` with the known names where a parameter is none of them."""
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"no {name} {value!r}; choose from {', '.join(known)}")
