"""A finished training run of a small policy, with its data and its MLflow store, written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_policies import BUDGET, validated, write_model

from memagent_lib.agent import AgentSettings
from memagent_lib.data import make, save
from memagent_lib.publishing import Policy
from memagent_lib.rl import Recipe, RunFolder, TrainingState, TrainingStatus
from memagent_lib.tracking import Experiment

OWN_READER = """\
from memagent_lib.trace import Kind, Prompt, Trace

def mine(question, chunks):
    memory = ""
    turns = []
    for chunk in chunks:
        turns.append((yield Prompt(Kind.READ, question, memory, chunk)))
        memory = turns[-1].reply.text
    answer = yield Prompt(Kind.ANSWER, question, memory)
    return Trace(question, (*turns, answer))
"""


@pytest.fixture
def own_reader(tmp_path: Path) -> str:
    """A plug-in reader outside the project, named by its absolute path."""
    file = tmp_path / "my_readers.py"
    file.write_text(OWN_READER)
    return f"{file}:mine"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", 7)


@pytest.fixture
def run(tokenizer, base: Path, workspace: Path, tmp_path: Path) -> RunFolder:
    """A run of four steps from ``base``, validated before the first and after the second and fourth."""
    train = save(make("needle", 3, 5, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "train_2.parquet")
    held_out = save(make("needle", 2, 6, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "test_2.parquet")
    tables = {
        "model": {"path": str(base), "device": "cpu"},
        "data": {"stages": [{"files": [str(train)], "steps": 1}, {"files": [str(train)]}], "eval": [str(held_out)]},
        "reading": {"template": "short", **BUDGET.sizes},
        "train": {"seed": 3},
        "tracking": {"uri": f"sqlite:///{workspace}/mlflow.db"},
        "verl": {"trainer.total_training_steps": 4, "data.train_batch_size": 8, "actor_rollout_ref.rollout.n": 2},
    }
    folder = RunFolder(tmp_path / "seven")
    write_model(folder.model)
    AgentSettings(template="short", budget=BUDGET).save(folder.model)
    folder.write_recipe(Recipe.from_tables(tables), "cpu")
    tags = {"git_commit": "0123abcd", "git_dirty": "true", "code_hash": "feed"}
    tracked = Experiment.open(workspace).start("seven", tags=tags)
    tracked.data(train, use="training")
    tracked.data(held_out)
    tracked.end()
    scores = [validated(0.1), {"rollout/acc": 0.25}, {"rollout/acc": 0.75} | validated(0.5)]
    scores += [{"rollout/acc": 0.5}, {"rollout/acc": 1.0} | validated(0.9)]
    lines = [json.dumps({"step": step, "time": 0.0, "metrics": metrics}) for step, metrics in enumerate(scores)]
    folder.metrics.write_text("\n".join(lines) + "\n")
    status = TrainingStatus(state=TrainingState.FINISHED, step=4, steps=4, mlflow_run=tracked.id)
    folder.write_status(status)
    (folder.path / "log.txt").write_text("a log")
    return folder


@pytest.fixture
def policy(run: RunFolder) -> Policy:
    return Policy.of(run.path)
