"""Facts that change and events in order: what an overwritten memory is known to find hard, so what must be reported.

``Updates``: the same entry is given several times and the last one counts (as in FactConsolidation). ``Ordering``: events of
one kind, of which the third, say, is asked for (as in MRCR).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.drafting import Bank, Length, Meter, Plan
from memagent_lib.data.tasks.generation import Asked, generator, planned
from memagent_lib.data.tasks.words import compound, distinct, english, number, prose_stock

ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """``entries`` things whose value changes ``times`` times each; the value that holds at the end is asked for."""

    entries: int = 4
    times: int = 4

    def __post_init__(self) -> None:
        if self.entries < 1 or self.times < 1:
            raise ValueError(f"entries and times must be at least 1, got {self.entries} and {self.times}")

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        return planned(self.ask(generator(name, seed, index)), name, seed, index, length, meter)

    def ask(self, rng: random.Random) -> Asked:
        keys = distinct(compound, self.entries, rng)
        values = distinct(number, self.entries * self.times, rng)
        turns = [key for key in keys for _ in range(self.times)]
        rng.shuffle(turns)
        seen: dict[str, int] = {}
        sentences, last = [], {}
        for place, (key, value) in enumerate(zip(turns, values, strict=True)):
            form = "The price of {} is {}." if key not in seen else "The price of {} has changed and is now {}."
            sentences.append(form.format(key, value))
            seen[key], last[key] = place, value
        depths = tuple(sorted(rng.random() for _ in turns))
        filler = Bank(prose_stock(), rng.getrandbits(64))
        plan = Plan(sentences=tuple(sentences), depths=depths, needed=(seen[keys[0]],), filler=filler, separator=" ")
        stale = [v for k, v in zip(turns, values, strict=True) if k == keys[0]][:-1]
        facts = {"entries": self.entries, "times": self.times, "stale": stale}
        question = f"What is the price of {keys[0]} in the end, after all changes?"
        return Asked(plan=plan, question=question, answers=(last[keys[0]],), rule="contains", metadata=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """``events`` deliveries to each of ``ports`` ports, told in order; one is asked for by its place in the order."""

    events: int = 6
    ports: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.events <= len(ORDINALS) or self.ports < 1:
            raise ValueError(
                f"events must be 2 to {len(ORDINALS)} and ports at least 1, got {self.events} and {self.ports}"
            )

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        return planned(self.ask(generator(name, seed, index)), name, seed, index, length, meter)

    def ask(self, rng: random.Random) -> Asked:
        ports = distinct(lambda draw: f"Port {draw.choice(english('noun')).capitalize()}", self.ports, rng)
        goods = distinct(compound, self.ports * self.events, rng)
        turns = [port for port in ports for _ in range(self.events)]
        rng.shuffle(turns)
        sentences = [f"A ship brought a load of {load} to {port}." for port, load in zip(turns, goods, strict=True)]
        places = [i for i, port in enumerate(turns) if port == ports[0]]
        asked = rng.randrange(self.events)
        depths = tuple(sorted(rng.random() for _ in turns))
        filler = Bank(prose_stock(), rng.getrandbits(64))
        plan = Plan(
            sentences=tuple(sentences), depths=depths, needed=tuple(places[: asked + 1]), filler=filler, separator=" "
        )
        question = (
            f"In the order of the document, what was the {ORDINALS[asked]} load that a ship brought to {ports[0]}?"
        )
        facts = {"events": self.events, "ports": self.ports, "place": asked + 1}
        return Asked(plan=plan, question=question, answers=(goods[places[asked]],), rule="contains", metadata=facts)
