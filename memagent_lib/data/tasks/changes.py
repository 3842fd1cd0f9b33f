"""Tasks about changing values and the order of events. Both are known to be hard for an overwritten memory.

``Updates``: an entry gets several values, and the last one is the answer (as in FactConsolidation). ``Ordering``: the
question is about the n-th event of one kind (as in MRCR).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from memagent_lib.data.layout import DocumentPlan, ExampleKey
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import compound, distinct, english, number, story, terms

ORDINALS = terms("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
_PRICE = "What is the price of {} in the end, after all changes?"
_LOAD = "In the order of the document, what was the {} load that a ship brought to {}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """``entries`` things get ``times`` prices each, one after the other. The answer is the last price of one thing."""

    entries: AtLeastOne = 4
    times: AtLeastOne = 4

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        things = distinct(compound, self.entries, rng)
        values = distinct(number, self.entries * self.times, rng)
        order = [thing for thing in things for _ in range(self.times)]
        rng.shuffle(order)
        *stale, last = [i for i, thing in enumerate(order) if thing == things[0]]
        sentences = []
        for i, (thing, value) in enumerate(zip(order, values, strict=True)):
            verb = "has changed and is now" if thing in order[:i] else "is"
            sentences.append(f"The price of {thing} {verb} {value}.")
        return story(
            sentences,
            {last},  # stale values are no evidence: a memory is right to drop them
            rng,
            question=_PRICE.format(things[0]),
            answers=(values[last],),
            rule="contains",
            metadata={"entries": self.entries, "times": self.times, "stale": [values[i] for i in stale]},
            decoys=tuple(map(_PRICE.format, things[1:])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Each of ``ports`` ports gets ``events`` deliveries. The question is about the n-th delivery to one port."""

    events: Annotated[int, Interval(ge=2, le=len(ORDINALS))] = 6
    ports: AtLeastOne = 2

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        ports = distinct(lambda draw: f"Port {draw.choice(english('noun')).capitalize()}", self.ports, rng)
        goods = distinct(compound, self.ports * self.events, rng)
        order = [port for port in ports for _ in range(self.events)]
        rng.shuffle(order)
        deliveries = [i for i, port in enumerate(order) if port == ports[0]]
        nth = rng.randrange(self.events)
        decoys = [
            _LOAD.format(ORDINALS[n], port)
            for n in range(self.events)
            for port in ports
            if (n, port) != (nth, ports[0])
        ]
        return story(
            [f"A ship brought a load of {load} to {port}." for load, port in zip(goods, order, strict=True)],
            deliveries[: nth + 1],  # a memory must have counted all before the n-th
            rng,
            question=_LOAD.format(ORDINALS[nth], ports[0]),
            answers=(goods[deliveries[nth]],),
            rule="contains",
            metadata={"events": self.events, "ports": self.ports, "place": nth + 1},
            decoys=tuple(decoys),
        )


PRESETS = {
    "updates": Preset(task=Updates(), description="a value after all its changes", family="stress"),
    "ordering": Preset(task=Ordering(), description="the n-th event of a kind", family="stress"),
}
