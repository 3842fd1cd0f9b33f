"""Runs: what is logged comes back, statuses are true, and a killed process loses nothing that it had logged."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
from hostile import serving
from metric_history import history

from memagent_lib import open_agent
from memagent_lib.backends import Sampling
from memagent_lib.prompts import Template
from memagent_lib.tracking import (
    Experiment,
    MissingArtifact,
    RunStatus,
    TrackingError,
    agent_openers,
    load_readings,
    load_results,
    load_runs,
    log_agent,
    log_readings,
    log_results,
)

PROCESSES, RUNS_EACH, STEPS = 3, 3, 8


def write_runs(ledger: Experiment, worker: int, barrier) -> None:
    barrier.wait()
    for number in range(RUNS_EACH):
        with ledger.run(f"w{worker}-{number}", {"worker": worker, "number": number}, tags={"sweep": "s"}) as run:
            for step in range(STEPS):
                run.metrics({"loss": worker * 1000 + number * 100 + step, "twice": 2 * step}, step=step)
            run.text(f"{worker} {number}", "note.txt")


def test_processes_that_write_at_once_lose_nothing(workspace: Path) -> None:
    ledger, context = Experiment.open(workspace), get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    workers = [context.Process(target=write_runs, args=(ledger, w, barrier)) for w in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    runs = load_runs(ledger)
    found = sorted(zip(runs["params.worker"].astype(int), runs["params.number"].astype(int), strict=True))
    assert found == [(w, n) for w in range(PROCESSES) for n in range(RUNS_EACH)]
    assert set(runs["status"]) == {"FINISHED"}
    for _, row in runs.iterrows():
        run, base = ledger.join(row["run_id"]), 1000 * int(row["params.worker"]) + 100 * int(row["params.number"])
        assert history(run, "loss") == [(step, base + step) for step in range(STEPS)]
        assert run.fetch("note.txt", workspace).read_text() == f"{row['params.worker']} {row['params.number']}"


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (None, "FINISHED"),
        (ValueError("no"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(3), "FAILED"),
    ],
)
def test_a_run_ends_with_the_true_status(workspace: Path, failure: BaseException | None, status: str) -> None:
    ledger = Experiment.open(workspace)
    try:
        with ledger.run("one"):
            if failure:
                raise failure
    except type(failure):
        pass
    row = load_runs(ledger).iloc[0]
    assert row["status"] == status and pd.notna(row["seconds"])
    if status == "FAILED":
        assert row["tags.error"].startswith(type(failure).__name__)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_leaves_a_killed_run(workspace: Path, number: int) -> None:
    code = """
        import os, sys
        from memagent_lib.tracking import Experiment
        with Experiment.open(sys.argv[1]).run("long"):
            os.kill(os.getpid(), int(sys.argv[2]))
    """
    mine = Experiment.open(workspace).start("mine")
    elsewhere = Experiment.open(workspace).start("elsewhere", tags={"owner": "another-host pid:[1] 4711 0"})
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(workspace), str(int(number))])
    runs = load_runs(Experiment.open(workspace)).set_index("name")
    assert runs["status"].to_dict() == {"long": "KILLED", "mine": "RUNNING", "elsewhere": "RUNNING"}
    assert (mine.status, elsewhere.status) == (RunStatus.RUNNING, RunStatus.RUNNING)


def test_a_joined_run_is_left_to_whoever_started_it(workspace: Path) -> None:
    ledger = Experiment.open(workspace)
    parent = ledger.start("parent", {"a": 1, "n": [4]})
    params = {"a": 2, "budget": {"memory": 32}}
    with pytest.raises(ValueError, match="no"), ledger.run("ignored", params, run_id=parent.id):
        raise ValueError("no")
    assert parent.status is RunStatus.RUNNING
    parent.end(RunStatus.FAILED)
    row = load_runs(ledger).iloc[0]
    assert row.filter(like="params.").to_dict() == {
        "params.a": "1", "params.n": "[4]", "params.budget.memory": "32",
    }  # fmt: skip
    assert row["status"] == "FAILED"


def test_names_that_mlflow_refuses_are_logged_with_underscores(workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    with experiment.run("one", {"policies, all": 2}) as run:
        run.tags({"evaluated.trained, seed 1": "a run"})
        run.metrics({"score@1": 0.5})
    with experiment.run("ignored", {"policies, all": 3}, run_id=run.id):
        pass  # the run has one of this name, which cannot be changed
    row = load_runs(experiment).iloc[0]
    names = ["params.policies_ all", "tags.evaluated.trained_ seed 1", "metrics.score_1"]
    assert row[names].tolist() == ["2", "a run", 0.5]


def test_results_are_rows_metrics_and_one_trace_each(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [kept, lost], "experiments/pocket/warm_start", policy="p")
    log_results(run, [kept, lost], policy="p")
    found = run.experiment.client.search_traces([run.experiment.experiment_id])
    logged_twice = sorted(rows["trace_id"].unique())
    assert sorted(trace.info.trace_id for trace in found) == logged_twice, "they are one trace"
    logged = load_runs(run.experiment).iloc[0]
    assert logged[["metrics.score", "metrics.scored", "metrics.overwrite/accuracy"]].tolist() == [0.5, 2, 0.5]
    path = run.experiment.client.download_artifacts(run.id, "results.csv", str(workspace))
    assert len(pd.read_csv(path)) == 2


def test_a_deleted_run_is_read_but_not_logged_to(workspace: Path, kept) -> None:
    experiment = Experiment.open(workspace)
    run = experiment.start("one")
    rows = log_results(run, [kept], policy="p")
    experiment.client.delete_run(run.id)
    for run_id in (run.id, "abc"):
        with pytest.raises(TrackingError, match=run_id):
            experiment.join(run_id)
    assert load_readings(experiment, rows)["p"][0].example == kept.example


def test_readings_that_are_missing_are_an_error_with_the_reason(workspace: Path, kept) -> None:
    run = Experiment.open(workspace).start("one")
    with pytest.raises(MissingArtifact, match=f"{run.id} has no artifact 'results'"):
        load_results(run)
    failed = replace(kept, reader="blind", trace=None, score=None, error="status 500")
    rows = log_results(run, [kept, failed], policy="p")
    rows["chunks"] = rows["chunks"].astype(float)  # as beside documents of no set length
    assert load_readings(run.experiment, rows, "overwrite", 4)["p"][0].example == kept.example
    for reader in ("gated", "blind"):
        with pytest.raises(TrackingError, match=reader):
            load_readings(run.experiment, rows, reader, 4)


def test_readings_come_back_as_they_were(workspace: Path, kept, lost, caplog) -> None:
    run = Experiment.open(workspace).start("one")
    log_readings(run, [kept, lost])
    back = {r.example.id: r for r in load_results(run)}
    assert back == {"kept": kept, "lost": lost}
    assert not caplog.messages
    log_readings(run, [kept, lost], limit_bytes=3000)
    assert "of 2 readings" in caplog.text
    assert load_runs(run.experiment).iloc[0]["metrics.results_left_out"] == 1


def test_a_run_opens_its_agent_as_it_read(workspace: Path, tokenizer_folder: str, tmp_path: Path) -> None:
    tokenizer = shutil.copytree(tokenizer_folder, tmp_path / "switch")
    frame = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"
    (tokenizer / "chat_template.jinja").write_text(frame + "{% if enable_thinking %}?{% endif %}")
    how = {"tokenizer": str(tokenizer), "api": "chat"}
    template = replace(Template.load("short"), name="mine", empty_memory="none so far")
    options = {"chat_template": {"enable_thinking": True}, "on_bad_memory": "keep", "extra": {"min_p": 0.1}}
    options |= {"template": template, "budget": {"chunk_tokens": 48, "memory_tokens": 24, "answer_tokens": 12}}
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=3)
    with serving() as server:
        options |= {"base_url": server.url, "sampling": sampling, "reader": "gated"}
        agent = open_agent("small", "openai", **how, **options)
        with Experiment.open(workspace).run("evaluate") as run:
            log_agent(run, agent, "small", "openai", **how)
        with Experiment.open(workspace).run("older weights") as other:
            log_agent(other, replace(agent, weights="0123"), "small", "openai", **how)
        openers = agent_openers(run.experiment, {"p": run.id, "q": other.id})
        opened = openers["p"]()
        assert opened.identity == agent.identity and opened.reader == agent.reader
        opened.close()
        with pytest.raises(TrackingError, match=r"small has other weights now"):
            openers["q"]()


def test_a_run_keeps_its_environment_and_which_data_it_saw(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "train_4.parquet").write_bytes(b"rows")
    run = Experiment.open(workspace).start("one")
    run.data(tmp_path / "train_4.parquet", use="training")
    found = json.loads(run.fetch("environment.json", workspace).read_text())
    assert found["packages"]["mlflow"] == version("mlflow") and found["python"] == platform.python_version()
    assert load_runs(run.experiment).iloc[0]["data.train_4.parquet"] == hashlib.sha256(b"rows").hexdigest()[:16]
    (seen,) = run.experiment.client.get_run(run.id).inputs.dataset_inputs
    assert (seen.tags[0].key, seen.tags[0].value) == ("mlflow.data.context", "training")
