"""Facts that change and events in order: what an overwritten memory is known to find hard, so what must be reported.

``Updates``: the same entry is given several times and the last one counts (as in FactConsolidation). ``Ordering``:
events of one kind, of which the third, say, is asked for (as in MRCR).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from memagent_lib.data.drafting import DraftPlan, ExampleKey
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import compound, distinct, english, number, story, terms

ORDINALS = terms("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
_PRICE = "What is the price of {} in the end, after all changes?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """``entries`` things whose value changes ``times`` times each; the value that holds at the end is asked for."""

    entries: AtLeastOne = 4
    times: AtLeastOne = 4

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng = key.rng()
        things = distinct(compound, self.entries, rng)
        values = distinct(number, self.entries * self.times, rng)
        turns = [thing for thing in things for _ in range(self.times)]
        rng.shuffle(turns)
        own = [place for place, thing in enumerate(turns) if thing == things[0]]
        *stale, last = own
        told = []
        for place, (thing, value) in enumerate(zip(turns, values, strict=True)):
            changed = " has changed and is now" if thing in turns[:place] else " is"
            told.append(f"The price of {thing}{changed} {value}.")
        return story(
            told,
            {last},
            rng,
            question=_PRICE.format(things[0]),
            answers=(values[last],),
            rule="contains",
            metadata={"entries": self.entries, "times": self.times, "stale": [values[place] for place in stale]},
            decoys=tuple(map(_PRICE.format, things[1:])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """``events`` deliveries to each of ``ports`` ports, told in order; one is asked for by its place in the order."""

    events: Annotated[int, Interval(ge=2, le=len(ORDINALS))] = 6
    ports: AtLeastOne = 2

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng = key.rng()
        ports = distinct(lambda draw: f"Port {draw.choice(english('noun')).capitalize()}", self.ports, rng)
        goods = distinct(compound, self.ports * self.events, rng)
        turns = [port for port in ports for _ in range(self.events)]
        rng.shuffle(turns)
        own = [place for place, port in enumerate(turns) if port == ports[0]]
        asked = rng.randrange(self.events)
        ask = "In the order of the document, what was the {} load that a ship brought to {}?".format
        others = [(nth, port) for nth in range(self.events) for port in ports if (nth, port) != (asked, ports[0])]
        return story(
            [f"A ship brought a load of {load} to {port}." for load, port in zip(goods, turns, strict=True)],
            own[: asked + 1],
            rng,
            question=ask(ORDINALS[asked], ports[0]),
            answers=(goods[own[asked]],),
            rule="contains",
            metadata={"events": self.events, "ports": self.ports, "place": asked + 1},
            decoys=tuple(ask(ORDINALS[nth], port) for nth, port in others),
        )


PRESETS = {
    "updates": Preset(task=Updates(), asks="a value after all its changes", family="stress"),
    "ordering": Preset(task=Ordering(), asks="the n-th event of a kind", family="stress"),
}
