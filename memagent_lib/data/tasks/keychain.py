"""KeyChain (LoongRL, Wang et al. 2025): the true question is hidden in the document, at the end of a chain of keys.

Works on top of tasks whose documents answer several questions: one chain of entries, each a key and what it leads to,
ends in the true question, the others in other questions that the document answers as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from memagent_lib.data.drafting import DraftPlan, ExampleKey, Fact
from memagent_lib.data.tasks import changes, multihop
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import distinct, identifier

_INNER = multihop.PRESETS | changes.PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """A ``task``'s questions behind chains of ``links`` keys; ``decoys`` more chains end in other questions."""

    task: Literal["multihop_2", "multihop_3", "multihop_4", "updates"] = "multihop_2"
    links: AtLeastOne = 4
    decoys: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DraftPlan:
        rng, inner = key.rng(), _INNER[self.task].task.plan(key)
        if len(inner.decoys) < self.decoys:
            raise ValueError(f"a document of {self.task} has {len(inner.decoys)} other questions; lower decoys to that")
        questions = [inner.question, *rng.sample(inner.decoys, self.decoys)]
        keys = distinct(identifier, self.links * len(questions), rng)
        chains = [keys[at : at + self.links] for at in range(0, len(keys), self.links)]
        facts = [
            Fact(f"[{link} -> {then}]", rng.random())
            for chain, asked in zip(chains, questions, strict=True)
            for link, then in pairwise((*chain, asked))
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


PRESETS = {
    "keychain": Preset(task=KeyChain(), asks="a bridge question hidden behind a chain of keys", family="KeyChain")
}
