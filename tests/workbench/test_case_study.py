from __future__ import annotations

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.diagnostics import Provenance
from memagent_lib.evaluation import Result, evaluate
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.workbench import case_study

BUDGET = Budget(chunk_tokens=900, memory_tokens=200, answer_tokens=100, question_tokens=100)


def read(tokenizer, **given) -> Result:
    agent = Agent(Encoder(tokenizer, Template.load(case_study.TEMPLATE), BUDGET), Scripted(case_study.play))
    return evaluate(agent, [case_study.example(**given)])[0]


def test_the_lead_is_noted_kept_and_replaced_by_the_evidence(tokenizer) -> None:
    result = read(tokenizer)
    assert result.error is None
    memories = result.trace.memories
    assert memories[0] == "Lead: Ghost is based in New York."
    turned = next(i for i, memory in enumerate(memories) if "Lead" not in memory)
    assert turned >= 2
    assert set(memories[:turned]) == {memories[0]}
    assert set(memories[turned:]) == {f"Evidence: {case_study.FILM.fact}\nEvidence: {case_study.DIRECTOR.fact}"}
    assert len(memories) > turned + 1
    assert result.score.value == 1.0
    lives = Provenance.of(result.trace).to_frame()[["brought", "dropped"]]
    assert lives.fillna(-1).values.tolist() == [[0, turned], [turned, -1], [turned, -1]]


def test_a_home_that_is_read_before_the_film_is_kept_as_a_lead_until_the_film_is_read(tokenizer) -> None:
    memories = read(tokenizer, places=(0.1, 0.8, 0.3)).trace.memories
    assert any("Lead: Adriana Trigiani is based in Greenwich Village" in memory for memory in memories)
    assert "Lead" not in memories[-1]
    assert "Evidence: Adriana Trigiani is based in Greenwich Village" in memories[-1]


def test_the_script_decides_from_the_prompt_alone(tokenizer) -> None:
    unread = evaluate(
        Agent(Encoder(tokenizer, Template.load(case_study.TEMPLATE), BUDGET), Scripted(case_study.play)),
        [case_study.example()],
    )[0].trace.turns[0]
    assert unread.prompt.memory == ""
    answered = case_study.play(
        "<question>\nx 'Big Stone Gap'\n</question>\n<memory>\nLead: Ghost is based in New York.\n</memory>"
    )
    assert answered == "\\boxed{unknown}"
    elsewhere = case_study.play(
        "<question>\n'Big Stone Gap'\n</question>\n<piece>\nOslo Works is based in Oslo.\n</piece>"
    )
    assert elsewhere == "Nothing that helps yet."


def test_the_facts_that_are_marked_are_those_of_film_and_director_in_the_order_of_the_document() -> None:
    for places in (case_study.SHARES, (0.9, 0.6, 0.2)):
        example = case_study.example(10, places, seed=3)
        marked = [example.document[start:end] for start, end in example.evidence]
        expected = [case_study.FILM.fact, case_study.DIRECTOR.fact]
        assert marked == (expected if places == case_study.SHARES else expected[::-1])
        assert example.document.count("Document ") == 13
        assert "New York" not in example.document.replace(case_study.LEAD.fact, "").replace(
            case_study.DIRECTOR.fact, ""
        )
    assert case_study.example(10, seed=3) == case_study.example(10, seed=3) != case_study.example(10, seed=4)


def test_places_outside_the_document_are_an_error() -> None:
    with pytest.raises(ValueError, match="places are three shares between 0 and 1"):
        case_study.example(10, (0.1, 0.5))
    with pytest.raises(ValueError, match="others must be at least 1, got 0"):
        case_study.example(0)
