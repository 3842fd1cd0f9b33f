"""A training run that a test plays by writing a supervisor's files, in the folder and of the settings of 04_train."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import wait_for

from memagent_lib.data import Example
from memagent_lib.evaluation import Result
from memagent_lib.panel import load_recipe
from memagent_lib.rl import RunFolder, TrainingState, TrainingStatus, resolved, save_rollout
from memagent_lib.scoring import Score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Reply, Trace, Turn
from memagent_lib.tracking import Experiment

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
        save_rollout(self.folder.traces, result, self.step)
        self.say(TrainingState.RUNNING, reward)

    def say(self, state: TrainingState, reward: float | None = None) -> None:
        self.folder.write_status(
            TrainingStatus(state=state, step=self.step, steps=STEPS, reward=reward, pid=self.process.pid)
        )

    def stop_when_requested(self) -> None:
        wait_for(self.folder.stop_request.exists)
        self.say(TrainingState.STOPPED)
        os.close(self.lock)


@contextmanager
def played_training(root: Path) -> Iterator[PlayedRun]:
    """Play the run that 04_train attaches to, because its folder and settings are the notebook's own defaults.

    The current folder is ``root``.
    """
    folder = RunFolder(root / "runs/study/train")
    shutil.rmtree(folder.path, ignore_errors=True)  # the run of the test before
    played = PlayedRun(folder)
    store = [f"tracking.uri='{Experiment.open('runs').uri}'", "tracking.experiment='memagent'"]
    data = ["data.train=['runs/study/data/train_2.parquet']", "data.eval=['runs/study/data/test_16.parquet']"]
    config = resolved(load_recipe("experiments/pocket/recipes/pocket_demo.toml", [*data, *store]), folder)
    folder.write_recipe(config, "cpu")
    for reward in (0.4, 0.5, 0.6):
        played.do_step(reward, "nothing <img src=x onerror=alert(1)>")
    yield played
    played.process.kill()
    played.process.wait()
