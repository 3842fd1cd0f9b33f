"""The training panel: what it reads from a run's files, and what it shows of them."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib import plots
from memagent_lib.evaluation import Result
from memagent_lib.panel import attach, begin, curve, log_training, report, settle, show, watch
from memagent_lib.panel.curve_charts import svg_chart
from memagent_lib.panel.live import TrainingPanel
from memagent_lib.panel.progress import Follower, Progress
from memagent_lib.panel.progress_page import curves, percent, span
from memagent_lib.rl import Recipe, RunError, RunFolder, TrainingState, TrainingStatus, resolved, save_rollout
from memagent_lib.settings import SettingsError
from memagent_lib.tracking import Experiment


def add_step(folder: RunFolder, step: int, **metrics: float) -> None:
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "time": 1000.0 + step, "metrics": metrics}) + "\n")


@pytest.fixture
def run(tmp_path: Path, kept: Result, lost: Result) -> RunFolder:
    """A run that another process holds, as far as its files tell: three steps, a right and two wrong readings."""
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
        save_rollout(folder.traces, result, step, greedy=False)
    folder.write_status(TrainingStatus(state=TrainingState.RUNNING, step=3, steps=10, reward=0.75, seconds_left=56.0))
    return folder


@pytest.fixture
def held(run: RunFolder):
    handle = run.lock()
    yield run
    os.close(handle)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_look_adds_the_whole_lines_written_since(held: RunFolder) -> None:
    follower = Follower(held)
    assert follower.look().points["critic/score/mean"] == ((1, 0.25), (2, 0.5), (3, 0.75))
    with held.metrics.open("a") as file:
        file.write('{"step": 4, "time": 1004.0, "met')
        file.flush()
        assert len(follower.look().points["critic/score/mean"]) == 3
        file.write('rics": {"critic/score/mean": 1.0}}\n')
    assert follower.look().points["critic/score/mean"][-1] == (4, 1.0)


def test_steps_that_a_resumed_run_does_again_are_forgotten(held: RunFolder) -> None:
    follower = Follower(held)
    follower.look()
    held.forget_after(1)
    add_step(held, 2, **{"critic/score/mean": 0.9})
    assert follower.look().points["critic/score/mean"] == ((1, 0.25), (2, 0.9))


def test_the_newest_steps_rollouts_come_first_and_in_a_step_wrong_ones(held: RunFolder, lost: Result) -> None:
    save_rollout(held.traces, replace(lost, example=replace(lost.example, id="e4")), 3, greedy=False)
    rollouts = Follower(held).look().rollouts
    assert [(r.example.metadata["step"], r.example.id, r.correct) for r in rollouts] == [
        (3, "e4", False),
        (3, "e3", True),
        (2, "e2", False),
        (1, "e1", False),
    ]


def test_a_run_that_nobody_holds_has_died_and_one_that_is_asked_to_stop_says_so(run: RunFolder) -> None:
    assert Follower(run).look().status.state is TrainingState.DIED
    run.stop_request.touch()
    handle = run.lock()
    assert Follower(run).look().stopping
    os.close(handle)


def test_a_failed_run_shows_the_error_its_place_and_the_end_of_the_log_as_plain_text(run: RunFolder) -> None:
    frames = '  File "/x/train.py", line 7, in fit\n  File "/x/loss.py", line 31, in loss\n'
    run.log.write_text(f"\x1b[36mTraceback:\x1b[0m\n{frames}ValueError: <b>\n")
    run.write_status(
        TrainingStatus(state=TrainingState.FAILED, step=3, steps=10, error="ValueError: <script>alert(1)</script>")
    )
    page = report(run.path)._repr_html_()
    assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "/x/loss.py, line 31, in loss" in page
    assert "Traceback:\n" in page and "\x1b" not in page
    assert "<script" not in page


def test_documents_and_memories_with_markup_are_shown_as_text(held: RunFolder) -> None:
    page = report(held.path)._repr_html_()
    assert "nothing &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page and "<b>bold</b>" not in page


def test_a_folder_without_a_run_names_the_runs_nearby(run: RunFolder) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"no training run at .*/other; .*04_train starts one; runs nearby: {run.path}"
    ):
        show(run.path.parent / "other")


def test_silence_is_told_once_it_is_far_longer_than_a_step(tmp_path: Path) -> None:
    status = TrainingStatus(state=TrainingState.RUNNING, step=3, steps=10)
    progress = Progress(
        tmp_path, status, points={"perf/time_per_step": [(1, 4.0), (2, 8.0), (3, 99.0)]}, last_step_at=1000.0
    )
    assert progress.seconds_per_step == 8.0
    assert progress.silent_s(now=1060.0) is None
    assert progress.silent_s(now=1061.0) == 61.0


def dots(drawn: str) -> list[tuple[float, float, str]]:
    """Where a chart's dots stand, and what they say."""
    found = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*><title>([^<]*)</title></use>', drawn)
    return [(float(x), float(y), told) for x, y, told in found]


