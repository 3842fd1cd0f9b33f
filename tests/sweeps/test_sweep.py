from __future__ import annotations

import json
import os
import re
import shlex
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
from memagent_lib.evaluation import write_results
from memagent_lib.paths import PACKAGE
from memagent_lib.settings import read_toml
from memagent_lib.sweeps import (
    SweepCluster,
    SweepError,
    SweepSpec,
    SweepStage,
    gather_sweep,
    notebook_jobs,
    run_sweep,
    show_sweep,
)
from memagent_lib.sweeps.notebook_jobs import NotebookJob
from memagent_lib.sweeps.runner import only_sweep_in
from memagent_lib.sweeps.specification import plan
from memagent_lib.tracking import Experiment, Run, TrackingError, load_runs

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

    def make(*cells: str, name: str = "one", parameters: str | None = PARAMETERS) -> str:
        book = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        )
        if parameters is not None:
            book.cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        book.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(book, path)
        return str(path)

    return make


@pytest.fixture
def spec(workspace: Path) -> Callable[..., SweepSpec]:
    def make(*stages: SweepStage, **options) -> SweepSpec:
        options = {"parameters": {"folder": "{folder}"}, "workers": 2} | options
        return SweepSpec(name="s", stage=stages, folder=str(workspace / "s"), tracking=str(workspace), **options)

    return make


def lines(workspace: Path, name: str = "a") -> list[str]:
    file = workspace / "s" / f"{name}.txt"
    return sorted(file.read_text().split()) if file.exists() else []


def test_a_sweeps_cluster_reaches_notebooks_and_no_key(notebook, spec, workspace: Path) -> None:
    known = PARAMETERS + "\nengines: int = 0\ncluster: str = ''"
    note = "import pathlib\npathlib.Path(folder, f'{x}.engines').write_text(f'{engines} {cluster}')"
    stages = (
        SweepStage(name="evaluate", notebook=notebook(note, parameters=known)),
        SweepStage(name="other", notebook=notebook(APPEND, name="two")),
    )
    keys = [[point.key for point in stage] for stage in plan(spec(*stages))]
    sweep = spec(*stages, cluster=SweepCluster(engines=4, address="head:6379"))
    assert [[point.key for point in stage] for stage in plan(sweep)] == keys
    assert run_sweep(sweep).ok
    assert (workspace / "s" / "1.engines").read_text() == "4 head:6379"
    runs = load_runs(Experiment.open(workspace)).set_index("name")
    assert (runs.loc["evaluate", "params.engines"], runs.loc["evaluate", "params.cluster"]) == ("4", "head:6379")


def test_a_cluster_without_a_use_is_refused(notebook, spec) -> None:
    stage = SweepStage(name="one", notebook=notebook(APPEND))
    with pytest.raises(SweepError, match="no notebook of the sweep 's' has the parameters engines and cluster"):
        plan(spec(stage, cluster=SweepCluster(engines=2, address="auto")))
    with pytest.raises(SweepError, match="2 workers would each start 2 engines on the same cores; set workers to 1"):
        spec(stage, cluster=SweepCluster(engines=2))
    with pytest.raises(SweepError, match=r"cluster.address 'auto' needs cluster.engines"):
        spec(stage, cluster=SweepCluster(address="auto"))
    known = SweepStage(
        name="one", notebook=notebook(APPEND, parameters=PARAMETERS + "\nengines: int = 0\ncluster: str = ''")
    )
    doubled = {"folder": "{folder}", "engines": 3}
    with pytest.raises(SweepError, match=r"stage one: engines is set by \[cluster\] too; remove one of the two"):
        plan(spec(known, parameters=doubled, cluster=SweepCluster(engines=2, address="auto")))


