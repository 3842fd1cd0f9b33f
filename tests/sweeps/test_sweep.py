from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
from waiting import has_ended, wait_for

from memagent_lib.cli import main
from memagent_lib.paths import PACKAGE
from memagent_lib.provenance import code_hash
from memagent_lib.sweeps import SweepError, SweepSpec, SweepStage, gather_sweep, notebook_jobs, run_sweep
from memagent_lib.sweeps.runner import only_sweep_in
from memagent_lib.sweeps.specification import plan
from memagent_lib.tracking import Experiment, TrackingError, load_runs

PARAMETERS = """x: int = 1  # a number
name: str = "a"  # a word
folder: str = ""  # where to write
point: str = ""  # its name
run_id: str = ""
tracking: str = ''"""
APPEND = "import pathlib\nwith open(pathlib.Path(folder) / f'{name}.txt', 'a') as f: f.write(f'{x}\\n')"


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., str]:
    """Write a notebook of code cells below a parameters cell; return its path."""

    def make(*cells: str, name: str = "one", parameters: str = PARAMETERS, kernel: str = "python3") -> str:
        book = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": kernel, "display_name": "Python 3", "language": "python"}}
        )
        book.cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        book.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(book, path)
        return str(path)

    return make


@pytest.fixture
def spec(workspace: Path) -> Callable[..., SweepSpec]:
    def make(*stages: SweepStage, **options) -> SweepSpec:
        options = {"parameters": {"folder": "{folder}"}, "workers": 2, "tracking": str(workspace)} | options
        return SweepSpec(**({"name": "s", "stage": stages, "folder": str(workspace / "s")} | options))

    return make


def lines(workspace: Path, name: str = "a") -> list[str]:
    file = workspace / "s" / f"{name}.txt"
    return sorted(file.read_text().split()) if file.exists() else []


