"""The pocket world in which a document does not show what its question is about. New work uses these tasks.

In ``world.py`` the crowd's half-matching statements take their words from the question's key alone, so the key whose
words are the most frequent is nearly always the right one. Here a document answers several questions of one kind, and
is made without knowing which of them will be the question: decoys have half-matching statements, statements of other
relations and positions like the question's own. Without its question, no reader of a document can do better than pick
one of these ``candidates``. The sentences, keys and kinds of questions are those of ``world.py``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from experiments.pocket import world
from experiments.pocket.world import Question, QuestionKind
from memagent_lib.data import (
    Example,
    ExampleKey,
    Layout,
    Length,
    Meter,
    NotNegative,
    Preset,
    Share,
    Span,
    fill_chunks,
)
from memagent_lib.text import Tokenizer

_MOST_BRIDGES = 3  # a memory has room for three codes of people until it is known which one matters
_LEAST_CANDIDATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FairTask(world.PocketTask):
    """A task whose question is any one of the questions of a kind that the document answers.

    ``decoys`` is the largest number of other questions. A short document has fewer, at least one, so that the answers
    take up at most about half of it; a document of bridges has at most two. ``half_matching`` is larger than in
    ``world.py`` because all candidates share these statements. With ``untold``, each candidate of a document is left
    out of it with this probability, whether it is the question or not. Questions that are left out are a task of their
    own, whose name ends in ``_absent``.
    """

    decoys: NotNegative = 7
    half_matching: Share = 0.7

    def __post_init__(self) -> None:
        world.PocketTask.__post_init__(self)
        if self.about_decoy:
            raise ValueError("about_decoy must be false: here every question is as much about a decoy as any other")

    def plan(self, key: ExampleKey) -> FairTask:
        return self

    def example(self, key: ExampleKey, meter: Meter) -> Example:
        rng = key.rng()
        kind = QuestionKind(rng.choice(self.ask.split(",")))
        first, others = world.disjoint_questions(kind, rng, self.decoys, self.backward)
        questions = [first, *others]
        # A question that is drawn later clashes more easily the longer it is, so the first one drawn is not typical.
        rng.shuffle(questions)
        candidates = _fitting(questions, key.length.limit, meter)
        question = candidates[0]
        rng.shuffle(candidates)  # from here on, nothing knows which candidate is the question
        stated = candidates
        if self.untold:
            stated = [candidate for candidate in candidates if rng.random() >= self.untold]
        text, spans = self._document(candidates, stated, rng, key.length, meter.tokenizer)
        evidence: Sequence[Span] = ()
        ending = "_absent"
        if question in stated:
            evidence = spans[stated.index(question)]
            ending = ""
        if kind is QuestionKind.UPDATE:
            evidence = evidence[-1:]  # a memory does not need values that are out of date
        return Example(
            id=key.id,
            task=f"fair_{kind}{ending}",
            question=question.text,
            document=text,
            answers=question.answers if question in stated else (world.UNKNOWN,),
            rule=question.rule,
            evidence=tuple(evidence),
            metadata={
                "tokens": key.length.limit,
                "chunks": key.length.whole_chunks,
                "chunk_tokens": key.length.chunk_tokens,
                "seed": key.seed,
                "facts": len(evidence),
                "depths": [round(span.start / len(text), 4) for span in evidence],
                "candidates": len(stated),
            },
        )

    def _document(
        self,
        candidates: Sequence[Question],
        stated: Sequence[Question],
        rng: random.Random,
        length: Length,
        tokenizer: Tokenizer,
    ) -> tuple[str, list[tuple[Span, ...]]]:
        """Return a document that answers the ``stated`` candidates, and the spans of each one's statements in it."""
        count = length.limit // world.SHORTEST_SENTENCE_TOKENS + 2
        sentences = self.sentences(rng, _joined(candidates), (), count)
        depths = [world.random_depths(one, rng, self.apart) for one in stated]

        def lay_out(count: int) -> Layout:
            positions = world.positions_of(stated, depths, count)
            every = [position for own in positions for position in own]
            return world.replace_units(sentences, world.statements_at(stated, positions), every, " ")

        room = world.count_sentences(sentences, length, tokenizer)
        layout = fill_chunks(lay_out, room, length, tokenizer, least=sum(len(one.triples) for one in stated))
        spans = iter(layout.spans)
        return layout.text, [tuple(islice(spans, len(one.triples))) for one in stated]


def _fitting(questions: Sequence[Question], tokens: int, meter: Meter) -> list[Question]:
    """Return the first questions whose statements fill half of ``tokens``; of two or more, at least two."""
    fitting: list[Question] = []
    stated = 0
    for question in questions:
        stated += sum(meter.cost(triple.text) for triple in question.triples)
        if len(fitting) >= _LEAST_CANDIDATES and 2 * stated > tokens:
            break
        if question.kind is QuestionKind.BRIDGE and len(fitting) == _MOST_BRIDGES:
            break
        fitting.append(question)
    return fitting


def _joined(questions: Sequence[Question]) -> Question:
    """Return one question with the keys and triples of all, so that a crowd is about all of them alike."""
    keys = tuple(key for one in questions for key in one.keys)
    triples = tuple(triple for one in questions for triple in one.triples)
    return Question(questions[0].kind, keys, triples, ())


def _preset(description: str, ask: str, chance: float = 1 / 8, untold: float = 0.0) -> Preset:
    task = FairTask(ask=ask, untold=untold)
    return Preset(task=task, description=description, family="fair pocket world", chance=chance, chunk_tokens=96)


PRESETS = {
    "fair_needle": _preset("one code among half-matching ones", "needle"),
    "fair_multivalue": _preset("all of two or three codes of one thing", "multivalue"),
    "fair_multikey": _preset("the codes of two things", "multikey"),
    "fair_bridge": _preset("two hops, stated in either order", "bridge", chance=1 / 3),
    "fair_update": _preset("the last of two to four codes", "update"),
    "fair_chain": _preset("a chain of two to four links", "chain"),
    "fair_unstated": _preset(
        "one of the six kinds; half of the documents do not answer it", ",".join(QuestionKind), chance=0.5, untold=0.5
    ),
    "fair_mix": _preset("one of the six kinds, drawn for each example", ",".join(QuestionKind), chance=1 / 6),
}