def test_each_point_of_a_grid_is_one_child_run(notebook, spec, workspace: Path) -> None:
    log = """
from memagent_lib.tracking import Experiment
Experiment.open(tracking).join(run_id).metrics({'tenfold': 10 * x})"""
    sweep = spec(SweepStage(name="grid", notebook=notebook(APPEND, log), grid={"x": [1, 2], "name": ["a", "b c"]}))
    result = run_sweep(sweep)
    assert result.ok
    assert (lines(workspace, "a"), lines(workspace, "b c")) == (["1", "2"], ["1", "2"])

    runs = load_runs(Experiment.open(workspace))
    children = runs[runs["parent"] == result.run_id]
    assert sorted(zip(children["params.x"], children["params.name"], children["metrics.tenfold"], strict=True)) == [
        ("1", "a", 10), ("1", "b c", 10), ("2", "a", 20), ("2", "b c", 20),
    ]  # fmt: skip
    assert set(children["tags.sweep_id"]) == {result.run_id}
    assert set(runs["status"]) == {"FINISHED"}
    child = Experiment.open(workspace).join(children["run_id"].iloc[0])
    executed = nbformat.read(
        child.fetch(
            next(p.name for p in (workspace / "s/notebooks").glob("*.ipynb") if child.id in p.read_text()), workspace
        ),
        4,
    )
    assert executed.cells[-1].execution_count is not None
    states = [json.loads(p.read_text()) for p in (workspace / "s/notebooks").glob("*.json")]
    assert {s["run_id"]: s["status"] for s in states} == dict(zip(children["run_id"], children["status"], strict=True))


def test_a_point_runs_again_only_when_its_inputs_change(notebook, spec, workspace: Path) -> None:
    def stages(x: int, cell: str = APPEND) -> list[SweepStage]:
        first = SweepStage(name="first", notebook=notebook(cell, name="first"), parameters={"name": "first", "x": x})
        return [
            first,
            SweepStage(name="second", notebook=notebook(APPEND, name="second"), parameters={"name": "second", "x": 7}),
        ]

    run_sweep(spec(*stages(1)))
    run_sweep(spec(*stages(1)))
    assert (lines(workspace, "first"), lines(workspace, "second")) == (["1"], ["7"])
    run_sweep(spec(*stages(2)))
    assert (lines(workspace, "first"), lines(workspace, "second")) == (["1", "2"], ["7", "7"])
    run_sweep(spec(*stages(2, APPEND + "  # changed")))
    assert (lines(workspace, "first"), lines(workspace, "second")) == (["1", "2", "2"], ["7", "7", "7"])


@pytest.mark.parametrize(
    ("file", "repeats"),
    [
        ("inspector/inspector.js", False),
        ("inspector/templates/inspector.css", False),
        ("inspector/templates/report.html", False),
        ("plots/figure_style.py", False),
        ("templates/memory_first.toml", True),
        ("prompts.py", True),
        ("tokenizer.py", True),
        ("scoring/judges.py", True),
    ],
)
def test_only_code_that_changes_results_changes_a_sweeps_keys(
    notebook, spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, repeats: bool
) -> None:
    package = tmp_path / "memagent_lib"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("memagent_lib.provenance.PACKAGE", package)
    sweep = spec(SweepStage(name="one", notebook=notebook(APPEND)))
    before = plan(sweep)[0][0].key
    with open(package / file, "a", encoding="utf-8") as source:
        source.write("\n")
    assert (plan(sweep)[0][0].key != before) is repeats


