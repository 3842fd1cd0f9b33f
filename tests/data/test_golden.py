"""What a seed means, fixed for good: a digest changes only when a data set does, and then every published number."""

from __future__ import annotations

import hashlib

import pytest

from memagent_lib.data import TASKS, ExampleKey, Length, make
from memagent_lib.data.tasks import world

DIGESTS = {
    "niah_single_1": "1dda23a301be",
    "niah_multikey_3": "2506b8c4016e",
    "vt": "2e7c4bbfd3ac",
    "qa1": "2f03951bd4e8",
    "qa2": "f590514bc027",
    "qa3": "316d96eb6dc6",
    "qa4": "a7058956b514",
    "qa5": "a5cecbe68f55",
    "multihop_2": "d7c23ffe84f0",
    "comparison": "f2c31f5ff9a5",
    "keychain": "d5305f699537",
    "updates": "a61467157584",
    "ordering": "f925da41854f",
    "prose_needle": "f192d3486e93",
    "prose_update": "708f4eb0bac8",
    "prose_hop": "b93637f1633e",
    "prose_masked": "db0f67afa071",
}
NEEDLES = {1: "1830c5bb9a0d", 4: "f8446d579aea", 16: "eb339db489e9"}
"""Needle documents of so many chunks, to the last byte."""
WORLD = "379088b8f139"


def digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_seed_is_the_same_plan_on_every_machine(name):
    plan = TASKS[name].task.plan(ExampleKey(name, 7, 1, Length(tokens=9000)))
    sentences, depths = (tuple(statement[i] for statement in plan.statements) for i in (0, 1))
    assert digest(plan.question, plan.answers, sentences, depths) == DIGESTS[name]


def test_needle_documents_are_the_same_to_the_last_byte(tokenizer):
    for chunks, expected in NEEDLES.items():
        examples = make("needle", 3, 7, tokenizer, chunks=chunks, half_alike=0.5)
        assert digest([(e.id, e.question, e.answers, e.document, e.evidence) for e in examples]) == expected


def test_a_seed_is_the_same_world_on_every_machine():
    assert digest(world(7).documents[::97]) == WORLD
