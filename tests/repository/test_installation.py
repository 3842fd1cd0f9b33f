"""The wheel in an empty environment: a plain installation reads, measures and explores, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from hostile import serving
from needle_server import right

ROOT = Path(__file__).parents[2]
UV = [str(Path(sys.executable).with_name("uv"))]
INDEX = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
OUTSIDE |= INDEX | {"COLUMNS": "900"}  # wide enough for doctor's longest line

pytestmark = pytest.mark.long


def run(*command: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, env=OUTSIDE, capture_output=True, text=True)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the files that git tracks, built in a folder whose name has a blank."""
    source = tmp_path_factory.mktemp("source") / "a clone"
    listed = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")[:-1]
    for name in listed:
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", str(source / "dist"), ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def memagent(wheel, tmp_path_factory) -> str:
    """The command of a plain installation."""
    folder = tmp_path_factory.mktemp("plain") / "environment"
    pins = ROOT / "memagent_lib" / "constraints" / "plain.txt"
    run(*UV, "venv", "--quiet", "--python", sys.executable, str(folder), cwd=wheel.parent)
    python = str(folder / "bin" / "python")
    into = ["--quiet", "--no-config", "--python", python, "--constraints", str(pins)]
    run(*UV, "pip", "install", *into, str(wheel), cwd=wheel.parent)
    return str(folder / "bin" / "memagent")


@pytest.fixture(scope="module")
def workbench(memagent, tmp_path_factory) -> Path:
    """A folder of `memagent init`, whose name has a blank."""
    folder = tmp_path_factory.mktemp("walk") / "my workbench"
    assert "files written to" in run(memagent, "init", folder.name, cwd=folder.parent).stdout
    return folder


def test_the_name_of_a_wheel_says_its_version(wheel, tmp_path):
    assert wheel.name == "memagent_lib-0.1.dev0-py3-none-any.whl"  # of a copy without git
    run("git", "clone", "--quiet", "--no-tags", "--depth", "1", f"file://{ROOT}", "clone", cwd=tmp_path)
    clone = tmp_path / "clone"
    run("git", "archive", "--prefix", "archive/", "--output", str(tmp_path / "archive.tar"), "HEAD", cwd=clone)
    run("tar", "--extract", "--file", "archive.tar", cwd=tmp_path)
    run(*UV, "build", "--quiet", "--wheel", "--out-dir", "dist", ".", cwd=tmp_path / "archive")
    assert (tmp_path / "archive" / "dist" / wheel.name).is_file()  # of an archive without tags
    run("git", "tag", "v9.8.7", cwd=clone)
    run("make", f"UV={UV[0]}", "wheel", cwd=clone)
    names = {path.name for path in (clone / "dist").iterdir()}
    assert {"memagent_lib-9.8.7-py3-none-any.whl", "memagent_lib-9.8.7.tar.gz"} <= names


def test_a_wheel_has_the_notebooks_and_small_policies(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    share = {name.partition("/share/memagent/")[2] for name in names if "/share/memagent/" in name}
    assert {"notebooks/00_quickstart.ipynb", "experiments/demo.toml", "experiments/recipes/7b_8gpu.toml"} <= share
    assert {"experiments/pocket/trained/model.safetensors", "experiments/pocket/world.py"} <= share
    assert not [name for name in names if "/tests/" in name or ".venv" in name]
    # The one study that a recipe names, by its wording and its warm start.
    prose = {"README.md", "train.toml", "warm_start.toml", "wording.toml"}
    assert {name for name in share if "/studies/" in name} == {f"experiments/studies/prose/{name}" for name in prose}
    assert wheel.stat().st_size < 8_000_000


def test_the_doctor_passes_it_and_names_the_engines_command(memagent, tmp_path):
    table = run(memagent, "doctor", cwd=tmp_path).stdout
    assert not {"missing", "failed"} & set(table.split())
    assert "none (a plain installation)" in table and "--torch-backend cpu --no-deps --requirement /" in table


def test_data_read_and_evaluate_end_with_their_results(memagent, workbench):
    data = ["data", "needle", "--chunks", "2", "--chunk-tokens", "200", "--n", "3", "--out", "runs/test_2.parquet"]
    run(memagent, *data, cwd=workbench)
    (workbench / "a.txt").write_text("The code of the bold owl is 4711.")
    settings = ("api=chat", "window=8192", "answer_tokens=40", "tokenizer=experiments/pocket/warm_start")
    sizes = ["--template", "short", "--chunk-tokens", "400", "--memory-tokens", "90"]
    sizes += [word for setting in settings for word in ("--set", setting)]
    with serving() as server:
        server.reply = right
        model = ["--model", "small", "--base-url", server.url, *sizes]
        question = ["--question", "What is the code of the bold owl?"]
        assert run(memagent, "read", "a.txt", *question, *model, cwd=workbench).stdout == "4711\n"
        run(memagent, "evaluate", "runs/test_2.parquet", "--out", "runs/scores", *model, cwd=workbench)
    assert list(pd.read_parquet(workbench / "runs" / "scores" / "small.parquet")["score"]) == [1.0] * 3
    assert (workbench / "runs" / "scores" / "inspector.html").is_file()