def test_an_edited_recipe_or_plugin_changes_a_points_key(notebook, spec, workspace: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    recipe = tmp_path / "recipe.toml"
    written = workspace / "s" / "written.toml"
    known = PARAMETERS + "\nreaders: list = []\noptions: dict = {}"
    named = {"readers": [f"{own}:mine"], "options": {"model": f"path={recipe}"}, "name": "{folder}/written.toml"}
    stage = SweepStage(name="one", notebook=notebook(APPEND, parameters=known), parameters=named)
    keys = []
    for file, text in ((own, "mine = 1"), (own, "mine = 2"), (recipe, "steps = 1"), (recipe, "steps = 2")):
        file.write_text(text)
        keys.append(plan(spec(stage))[0][0].key)
    assert len(set(keys)) == 4
    written.parent.mkdir()
    written.write_text("steps = 3")
    assert plan(spec(stage))[0][0].key == keys[-1], "an earlier stage may have written it"


def test_a_finished_point_whose_run_is_elsewhere_is_no_gap(workspace: Path, tmp_path: Path) -> None:
    experiment = Experiment.open(workspace)
    run = experiment.start("point")
    run.table(pd.DataFrame({"value": [1]}), "results.parquet")
    points = []
    for name, run_id in (("x=1", run.id), ("x=2", "0" * 32)):
        record = {"key": "k", "status": "FINISHED", "run_id": run_id}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
        points.append({"stage": "one", "point": name, "varied": {}, "key": "k", "record": f"{name}.json"})
    sweep = {"name": "s", "run_id": run.id, "tracking": experiment.uri, "points": points}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    with pytest.raises(
        TrackingError, match=r"the finished point 'one x=2' cannot be read \(no run .* delete x=2\.json"
    ):
        gather_sweep(tmp_path)
    sweep["points"] = points[:1]
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    assert gather_sweep(tmp_path)["value"].tolist() == [1]
    run.fetch("results.parquet", tmp_path).write_bytes(b"PAR1")
    with pytest.raises(TrackingError, match=rf"run {run.id}: its results\.parquet is damaged"):
        gather_sweep(tmp_path)


def test_a_sweep_goes_on_when_its_run_was_deleted(notebook, spec, workspace: Path) -> None:
    log = "import pandas as pd\nfrom memagent_lib.tracking import Experiment\n"
    log += "Experiment.open(tracking).join(run_id).table(pd.DataFrame({'x': [x]}), 'results.parquet')"
    book = notebook(APPEND, log)
    first = run_sweep(spec(SweepStage(name="grid", notebook=book, grid={"x": [1]})))
    experiment = Experiment.open(workspace)
    for run_id in (first.run_id, first.frame["run_id"].iloc[0]):
        experiment.client.delete_run(run_id)
    second = run_sweep(spec(SweepStage(name="grid", notebook=book, grid={"x": [1, 2]})))
    assert second.ok and second.run_id != first.run_id
    assert lines(workspace) == ["1", "2"]
    assert gather_sweep(workspace / "s")["x"].tolist() == [1, 2], "the finished point's rows are still there"


def test_a_point_that_ran_stays_finished_if_the_store_fails(notebook, spec, workspace: Path, monkeypatch) -> None:
    sweep = spec(SweepStage(name="grid", notebook=notebook(APPEND), grid={"x": [1]}))

    def fail(*_: object) -> None:
        raise TrackingError("database is locked")

    with monkeypatch.context() as store:
        store.setattr(Run, "metrics", fail)
        with pytest.raises(TrackingError, match="database is locked"):
            run_sweep(sweep)
    assert run_sweep(sweep).ok
    assert lines(workspace) == ["1"]
    statuses = load_runs(Experiment.open(workspace), "params.x = '1'")["status"].tolist()
    assert statuses == ["FINISHED"], "else no leaderboard would list it"


def test_a_failed_point_stops_no_other_and_retry_runs_it_again(notebook, spec, workspace: Path) -> None:
    fails = "import pathlib\nassert x != 2 or pathlib.Path(folder, 'mended').exists(), f'x is {x}'"
    later = SweepStage(name="later", notebook=notebook(APPEND, name="later"), parameters={"name": "later"})
    sweep = spec(SweepStage(name="grid", notebook=notebook(APPEND, fails), grid={"x": [1, 2, 3]}), later)
    frame = run_sweep(sweep).frame.set_index("point")
    assert frame["status"].to_dict() == {"x=1": "FINISHED", "x=2": "FAILED", "x=3": "FINISHED", "": "not run"}
    assert frame.loc["x=2", "error"].startswith("AssertionError: x is 2 (cell ")
    assert lines(workspace, "later") == []

    (workspace / "s/mended").touch()
    assert run_sweep(sweep).frame["status"].tolist() == ["FINISHED", "FAILED", "FINISHED", "not run"]
    assert lines(workspace) == ["1", "2", "3"]
    assert run_sweep(sweep, retry=True).ok
    assert lines(workspace) == ["1", "2", "2", "3"]
    statuses = load_runs(Experiment.open(workspace), "params.x = '2'")["status"].tolist()
    assert statuses == ["FINISHED", "FAILED"]


def test_a_kernel_that_dies_is_a_failed_point_with_its_reason(notebook, spec) -> None:
    result = run_sweep(
        spec(SweepStage(name="dies", notebook=notebook("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")))
    )
    assert result.frame["status"].tolist() == ["FAILED"]
    assert result.frame["error"].iloc[0].startswith("DeadKernelError")


def test_a_kernel_of_another_python_in_the_home_is_not_used(
    notebook, spec, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["false"], "display_name": "Other", "language": "python"}')
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")  # as in an environment of another user
    assert run_sweep(spec(SweepStage(name="own", notebook=notebook(APPEND)))).ok
    assert lines(workspace) == ["1"]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"parameters": {"X": 1}}, "one.ipynb has no parameter X; it has x, name, folder, point, run_id, tracking"),
        ({"grid": {"x": [1, "2"]}}, "one.ipynb: x must be int, got '2'"),
        ({"parameters": {"x": True}}, "one.ipynb: x must be int, got True"),
        ({"grid": {"x": []}}, "grid.x must be a list of values, got"),
        ({"grid": {"x": [1, 1]}}, "has the same point twice"),
        ({"parameters": {"run_id": "1"}}, "run_id is set by the sweep itself; remove it"),
        ({"notebook": "/nowhere/n.ipynb"}, "no notebook /nowhere/n.ipynb"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    notebook, spec, workspace: Path, stage: dict, message: str
) -> None:
    good = SweepStage(name="good", notebook=notebook(APPEND, name="good"))
    with pytest.raises(SweepError, match="(?s).*" + message.replace(".", r"\.")):
        run_sweep(spec(good, SweepStage(**({"name": "bad", "notebook": notebook(APPEND)} | stage))))
    assert not (workspace / "s").exists()


