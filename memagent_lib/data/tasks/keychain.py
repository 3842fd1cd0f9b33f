"""KeyChain (LoongRL, Wang et al. 2025): the true question is hidden in the document, at the end of a chain of keys.

Each entry of a chain links a key to the next. One chain ends in the true question, the others in different questions
that the document answers too. Tasks whose documents answer several questions provide both questions and documents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from memagent_lib.data.layout import DocumentPlan, ExampleKey, Statement
from memagent_lib.data.tasks import changes, multihop
from memagent_lib.data.tasks.presets import AtLeastOne, Preset
from memagent_lib.data.tasks.words import distinct, identifier

_INNER = multihop.PRESETS | changes.PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChain:
    """Questions of ``task``, each at the end of a chain of ``links`` keys; ``decoys`` chains end in other questions."""

    task: Literal["multihop_2", "multihop_3", "multihop_4", "updates"] = "multihop_2"
    links: AtLeastOne = 4
    decoys: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DocumentPlan:
        rng = key.rng()
        inner = _INNER[self.task].task.plan(key)
        if len(inner.decoys) < self.decoys:
            raise ValueError(
                f"decoys must be at most {len(inner.decoys)}, the other questions that a document of {self.task} "
                f"answers; got {self.decoys}"
            )
        # The document answers these too, so only the chain tells which question is meant.
        questions = [inner.question, *rng.sample(inner.decoys, self.decoys)]
        keys = distinct(identifier, self.links * len(questions), rng)
        entries: list[Statement] = []
        for number, question in enumerate(questions):
            chain = keys[number * self.links : (number + 1) * self.links]
            needed = number == 0  # the first chain ends in the true question; the others only look like it
            for link, target in pairwise((*chain, question)):
                entry = f"[{link} -> {target}]"
                depth = rng.random()
                entries.append(Statement.needed(entry, depth) if needed else Statement(entry, depth))
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
    "keychain": Preset(
        task=KeyChain(), description="a bridge question hidden behind a chain of keys", family="KeyChain"
    )
}
