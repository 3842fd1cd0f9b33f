"""A task of a user's own: one file outside any package, used by its path from an empty folder."""

from __future__ import annotations

import pytest
from pocket import WARM_START

from memagent_lib.cli.main import main
from memagent_lib.data import load, make_splits

SHOPS = '''
import random
from dataclasses import dataclass

from memagent_lib.data import AtLeastOne, DocumentPlan, ExampleKey, Preset, Statement, prose

NAMES = ("bakery", "bookshop", "florist", "butcher", "chemist")


@dataclass(frozen=True, kw_only=True)
class Hours:
    """When does one of several shops open?"""

    shops: AtLeastOne = 3

    def plan(self, key: ExampleKey) -> DocumentPlan:
        if self.shops > len(NAMES):
            raise ValueError(f"shops must be at most {len(NAMES)}, got {self.shops}")
        rng = key.rng()
        first, *others = rng.sample(NAMES, self.shops)
        hours = rng.sample(range(6, 12), self.shops)
        statements = [Statement.needed(f"The {first} opens at {hours[0]}.", rng.random())]
        statements += [Statement(f"The {shop} opens at {hour}.", rng.random()) for shop, hour in zip(others, hours[1:])]
        return DocumentPlan(
            question=f"When does the {first} open?",
            answers=(str(hours[0]),),
            statements=tuple(statements),
            filler=prose(rng.getrandbits(64)),
            separator=" ",
        )


HOURS = Preset(task=Hours(), description="when a shop opens", family="shops", chance=1 / 6)
PRESETS = {"only_one": Preset(task=Hours(shops=1), description="when the only shop opens", family="shops")}
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder but for the user's file."""
    (tmp_path / "shops.py").write_text(SHOPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(*words: str) -> int:
    return main(["data", *words, "--model", str(WARM_START)])


SIZE = ("--chunks", "3", "--chunk-tokens", "300", "--n", "5")


def test_a_task_in_a_file_is_made_by_its_path():
    assert data("shops.py:HOURS", *SIZE, "--out", "one.parquet") == 0
    made = load("one.parquet")
    assert [example.id for example in made] == [f"HOURS-3x300-0-{i}" for i in range(5)]
    for example in made:
        (span,) = example.evidence
        assert example.document[slice(*span)].endswith(f"opens at {example.answers[0]}.")
        assert example.document.count(" opens at ") == 3


def test_a_task_in_a_file_takes_its_own_parameters(capsys):
    assert data("shops.py:HOURS", "shops=5", *SIZE, "--out", "five.parquet") == 0
    assert {example.document.count(" opens at ") for example in load("five.parquet")} == {5}
    assert data("shops.py:only_one", *SIZE, "--out", "one.parquet") == 0
    assert {example.document.count(" opens at ") for example in load("one.parquet")} == {1}


def test_splits_of_a_task_in_a_file_are_made_by_its_path(tokenizer, folder):
    splits = {"train": ([1, 2], [3]), "test": ([4], [2])}
    made = make_splits(folder / "data", "shops.py:HOURS", splits, tokenizer, seed=0, chunk_tokens=300, shops=2)
    assert made["examples"].tolist() == [3, 3, 2]
    assert {example.task for file in made["file"] for example in load(file)} == {"HOURS"}