def test_a_notebook_of_a_missing_kernel_is_refused(notebook, spec) -> None:
    path = Path(notebook(APPEND))
    path.write_text(path.read_text().replace('"name": "python3"', '"name": "julia"'))
    with pytest.raises(
        SweepError, match=r"one\.ipynb needs the kernel 'julia', and .*python3.* is installed; open it in"
    ):
        plan(spec(SweepStage(notebook=str(path))))


def test_a_killed_worker_has_no_error_of_an_earlier_one(tmp_path: Path) -> None:
    job = NotebookJob(tmp_path / "one.ipynb", tmp_path / "out" / "one.ipynb")
    job.output.parent.mkdir()
    job.error_file.write_text("stopped")  # the message of a call that was killed before it read it
    worker = notebook_jobs._start(job)
    worker.kill()
    worker.stdin.close()
    reason = notebook_jobs._error(job, worker.wait())
    assert reason.startswith("the process that ran one.ipynb was killed by SIGKILL; out of memory")


def test_a_notebook_without_a_parameters_cell_is_refused(notebook, spec) -> None:
    with pytest.raises(SweepError, match="has no cell tagged 'parameters'; give one cell that tag"):
        run_sweep(spec(SweepStage(name="bare", notebook=notebook("1 + 1", parameters=None)), parameters={}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "notebok = 'x'",
            "has no key notebok; it has cluster, folder, grid, name, notebook, parameters, points, stage, tracking, "
            "workers",
        ),
        (
            "[[stage]]\nname = 'a'\nnotebook = 'x'\ngird = {}",
            "stage.0 has no key gird; it has grid, name, notebook, parameters, points",
        ),
        ("[[stage]]\nname = 'a'", "stage.0 needs notebook"),
        ("workers = 'two'\nnotebook = 'x'", "workers must be a valid integer, got 'two'"),
        ("notebook = 'x'\ngrid.x = 3", "grid.x must be a valid "),
        ("workers = 0\nnotebook = 'x'", "workers must be at least 1, got 0"),
        ("grid.x = [1]\n[[stage]]\nnotebook = 'x'", "has a grid or points, but no notebook of its own; move them"),
        ("notebook = 'x'\npoints = [{a = 1}]\ngrid.a = [2]", "stage x has a in points and in grid; leave one of"),
        ("notebook = 'two words'", "letters, digits, - and _; got 'two words'; set another name in"),
        ("x = [", "is not TOML"),
        ("", "has no stages"),
    ],
)
def test_a_wrong_sweep_file_is_refused_with_its_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SweepError, match=message):
        SweepSpec.load(tmp_path / "s.toml")