def test_each_point_of_a_grid_is_one_child_run_and_its_rows_are_gathered(
    notebook, spec, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")  # it may be begun in a notebook; its points run elsewhere
    log = """
import os
import pandas as pd
from memagent_lib.tracking import Experiment
assert 'JPY_SESSION_NAME' not in os.environ
pathlib.Path(folder, f'{x}.name').write_text(point)
rows = pd.DataFrame({'name': [10 * x, 10 * x + 1]})
Experiment.open(tracking).start('below', parent=run_id).table(rows, 'results.parquet')"""
    stage = SweepStage(name="grid", notebook=notebook(APPEND, log), grid={"x": [1, 2], "name": ["b c"]})
    result = run_sweep(spec(stage))
    assert result.ok and lines(workspace, "b c") == ["1", "2"]
    assert result.frame[["point", "x", "name"]].to_numpy().tolist() == [[f"x={x}, name=b c", x, "b c"] for x in (1, 2)]
    assert (workspace / "s/1.name").read_text().startswith("x=1,_name=b_c-")

    runs = load_runs(Experiment.open(workspace))
    children = runs[runs["parent"] == result.run_id]
    assert sorted(zip(children["params.x"], children["params.name"], strict=True)) == [("1", "b c"), ("2", "b c")]
    assert set(children["status"]) == {"FINISHED"}
    states = [json.loads(p.read_text()) for p in (workspace / "s/notebooks").glob("*.json")]
    assert {state["run_id"] for state in states} == set(children["run_id"])

    rows = gather_sweep(workspace / "s")
    assert rows[["x", "param.name", "name"]].to_numpy().tolist() == [
        [x, "b c", value] for x in (1, 2) for value in (10 * x, 10 * x + 1)
    ]
    with pytest.raises(SweepError, match=r"other\.parquet"):
        gather_sweep(workspace / "s", "other.parquet")

    experiment = Experiment.open(workspace)
    for run_id in (result.run_id, result.frame["run_id"].iloc[0]):
        experiment.client.delete_run(run_id)
    again = run_sweep(spec(stage))
    assert again.ok and again.run_id != result.run_id and lines(workspace, "b c") == ["1", "2"]
    assert len(gather_sweep(workspace / "s")) == 4, "the finished points' rows are still there"


def test_a_point_runs_again_only_when_its_inputs_change(
    notebook, spec, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(x: int = 1, cell: str = APPEND, **options) -> list[str]:
        stages = [
            SweepStage(name=name, notebook=notebook(cell if name == "first" else APPEND, name=name), parameters=set_)
            for name, set_ in (("first", {"x": x}), ("second", {"x": 7}))
        ]
        return [point.key for (point,) in plan(spec(*stages, **options))]

    before = keys()
    assert keys() == keys(workers=1) == before
    for changed in (keys(x=2), keys(cell=APPEND + "  # changed")):
        assert changed[0] != before[0] and changed[1] != before[1], "later stages depend on earlier ones"

    own, recipe, written = tmp_path / "mine.py", tmp_path / "recipe.toml", workspace / "s" / "written.toml"
    for mark in ("pyproject.toml", "notebooks"):
        (tmp_path / mark).touch()
    monkeypatch.chdir(tmp_path)
    known = PARAMETERS + "\nreaders: list = []\noptions: dict = {}"
    named = {"readers": [f"{own}:mine"], "options": {"model": f"path={recipe}"}, "name": "{folder}/written.toml"}
    stage = SweepStage(name="one", notebook=notebook(APPEND, parameters=known), parameters=named)
    found = []
    for file, text in ((own, "mine = 1"), (own, "mine = 2"), (recipe, "steps = 1"), (recipe, "steps = 2")):
        file.write_text(text)
        found.append(plan(spec(stage))[0][0].key)
    assert len(set(found)) == 4
    template, shipped = tmp_path / "words.toml", tmp_path / "experiments/readers/mine.py"
    shipped.parent.mkdir(parents=True)
    recipe.write_text(f'reader = "mine"\ntemplate = "{template}"')
    for file, text in ((shipped, "mine = 3"), (shipped, "mine = 4"), (template, "read = 1"), (template, "read = 2")):
        file.write_text(text)
        found.append(plan(spec(stage))[0][0].key)
    assert len(set(found)) == 8, "a recipe's reader and template count too"
    written.parent.mkdir()
    written.write_text("steps = 3")
    assert plan(spec(stage))[0][0].key == found[-1], "an earlier stage may have written it"


def test_a_saved_notebook_has_no_absolute_path_and_is_found_in_a_renamed_project(
    notebook, spec, tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = SweepStage(name="one", notebook=Path(notebook(APPEND, "folder, tracking")).name)
    sweep = spec(stage, folder="runs/s", tracking="runs")
    assert run_sweep(sweep).ok and lines(workspace) == ["1"]
    saved = (workspace / "s/notebooks/one.ipynb").read_text()
    assert str(tmp_path) not in saved and "runs/s" in saved
    renamed = shutil.copytree(tmp_path, tmp_path.with_name("renamed"))
    monkeypatch.chdir(renamed)
    assert plan(sweep)[0][0].key == json.loads((renamed / "runs/s/notebooks/one.json").read_text())["key"]


def test_only_code_that_changes_results_changes_a_sweeps_keys(notebook, spec, tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "memagent_lib"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("memagent_lib.provenance.PACKAGE", package)
    sweep = spec(SweepStage(name="one", notebook=notebook(APPEND)))

    def key() -> str:
        code_hash.cache_clear()
        return plan(sweep)[0][0].key

    before = key()
    for file, repeats in (("inspector/inspector.js", False), ("plots/style.py", False), ("scoring/judges.py", True)):
        with open(package / file, "a", encoding="utf-8") as source:
            source.write("\n")
        assert (key() != before) is repeats
    code_hash.cache_clear()


def test_a_finished_point_whose_run_is_elsewhere_is_no_gap(workspace: Path, tmp_path: Path) -> None:
    experiment = Experiment.open(workspace)
    run = experiment.start("point")
    run.table(pd.DataFrame({"value": [1]}), "results.parquet")
    points = []
    for name, run_id in (("x=1", run.id), ("x=2", "0" * 32)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"key": "k", "status": "finished", "run_id": run_id}))
        points.append({"stage": "one", "point": name, "varied": {}, "key": "k", "record": f"{name}.json"})
    sweep = {"name": "s", "run_id": run.id, "tracking": experiment.uri, "points": points}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    with pytest.raises(TrackingError, match="0" * 32):
        gather_sweep(tmp_path)


def test_a_failed_point_stops_no_other_and_runs_again(notebook, spec, workspace: Path) -> None:
    fails = """
import os, pathlib, signal
if not pathlib.Path(folder, 'mended').exists():
    assert x != 2, f'x is {x}'
    x != 3 or os.kill(os.getpid(), signal.SIGKILL)"""
    later = SweepStage(name="later", notebook=notebook(APPEND, name="later"), parameters={"name": "later"})
    elsewhere = SweepStage(name="kernel", notebook=notebook(APPEND, name="kernel", kernel="conda-foo"))
    foreign = run_sweep(spec(elsewhere, name="k", folder=str(workspace / "k"))).frame
    assert foreign["error"].str.startswith("NoSuchKernel: No such kernel named conda-foo").tolist() == [True]
    sweep = spec(SweepStage(name="grid", notebook=notebook(APPEND, fails), grid={"x": [1, 2, 3]}), later, workers=1)
    frame = run_sweep(sweep).frame.set_index("point")
    assert frame["status"].to_dict() == {"x=1": "finished", "x=2": "failed", "x=3": "failed", "": "not run"}
    assert frame.loc["x=2", "error"].startswith("AssertionError: x is 2 (cell ")
    assert frame.loc["x=3", "error"].startswith("DeadKernelError")
    (workspace / "s/mended").touch()
    assert run_sweep(sweep).ok
    assert lines(workspace) == ["1", "2", "2", "3", "3"] and lines(workspace, "later") == ["1"]
    statuses = load_runs(Experiment.open(workspace), "params.x = '2'")["status"].tolist()
    assert statuses == ["FINISHED", "FAILED"]


def test_a_note_names_what_runs_and_the_time_left_that_finished_points_tell(
    notebook, spec, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(notebook_jobs, "NOTE_EVERY_S", 0.2)
    assert run_sweep(spec(SweepStage(name="grid", notebook=notebook(APPEND), grid={"x": [1, 2, 3]}), workers=1)).ok
    notes = [line for line in capsys.readouterr().out.splitlines() if "running" in line]
    assert notes[0] == "[0/3] running: grid x=1"
    first = next(note for note in notes if "x=2" in note)
    assert re.fullmatch(r"\[1/3\] running: grid x=2; 2 points of grid, about \d:\d\d:\d\d left", first)


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        ({"parameters": {"X": 1}}, "X, but can set x, name, folder"),
        ({"grid": {"x": [1, 1]}}, "bad--x=1"),
        ({"grid": {"x": []}}, "has no point"),
        ({"parameters": {"run_id": "1"}}, "run_id"),
        ({"notebook": "/nowhere/n.ipynb"}, "/nowhere/n.ipynb"),
        ({"name": "good"}, "good"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(notebook, spec, workspace: Path, stage, named: str) -> None:
    good = SweepStage(name="good", notebook=notebook(APPEND, name="good"))
    with pytest.raises((SweepError, OSError), match=re.escape(named)):
        run_sweep(spec(good, SweepStage(**({"name": "bad", "notebook": notebook(APPEND)} | stage))))
    assert not (workspace / "s").exists()


@pytest.mark.parametrize(
    ("parameters", "cell", "named"),
    [
        ("x: int = 1", "print('x')", "varies x, which no cell of one.ipynb reads"),
        ("x: int = 1", "x = 3\nprint(x)", "reads before it assigns it"),
        ("x: int = 1\ny = x * 2", "print(x, y)", "set y too"),
    ],
)
def test_a_parameter_without_effect_is_refused(notebook, spec, parameters: str, cell: str, named: str) -> None:
    stage = SweepStage(notebook=notebook(cell, parameters=parameters), grid={"x": [1, 2]})
    with pytest.raises(SweepError, match=named):
        run_sweep(spec(stage, parameters={}))


def test_a_sweep_file_has_stages_or_one_notebook_and_its_grid(tmp_path: Path, notebook) -> None:
    path = notebook(APPEND)
    (tmp_path / "one.toml").write_text(
        f"notebook = '{path}'\nfolder = '{tmp_path}/f'\n[grid]\nx = [1, 2]\nname = ['a']"
    )
    points = plan(SweepSpec.load(tmp_path / "one.toml"))[0]
    assert [(p.name, p.parameters) for p in points] == [
        ("one x=1, name=a", {"x": 1, "name": "a"}),
        ("one x=2, name=a", {"x": 2, "name": "a"}),
    ]
    (tmp_path / "two.toml").write_text(
        f"folder = '{tmp_path}/f'\n[parameters]\nfolder = '{{folder}}/{{point}}'\n"
        f"[[stage]]\nname = 'a'\nnotebook = '{path}'\npoints = [{{x = 1}}, {{x = 5, name = '{{folder}}/c'}}]\n"
        f"[[stage]]\nname = 'b'\nnotebook = '{path}'\n"
    )
    first, second = plan(SweepSpec.load(tmp_path / "two.toml"))
    assert [p.name for p in first] == ["a x=1", "a x=5, name=c"]
    assert first[0].parameters == {"folder": f"{tmp_path}/f/x=1", "x": 1}
    assert first[1].parameters["name"] == f"{tmp_path}/f/c"
    assert second[0].parameters == {"folder": f"{tmp_path}/f/all"}


def test_a_second_sweep_is_refused_while_the_first_lives(notebook, spec, workspace: Path, capsys) -> None:
    hold = """
import sys, time
from pathlib import Path
from memagent_lib.sweeps.runner import only_sweep_in
with only_sweep_in(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""
    sweep = spec(SweepStage(name="one", notebook=notebook(APPEND)))
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(workspace / "s")], stdout=subprocess.PIPE, text=True
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(SweepError, match="is running in"):
            run_sweep(sweep)
        assert main(["demo", "--out", str(workspace / "s")]) == 2
        holder.kill()
    with only_sweep_in(workspace / "s"):
        pass


def in_background(file: Path, **options) -> subprocess.Popen:
    """Start a sweep in its own process that acts on Ctrl-C, even when the test process ignores it."""
    code = f"if __name__ == '__main__':\n from memagent_lib.sweeps import run_sweep; run_sweep({str(file)!r})"
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, **options, **heeds)


def sweep_file(tmp_path: Path, workspace: Path, notebook: str, grid: str = "") -> Path:
    file = tmp_path / "s.toml"
    file.write_text(
        f"folder = '{workspace}/s'\ntracking = '{workspace}'\nnotebook = '{notebook}'\n"
        f"parameters.folder = '{{folder}}'\n{grid}"
    )
    return file


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stopped_sweep_leaves_no_kernel_and_resumes(notebook, workspace: Path, tmp_path: Path, how) -> None:
    """The cell that is interrupted catches it and cleans up; no later cell runs."""
    waits = """
import pathlib, os, time
pathlib.Path(folder, f"{x}.pid").write_text(str(os.getpid()))
try:
    while x == 2 and not pathlib.Path(folder, "go").exists():
        time.sleep(0.05)
except KeyboardInterrupt:
    pathlib.Path(folder, "in order").touch()
"""
    file = sweep_file(tmp_path, workspace, notebook(waits, APPEND), "grid.x = [1, 2, 3]")
    process = in_background(file, stdout=subprocess.DEVNULL)
    pid_file = workspace / "s" / "2.pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text())
    kernel = psutil.Process(int(pid_file.read_text()))
    worker = kernel.parent()
    process.send_signal(how)
    process.wait(timeout=120)
    wait_for(lambda: has_ended(kernel) and has_ended(worker))
    assert lines(workspace) == ["1"] and (workspace / "s" / "in order").exists()
    if how is not signal.SIGKILL:
        assert sorted(load_runs(Experiment.open(workspace))["status"]) == ["FINISHED", "KILLED", "KILLED"]

    (workspace / "s" / "go").touch()
    assert run_sweep(file).ok
    assert lines(workspace) == ["1", "2", "3"]
    runs = load_runs(Experiment.open(workspace))
    assert sorted(runs["status"]) == ["FINISHED"] * 4 + ["KILLED"]
    assert runs["parent"].nunique() == 1
