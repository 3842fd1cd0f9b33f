from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
from hostile import serving
from waiting import wait_for

from memagent_lib import open_agent
from memagent_lib.backends import Sampling, shape_of
from memagent_lib.diagnostics import Fate
from memagent_lib.evaluation import turns_to_frame
from memagent_lib.paths import absolute, root
from memagent_lib.prompts import Template
from memagent_lib.provenance import code_hash
from memagent_lib.tracking import (
    Experiment,
    MissingArtifact,
    RunStatus,
    TrackingError,
    agent_openers,
    choose,
    load_curve,
    load_readings,
    load_results,
    load_runs,
    log_agent,
    log_readings,
    log_results,
    policy_name,
    search_traces,
)

PROCESSES, RUNS_EACH, STEPS = 4, 5, 12


def write_runs(ledger: Experiment, worker: int, barrier) -> None:
    barrier.wait()
    for number in range(RUNS_EACH):
        with ledger.run(f"w{worker}-{number}", {"worker": worker, "number": number}, tags={"sweep": "s"}) as run:
            for step in range(STEPS):
                run.metrics({"loss": worker * 1000 + number * 100 + step, "twice": 2 * step}, step=step)
            run.text(f"{worker} {number}", "note.txt")


def test_four_processes_that_write_at_once_lose_nothing(workspace: Path) -> None:
    ledger, context = Experiment.open(workspace), get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    workers = [context.Process(target=write_runs, args=(ledger, w, barrier)) for w in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0] * PROCESSES

    runs = load_runs(ledger)
    found = sorted(zip(runs["params.worker"].astype(int), runs["params.number"].astype(int), strict=True))
    assert found == [(w, n) for w in range(PROCESSES) for n in range(RUNS_EACH)]
    assert set(runs["status"]) == {"FINISHED"}
    for _, row in runs.iterrows():
        run, base = ledger.join(row["run_id"]), 1000 * int(row["params.worker"]) + 100 * int(row["params.number"])
        curve = load_curve(run)
        assert curve.query("metric == 'loss'")["value"].tolist() == [base + s for s in range(STEPS)]
        assert curve.query("metric == 'twice'")["step"].tolist() == list(range(STEPS))
        assert run.fetch("note.txt", workspace).read_text() == f"{row['params.worker']} {row['params.number']}"


