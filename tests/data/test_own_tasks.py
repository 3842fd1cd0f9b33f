"""A task of a user's own: one file outside any package, used by its path from an empty folder."""

from __future__ import annotations

import pytest
from pocket import WARM_START

from memagent_lib.cli.main import main
from memagent_lib.data import load, make_splits, preset

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


LOOSE = """
from dataclasses import dataclass

from memagent_lib.data import DocumentPlan, Filler, Preset, Statement, noise


@dataclass(frozen=True)
class Noon:
    answers: tuple = ("noon",)
    ends: bool = False

    def plan(self, key):
        filler = Filler(lambda: iter(["x"])) if self.ends else noise()
        return DocumentPlan(question="When?", answers=self.answers, statements=(), filler=filler)


class Bare:
    plan = Noon.plan


BARE = Preset(task=Bare(), description="no dataclass", family="loose")
TYPE = Preset(task=Noon, description="a class", family="loose")
TEXT = Preset(task=Noon(answers="noon"), description="a text in place of a tuple", family="loose")
ENDS = Preset(task=Noon(ends=True), description="filler that ends", family="loose")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder but for the user's file."""
    (tmp_path / "shops.py").write_text(SHOPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(*words: str) -> int:
    return main(["data", *words, "--model", str(WARM_START)])


SIZE = ("--chunks", "3", "--chunk-tokens", "300", "--n", "5")


def test_a_task_in_a_file_works_in_two_processes():
    assert data("shops.py:HOURS", *SIZE, "--out", "one.parquet") == 0
    assert data("shops.py:HOURS", *SIZE, "--workers", "2", "--out", "two.parquet") == 0
    made = load("one.parquet")
    assert load("two.parquet") == made
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


def test_the_list_describes_a_task_in_a_file(capsys):
    assert data("--list", "shops.py:HOURS") == 0
    listed = capsys.readouterr().out
    assert "when a shop opens" in listed
    assert "17 %" in listed
    assert "parameters: shops=3" in listed


def test_the_list_of_all_tasks_names_a_users_own(capsys):
    assert data("--list") == 0
    assert "FILE.py:NAME" in capsys.readouterr().out


def test_splits_of_a_task_in_a_file_are_made_by_its_path(tokenizer, folder):
    splits = {"train": ([1, 2], [3]), "test": ([4], [2])}
    made = make_splits(folder / "data", "shops.py:HOURS", splits, tokenizer, seed=0, chunk_tokens=300, shops=2)
    assert made["examples"].tolist() == [3, 3, 2]
    assert {example.task for file in made["file"] for example in load(file)} == {"HOURS"}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("shops.py:NOPE", "HOURS, Hours, NAMES, PRESETS, only_one"),
        ("shops.py:NAMES", "shops.py:NAMES is a tuple; a task in a file is a memagent_lib.data.Preset"),
        ("gone.py:HOURS", "gone.py"),
        ("loose.py:BARE", "a task is an instance of a frozen dataclass, whose fields are its parameters"),
        ("loose.py:TYPE", "a task is an instance of a frozen dataclass, whose fields are its parameters"),
        ("loose.py:TEXT", "answers must be a tuple of texts, such as ('Odo',), got 'noon'"),
        ("loose.py:ENDS", "the filler has 2 tokens and 900 are needed; request a shorter document, or yield more un"),
        (
            "broken.py:HOURS",
            "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_module', line 1",
        ),
        ("torn.py:HOURS", "torn.py cannot be imported: SyntaxError"),
        ("HOURS", "no task 'HOURS'; choose from needle"),
    ],
)
def test_a_wrong_name_or_file_is_an_error_with_the_fix(task, message, folder, capsys):
    (folder / "broken.py").write_text("import no_such_module\n")
    (folder / "loose.py").write_text(LOOSE)
    (folder / "torn.py").write_text("HOURS = (\n")
    assert data(task, *SIZE, "--out", "x.parquet") == 2
    assert message in capsys.readouterr().err
    assert not (folder / "x.parquet").exists()


def test_wrong_parameters_of_a_task_in_a_file_name_the_task(capsys):
    for words, message in (
        ("shop=2", "task 'shops.py:HOURS' has no key shop; it has shops"),
        ("shops=0", "task 'shops.py:HOURS': shops must be at least 1, got 0"),
        ("shops=9", "task 'shops.py:HOURS': shops must be at most 5, got 9"),
    ):
        assert data("shops.py:HOURS", words, *SIZE, "--out", "x.parquet") == 2
        assert message in capsys.readouterr().err


def test_a_file_named_by_its_full_path_is_the_same_task(folder, monkeypatch):
    found = preset(str(folder / "shops.py") + ":HOURS")
    assert found == preset("shops.py:HOURS")
    assert found.parameters == "shops=3"