def test_a_file_of_windows_is_read_or_refused_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("name = 'café'\n", encoding="utf-8-sig")
    assert read_toml(file, "sweep") == {"name": "café"}
    file.write_text("x = 1\nname = 'café'\n", encoding="latin-1")
    with pytest.raises(SweepError, match=rf"{file} is not UTF-8: byte 0xe9 in line 2; save it as UTF-8"):
        SweepSpec.load(file)


def test_fewer_than_one_worker_is_refused(notebook, spec, workspace: Path) -> None:
    sweep = spec(SweepStage(name="grid", notebook=notebook(APPEND), grid={"x": [1], "name": ["a"]}))
    with pytest.raises(SweepError, match="workers must be at least 1, got 0"):
        run_sweep(sweep, workers=0)
    assert not lines(workspace)


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
        f"folder = '{tmp_path}/f'\n[parameters]\nfolder = '{{folder}}/data'\n"
        f"[[stage]]\nname = 'a'\nnotebook = '{path}'\npoints = [{{x = 1}}, {{x = 5, name = 'c'}}]\n"
        f"[[stage]]\nname = 'b'\nnotebook = '{path}'\n"
    )
    stages = plan(SweepSpec.load(tmp_path / "two.toml"))
    assert [[p.parameters for p in points] for points in stages] == [
        [{"folder": f"{tmp_path}/f/data", "x": 1}, {"folder": f"{tmp_path}/f/data", "x": 5, "name": "c"}],
        [{"folder": f"{tmp_path}/f/data"}],
    ]


def test_a_second_sweep_is_refused_while_the_first_lives(notebook, spec, workspace: Path) -> None:
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
        with pytest.raises(SweepError, match=rf"a sweep is running in .* \(process {holder.pid}\)"):
            run_sweep(sweep)
        holder.kill()
    with only_sweep_in(workspace / "s"):
        pass
    assert (workspace / "s" / "sweep.lock").read_text() == str(os.getpid())


def in_background(file: Path, **options) -> subprocess.Popen:
    """Start a sweep in its own process that acts on Ctrl-C, even when the test process ignores it."""
    code = f"from memagent_lib.sweeps import run_sweep; run_sweep({str(file)!r})"
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, **options, **heeds)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_leaves_no_kernel_and_resumes(
    notebook, workspace: Path, tmp_path: Path, how: signal.Signals
) -> None:
    waits = """
import pathlib, os, time
pathlib.Path(folder, f"{x}.pid").write_text(str(os.getpid()))
while x == 2 and not pathlib.Path(folder, "go").exists():
    time.sleep(0.05)
"""
    book, file = notebook(waits, APPEND), tmp_path / "s.toml"
    file.write_text(
        f"folder = '{workspace}/s'\ntracking = '{workspace}'\nnotebook = '{book}'\n"
        "parameters.folder = '{folder}'\ngrid.x = [1, 2, 3]"
    )
    process = in_background(file, stdout=subprocess.DEVNULL)
    pid_file = workspace / "s" / "2.pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text())
    kernel = psutil.Process(int(pid_file.read_text()))
    process.send_signal(how)
    process.wait(timeout=120)
    wait_for(lambda: has_ended(kernel))
    assert lines(workspace) == ["1"]
    if how is not signal.SIGKILL:
        assert sorted(load_runs(Experiment.open(workspace))["status"]) == ["FINISHED", "KILLED", "KILLED"]

    (workspace / "s" / "go").touch()
    assert run_sweep(file).ok
    assert lines(workspace) == ["1", "2", "3"]
    runs = load_runs(Experiment.open(workspace))
    assert sorted(runs["status"]) == ["FINISHED"] * 4 + ["KILLED"]
    assert runs["parent"].nunique() == 1


