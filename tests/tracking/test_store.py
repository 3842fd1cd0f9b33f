"""Stores that are locked, full, away or no store at all: the error names the fix, and nothing logged is lost."""

from __future__ import annotations

import re
import resource
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
from ports import free_port

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.evaluation import evaluate
from memagent_lib.sweeps import SweepSpec, SweepStage, run_sweep
from memagent_lib.tracking import Experiment, TrackingError, load_curve, load_runs, store


def test_a_store_that_is_locked_for_a_while_loses_nothing(workspace: Path) -> None:
    run = Experiment.open(workspace).start("one")
    holder = sqlite3.connect(workspace / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    threading.Timer(1.0, holder.close).start()
    run.metrics({"loss": 3.0}, step=1)
    assert load_curve(run)["value"].tolist() == [3.0]


def test_runs_that_log_the_same_data_at_once_all_have_it(workspace: Path) -> None:
    """MLflow looks for a dataset and then inserts it: another run may be faster in between."""
    files = [workspace / f"{number}.parquet" for number in range(10)]
    for number, file in enumerate(files):
        file.write_bytes(b"rows" * (number + 1))
    experiment = Experiment.open(workspace)
    runs, together = [experiment.start(name) for name in "abcd"], threading.Barrier(4)

    def log(run) -> int:
        for file in files:
            together.wait(60)
            run.data(file)
        return len(experiment.client.get_run(run.id).inputs.dataset_inputs)

    with ThreadPoolExecutor(len(runs)) as pool:
        assert list(pool.map(log, runs)) == [len(files)] * len(runs)


def test_processes_that_tag_one_run_at_the_same_moment_all_go_on(workspace: Path) -> None:
    """Two sweeps begun together after a restart both end the runs that it killed."""
    experiment = Experiment.open(workspace)
    run, together = experiment.start("killed"), threading.Barrier(4)

    def tag(owner: str) -> None:
        for number in range(10):
            together.wait(60)
            run.tags({f"error {number}": owner})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tag, "abcd"))
    tags = experiment.client.get_run(run.id).data.tags
    assert {tags[f"error {number}"] for number in range(10)} <= set("abcd")


@pytest.mark.slow  # MLflow itself waits 20 seconds
def test_a_store_that_stays_locked_is_named_with_the_fix(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_S", 1.0)
    run = Experiment.open(workspace).start("one")
    with sqlite3.connect(workspace / "mlflow.db", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            TrackingError,
            match=rf"{workspace}/mlflow.db cannot be used \(database is locked\); another process holds it",
        ):
            run.metrics({"loss": 3.0})
    holder.close()


def test_a_store_half_made_is_made_again_by_one_of_several(tmp_path: Path) -> None:
    def opening() -> subprocess.Popen:
        code = f"from memagent_lib.tracking import Experiment; Experiment.open({str(tmp_path / 'runs')!r}).start('one')"
        return subprocess.Popen([sys.executable, "-c", code])

    with opening() as killed:
        while not any(part.stat().st_size for part in tmp_path.glob("runs/.mlflow.db.*.part")):
            assert killed.poll() is None
        killed.kill()
    assert not (tmp_path / "runs/mlflow.db").exists()
    several = [opening() for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    assert len(load_runs(Experiment.open(tmp_path / "runs"))) == 3


@pytest.mark.parametrize(
    ("revision", "fix"),
    [
        (
            "bd07f7e963c5",
            r"an older one: stop every process that writes it, copy the file, then run `mlflow db upgrade ",
        ),
        ("ffffffffffff", r"a newer one: stop every process that writes it, then `pip install -U mlflow`"),
    ],
)
def test_a_store_of_another_mlflow_is_one_line_with_the_fix(tmp_path: Path, revision: str, fix: str) -> None:
    """mlflow#18976 (older) and mlflow#6166 (newer, where MLflow names the wrong command)."""
    store.prepare(store.store_uri(tmp_path))
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    with pytest.raises(
        TrackingError, match=rf"mlflow\.db was written by another .*schema {revision}; .*, {fix}"
    ) as found:
        store.prepare(store.store_uri(tmp_path))
    assert len(str(found.value).splitlines()) == 1


def test_a_file_that_is_no_database_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database " * 500)
    with pytest.raises(
        TrackingError, match=rf"{tmp_path}/mlflow.db cannot be used \(file is not a database\); move that file away"
    ):
        Experiment.open(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(TrackingError, match=f"{tmp_path}/runs is a file; the MLflow store is a folder"):
        Experiment.open(tmp_path / "runs")


@pytest.mark.parametrize("name", ["what?", "two%20words"])
def test_a_path_that_sqlalchemy_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrackingError, match=rf"the MLflow store {re.escape(str(tmp_path / name))} has a \? or a code"):
        Experiment.open(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_of_address_is_refused_with_the_known() -> None:
    with pytest.raises(
        TrackingError, match="no MLflow store at 'htp://here'; give a folder, or an address that begins with http://"
    ):
        Experiment.open("htp://here")
    with pytest.raises(TrackingError, match=r"no MLflow store at 'file:\./mlruns'; give a folder"):
        Experiment.open("file:./mlruns")


def test_a_missing_server_is_an_error_at_once_with_its_address() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        TrackingError, match=rf"no MLflow server answers at {address} \(.*refused.*\); start it \(`memagent lab`"
    ):
        Experiment.open(address)


def test_a_relative_sqlite_address_is_that_of_the_folder(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    assert Experiment.open("sqlite:///mlflow.db") == Experiment.open(workspace)


def test_the_certificate_named_for_mlflow_is_that_of_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "own.pem"))
    with pytest.raises(TrackingError, match=r"no MLflow server answers at https:.* invalid path: .*/own\.pem"):
        Experiment.open(f"https://127.0.0.1:{free_port()}")


def test_the_check_has_the_permission_that_mlflow_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mine")
    with server_of("2.22.1", token="mine") as address, pytest.raises(TrackingError, match=r"has version 2\.22\.1"):
        Experiment.open(address)


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"),
        (403, "ask its administrator for permission"),
    ],
)
def test_a_server_that_refuses_says_what_it_wants(status: int, fix: str) -> None:
    with server_of("3.17.2", token="mine", refusal=status) as address, pytest.raises(TrackingError) as found:
        Experiment.open(address)
    assert re.search(rf"error code {status} .*; {fix}", str(found.value)) and "\n" not in str(found.value)


