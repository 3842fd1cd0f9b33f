"""Tasks that are known to be hard for an overwritten memory.

``Updates``: an entry gets several values, and the last one is the answer (as in FactConsolidation). ``Ordering``: the
question is about the n-th event of one kind (as in MRCR). ``KeyChain`` (LoongRL, Wang et al. 2025): the true question
is hidden in the document, at the end of a chain of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from annotated_types import Interval

from memagent_lib.data.layout import Statement
from memagent_lib.data.plans import AtLeastOne, DocumentPlan, ExampleKey, Preset
from memagent_lib.data.tasks.multihop import MultiHop
from memagent_lib.data.tasks.words import compound, distinct, english, identifier, number, story, terms

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
        return story(
            [f"A ship brought a load of {load} to {port}." for load, port in zip(goods, order, strict=True)],
            deliveries[: nth + 1],  # a memory must have counted all before the n-th
            rng,
            question=_LOAD.format(ORDINALS[nth], ports[0]),
            answers=(goods[deliveries[nth]],),
            rule="contains",
            metadata={"events": self.events, "ports": self.ports, "place": nth + 1},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """Bridge questions about a world, each at the end of a chain of ``links`` keys.

    Each entry of a chain links a key to the next. ``decoys`` other chains end in different questions that the document
    answers too.
    """

    links: AtLeastOne = 4
    decoys: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        inner = MultiHop().plan(key)
        # The document answers these too, so only the chain tells which question is meant.
        questions = [inner.question, *rng.sample(inner.decoys, self.decoys)]
        keys = distinct(identifier, self.links * len(questions), rng)
        entries: list[Statement] = []
        for at, question in enumerate(questions):
            chain = keys[at * self.links : (at + 1) * self.links]
            needed = at == 0  # the first chain ends in the true question; the others only look like it
            for link, target in pairwise((*chain, question)):
                entries.append(Statement.needed(f"[{link} -> {target}]", rng.random(), needed))
        return replace(
            inner,
            question=(
                f"The document holds entries of the form [key -> next]. Begin with the key {keys[0]} and follow the "
                "entries until one leads to a question instead of a key. Answer that question from the document."
            ),
            statements=(*entries, *inner.statements),
            metadata={**inner.metadata, "hidden_question": inner.question, "links": self.links, "decoys": self.decoys},
        )


PRESETS = {
    "updates": Preset(task=Updates(), description="a value after all its changes", family="stress"),
    "ordering": Preset(task=Ordering(), description="the n-th event of a kind", family="stress"),
    "keychain": Preset(
        task=KeyChain(), description="a bridge question hidden behind a chain of keys", family="KeyChain"
    ),
}
