"""The study of readers: its recipes load for every reader, its plan stays in budget, its tables count what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.readers.study import HERE, objectives, plan, steps
from experiments.studies.readers.table import (
    tables,
)
from memagent_lib.evaluation import gather_rows
from memagent_lib.readers import READERS
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
    assert [len(stage.files) for stage in recipe.data.stages] == [1, 3]
    assert recipe.rewards == objectives()[reader]
    command = arguments(tmp_path, f"warm {reader}")
    assert SftRecipe.load(command[1], settings(command)).reading.reader == reader


def test_the_whole_study_is_in_budget_and_names_its_readers(tmp_path):
    assert plan(steps(tmp_path))
    with pytest.raises(ValueError, match=r"objectives\.toml has no reader 'skim'; choose from overwrite, gated"):
        steps(tmp_path, ["skim"])


def test_the_readme_has_the_tables_of_the_saved_scores():
    assert tables(gather_rows(HERE / "scores")) in (HERE / "README.md").read_text(encoding="utf-8")
