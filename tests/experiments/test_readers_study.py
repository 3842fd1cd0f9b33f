"""The study of readers: its recipes load for every reader, its plan stays in budget, its tables count what was read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.studies.readers.study import HERE, objectives, plan, steps
from experiments.studies.readers.table import (
    cost_table,
    difference_table,
    score_table,
    tables,
    task_table,
)
from memagent_lib.evaluation import gather_rows
from memagent_lib.prompts import Template
from memagent_lib.readers import READERS, reader_named
from memagent_lib.rl import Recipe
from memagent_lib.sft import SftRecipe


def arguments(folder: Path, name: str, **options) -> tuple[str, ...]:
    (step,) = [step for step in steps(folder, **options) if step.name == name]
    return step.arguments


def settings(command: tuple[str, ...]) -> list[str]:
    return [each for each in command[2:] if "=" in each]


def test_every_reader_with_a_memory_is_studied():
    shipped = {path.stem for path in Path("experiments/readers").glob("[a-z]*.py")}
    assert set(objectives()) == shipped | {name for name, reader in READERS.items() if reader.has_memory}


@pytest.mark.parametrize("reader", objectives())
def test_the_recipes_of_every_reader_load(reader, tmp_path):
    command = arguments(tmp_path, f"train {reader} 1")
    recipe = Recipe.load(command[1], settings(command))
    assert (recipe.reading.reader, recipe.train.seed, recipe.steps) == (reader, 1, 120)
    assert [len(stage.files) for stage in recipe.stages] == [1, 3]
    assert recipe.rewards == objectives()[reader]
    command = arguments(tmp_path, f"warm {reader}")
    assert SftRecipe.load(command[1], settings(command)).reading.reader == reader


def test_the_wording_of_the_study_is_that_of_short():
    own = Template.load(str(HERE / "wording.toml"))
    short = Template.load("short")
    for name in ("read", "answer", "direct", "blind", "empty_memory"):
        assert getattr(own, name) == getattr(short, name)
    for reader in objectives():
        own.require(reader_named(reader).prompts)
        assert {own.words(kind) for kind in reader_named(reader).prompts} == {short.read, short.answer}


def test_the_whole_study_is_in_budget_and_names_its_readers(tmp_path):
    assert plan(steps(tmp_path))
    with pytest.raises(ValueError, match=r"objectives\.toml has no reader 'skim'; choose from overwrite, gated"):
        steps(tmp_path, ["skim"])


def rows_of(reader: str, scores: list[int], chunks: int = 16, policy: str = "trained, seed 0") -> pd.DataFrame:
    named = {"policy": policy, "reader": reader, "chunks": chunks, "task": "fair_needle", "error": None}
    frame = pd.DataFrame({"score": scores, "example": range(len(scores))})
    costs = {"turns": 5.0, "seconds": 0.5, "prompt_tokens": 400.0, "reply_tokens": 100.0, "flops": None}
    return frame.assign(document="d", capture=0.5, retention=1.0, **named, **costs)


def line_of(table: str, *names: str) -> str:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {' | '.join(names)} |")]
    return line


def test_scores_are_paired_with_overwrite_on_the_same_documents():
    rows = pd.concat([rows_of("overwrite", [0, 0, 1, 1]), rows_of("gated", [1, 0, 1, 1])], ignore_index=True)
    assert line_of(score_table(rows), "trained, seed 0", "overwrite").startswith(
        "| trained, seed 0 | overwrite | 50.0 ["
    )
    differences = difference_table(rows)
    assert line_of(differences, "trained, seed 0", "gated").startswith("| trained, seed 0 | gated | +25.0 [")
    assert "overwrite" not in differences
    assert line_of(task_table(rows), "trained, seed 0", "gated") == "| trained, seed 0 | gated | 75.0 |"
    assert task_table(rows).startswith("| policy | reader | needle, 16 |")
    costs = line_of(cost_table(rows), "trained, seed 0", "gated")
    assert costs == "| trained, seed 0 | gated | 50.0 | 100.0 | 5.0 | 500 | 0.50, 0.50 |"


def test_the_readme_has_the_tables_of_the_saved_scores():
    assert tables(gather_rows(HERE / "scores")) in (HERE / "README.md").read_text(encoding="utf-8")
