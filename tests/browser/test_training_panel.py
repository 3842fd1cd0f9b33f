"""Notebook 04_train on a run in another process, which the test plays by writing a supervisor's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import jupyter
import pytest
from playwright.sync_api import Page, expect

from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.panel import load_recipe
from memagent_lib.rl import RunFolder, TrainingState, TrainingStatus, resolved, save_rollout
from memagent_lib.scoring import Score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn
from memagent_lib.tracking import Experiment

pytestmark = pytest.mark.browser
STEPS, QUESTION = 10, "What is the code of the owl?"


class PlayedRun:
    """A run whose steps are done when the test calls for them, and whose process only sleeps."""

    def __init__(self, folder: RunFolder) -> None:
        folder.traces.mkdir(parents=True)
        self.folder, self.step, self.lock = folder, 0, folder.lock()
        self.process = subprocess.Popen(["sleep", "600"])

    def do_step(self, reward: float, memory: str) -> None:
        self.step += 1
        metrics = {
            "critic/score/mean": reward,
            "rollout/capture": 0.9,
            "rollout/retention": reward,
            "perf/time_per_step": 3.0,
        }
        with self.folder.metrics.open("a") as file:
            file.write(json.dumps({"step": self.step, "time": time.time(), "metrics": metrics}) + "\n")
        chunk = Chunk(0, "The code of the owl is 4711.", 0, 28, 9)
        read = Turn(Prompt(Kind.READ, QUESTION, "", chunk), Reply(memory, prompt_tokens=9, reply_tokens=3))
        answer = Turn(
            Prompt(Kind.ANSWER, "What is the code of the owl?", memory),
            Reply(f"answer {self.step}", prompt_tokens=9, reply_tokens=3),
        )
        example = Example(id=str(self.step), task="needle", question="What?", document=chunk.text, answers=("4711",))
        result = Result(example, "overwrite", 1.0, Trace("What?", (read, answer)), Score(0.0, "", "wrong"))
        save_rollout(self.folder.traces, result, self.step, greedy=False)
        self.say(TrainingState.RUNNING, reward)

    def say(self, state: TrainingState, reward: float | None = None) -> None:
        self.folder.write_status(
            TrainingStatus(
                state=state, step=self.step, steps=STEPS, reward=reward, pid=self.process.pid, seconds_left=20.0
            )
        )

    def stop_when_requested(self) -> None:
        self.process.wait(timeout=60)
        self.say(TrainingState.STOPPED)
        os.close(self.lock)


@pytest.fixture
def run(lab) -> Iterator[PlayedRun]:
    """In the folder and of the settings that the notebook's own defaults name, so that it attaches instead of starting
    a run.
    """
    folder = RunFolder(lab.root / "runs/study/train")
    shutil.rmtree(folder.path, ignore_errors=True)  # the run of the test before
    played = PlayedRun(folder)
    store = [f"tracking.uri='{Experiment.open('runs').uri}'", "tracking.experiment='memagent'"]
    data = ["data.train=['runs/study/data/train_2.parquet']", "data.eval=['runs/study/data/test_16.parquet']"]
    config = resolved(load_recipe("experiments/pocket/recipes/pocket_demo.toml", [*data, *store]), folder)
    folder.config.write_text(json.dumps({"config": config.to_tables(), "device": "cpu"}))
    for reward in (0.4, 0.5, 0.6):
        played.do_step(reward, "nothing <img src=x onerror=alert(1)>")
    yield played
    played.process.kill()
    played.process.wait()


def test_the_panel_follows_a_run_past_a_closed_tab_and_stops_it(page: Page, lab, run: PlayedRun) -> None:
    page.goto(lab.notebook("04_train.ipynb"))
    jupyter.ready(page)
    jupyter.run_all(page)
    panel = jupyter.output(page, ".mt-head")
    expect(panel.locator(".mt-pill")).to_have_text("running")
    run.do_step(0.7, "The code of the owl is 4711.")
    expect(panel.locator(".mt-head")).to_contain_text("step 4 of 10 · reward 70%")
    expect(panel.locator("select option")).to_have_count(4)
    panel.locator("select").select_option("✗ step 2: answer 2")
    expect(panel.locator(".mt-turns")).to_contain_text("answer 2")
    expect(panel.locator(".mt-turns")).to_contain_text("nothing <img src=x onerror=alert(1)>")
    jupyter.save(page)

    page.close()
    run.do_step(0.8, "4711")
    page = page.context.new_page()
    page.goto(lab.notebook("04_train.ipynb"))
    jupyter.ready(page)
    panel = jupyter.output(page, ".mt-head")
    expect(panel.locator(".mt-head")).to_contain_text("step 5 of 10 · reward 80%")
    expect(panel.locator(".mt-turns")).to_contain_text("answer 2")
    panel.get_by_role("button", name="Stop").click()
    run.stop_when_requested()
    expect(panel.locator(".mt-pill")).to_have_text("stopped")
    expect(panel.get_by_role("button", name="Resume")).to_be_enabled()
    assert run.folder.stays_stopped

    run_again = "the run in runs/study/train was stopped on request; Resume or `memagent resume runs/study/train`"
    jupyter.run_all(page)
    expect(page.locator(".jp-OutputArea-output", has_text=run_again)).to_be_visible(timeout=jupyter.PATIENCE_MS)
    jupyter.choose(page, "Kernel", "Restart Kernel…")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    greyed = page.locator(".mt-buttons.jupyter-widgets-disconnected").first
    expect(greyed).to_be_visible(timeout=jupyter.PATIENCE_MS)
    reason = greyed.evaluate("row => getComputedStyle(row, '::after').content")
    assert "The kernel of this panel has ended" in reason
