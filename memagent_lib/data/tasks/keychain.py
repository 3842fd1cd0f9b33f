"""KeyChain (LoongRL, Wang et al. 2025): the true question is hidden in the document, at the end of a chain of keys.

Works on top of tasks whose documents answer several questions: one chain of entries, each a key and what it leads to,
ends in the true question, the others in other questions that the document answers as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from memagent_lib.data.drafting import DraftPlan, ExampleKey, Fact
from memagent_lib.data.tasks.changes import Updates
from memagent_lib.data.tasks.multihop import MultiHop
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import distinct, identifier

INNER = {
    "multihop_2": MultiHop(),
    "multihop_3": MultiHop(shape="chain", hops=3),
    "multihop_4": MultiHop(shape="chain", hops=4),
    "updates": Updates(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """A ``task``'s questions behind chains of ``links`` keys; ``decoys`` more chains end in other questions."""

    task: Literal["multihop_2", "multihop_3", "multihop_4", "updates"] = "multihop_2"
    links: AtLeastOne = 4
    decoys: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng, inner = key.rng(), INNER[self.task].plan(key)
        if len(inner.decoys) < self.decoys:
            raise ValueError(f"a document of {self.task} has {len(inner.decoys)} other questions; lower decoys to that")
        questions = [inner.question, *rng.sample(inner.decoys, self.decoys)]
        keys = distinct(identifier, self.links * len(questions), rng)
        chains = [keys[at : at + self.links] for at in range(0, len(keys), self.links)]
        facts = [
            fact for chain, asked in zip(chains, questions, strict=True) for fact in self._entries(chain, asked, rng)
        ]
        needed = [Fact.needed(fact.text, fact.depth) for fact in facts[: self.links]]
        return replace(
            inner,
            question=(
                f"The document holds entries of the form [key -> next]. Begin with the key {keys[0]} and follow the "
                "entries until one leads to a question instead of a key. Answer that question from the document."
            ),
            facts=(*needed, *facts[self.links :], *inner.facts),
            metadata={**inner.metadata, "hidden_question": inner.question, "links": self.links, "decoys": self.decoys},
        )

    def _entries(self, chain: list[str], asked: str, rng: random.Random) -> list[Fact]:
        return [Fact(f"[{key} -> {then}]", rng.random()) for key, then in zip(chain, [*chain[1:], asked], strict=True)]


PRESETS = {
    "keychain": Preset(task=KeyChain(), asks="a bridge question hidden behind a chain of keys", family="KeyChain")
}
