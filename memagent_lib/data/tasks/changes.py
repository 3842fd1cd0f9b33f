"""Facts that change and events in order: what an overwritten memory is known to find hard, so what must be reported.

``Updates``: the same entry is given several times and the last one counts (as in FactConsolidation). ``Ordering``:
events of one kind, of which the third, say, is asked for (as in MRCR).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from memagent_lib.data.drafting import DraftPlan, ExampleKey, Fact
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import compound, distinct, english, number, prose, terms

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
        depths = sorted(rng.random() for _ in turns)
        facts = []
        for place, (thing, value, depth) in enumerate(zip(turns, values, depths, strict=True)):
            changed = " has changed and is now" if thing in turns[:place] else " is"
            sentence = f"The price of {thing}{changed} {value}."
            facts.append((Fact.needed if place == own[-1] else Fact)(sentence, depth))
        stale = [values[place] for place in own[:-1]]
        return DraftPlan(
            question=_PRICE.format(things[0]),
            answers=(values[own[-1]],),
            facts=tuple(facts),
            filler=prose(rng.getrandbits(64)),
            rule="contains",
            separator=" ",
            metadata={"entries": self.entries, "times": self.times, "stale": stale},
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
        depths = sorted(rng.random() for _ in turns)
        facts = []
        for place, (load, port, depth) in enumerate(zip(goods, turns, depths, strict=True)):
            sentence = f"A ship brought a load of {load} to {port}."
            facts.append((Fact.needed if place in own[: asked + 1] else Fact)(sentence, depth))
        ask = "In the order of the document, what was the {} load that a ship brought to {}?".format
        others = [(nth, port) for nth in range(self.events) for port in ports if (nth, port) != (asked, ports[0])]
        return DraftPlan(
            question=ask(ORDINALS[asked], ports[0]),
            answers=(goods[own[asked]],),
            facts=tuple(facts),
            filler=prose(rng.getrandbits(64)),
            rule="contains",
            separator=" ",
            metadata={"events": self.events, "ports": self.ports, "place": asked + 1},
            decoys=tuple(ask(ORDINALS[nth], port) for nth, port in others),
        )


PRESETS = {
    "updates": Preset(task=Updates(), asks="a value after all its changes", family="stress"),
    "ordering": Preset(task=Ordering(), asks="the n-th event of a kind", family="stress"),
}
