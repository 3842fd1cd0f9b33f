"""Readings that were made with other prompts or sizes than a recipe teaches are named before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.cli import main
from memagent_lib.data import make
from memagent_lib.evaluation import evaluate, write_results
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.sft import differing_readings

BUDGET = Budget(chunk_tokens=160, memory_tokens=60, answer_tokens=40, question_tokens=80)
RECIPE = """
[model]
path = "{model}"
[data]
traces = ["{folder}"]
[reading]
template = "{template}"
chunk_tokens = {chunk_tokens}
memory_tokens = 60
answer_tokens = 40
question_tokens = 80
"""


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory) -> Path:
    """The folder of an evaluation by a reader that is always right."""
    folder = tmp_path_factory.mktemp("run")
    (example,) = make("needle", 1, 1, tokenizer, chunks=2, chunk_tokens=160)
    reply = f"\\boxed{{{example.answers[0]}}}"
    agent = Agent(Encoder(tokenizer, Template.load("short"), BUDGET), Scripted(lambda text: reply))
    (result,) = evaluate(agent, [example], folder=folder / "readings", progress=False)
    assert result.correct
    return folder


def named(run: Path, tokenizer, template: Template, budget: Budget = BUDGET) -> list[str]:
    encoder = Encoder(tokenizer, template, budget)
    return differing_readings(run / "readings", encoder, reader_named("overwrite").prompts)


def test_other_words_and_sizes_are_named_and_the_same_are_not(run, tokenizer):
    short = Template.load("short")
    assert named(run, tokenizer, short) == []
    assert named(run, tokenizer, replace(short, blind="{question}?")) == [], "which no lesson has"
    assert named(run, tokenizer, Template.load("chunk_first"), replace(BUDGET, chunk_tokens=96, answer_tokens=8)) == [
        "template 'short', and the recipe teaches with 'chunk_first' (reading.template)",
        "chunk_tokens 160, and the recipe teaches with 96 (reading.chunk_tokens)",
    ]
    assert named(run, tokenizer, replace(short, empty_memory="none")) == [
        "template 'short', and the recipe teaches with another version of 'short' (reading.template)"
    ]


def test_results_without_a_journal_record_no_words(run, tokenizer, tmp_path):
    assert write_results([], tmp_path / "readings") == 0
    (tmp_path / "readings" / "results.jsonl").write_text('{"reading": "0", "record": {}}\n')
    assert named(tmp_path, tokenizer, Template.load("chunk_first")) == []


def test_the_command_warns_of_readings_unlike_the_recipe(run, model_folder, tmp_path, capsys):
    for template, chunk_tokens, warned in (("short", 160, False), ("short", 96, True)):
        file = tmp_path / "recipe.toml"
        file.write_text(
            RECIPE.format(model=model_folder, folder=run, template=template, chunk_tokens=chunk_tokens), "utf-8"
        )
        assert main(["sft", str(file), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
        says = f"warning: {run} was read with chunk_tokens 160, and the recipe teaches with 96 (reading.chunk_tokens)"
        assert (says in capsys.readouterr().err) is warned