def test_the_store_writes_nothing_outside_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with Experiment.open(tmp_path / "runs").run("one", {"a": 1}) as run:
        run.text("hello", "note.txt")
        run.table(pd.DataFrame({"x": [1, 2]}), "tables/x.parquet")
    assert list(elsewhere.iterdir()) == []
    assert sqlite3.connect(tmp_path / "runs" / "mlflow.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert pd.read_parquet(run.fetch("tables/x.parquet", tmp_path))["x"].tolist() == [1, 2]


def test_opening_a_ledger_twice_gives_the_same_experiment(workspace: Path) -> None:
    assert Experiment.open(workspace, "one") == Experiment.open(workspace, "one") != Experiment.open(workspace, "two")


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
    if failure is None:
        with ledger.run("one"):
            pass
    else:
        with pytest.raises(type(failure)), ledger.run("one"):
            raise failure
    row = load_runs(ledger).iloc[0]
    assert row["status"] == status
    assert pd.notna(row["seconds"])
    if status == "FAILED":
        assert row["tags.error"].startswith(type(failure).__name__)


def test_a_terminated_process_leaves_a_killed_run(workspace: Path) -> None:
    code = """
        import sys, time
        from memagent_lib.tracking import Experiment
        with Experiment.open(sys.argv[1]).run("long") as run:
            print(run.id, flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(workspace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        run_id = process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    assert Experiment.open(workspace).join(run_id).status is RunStatus.KILLED


def test_a_joined_run_is_left_to_whoever_started_it(workspace: Path) -> None:
    ledger = Experiment.open(workspace)
    parent = ledger.start("parent", {"a": 1})
    with pytest.raises(ValueError, match="no"), ledger.run("ignored", {"b": 2}, run_id=parent.id):
        raise ValueError("no")
    assert parent.status is RunStatus.RUNNING
    parent.end(RunStatus.FAILED)
    row = load_runs(ledger).iloc[0]
    assert (row["params.a"], row["params.b"], row["status"]) == ("1", "2", "FAILED")


def test_a_parameter_is_not_logged_twice_under_two_names(workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    point = experiment.start("point", {"chunk_tokens": 128, "n": [4]})
    with experiment.run("ignored", {"budget": {"chunk_tokens": 128, "memory_tokens": 32}, "n": [4]}, run_id=point.id):
        pass
    params = load_runs(experiment).iloc[0].filter(like="params.").to_dict()
    assert params == {"params.chunk_tokens": "128", "params.n": "[4]", "params.budget.memory_tokens": "32"}


def test_names_that_mlflow_refuses_are_logged_with_underscores(workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    with experiment.run("one", {"policies, all": 2}) as run:
        run.tags({"evaluated.trained, seed 1": "a run"})
        run.metrics({"score@1": 0.5})
    with experiment.run("ignored", {"policies, all": 3}, run_id=run.id):
        pass  # the run has one of this name, which cannot be changed
    row = load_runs(experiment).iloc[0]
    assert (row["params.policies_ all"], row["tags.evaluated.trained_ seed 1"], row["metrics.score_1"]) == (
        "2",
        "a run",
        0.5,
    )


def test_readings_logged_twice_are_one_trace_that_rows_name(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [kept, lost], policy="p")
    log_results(run, [kept, lost], policy="p")
    found = search_traces(run.experiment)
    assert sorted(found["trace_id"]) == sorted(rows["trace_id"])
    assert found.set_index("trace_id").loc[rows["trace_id"], "example"].tolist() == ["kept", "lost"]


def test_a_document_in_two_data_files_is_one_score_in_mlflow(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [kept, kept, lost], policy="p")
    assert len(rows) == 3
    logged = load_runs(run.experiment).iloc[0]
    assert logged[["metrics.score", "metrics.scored", "metrics.overwrite/accuracy"]].tolist() == [0.5, 2, 0.5]


def test_results_are_a_csv_too_which_mlflow_previews(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [kept, lost], policy="p")
    path = run.experiment.client.download_artifacts(run.id, "results.csv", str(workspace))
    assert pd.read_csv(path)["score"].tolist() == rows["score"].tolist()


def test_rows_have_flops_where_the_models_shape_is_known(workspace: Path, kept) -> None:
    run, model = Experiment.open(workspace).start("one"), "experiments/pocket/warm_start"
    assert log_results(run, [kept], model)["flops"].tolist() == [shape_of(model).reading_flops(kept.trace)]
    assert log_results(run, [kept])["flops"].isna().all()


def test_the_hub_is_not_queried_for_a_servers_model_name(workspace: Path, kept, monkeypatch) -> None:
    queries = []
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", lambda *a, **k: queries.append(a))
    rows = log_results(Experiment.open(workspace).start("one"), [kept], "small")
    assert rows["flops"].isna().all() and not queries


def test_a_run_that_does_not_exist_is_a_clear_error(workspace: Path) -> None:
    with pytest.raises(TrackingError, match="no run 'abc' in sqlite"):
        Experiment.open(workspace).join("abc")


def test_a_policys_name_goes_before_the_beginning_of_an_id(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    runs = [ledger.start("evaluate") for _ in range(3)]
    short = runs[2].id[:2]
    for run, policy in zip(runs, (short, "after", "before"), strict=True):
        log_results(run, [lost], policy=policy)
        run.end()
    rows = choose(ledger, left=short, right="after")
    assert rows["run_id"].tolist() == [runs[0].id, runs[1].id]


def test_a_deleted_run_is_read_but_not_logged_to(workspace: Path, kept) -> None:
    experiment = Experiment.open(workspace)
    run = experiment.start("one")
    rows = log_results(run, [kept], policy="p")
    experiment.client.delete_run(run.id)
    with pytest.raises(TrackingError, match=f"the run '{run.id}' in sqlite.* was deleted; restore it in MLflow"):
        experiment.join(run.id)
    assert load_readings(experiment, rows)["p"][0].example == kept.example


def test_a_reader_of_no_run_is_an_error_with_those_there_are(workspace: Path, kept) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [kept], policy="p")
    assert load_readings(run.experiment, rows, "overwrite", 4)["p"][0].example == kept.example
    with pytest.raises(TrackingError) as failure:
        load_readings(run.experiment, rows, "gated", 4)
    says = "no readings of 'p' at 4 chunks with the reader 'gated'; there are results at 4 chunks with overwrite"
    assert failure.value._render_traceback_() == [f"TrackingError: {says}"]
    rows["chunks"] = rows["chunks"].astype(float)  # as beside documents of no set length
    with pytest.raises(
        TrackingError, match="no readings of 'p' with the reader 'gated'; there are results at 4 chunks"
    ):
        load_readings(run.experiment, rows, "gated")


def test_a_missing_table_is_not_called_damaged(workspace: Path, kept) -> None:
    run = Experiment.open(workspace).start("one")
    with pytest.raises(MissingArtifact, match=rf"^run {run.id} has no artifact 'results.parquet' in file:"):
        run.read_table("results.parquet")
    log_results(run, [kept], policy="p")
    file = run.fetch("results.parquet", workspace)
    whole = file.read_bytes()
    for damaged in (whole[:-100], whole[:4] + b"\xff" * 40 + whole[44:]):
        file.write_bytes(damaged)
        with pytest.raises(TrackingError, match=rf"^run {run.id}: its results.parquet is damaged \("):
            run.read_table("results.parquet")


def test_readings_that_have_all_failed_are_no_missing_ones(workspace: Path, kept) -> None:
    run = Experiment.open(workspace).start("one")
    rows = log_results(run, [replace(kept, trace=None, score=None, error="status 500")], policy="p")
    says = r"all readings of 'p' that were selected have failed \(1\), the first with: status 500"
    with pytest.raises(TrackingError, match=says):
        load_readings(run.experiment, rows, "overwrite", 4)


def test_a_run_without_traces_says_so(workspace: Path) -> None:
    run = Experiment.open(workspace).start("bare")
    with pytest.raises(TrackingError, match=f"run {run.id} has no results"):
        load_results(run)


def test_parameters_are_logged_flat_with_the_code_version(workspace: Path) -> None:
    run = Experiment.open(workspace).start(
        "one", {"budget": {"chunk_tokens": 128}, "readers": ["a", "b"], "long": "x" * 7000}, parent="p"
    )
    row = load_runs(run.experiment).iloc[0]
    assert (row["params.budget.chunk_tokens"], row["params.readers"], row["parent"]) == ("128", '["a", "b"]', "p")
    assert row["params.long"] == "(7,000 characters, see parameters.json)"
    assert json.loads(run.fetch("parameters.json", workspace).read_text())["long"] == "x" * 7000
    assert row["tags.code_hash"] == code_hash()


def test_traces_come_back_as_they_were(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    log_readings(run, [kept, lost])
    back = {r.example.id: r for r in load_results(run)}
    assert back == {"kept": kept, "lost": lost}
    turns = turns_to_frame(load_results(run)).query("kind == 'read'")
    for name, left in (("lost", Fate.LOST), ("kept", Fate.IN_MEMORY)):
        assert turns.query(f"example == '{name}'")["fate"].tolist() == [Fate.AHEAD, Fate.IN_MEMORY, left, left]
    assert turns.query("example == 'kept'")["evidence"].tolist() == [False, True, False, False]


def test_a_bounded_file_has_wrong_ones_first_and_counts_the_rest(workspace: Path, kept, lost) -> None:
    run = Experiment.open(workspace).start("one")
    log_readings(run, [kept, lost], limit_bytes=3000)
    assert [r.example.id for r in load_results(run)] == ["lost"]
    assert load_runs(run.experiment).iloc[0]["metrics.results_left_out"] == 1


def test_the_root_is_found_from_any_folder_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert root() == tmp_path.resolve()
    assert absolute("runs/x") == tmp_path.resolve() / "runs/x"
    assert absolute("/x/y") == Path("/x/y")
    monkeypatch.chdir(os.sep)
    assert root() == Path(os.sep)


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
        opened.read("The code is 4711.", "q")
        opened.close()
        assert "messages" in server.bodies[-1]  # of the chat API
        with pytest.raises(TrackingError, match=r"small has other weights now \(small\) than .* read with \(0123\)"):
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
    (tmp_path / "other").mkdir()
    (tmp_path / "other/train_4.parquet").write_bytes(b"more")
    run.data(tmp_path / "other/train_4.parquet", use="training")
    hashes = [hashlib.sha256(content).hexdigest()[:16] for content in (b"rows", b"more")]
    assert sorted(load_runs(run.experiment).iloc[0]["data.train_4.parquet"].split(", ")) == sorted(hashes)


def policy(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_checkpoint_is_an_mlflow_model_found_by_its_weights(workspace: Path, tmp_path: Path) -> None:
    ledger = Experiment.open(workspace)
    trained, moved = policy(tmp_path / "trained", b"w1"), policy(tmp_path / "moved", b"w1")
    training = ledger.start("train")
    made = training.model(trained, "demo 0.5", step=24)
    training.metrics({"rollout/acc": 0.75}, 24, made)
    evaluation = ledger.start("evaluate")
    assert evaluation.uses(moved) == made
    evaluation.metrics({"overwrite/accuracy": 0.5}, 16, made)

    (model,) = ledger.client.search_logged_models([ledger.experiment_id])
    assert (model.name, str(model.status), model.source_run_id) == ("demo 0-5", "READY", training.id)
    assert (model.tags["step"], model.tags["files"], model.tags["folder"]) == ("24", "copied", str(trained))
    assert {(m.run_id, m.key, m.step, m.value) for m in model.metrics} == {
        (training.id, "rollout/acc", 24, 0.75),
        (evaluation.id, "overwrite/accuracy", 16, 0.5),
    }
    assert (Path(model.artifact_location.removeprefix("file://")) / "model.safetensors").read_bytes() == b"w1"
    assert [out.model_id for out in ledger.client.get_run(training.id).outputs.model_outputs] == [made]
    assert [used.model_id for used in ledger.client.get_run(evaluation.id).inputs.model_inputs] == [made]
    assert evaluation.uses("Qwen/Qwen2.5-7B") != made


def test_a_large_model_is_not_copied_and_says_so(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memagent_lib.tracking.runs.COPIED_WHOLE_BYTES", 3)
    ledger = Experiment.open(workspace)
    ledger.start("train").model(policy(tmp_path / "big", b"w1w2"), "big")
    (model,) = ledger.client.search_logged_models([ledger.experiment_id])
    assert (model.tags["files"], model.tags["folder"]) == ("in the folder only", str(tmp_path / "big"))
    assert not Path(model.artifact_location.removeprefix("file://")).exists()


def test_the_machine_is_measured_while_a_run_works(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    publish, published = SystemMetricsMonitor.publish_metrics, []
    monkeypatch.setattr("memagent_lib.tracking.runs.SAMPLE_S", 0.1)
    monkeypatch.setattr(SystemMetricsMonitor, "publish_metrics", lambda *measured: published.append(publish(*measured)))
    with Experiment.open(workspace).run("one") as run:
        wait_for(lambda: len(published) >= 3)
        assert load_curve(run).empty
        run.metrics({"score": 0.5})
        wait_for(lambda: len(run.experiment.client.get_run(run.id).data.metrics) > 1)
        names = run.experiment.client.get_run(run.id).data.metrics
    assert next(iter(names)) == "score"  # on which MLflow's comparison opens
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= names.keys()
    published.clear()
    with Experiment.open(workspace).run("short, with none of its own") as other:
        wait_for(lambda: published)
    assert "system/cpu_utilization_percentage" in set(load_curve(other)["metric"])
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}


def test_a_run_of_a_killed_process_is_ended_at_the_next_opening(workspace: Path) -> None:
    code = """
        import os, signal, sys
        from memagent_lib.tracking import Experiment
        with Experiment.open(sys.argv[1]).run("long") as run:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    mine = Experiment.open(workspace).start("mine")
    elsewhere = Experiment.open(workspace).start("elsewhere", tags={"owner": "another-host pid:[1] 4711 0"})
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(workspace)]).returncode == -signal.SIGKILL
    runs = load_runs(Experiment.open(workspace)).set_index("name")
    assert runs["status"].to_dict() == {"long": "KILLED", "mine": "RUNNING", "elsewhere": "RUNNING"}
    assert runs.loc["long", "tags.error"] == "its process was killed before it could say how it ended"
    assert (mine.status, elsewhere.status) == (RunStatus.RUNNING, RunStatus.RUNNING)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("experiments/pocket/trained/", "trained"),
        ("runs/demo/train/model", "demo/train"),
        ("/data/seed-1/train/model/", "seed-1/train"),
        ("runs/prose/rl/adapter", "prose/rl"),
        ("train/model", "train"),
        ("model", "model"),
    ],
)
def test_a_trained_policy_is_called_by_its_run(model, name):
    assert policy_name(model) == name