def test_an_interrupted_cell_cleans_up_and_no_later_cell_runs(notebook, workspace: Path, tmp_path: Path) -> None:
    tidies = """
import pathlib, time
try:
    pathlib.Path(folder, "begun").touch()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path(folder, "in order").touch()
"""
    book, file = notebook(tidies, APPEND), tmp_path / "s.toml"
    file.write_text(
        f"folder = '{workspace}/s'\ntracking = '{workspace}'\nnotebook = '{book}'\nparameters.folder = '{{folder}}'"
    )
    process = in_background(file, stdout=subprocess.PIPE, text=True)
    wait_for((workspace / "s" / "begun").exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert "stopping: waiting for the running notebook to clean up; Ctrl-C again ends all at once" in output
    assert "stopped after 0/1 points; the same command continues from here" in output
    assert (workspace / "s" / "in order").exists()
    assert lines(workspace) == []
    assert set(load_runs(Experiment.open(workspace))["status"]) == {"KILLED"}


def test_a_second_ctrl_c_ends_a_cell_that_does_not_stop(notebook, workspace: Path, tmp_path: Path) -> None:
    deaf = """
import pathlib, os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path(folder, "pid").write_text(str(os.getpid()))
time.sleep(600)
"""
    book, file = notebook(deaf), tmp_path / "s.toml"
    file.write_text(
        f"folder = '{workspace}/s'\ntracking = '{workspace}'\nnotebook = '{book}'\nparameters.folder = '{{folder}}'"
    )
    process, pid = in_background(file, stdout=subprocess.PIPE, text=True), workspace / "s" / "pid"
    wait_for(lambda: pid.exists() and pid.read_text())
    kernel = psutil.Process(int(pid.read_text()))
    process.send_signal(signal.SIGINT)
    while "Ctrl-C again" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    wait_for(lambda: has_ended(kernel))


UNLUCKY = """
import os, pathlib, sys
starts = pathlib.Path(os.environ["STARTS"])
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) < 2:
    sys.exit("Address already in use")
os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", *sys.argv[1:]])
"""


def test_a_kernel_that_dies_before_any_cell_is_started_again(
    notebook, spec, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, starts = tmp_path / "jupyter" / "kernels" / "unlucky", tmp_path / "starts"
    kernels.mkdir(parents=True)
    starts.touch()
    command = [sys.executable, "-c", UNLUCKY, "-f", "{connection_file}"]
    kernel = {"argv": command, "display_name": "unlucky", "language": "python", "env": {"STARTS": str(starts)}}
    (kernels / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    book = nbformat.read(path := notebook(APPEND), 4)
    book.metadata["kernelspec"]["name"] = "unlucky"
    nbformat.write(book, path)
    assert run_sweep(spec(SweepStage(name="one", notebook=path))).ok
    assert (starts.read_text(), lines(workspace)) == ("xx", ["1"])


def test_the_demo_stops_its_training_when_it_is_stopped() -> None:
    train = next(
        s for s in SweepSpec.load(Path(__file__).parents[2] / "experiments" / "demo.toml").stages if s.name == "train"
    )
    assert train.parameters["stop_on_interrupt"] is True


def test_a_second_demo_beside_the_first_is_refused(tmp_path: Path, capsys) -> None:
    message = f"a sweep is running in {tmp_path}/demo (process {os.getpid()}); wait for it, stop it, or give this one"
    with only_sweep_in(tmp_path / "demo"):
        assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert message in capsys.readouterr().err


def test_a_points_name_has_paths_relative_to_the_folder(notebook, spec) -> None:
    stage = SweepStage(name="one", notebook=notebook(APPEND), points=({"name": "{folder}/train/model"},))
    ((point,),) = plan(spec(stage))
    assert (point.name, point.parameters["name"].endswith("/s/train/model")) == ("one name=train/model", True)


def test_file_names_of_points_keep_what_tells_paths_apart(notebook, spec, workspace: Path) -> None:
    grid = {"name": ["runs/a/model", "runs/b/model", "pocket/warm_start"]}
    sweep = spec(SweepStage(name="one", notebook=notebook(APPEND), grid=grid))
    (points,) = plan(sweep)
    names = [point.file_name.rpartition("-")[0] for point in points]
    assert names == ["name=a_model", "name=b_model", "name=warm_start"]

    (alone,) = plan(spec(SweepStage(name="one", notebook=notebook(APPEND), grid={"name": ["runs/a/model"]})))
    assert alone[0].file_name.rpartition("-")[0] == "name=model"
    earlier = workspace / "s" / "notebooks" / f"one--{alone[0].file_name}.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("{}")
    assert [point.file_name for point in plan(sweep)[0]] == [alone[0].file_name, *(p.file_name for p in points[1:])]


def test_a_long_text_of_wide_letters_is_a_file_name(notebook, spec) -> None:
    texts = ["記憶" * 40, "記憶" * 40 + "?", "é" * 40]
    (points,) = plan(spec(SweepStage(name="one", notebook=notebook(APPEND), grid={"name": texts})))
    names = [point.output.name for point in points]
    assert max(len(name.encode()) for name in names) < 150 and len(set(names)) == 3
    assert names[2] == f"one--name={texts[2]}.ipynb"


def test_every_event_is_a_line_where_there_is_no_terminal(notebook, spec, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")  # it may be begun in a notebook; its points run elsewhere
    fails = "import os; assert 'JPY_SESSION_NAME' not in os.environ; assert x != 2, 'x is 2'"
    sweep = spec(SweepStage(name="grid", notebook=notebook(fails), grid={"x": [1, 2]}), workers=1)
    run_sweep(sweep)
    first = [re.sub(r"\d:\d\d:\d\d", "TIME", line) for line in capsys.readouterr().out.splitlines()]
    assert first == [
        "[0/2] grid x=1 started",
        "[1/2] grid x=1 finished in TIME",
        "[1/2] grid x=2 started",
        "[1/2] grid x=2 failed: AssertionError: x is 2 (cell 3 of grid--x=2.ipynb)",
    ]
    run_sweep(sweep)
    again = capsys.readouterr().out.splitlines()
    assert again[0] == "[1/2] grid x=1 was finished before"
    assert again[1].startswith("[1/2] grid x=2 failed earlier (--retry runs it again): AssertionError: x is 2")


def test_a_sweeps_state_is_read_from_its_folder(notebook, spec, workspace: Path, capsys, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no sweep has run in"):
        show_sweep(tmp_path / "none")
    fails = "assert x != 2, 'x is [2]'"
    later = SweepStage(name="later", notebook=notebook(APPEND, name="later"))
    run_sweep(spec(SweepStage(name="grid", notebook=notebook(fails), grid={"x": [1, 2]}), later))
    capsys.readouterr()
    assert not show_sweep(workspace / "s")
    table = capsys.readouterr().out
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["s:", "not", "running"]
    assert [row[:3] for row in rows[2:4]] == [["grid", "x=1", "finished"], ["grid", "x=2", "failed"]]
    assert ["later", "not", "run"] in rows and "x is [2]" in table
    with only_sweep_in(workspace / "s"):
        show_sweep(workspace / "s")
    assert f"running, process {os.getpid()}" in capsys.readouterr().out


def test_each_point_gets_its_name_and_its_parameters_as_columns(notebook, spec, workspace: Path) -> None:
    writes = "import pathlib\npathlib.Path(folder, f'{x}.txt').write_text(point)"
    stage = SweepStage(name="grid", notebook=notebook(writes), grid={"x": [1, 2]}, parameters={"name": "b"})
    frame = run_sweep(spec(stage)).frame
    assert [(workspace / "s" / f"{x}.txt").read_text() for x in (1, 2)] == ["x=1", "x=2"]
    assert frame[["point", "x", "name"]].to_numpy().tolist() == [["x=1", 1, "b"], ["x=2", 2, "b"]]


def test_gathered_rows_have_what_varies_as_columns(notebook, spec, workspace: Path) -> None:
    logs = """
import pandas as pd
from memagent_lib.tracking import Experiment
rows = pd.DataFrame({'name': [10 * x, 10 * x + 1]})
Experiment.open(tracking).start('below', parent=run_id).table(rows, 'results.parquet')"""
    stage = SweepStage(name="grid", notebook=notebook(logs), grid={"x": [1, 2], "name": ["a"]})
    run_sweep(spec(stage, parameters={"folder": "{folder}/{point}"}))
    rows = gather_sweep(workspace / "s")
    assert rows[["point", "x", "param.name", "name"]].to_numpy().tolist() == [
        [f"x={x}, name=a", x, "a", value] for x in (1, 2) for value in (10 * x, 10 * x + 1)
    ]
    with pytest.raises(SweepError, match=r"in .* logged other\.parquet \(the first one's is expected in file:"):
        gather_sweep(workspace / "s", "other.parquet")


def test_the_command_printed_at_the_end_opens_the_sweeps_store(
    notebook, kept, workspace: Path, tmp_path: Path, capsys
) -> None:
    write_results([kept], tmp_path / "readings")
    logs = """
from memagent_lib.evaluation import read_results
from memagent_lib.tracking import Experiment, log_results
log_results(Experiment.open(tracking).join(run_id), read_results(folder), policy=name)"""
    lines = [f'notebook = "{notebook(logs)}"', f'folder = "{tmp_path}/two words"', f'tracking = "{workspace}"']
    (tmp_path / "s.toml").write_text("\n".join([*lines, f'parameters.folder = "{tmp_path}/readings"']))
    assert main(["sweep", str(tmp_path / "s.toml")]) == 0
    (command,) = re.findall("next    memagent (.*)", capsys.readouterr().err)
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path}/two words/report.html\n" and "warning" not in printed.err
    assert "data-key=" in (tmp_path / "two words/report.html").read_text()


def test_a_parameters_text_may_contain_its_points_name(notebook, spec, workspace: Path) -> None:
    stage = SweepStage(
        name="one", notebook=notebook(APPEND), grid={"x": [1, 2]}, parameters={"folder": "{folder}/{point}"}
    )
    (points,) = plan(spec(stage, parameters={}))
    assert [p.parameters["folder"] for p in points] == [f"{workspace}/s/x=1", f"{workspace}/s/x=2"]


def test_a_single_value_stands_for_a_list_of_one(notebook, spec) -> None:
    book = notebook(parameters="n: list = [1, 2]  # numbers\nx: int = 1  # one")
    planned = plan(spec(SweepStage(notebook=book, grid={"n": [12, [4, 5]]}), parameters={}))
    assert [point.parameters["n"] for point in planned[0]] == [[12], [4, 5]]
    with pytest.raises(SweepError, match=r"x must be int, got \[1\]"):
        plan(spec(SweepStage(notebook=book, parameters={"x": [1]}), parameters={}))


def test_the_status_of_a_starting_sweep_says_so(tmp_path: Path, capsys) -> None:
    with only_sweep_in(tmp_path / "s"):
        assert not show_sweep(tmp_path / "s")
    assert f"is starting, process {os.getpid()}" in capsys.readouterr().out
    with pytest.raises(SweepError, match="no sweep has run in"):
        show_sweep(tmp_path / "s")


def test_runs_of_a_sweep_are_named_in_words(notebook, spec) -> None:
    book = notebook(parameters="policy: str = ''  # one\nmodel: str = ''  # its folder\nreaders: list = []  # some")
    after = {"model": "{folder}/train/model", "policy": "after", "readers": ["gated", "overwrite"]}
    before = {"model": "{folder}/start/model", "readers": ["gated"]}
    (points,) = plan(spec(SweepStage(name="score", notebook=book, points=(after, before)), parameters={}))
    names = ["score after, readers gated + overwrite", "score model start, readers gated"]
    assert [point.run_name for point in points] == names
