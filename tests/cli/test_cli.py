"""The command: its verbs explain themselves, a user's mistake is one line on stderr, and nothing heavy is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from pocket import pocket_task

from memagent_lib.cli import commands, main
from memagent_lib.cli.machine import NEEDED_GB, examine, report
from memagent_lib.cli.options import api_key
from memagent_lib.data import load, make, presets
from memagent_lib.paths import clone
from memagent_lib.system import Finding
from memagent_lib.text import Tokenizer

ROOT = Path(__file__).parents[2]
POCKET = str(ROOT / "experiments" / "pocket" / "warm_start")


@pytest.mark.parametrize("verb", commands.commands)
def test_every_verb_explains_itself_and_names_a_near_option(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"Usage: memagent {verb}" in capsys.readouterr().out
    assert main([verb, "--hepl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"memagent {verb}: ") and "--help" in error and error.count("\n") == 1


def test_the_command_alone_prints_its_help_and_its_version(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {verb} " in printed for verb in commands.commands)
    assert main(["--version"]) == 0
    described = subprocess.run(["git", "describe", "--tags", "--always", "--dirty"], cwd=ROOT, capture_output=True)
    version = described.stdout.decode().strip() or metadata.version("memagent-lib")
    assert capsys.readouterr().out == f"memagent {version}\n"


def test_help_loads_no_engine_and_no_store():
    heavy = {"torch", "transformers", "verl", "vllm", "ray", "mlflow", "ipywidgets", "pandas", "matplotlib", "rich"}
    code = "import sys\nfrom memagent_lib.cli import main\nmain(['read', '--help'])\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "click" in loaded.split() and heavy & set(loaded.split()) == set()


def test_a_bug_keeps_its_traceback_and_an_error_has_one_on_request(workspace, monkeypatch):
    for words in (["--traceback", "report", "gone"], ["report", "gone", "--traceback"]):
        with pytest.raises(OSError, match="gone"):
            main(words)
    monkeypatch.setattr("memagent_lib.cli.machine.examine", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


REFUSED = {
    "data needle --chunks 2 --out FOLDER/x.parquet --model ./no-such-model": "./no-such-model",
    "data": "--out FILE.parquet",
    "data nih --chunks 2 --out FOLDER/x.parquet": "no task 'nih'",
    "read FOLDER/no.txt --question q? --model ./no-model": "no.txt",
    "read FOLDER/a.txt --model ./no-model": "question",
    "read FOLDER/a.txt --question q? --question p? --model ./no-model --reader multislot": "overwrite",
    "read FOLDER/a.txt --question q? --model m --html FOLDER/mine.html": "--html",
    "read FOLDER/a.txt --question q? --model m --base-url URL --set tokenizer=POCKET": "http://127.0.0.1:9/v1",
    "read FOLDER/a.txt --question q? --model POCKET --backend transformers --set windo=1": "did you mean 'window'",
    "read EMPTY --question q? --model POCKET": "after read is empty",
    "read FOLDER/a.txt --question q? --model POCKET --set tokenizer=": "tokenizer= is empty",
    "read FOLDER/a.txt --question q? --model POCKET --set window=4k": "window takes a whole number, got '4k'",
    "read FOLDER/a.txt --question q? --model POCKET --set temperature=hot": "temperature",
    "evaluate FOLDER/no.parquet --out FOLDER/out --model ./no-model": "no.parquet",
    "train missing.toml --dry-run": "missing.toml",
    "report FOLDER --out FOLDER/mine.html": "--out",
    "template import FOLDER/a.txt --out FOLDER/mine.html": "--out",
    "template import FOLDER/aa.txt --out FOLDER/x.toml": "did you mean 'a.txt'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_users_mistake_is_one_line_and_changes_nothing(words, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "mine.html").write_text("precious")
    before = sorted(tmp_path.iterdir())
    places = {"FOLDER": str(tmp_path), "POCKET": POCKET, "URL": "http://127.0.0.1:9/v1"}
    command, says = words, REFUSED[words]
    for name, value in places.items():
        command, says = command.replace(name, value), says.replace(name, value)
    assert main([word.removeprefix("EMPTY") for word in command.split()]) == 2
    told = capsys.readouterr().err.splitlines(keepends=True)
    error = "".join(line for line in told if not line.endswith(" ...\n"))  # a slow machine is told what is waited for
    assert error.startswith(f"memagent {command.split()[0]}") and says in error and error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "mine.html").read_text() == "precious"


def test_a_servers_key_is_read_from_its_file(tmp_path):
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbfsk-1\r\n")
    assert api_key(str(tmp_path / "key")) == "sk-1"
    (tmp_path / "key").write_bytes(b" \n")
    with pytest.raises(ValueError, match="--api-key-file"):
        api_key(str(tmp_path / "key"))


def test_data_lists_every_task_and_makes_one_from_any_folder(tmp_path, monkeypatch, capsys):
    assert main(["data", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in presets()) and "hotpot" in listed
    assert main(["data", "--list", "vt"]) == 0
    assert "parameters: chains=1, hops=4" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    made = []
    for number, words in enumerate((["density=0.2", "--chunks", "2"], ["--chunks", "2", "density=0.2"])):
        assert main(["data", pocket_task("mix"), *words, "--n", "3", "--out", f"{number}.parquet"]) == 0
        assert "tokens are those of" in capsys.readouterr().out
        made.append([(e.document, e.question) for e in load(f"{number}.parquet")])
    assert made[0] == made[1]


def test_read_answers_from_a_file_and_writes_a_page(capsys, tmp_path):
    (example,) = make("needle", 1, 3, Tokenizer.load(POCKET), chunks=2)
    (tmp_path / "notes.txt").write_text(example.document)
    asked = ["read", str(tmp_path / "notes.txt"), "--question", example.question, "--model", POCKET]
    asked += ["--backend", "transformers", "--html", str(tmp_path / "page.html"), "--save", str(tmp_path / "s.json")]
    assert main(asked) == 0
    printed = capsys.readouterr().out.strip()
    assert printed and "boxed" not in printed
    page = (tmp_path / "page.html").read_text()
    assert example.question in page and "<html" in page
    assert main(asked) == 0, "a command replaces what it wrote"


def test_the_doctor_finds_this_machine_fit_and_names_what_is_missing(capsys, monkeypatch):
    assert report(examine()) == 0
    (stated,) = re.findall(r"(\d+) GB of free memory", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert NEEDED_GB["memory"] == int(stated)
    report([Finding("disk", "1 GB at /data/[old]", "rm '/data/[old]'")])
    assert capsys.readouterr().out.count("/data/[old]") == 2, "brackets are not markup"
    monkeypatch.setattr("memagent_lib.system.installed_version", lambda name: "1.0" if name == "torch" else None)
    monkeypatch.setattr("memagent_lib.system.out_of_range", lambda: {"pypdf<8,>=7.1": "pypdf 6.0"})
    wrong = {finding.what: finding.fix for finding in examine() if finding.blocks}
    assert wrong.keys() >= {"vllm", "verl", "papermill", "pypdf"} and "make install" in wrong["vllm"]
    assert report(examine()) == 1


STARTER = {"pyproject.toml", "README.md", "notebooks/00_quickstart.ipynb", "experiments/demo.toml"}


def test_init_adds_what_is_missing_and_changes_nothing(tmp_path, capsys):
    folder = tmp_path / "my workbench"
    mine = folder / "notebooks" / "00_quickstart.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main(["init", str(folder)]) == 0
    assert "1 were there" in capsys.readouterr().out and mine.read_text() == "mine"
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written >= STARTER and not [name for name in written if "__pycache__" in name]
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project == {"tool": {"memagent": {"model": "experiments/pocket/warm_start"}}}
    assert main(["init", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("0 files written")
    assert main(["init", str(clone())]) == 0
    assert capsys.readouterr().out.startswith("0 files written")
    assert main(["init", "/dev/null/workbench"]) == 2
