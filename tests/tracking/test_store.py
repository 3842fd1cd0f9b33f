"""Stores that are busy, moved, away or no store at all: an error in one line, and nothing logged is lost."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from metric_history import history
from ports import free_port

from memagent_lib.tracking import Experiment, TrackingError, load_runs
from memagent_lib.tracking.store import prepare, store_uri


def test_a_store_that_is_locked_for_a_while_loses_nothing(workspace: Path) -> None:
    run = Experiment.open(workspace).start("one")
    holder = sqlite3.connect(workspace / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    threading.Timer(1.0, holder.close).start()
    run.metrics({"loss": 3.0}, step=1)
    assert history(run, "loss") == [(1, 3.0)]


def test_runs_that_log_the_same_data_and_tags_at_once_all_have_them(workspace: Path) -> None:
    """MLflow looks for a dataset or tag and then inserts it: another run may be faster in between."""
    files = [workspace / f"{number}.parquet" for number in range(6)]
    for number, file in enumerate(files):
        file.write_bytes(b"rows" * (number + 1))
    experiment = Experiment.open(workspace)
    runs, together = [experiment.start(name) for name in "abcd"], threading.Barrier(4)

    def log(run) -> int:
        for file in files:
            together.wait(60)
            run.data(file)
            together.wait(60)
            runs[0].tags({f"ended {file.stem}": run.id})
        return len(experiment.client.get_run(run.id).inputs.dataset_inputs)

    with ThreadPoolExecutor(len(runs)) as pool:
        assert list(pool.map(log, runs)) == [len(files)] * len(runs)


def test_a_store_half_made_is_made_again_by_one_of_several(tmp_path: Path) -> None:
    def opening() -> subprocess.Popen:
        code = f"from memagent_lib.tracking import Experiment; Experiment.open({str(tmp_path / 'runs')!r}).start('one')"
        return subprocess.Popen([sys.executable, "-c", code])

    with opening() as killed:
        while not any(part.stat().st_size for part in tmp_path.glob("runs/.mlflow.db.part")):
            assert killed.poll() is None
        killed.kill()
    assert not (tmp_path / "runs/mlflow.db").exists()
    several = [opening() for _ in range(2)]
    assert [process.wait() for process in several] == [0, 0]
    assert len(load_runs(Experiment.open(tmp_path / "runs"))) == 2
    with closing(sqlite3.connect(tmp_path / "runs/mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_in_use_can_be_opened(workspace: Path) -> None:
    with closing(sqlite3.connect(workspace / "mlflow.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")  # SQLite does not wait to change it in a store that is written
        other.execute("BEGIN IMMEDIATE")
        prepare(store_uri(workspace))


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("{folder}/what?", "what?"),
        ("{folder}/two%20words", "two%20words"),
        ("{folder}/other", "schema"),
        ("http://ann:secret@host:5000", "MLFLOW_TRACKING_USERNAME"),
        ("http://127.0.0.1:{port}", "127.0.0.1"),
    ],
)
def test_a_store_that_cannot_be_used_is_an_error_of_one_line(where: str, named: str, workspace: Path) -> None:
    (workspace / "other").mkdir()
    shutil.copy(workspace / "mlflow.db", workspace / "other")
    with sqlite3.connect(workspace / "other" / "mlflow.db") as database:  # written by another version of MLflow
        database.execute("UPDATE alembic_version SET version_num = 'ffff'")
    with pytest.raises(TrackingError, match=named.replace("?", r"\?")) as found:
        Experiment.open(where.format(folder=workspace, port=free_port()))
    assert len(str(found.value).splitlines()) == 1 and "secret" not in str(found.value)


def test_a_store_that_is_only_read_is_not_made(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="'other'"):
        Experiment.open(workspace, "other", create=False)
    with pytest.raises(TrackingError, match="empty"):
        Experiment.open(tmp_path / "empty", create=False)
    assert not (tmp_path / "empty").exists()


def test_a_moved_or_copied_store_is_read_but_not_written(workspace: Path, tmp_path: Path) -> None:
    with Experiment.open(workspace).run("one"):
        pass
    (tmp_path / "link").symlink_to(workspace)
    Experiment.open(tmp_path / "link")
    shorter = workspace.with_name(workspace.name[:-1])  # the beginning of the old path
    for place in (shutil.copytree(workspace, tmp_path / "copy"), workspace.rename(shorter)):
        with pytest.raises(TrackingError, match="was moved or copied"):
            Experiment.open(place)
        assert len(load_runs(Experiment.open(place, create=False))) == 1
