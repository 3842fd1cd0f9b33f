"""The training panel: what it reads from a run's files, and what it displays."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib import plots
from memagent_lib.evaluation import Result
from memagent_lib.panel import attach, begin, curve, log_training, report, watch
from memagent_lib.panel.progress import Follower, rollout
from memagent_lib.panel.training_panel import TrainingPanel
from memagent_lib.rl import (
    Recipe,
    RunError,
    RunFolder,
    TrainingRun,
    TrainingState,
    TrainingStatus,
    resolved,
    save_rollout,
)
from memagent_lib.settings import SettingsError
from memagent_lib.tracking import Experiment


def add_step(folder: RunFolder, step: int, **metrics: float) -> None:
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "time": 1000.0 + step, "metrics": metrics}) + "\n")


@pytest.fixture
def run(tmp_path: Path, kept: Result, lost: Result) -> RunFolder:
    """The files of a running run: three steps, a right and two wrong readings; but no process has its lock."""
    folder = RunFolder(tmp_path / "run")
    folder.traces.mkdir(parents=True)
    for step, reward in ((1, 0.25), (2, 0.5), (3, 0.75)):
        add_step(
            folder,
            step,
            **{"critic/score/mean": reward, "perf/time_per_step": 4.0 * step, "actor/grad_norm": float("nan")},
        )
    for step, result in ((1, lost), (2, lost), (3, kept)):
        result = replace(result, example=replace(result.example, id=f"e{step}"))
        save_rollout(folder.traces, result, step)
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=3, steps=10, reward=0.75))
    return folder


@pytest.fixture
def running(run: RunFolder):
    handle = run.lock()
    yield run
    os.close(handle)


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_steps_that_a_resumed_run_does_again_are_forgotten(running: RunFolder) -> None:
    follower = Follower(running)
    follower.look()
    running.forget_after(1)
    add_step(running, 2, **{"critic/score/mean": 0.9})
    assert follower.look().points["critic/score/mean"] == [(1, 0.25), (2, 0.9)]


def test_rollouts_are_newest_step_first_and_wrong_before_right(running: RunFolder, lost: Result) -> None:
    save_rollout(running.traces, replace(lost, example=replace(lost.example, id="e4")), 3)
    rollouts = Follower(running).look().rollouts
    assert [(r.example.metadata["step"], r.example.id, r.correct) for r in rollouts] == [
        (3, "e4", False),
        (3, "e3", True),
        (2, "e2", False),
        (1, "e1", False),
    ]


def test_a_rollout_has_what_it_was_trained_with(training: RunFolder) -> None:
    pages = {r.example.metadata["rollout"]: rollout(r) for r in Follower(training).look().rollouts}
    wrong = pages["s000003p00000_0"]
    assert wrong.count("-0.500 on") == 4 and "masked" in wrong and "0.25 1.25" in wrong
    assert "left out" in pages["s000003p00001_0"]
    (training.credit / "step_000003.json").unlink()
    assert not any("advantage" in rollout(result) for result in Follower(training).look().rollouts)


def test_the_time_left_comes_from_the_run_s_own_steps(running: RunFolder) -> None:
    assert running.due(10) == (1004, 1010) and running.due(3) == (0, 0)
    now = time.time()
    with running.metrics.open("a") as file:  # the longest step is no measure: a pause may be in it
        file.write(json.dumps({"step": 4, "time": now, "metrics": {}}) + "\n")
    assert running.due(10) == (now + 1, now + 6)
    running.waits_for.write_text("Ray")
    assert running.status().progress == "step 3 of 10"
    running.write_status(TrainingStatus(state=TrainingState.STARTING, steps=10))
    assert "starting: waiting for Ray" in report(running.path).title
    running.write_status(replace(running.status(), state=TrainingState.RUNNING, step=1))  # as the supervisor does
    assert running.status().progress == "step 1 of 10"


def test_a_run_that_was_requested_to_stop_is_stopping(running: RunFolder) -> None:
    running.stop_request.touch()
    assert Follower(running).look().stopping


def test_a_failed_run_has_its_error_source_and_log_as_text(run: RunFolder) -> None:
    frames = '  File "/x/train.py", line 7, in fit\n  File "/x/loss.py", line 31, in loss\n'
    run.log.write_text(f"\x1b[36mTraceback:\x1b[0m\n{frames}ValueError: <b>\n")
    run.write_status(
        TrainingStatus(state=TrainingState.FAILED, step=3, steps=10, error="ValueError: <script>alert(1)</script>")
    )
    page = report(run.path)._repr_html_()
    assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "/x/loss.py&#34;, line 31, in loss" in page and "\x1b" not in page
    assert "<script" not in page


def test_markup_in_documents_and_memories_is_text(running: RunFolder) -> None:
    page = report(running.path)._repr_html_()
    assert "nothing &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page and "<b>bold</b>" not in page


def test_the_live_panel_follows_the_files_and_the_selection(running: RunFolder, lost: Result) -> None:
    panel = TrainingPanel(running)
    assert "step 3 of 10" in panel.head.value
    assert (panel.stop.disabled, panel.resume.disabled) == (False, True)
    panel.list.index = 0
    assert "4711" in panel.detail.value
    curves = panel.curves.value
    save_rollout(running.traces, replace(lost, example=replace(lost.example, id="e4")), 4)
    add_step(running, 4, **{"critic/score/mean": 1.0})
    running.write_status(TrainingStatus(state=TrainingState.FINISHED, step=4, steps=4))
    eventually(lambda: "finished" in panel.head.value and len(panel.list.options) == 4)
    eventually(lambda: panel.curves.value != curves)
    eventually(lambda: panel.list.options[panel.list.index].startswith("✓ step 3"))
    eventually(lambda: (panel.stop.disabled, panel.resume.disabled) == (True, True))
    running.forget_after(0)  # resumed from no checkpoint
    eventually(lambda: panel.list.options == ())
    save_rollout(running.traces, lost, 1)
    eventually(lambda: len(panel.list.options) == 1)
    panel.close()


def test_a_failure_to_resume_is_displayed_in_the_panel(run: RunFolder) -> None:
    run.config.write_text(json.dumps({"config": {}}))
    panel = TrainingPanel(run)
    assert not panel.resume.disabled
    panel.resume.click()
    eventually(lambda: "resuming failed: the recipe needs" in panel.message.value)
    eventually(lambda: not panel.resume.disabled)
    panel.close()


def recipe(steps: int = 10, **tables: dict) -> Recipe:
    data = {"train": "a.parquet", "eval": "b.parquet"}
    verl = {"trainer.total_training_steps": steps}
    return Recipe.from_tables({"model": {"path": "policy"}, "data": data, "reading": {}, "verl": verl} | tables)


def record(run: RunFolder, config: Recipe) -> None:
    """Leave the recipe as that with which the run was started."""
    run.write_recipe(resolved(config, run), "cpu")


def test_only_the_tracking_store_may_differ_to_attach(running: RunFolder) -> None:
    record(running, recipe())
    elsewhere = recipe(tracking={"uri": "sqlite:///elsewhere.db", "experiment": "other"})
    assert begin(elsewhere, running.path).folder.path == running.path
    with pytest.raises(RunError, match="attach to it"):
        begin(recipe(11), running.path)


def test_a_finished_run_is_attached_to_only_with_its_inputs(run: RunFolder, tmp_path: Path) -> None:
    """An earlier stage of a sweep may write other data, or train another model, in the same place."""
    train, test, other = files = [
        tmp_path / name for name in ("train.parquet", "test.parquet", "other/model.safetensors")
    ]
    other.parent.mkdir()
    for file in files:
        file.write_bytes(b"one")
    averaged = {"path": "policy", "average_with": str(other.parent)}
    config = recipe(3, model=averaged, data={"train": str(train), "eval": str(test)})
    run.write_recipe(resolved(config, run), "cpu")
    run.write_status(TrainingStatus(state=TrainingState.FINISHED, step=3, steps=3))
    test.write_bytes(b"two")  # no step of the training depends on it
    assert begin(config, run.path).status().state is TrainingState.FINISHED
    for file, name in {train: train, other: other.parent}.items():
        file.write_bytes(b"two")
        with pytest.raises(RunError, match=f"{name} is not what it was"):
            begin(config, run.path)
        file.write_bytes(b"one")
    train.unlink()
    shutil.rmtree(other.parent)
    assert begin(config, run.path).status().state is TrainingState.FINISHED, "what is gone is not compared"


def test_a_run_that_is_stopping_is_waited_for_and_resumed(running: RunFolder) -> None:
    record(running, recipe())
    running.stop_request.touch()
    ending = threading.Timer(1.0, running.write_status, [TrainingStatus(state=TrainingState.STOPPED, step=3, steps=10)])
    ending.start()
    with pytest.raises(SettingsError, match="no examples at"):  # the first error of a resumed run
        begin(recipe(), running.path)
    assert running.status().state is TrainingState.STOPPED
    ending.join()


def test_a_run_that_a_person_stopped_is_not_trained_on(run: RunFolder, capsys) -> None:
    record(run, recipe())
    run.write_status(TrainingStatus(state=TrainingState.STOPPED, step=3, steps=10))
    run.stop_request.write_text("until resumed\n")
    assert begin(recipe(), run.path).status().state is TrainingState.STOPPED
    assert f"`memagent resume {run.path}`" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="no examples at"):  # the first error of a resumed run
        attach(run.path).resume()


def test_curves_go_to_the_trainings_and_the_notebooks_run(running: RunFolder, workspace: Path, tmp_path: Path) -> None:
    experiment = Experiment.open(workspace)
    own, point = experiment.start("training"), experiment.start("point")
    running.write_status(replace(running.status(), mlflow_run=own.id))
    training = attach(running.path)
    log_training(experiment, point.id, training, plots.reward_curve(curve(training)).figure)
    for run in (own, point):
        assert run.fetch("reward.png", tmp_path / run.id)
        rows = pd.read_parquet(run.fetch("curve.parquet", tmp_path / run.id))
        assert list(rows.query("metric == 'critic/score/mean'")["value"]) == [0.25, 0.5, 0.75]


def test_without_a_terminal_watching_prints_a_line_per_event(running: RunFolder, capsys) -> None:
    before = TrainingStatus(state=TrainingState.RUNNING, step=3, steps=5, reward=0.75)
    later = [
        replace(before, step=4, reward=0.5),
        replace(before, step=5, reward=0.25, state=TrainingState.FINISHED),
    ]

    class Stepping(TrainingRun):
        """A run whose next status is written when the last one has been seen."""

        def follow(self) -> Iterator[TrainingStatus]:
            for status in super().follow(poll_s=0.01):
                yield status
                if later:
                    self.folder.write_status(later.pop(0))

    running.write_status(before)
    assert watch(Stepping(running)).state is TrainingState.FINISHED
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "running: step 3 of 5, reward 0.750",
        "running: step 4 of 5, reward 0.500",
    ]
    assert printed.err == ""
