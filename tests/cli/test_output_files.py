"""A command replaces only what memagent wrote itself, and a page is HTML."""

from pathlib import Path

import pytest

from memagent_lib.cli import main

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "experiments" / "pocket" / "warm_start")
THEIRS = 'READ = "{prompt} {memory} {chunk}"\nANSWER = "{prompt} {memory}"\nNO_MEMORY = "none"\n'


def commands(folder: Path) -> dict[str, list[str]]:
    """Commands that write one file each, without the option that names it."""
    (folder / "a.txt").write_text("some text")
    (folder / "their.py").write_text(THEIRS)
    read = ["read", str(folder / "a.txt"), "--question", "q?", "--model", "./no-model"]
    return {
        "--html mine.html": read,
        "--save mine.json": read,
        "--out mine.html": ["report", str(folder), "--tracking", str(folder / "no-store")],
        "--out mine.toml": ["template", "import", str(folder / "their.py")],
        "--out mine.parquet": ["data", "needle", "--n", "1", "--chunks", "1", "--model", MODEL],
    }


@pytest.mark.parametrize("written", ["--html mine.html", "--save mine.json", "--out mine.html"])
def test_a_file_of_somebody_else_is_refused_at_once(written, tmp_path, capsys):
    flag, name = written.split()
    (tmp_path / name).write_text("precious")
    assert main([*commands(tmp_path)[written], flag, str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"{flag} names {tmp_path / name}, which is there already and is no" in error and error.count("\n") == 1
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("written", ["--out mine.toml", "--out mine.parquet"])
def test_a_command_replaces_what_it_wrote_and_nothing_else(written, tmp_path, capsys):
    flag, name = written.split()
    file = tmp_path / name
    command = [*commands(tmp_path)[written], flag, str(file)]
    file.write_text("precious")
    assert main(command) == 2
    assert (
        f"{file}, which is there already" in (error := capsys.readouterr().err) or f"{file} is there already" in error
    )
    assert file.read_text() == "precious"
    file.write_text("")  # as mktemp leaves it
    assert main(command) == 0
    first = file.read_bytes()
    assert main(command) == 0
    assert file.read_bytes() == first != b""


@pytest.mark.parametrize("written", ["--html mine.html", "--out mine.html"])
def test_a_page_is_named_as_html(written, tmp_path, capsys):
    flag = written.split()[0]
    assert main([*commands(tmp_path)[written], flag, str(tmp_path / "page.txt")]) == 2
    says = f"{flag} names {tmp_path / 'page.txt'}, and the page is HTML; end its name in .html\n"
    assert capsys.readouterr().err.endswith(says)