def test_a_chart_has_a_dot_for_each_step_that_tells_its_value_in_the_pages_own_ink() -> None:
    drawn = svg_chart({"": [(1, 0.0), (3, 1.0), (5, 0.5)]}, percent, most=1.0)
    (x1, y1, said), (x2, y2, _), (x3, y3, last) = dots(drawn)
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert y1 - y3 == pytest.approx(y3 - y2) and y2 < y1
    assert (said, last) == ("step 1: 0%", "step 5: 50%")
    assert "currentColor" in drawn and "#000000" not in drawn and "<style" not in drawn


def test_a_chart_thins_long_runs_to_means_and_escapes_names() -> None:
    long = dots(svg_chart({"<b>": [(step, float(step % 2)) for step in range(1000)]}, percent))
    assert len(long) == 200 and long[-1][2] == "step 999: &lt;b&gt; 60%"
    assert {told[-3:] for _, _, told in long} == {"40%", "60%"}


def test_the_curves_say_what_lines_and_dots_are_and_what_was_not_logged(tmp_path: Path) -> None:
    status = TrainingStatus(state=TrainingState.RUNNING, step=12, steps=20)
    points = {"critic/score/mean": [(step, step / 20) for step in range(1, 13)]}
    drawn = curves(Progress(tmp_path, status, points=points | {"val-core/needle/acc/mean@1": [(0, 0.25), (8, 0.5)]}))
    assert "Dots: each step; lines: running mean of 5 steps." in drawn
    assert "Not logged by this run: score by task, facts in memory, entropy" in drawn
    assert re.search(r"held-out accuracy<span[^>]*>needle <b>50%</b>", drawn)
    several = {f"val-core/pocket_{task}/acc/mean@1": [(0, 0.5)] for task in ("needle", "two_hops")}
    assert set(re.findall(r">([a-z_]+) <b>50%</b>", curves(Progress(tmp_path, status, points=several)))) == {
        "needle",
        "two_hops",
    }


def test_turns_to_come_are_estimated_from_those_of_the_last_steps(tmp_path: Path) -> None:
    status = TrainingStatus(state=TrainingState.RUNNING, step=2, steps=10)
    assert Progress(tmp_path, status, points={"rows/produced": [(1, 90.0), (2, 110.0)]}).turns_left == 800
    assert Progress(tmp_path, status).turns_left == 0


def test_times_are_told_in_the_unit_that_people_use() -> None:
    assert [span(s) for s in (40, 119, 3600, 12_000)] == ["40 s", "2 min", "60 min", "3 h 20 min"]


