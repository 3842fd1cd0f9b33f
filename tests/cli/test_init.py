"""`memagent init` adds what is missing to a folder, and changes no file that is there."""

from __future__ import annotations

import tomllib

import pytest

from memagent_lib.cli import main
from memagent_lib.paths import clone

WRITTEN = {"pyproject.toml", "notebooks/00_quickstart.ipynb", "experiments/demo.toml", "experiments/pocket/world.py"}


def test_init_writes_the_starter_once(tmp_path, capsys):
    folder = tmp_path / "my workbench"
    assert main(["init", str(folder)]) == 0
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written >= WRITTEN and not [name for name in written if "__pycache__" in name]
    prose = {"README.md", "train.toml", "warm_start.toml", "wording.toml"}  # which the recipe smollm2_1gpu.toml names
    of_studies = {name for name in written if "studies" in name}
    assert of_studies == {f"experiments/studies/prose/{name}" for name in prose}
    assert capsys.readouterr().out.startswith(f"{len(written)} files written to {folder}, 0 were there\n")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project == {"tool": {"memagent": {"model": "experiments/pocket/warm_start"}}}
    assert main(["init", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"0 files written to {folder}, {len(written)} were there\nnext: cd '")


def test_the_readme_of_a_folder_says_what_stands_for_make(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    readme = (tmp_path / "README.md").read_text()
    assert "| `make lab` | `memagent lab` |\n| `make demo` | `memagent demo` |" in readme
    assert (tmp_path / "notebooks" / "README.md").is_file(), "to which it links"


def test_init_never_changes_a_file_of_the_users(tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    mine = {"pyproject.toml": "[project]\n", "notebooks/00_quickstart.ipynb": "mine", "notes.txt": "mine"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    assert main(["init", str(tmp_path)]) == 0
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    out = capsys.readouterr().out
    assert "2 of them differ from the library's: pyproject.toml, notebooks/00_quickstart.ipynb\n" in out
    assert "memagent init NEW_FOLDER writes the library's beside them" in out


def test_init_writes_nothing_where_a_file_is_in_the_way(tmp_path, capsys):
    (tmp_path / "experiments").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "experiments is a file, so" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["experiments"]


@pytest.mark.parametrize("folder", ["/proc/workbench", "/dev/null/workbench"])
def test_a_folder_that_cannot_be_made_is_one_line(folder, capsys):
    assert main(["init", folder]) == 2
    error = capsys.readouterr().err
    assert folder in error and "choose another" in error and error.count("\n") == 1


def test_in_a_clone_nothing_is_left_to_write(capsys):
    assert main(["init", str(clone())]) == 0
    assert capsys.readouterr().out.startswith("0 files written")
