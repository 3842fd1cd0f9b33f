"""A tracking server instead of a file: the same calls, the same rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from metric_history import history
from ports import free_port

from memagent_lib.tracking import Experiment, load_results, load_runs, log_readings


@pytest.fixture(scope="module")
def server(made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server on loopback; it is stopped with all its workers."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(made_store.read_bytes())
    port = free_port()
    store = f"--backend-store-uri sqlite:///{folder}/mlflow.db --artifacts-destination {folder}/artifacts"
    where = f"--host 127.0.0.1 --port {port} --workers 1"
    command = [sys.executable, "-m", "mlflow", "server", *where.split(), *store.split()]
    # Jobs would take eight processes, and leave a folder in /dev/shm after every run of this file.
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environ = os.environ | quiet
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environ, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_run_with_all_that_it_keeps_comes_back_from_a_server(
    server: str, tmp_path: Path, kept, lost, long_reading
) -> None:
    (tmp_path / "data.parquet").write_bytes(b"rows")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"weights")
    with Experiment.open(server).run("one", {"budget": {"chunk_tokens": 128}}) as run:
        run.data(tmp_path / "data.parquet")
        run.model(tmp_path / "policy", "policy", 3)
        run.metrics({"reward": 0.5}, 3)
        run.table(pd.DataFrame({"x": [1, 2]}), "tables/x.parquet")
        log_readings(run, [kept, lost, long_reading(723, 100, 600, cut=300)], policy="p")
    row = load_runs(run.experiment).iloc[0]
    assert (row["status"], row["params.budget.chunk_tokens"]) == ("FINISHED", "128")
    assert row["data.data.parquet"]
    assert history(run, "reward") == [(3, 0.5)]
    assert pd.read_parquet(run.fetch("tables/x.parquet", tmp_path))["x"].tolist() == [1, 2]
    assert {r.example.id: r.trace for r in load_results(run)}["lost"] == lost.trace
    assert row["tags.model"] == str(tmp_path / "policy")
    where = {"filter_string": "feedback.score < 1 AND tags.policy = 'p'"}
    found = run.experiment.client.search_traces([run.experiment.experiment_id], **where)
    spans = {trace.info.tags["example"]: trace.data.spans for trace in found}
    assert len(spans["long"]) == 1 + 724 - row["metrics.mlflow_turns_left_out"] <= 1 + 48
    assert sorted(span.name for span in spans["lost"])[:3] == ["answer", "overwrite", "read 1"]