def test_without_anybody_looking_on_the_panel_is_a_page_of_its_own(
    held: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    page = show(held.path)._repr_html_()
    assert "step 3 of 10" in page and "reward 75%" in page
    assert len(dots(page)) == 6  # three steps of two metrics


def test_the_live_panel_follows_the_files_and_keeps_the_reading_that_was_chosen(held: RunFolder, lost: Result) -> None:
    panel = TrainingPanel(held)
    assert "step 3 of 10" in panel.head.value
    assert (panel.stop.disabled, panel.resume.disabled) == (False, True)
    panel.list.index = 0
    assert "4711" in panel.detail.value
    curves = panel.curves.value
    save_rollout(held.traces, replace(lost, example=replace(lost.example, id="e4")), 4, greedy=False)
    add_step(held, 4, **{"critic/score/mean": 1.0})
    held.write_status(TrainingStatus(state=TrainingState.FINISHED, step=4, steps=4))
    eventually(lambda: "finished" in panel.head.value and len(panel.list.options) == 4)
    assert panel.curves.value != curves
    eventually(lambda: panel.list.options[panel.list.index].startswith("✓ step 3"))
    assert (panel.stop.disabled, panel.resume.disabled) == (True, True)
    panel.close()


def test_what_cannot_be_resumed_is_told_in_the_panel(run: RunFolder) -> None:
    run.config.write_text(json.dumps({"config": {}}))
    panel = TrainingPanel(run)
    assert not panel.resume.disabled
    panel.resume.click()
    eventually(lambda: "not resumed: the recipe needs" in panel.said.value)
    eventually(lambda: not panel.resume.disabled)
    panel.close()


def test_a_run_is_the_same_run_wherever_it_is_tracked_and_another_recipe_is_another_run(held: RunFolder) -> None:
    tables = {
        "model": {"path": "policy"},
        "data": {"train": "a.parquet", "eval": "b.parquet"},
        "reading": {},
        "verl": {"trainer.total_training_steps": 10},
    }
    kept = resolved(Recipe.from_tables(tables), held)
    held.config.write_text(json.dumps({"config": kept.to_tables()}))
    elsewhere = Recipe.from_tables(tables | {"tracking": {"uri": "sqlite:///elsewhere.db", "experiment": "other"}})
    assert begin(elsewhere, held.path).folder == held
    with pytest.raises(RunError, match="a run is active"):
        begin(Recipe.from_tables(tables | {"verl": {"trainer.total_training_steps": 11}}), held.path)


def test_a_run_that_is_just_being_stopped_is_waited_for_and_gone_on_with(held: RunFolder) -> None:
    tables = {
        "model": {"path": "policy"},
        "data": {"train": "a.parquet", "eval": "b.parquet"},
        "reading": {},
        "verl": {"trainer.total_training_steps": 10},
    }
    recipe = Recipe.from_tables(tables)
    held.config.write_text(json.dumps({"config": resolved(recipe, held).to_tables()}))
    held.stop_request.touch()
    ending = threading.Timer(1.0, held.write_status, [TrainingStatus(state=TrainingState.STOPPED, step=3, steps=10)])
    ending.start()
    with pytest.raises(SettingsError, match="no examples at"):  # what resuming it says first
        begin(recipe, held.path)
    assert held.status().state is TrainingState.STOPPED
    ending.join()


def test_a_trainings_curves_are_a_table_of_its_mlflow_run_and_of_the_run_that_a_notebook_was_given(
    held: RunFolder, tmp_path: Path
) -> None:
    experiment = Experiment.open(tmp_path / "store")
    own, point = experiment.start("training"), experiment.start("point")
    held.write_status(replace(held.status(), mlflow_run=own.id))
    training = attach(held.path)
    log_training(experiment, point.id, training, plots.reward_curve(curve(training)).figure)
    for run in (own, point):
        assert run.fetch("reward.png", tmp_path / run.id)
        rows = pd.read_parquet(run.fetch("curve.parquet", tmp_path / run.id))
        assert list(rows.query("metric == 'critic/score/mean'")["value"]) == [0.25, 0.5, 0.75]


def test_before_the_first_step_the_curve_is_empty_and_its_plot_says_so(tmp_path: Path) -> None:
    started = RunFolder(tmp_path)
    started.write_status(TrainingStatus(state=TrainingState.STARTING, steps=10))
    frame = curve(attach(tmp_path))
    assert list(frame.columns) == ["run_id", "metric", "step", "value"] and frame.empty
    assert frame[frame["metric"].str.startswith("val")].empty
    assert [text.get_text() for text in plots.reward_curve(frame).texts] == ["no step yet"]


def test_a_waiting_notebook_returns_at_once_where_a_person_looks_on(
    held: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "04_train.ipynb")
    assert settle(attach(held.path)).state is TrainingState.RUNNING


def test_without_a_terminal_a_run_that_is_watched_prints_a_line_per_event(held: RunFolder, capsys) -> None:
    running = TrainingStatus(state=TrainingState.RUNNING, step=3, steps=5, reward=0.75)

    def do_steps() -> None:
        for at, status in (
            (0.7, replace(running, seconds_left=9.0)),  # nothing that a person counts as news
            (1.4, replace(running, step=4, reward=0.5, retried=2)),
            (2.1, replace(running, step=5, reward=0.25, state=TrainingState.FINISHED)),
        ):
            time.sleep(max(0.0, began + at - time.monotonic()))
            held.write_status(status)

    held.write_status(running)
    began = time.monotonic()
    steps = threading.Thread(target=do_steps)
    steps.start()
    assert watch(attach(held.path)).state is TrainingState.FINISHED
    steps.join()
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "running: step 3 of 5, reward 0.750",
        "running: step 4 of 5, reward 0.500, 2 rollouts failed once",
    ]
    assert said.err == ""
