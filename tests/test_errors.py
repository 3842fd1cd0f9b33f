"""What a person did wrong is one line in a notebook too, and a mistake of ours keeps its traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from memagent_lib.backends import open_backend
from memagent_lib.data import load
from memagent_lib.data.tasks.catalog import preset
from memagent_lib.errors import MissingFile, UserError, nearest_path
from memagent_lib.paths import first_model
from memagent_lib.prompts import Budget, Template
from memagent_lib.readers import reader_named
from memagent_lib.rl import export_checkpoint
from memagent_lib.settings import parse
from memagent_lib.tracking import Experiment


@pytest.fixture
def notebook_shell():
    """A shell that displays errors as a notebook of ours does, and as before after the test."""
    shell = InteractiveShell.instance()
    shell.run_cell("from memagent_lib import notebook; notebook.prepare()")
    yield shell
    shell.set_custom_exc((), None)


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("import memagent_lib as m; m.Budget(chunk_tokens=0)", "ValueError: chunk_tokens must be at least 1, got 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: this cell was interrupted; run it again to continue"),
    ],
)
def test_a_notebook_displays_a_mistake_as_one_line(notebook_shell, cell: str, line: str, capsys) -> None:
    outcome = notebook_shell.run_cell(cell)
    assert capsys.readouterr().out.strip() == line
    assert type(outcome.error_in_exec).__name__ == line.partition(":")[0]  # the cell failed, which ends a papermill run


@pytest.mark.parametrize("cell", ["int('x')", "{}['ours']", "import json; json.loads('{')"])
def test_an_error_from_elsewhere_keeps_its_traceback(notebook_shell, cell: str, capsys) -> None:
    notebook_shell.run_cell(cell)
    assert "Traceback" in capsys.readouterr().out


def test_a_missing_file_gets_the_nearest_name_beside_it(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "test_16.parquet").touch()
    for path, near in (("tset_16.parquet", "test_16.parquet"), ("reslts/rows/x.jsonl", "results")):
        assert nearest_path(tmp_path / path) == f"; did you mean {near!r}?"
    with pytest.raises(MissingFile, match=r"did you mean 'test_16\.parquet'\?$"):
        load(tmp_path / "tset_16.parquet")
    for find in (export_checkpoint, lambda path: first_model([path]), lambda path: Experiment.open(path, create=False)):
        with pytest.raises(UserError, match=r"did you mean 'results'\?$"):
            find(str(tmp_path / "reslts"))


@pytest.mark.parametrize(
    ("find", "near"),
    [
        (lambda: reader_named("overwrit"), "overwrite"),
        (lambda: preset("multihop2"), "multihop_2"),
        (lambda: Template.load("chunkfirst"), "chunk_first"),
        (lambda: open_backend("vlm", "nowhere"), "vllm"),
        (lambda: parse(Budget, {"chunk_token": 5}, "it"), "chunk_tokens"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(find: Callable[[], object], near: str) -> None:
    with pytest.raises(ValueError, match=rf"; did you mean '{near}'\?$"):
        find()
