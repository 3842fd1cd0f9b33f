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

import nbformat
import pandas as pd
import pytest
from ports import free_port

from memagent_lib.sweeps import SweepSpec, SweepStage, run_sweep
from memagent_lib.tracking import Experiment, load_curve, load_results, load_runs, log_readings, search_traces


@pytest.fixture(scope="module")
def server(made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server on loopback; it is stopped with all its workers."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(made_store.read_bytes())
    port = free_port()
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        *store,
    ]
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
        made = run.model(tmp_path / "policy", "policy", 3)
        run.metrics({"reward": 0.5}, 3, made)
        run.table(pd.DataFrame({"x": [1, 2]}), "tables/x.parquet")
        log_readings(run, [kept, lost, long_reading(723, 100, 600, cut=300)], policy="p")
    row = load_runs(run.experiment).iloc[0]
    assert (row["status"], row["params.budget.chunk_tokens"], row["metrics.mlflow_turns_left_out"]) == (
        "FINISHED",
        "128",
        724 - 48,
    )
    assert row["data.data.parquet"]
    assert load_curve(run, ["reward"])[["step", "value"]].to_numpy().tolist() == [[3, 0.5]]
    assert pd.read_parquet(run.fetch("tables/x.parquet", tmp_path))["x"].tolist() == [1, 2]
    assert {r.example.id: r.trace for r in load_results(run)}["lost"] == lost.trace
    assert run.experiment.client.get_logged_model(made).tags["folder"] == str(tmp_path / "policy")
    assert run.uses(tmp_path / "policy") == made
    found = search_traces(run.experiment, "feedback.score < 1 AND tags.policy = 'p'", run)
    assert found.set_index("example")["turns_left_out"].to_dict() == {"lost": 0, "long": 724 - 48}
    spans = run.experiment.client.get_trace(found.set_index("example").loc["lost", "trace_id"]).data.spans
    assert sorted(span.name for span in spans) == ["answer", "overwrite", "read 1", "read 2", "read 3", "read 4"]


def test_a_sweep_logs_to_a_server_as_to_a_file(server: str, tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    cell = nbformat.v4.new_code_cell
    parameters = 'x: int = 0\ntracking: str = "runs"\nrun_id: str = ""'
    log = "from memagent_lib.tracking import Experiment\n"
    log += "Experiment.open(tracking).join(run_id).metrics({'tenfold': 10 * x})"
    book.cells = [cell(parameters, metadata={"tags": ["parameters"]}), cell(log)]
    nbformat.write(book, tmp_path / "one.ipynb")
    stage = SweepStage(name="one", notebook=str(tmp_path / "one.ipynb"), grid={"x": [1, 2]})
    result = run_sweep(SweepSpec(name="s", stage=(stage,), folder=str(tmp_path / "s"), tracking=server, workers=2))
    assert result.ok, result.frame["error"].tolist()
    ledger = Experiment.open(server)
    children = load_runs(ledger, f"tags.sweep_id = '{result.run_id}'")
    assert sorted(children["metrics.tenfold"]) == [10, 20]
    assert set(children["status"]) == {"FINISHED"}
    executed = ledger.join(children.set_index("params.x").loc["2", "run_id"]).fetch("one--x=2.ipynb", tmp_path)
    assert nbformat.read(executed, 4).cells[-1].execution_count == 3