def test_a_password_in_an_address_is_refused_unprinted() -> None:
    with pytest.raises(
        TrackingError, match=r"server host:5000 has a user .*; leave them out, and set MLFLOW_"
    ) as found:
        Experiment.open("http://ann:secret@host:5000")
    assert "secret" not in str(found.value) and "ann" not in str(found.value)


def test_a_store_that_is_only_read_gets_no_experiment(workspace: Path) -> None:
    with pytest.raises(TrackingError, match=r"mlflow\.db has no experiment 'other'; name the store that has it"):
        Experiment.open(workspace, "other", create=False)
    assert Experiment.open(workspace).client.get_experiment_by_name("other") is None


@contextmanager
def server_of(version: str, token: str = "", refusal: int = 401) -> Iterator[str]:
    """Yield the address of a server that states its version and has none of today's addresses.

    With a ``token``, it answers nobody else, but refuses with the status ``refusal``.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            known = {"/": "<html></html>", "/version": version}
            text = known.get(self.path, "<!doctype html>\n<title>404 Not Found</title>")
            allowed = not token or self.headers["Authorization"] == f"Bearer {token}"
            self.send_response(refusal if not allowed else 200 if self.path in known else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2.22.1", "has version 2.22.1, and this is version 3"),  # no logged models: refused before anything is logged
        ("3.1.0", "has version 3.1.0, and this is version 3.* it lacks what is logged here; upgrade the server"),
        ("<html>\nproxy", "has version unknown"),
    ],
)
def test_a_server_of_another_mlflow_is_one_line_with_the_fix(version: str, says: str) -> None:
    with server_of(version) as address, pytest.raises(TrackingError, match=f"{address} {says}") as found:
        Experiment.open(address)
    assert len(str(found.value).splitlines()) == 1


FULL = """
    import resource, sys
    from memagent_lib.tracking import Experiment
    run = Experiment.open(sys.argv[1]).start("one")
    run.metrics({"before": 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        run.text("x" * 1000_000, "long.txt") if sys.argv[3] == "artifact" else run.metrics({"after": 1.0})
    except Exception as failure:
        print(type(failure).__name__, failure)
"""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("artifact", "no space for what is logged"),
        ("row", "mlflow.db cannot be used (disk I/O error); see that its disk is not full"),
    ],
)
def test_a_full_disk_is_named_with_the_fix_and_loses_nothing(workspace: Path, what: str, message: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(workspace), "20000", what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        done.stdout.startswith("TrackingError ")
        and message in done.stdout
        and "What was logged is safe." in done.stdout
    )
    assert load_runs(Experiment.open(workspace)).iloc[0]["metrics.before"] == 1.0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does to a file that grows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def journal_of(encoder, folder: Path) -> list[bytes]:
    (file,) = (f for f in folder.glob("*.jsonl") if f.name != "documents.jsonl")
    return file.read_bytes().splitlines(keepends=True)


def test_readings_survive_a_full_disk_and_others_are_read_again(encoder, kept, tmp_path: Path) -> None:
    examples = [replace(kept.example, id=str(number)) for number in range(8)]
    first, second = (Scripted(lambda text: "\\boxed{4711}") for _ in range(2))
    one, all_of_them = tmp_path / "one", tmp_path / "all"
    whole = evaluate(Agent(encoder, first), examples[:1], folder=one, progress=False)
    turns = len(whole[0].trace.turns)
    written = sum(len(line) for line in journal_of(encoder, one))
    with files_of_at_most(4 * written), pytest.raises(OSError, match="File too large"):
        evaluate(Agent(encoder, first), examples, concurrency=1, folder=all_of_them, progress=False)
    answered = len(first.requests) - turns
    results = evaluate(Agent(encoder, second), examples, folder=all_of_them, progress=False)
    assert [r.score.value for r in results] == [1.0] * 8
    saved_turns = 8 * turns - len(second.requests)
    assert 0 < answered - 1 <= saved_turns <= answered, "at most the turn that was being written is read again"


def test_a_sweep_on_a_full_disk_keeps_its_finished_points(workspace: Path, tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    cell = nbformat.v4.new_code_cell
    book.cells = [cell("x: int = 0", metadata={"tags": ["parameters"]}), cell("print('x' * 5_000_000 * x)")]
    nbformat.write(book, tmp_path / "one.ipynb")
    stage = SweepStage(name="one", notebook=str(tmp_path / "one.ipynb"), points=({"x": 0}, {"x": 1}))
    spec = SweepSpec(name="s", stage=(stage,), folder=str(tmp_path / "s"), tracking=str(workspace))
    with files_of_at_most(max(file.stat().st_size for file in workspace.iterdir()) + 500_000):
        frame = run_sweep(spec).frame
    assert frame["status"].tolist() == ["FINISHED", "FAILED"]
    assert "File too large" in frame["error"].iloc[1]
    assert run_sweep(spec, retry=True).ok
    assert len(load_runs(Experiment.open(workspace), "params.x = '0'")) == 1
