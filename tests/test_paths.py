"""Files are found from any folder, written whole or not at all, and read as far as they are whole."""

import os

import pytest

from memagent_lib import paths
from memagent_lib.paths import (
    absolute,
    apply_umask,
    input_path,
    read_lines,
    replacing,
    require_apart,
    write_atomically,
)


def test_a_file_is_whole_or_unchanged_and_nothing_is_left_beside(tmp_path):
    path = tmp_path / "new" / "a.txt"
    assert write_atomically(path, "Gr\u00fc\u00dfe \ud800") == path
    assert path.read_text(encoding="utf-8") == "Gr\u00fc\u00dfe ?"
    write_atomically(path, b"\x00\xff")
    with pytest.raises(ZeroDivisionError):
        _half_written(path)
    assert path.read_bytes() == b"\x00\xff" and [p.name for p in path.parent.iterdir()] == ["a.txt"]


def _half_written(path):
    with replacing(path) as unfinished:
        unfinished.write_text("half")
        raise ZeroDivisionError


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_saved_weights_have_the_mode_of_new_files(tmp_path, umask, mode):
    weights = tmp_path / "model.safetensors"
    weights.touch(mode=0o600)
    before = os.umask(umask)
    try:
        apply_umask(tmp_path)
    finally:
        os.umask(before)
    assert weights.stat().st_mode & 0o777 == mode and list(tmp_path.iterdir()) == [weights]


def test_lines_are_read_as_far_as_they_are_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert read_lines(path) == []
    path.write_text('{"a": 1}\n\n{"b": 2}\n{"c')
    assert read_lines(path) == [{"a": 1}, {"b": 2}]


def test_a_file_that_is_read_is_never_written(tmp_path):
    (tmp_path / "notes").mkdir()
    document = tmp_path / "a.txt"
    document.write_text("rain")
    (tmp_path / "link").symlink_to(document)
    require_apart({"--html": tmp_path / "b.html", "--save": None, "--journal": ""}, [document, tmp_path / "notes"])
    for output in (document, tmp_path / "link", tmp_path / "notes" / ".." / "a.txt"):
        with pytest.raises(ValueError, match=r"^--html names .*, which is read and would be overwritten"):
            require_apart({"--html": output}, [document])
    with pytest.raises(ValueError, match="in the folder notes that is read"):
        require_apart({"--html": tmp_path / "notes" / "deep" / "page.html"}, [tmp_path / "notes"])
    with pytest.raises(ValueError, match=r"^--save and --html both name "):
        require_apart({"--save": tmp_path / "x", "--html": tmp_path / "x"}, [])


def test_a_clones_files_are_found_from_any_folder(tmp_path, monkeypatch):
    blank = tmp_path / "a clone"
    (blank / "memagent_lib").mkdir(parents=True)
    for name in ("recipe.toml", "pyproject.toml"):
        (blank / name).touch()
    for name in ("model", "notebooks"):
        (blank / name).mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(paths, "PACKAGE", blank / "memagent_lib")
    monkeypatch.chdir(elsewhere)
    assert paths.input_path("recipe.toml") == blank / "recipe.toml"
    assert paths.model_path("model") == str(blank / "model")
    (elsewhere / "recipe.toml").touch()
    assert paths.input_path("recipe.toml") == elsewhere / "recipe.toml"
    assert paths.input_path("none.toml") == elsewhere / "none.toml"
    assert paths.model_path("owner/name") == "owner/name"
    (elsewhere / "pyproject.toml").touch()
    (elsewhere / "notebooks").mkdir()
    (elsewhere / "runs" / "policy").mkdir(parents=True)
    monkeypatch.chdir(elsewhere / "runs")
    assert paths.model_path("policy") == str(elsewhere / "runs" / "policy")


def test_a_files_name_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert absolute("~$draft.docx") == input_path("~$draft.docx") == tmp_path / "~$draft.docx"
    assert absolute("~/a.txt") == tmp_path / "home" / "a.txt"
