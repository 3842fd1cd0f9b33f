"""Published numbers: each names its set, model, source and judge, and is another model's."""

from __future__ import annotations

import pandas as pd

from memagent_lib.evaluation import PUBLISHED
from memagent_lib.evaluation.benchmarks import AVERAGE_OF_TEN, RULER_TASKS
from memagent_lib.paths import input_path

SOURCES = {"arXiv 2507.02259 v1", "arXiv 2507.02259 v2", "arXiv 2603.29493: avg@4 of its own judge"}


def test_every_published_number_names_source_and_judge() -> None:
    rows = pd.read_csv(input_path(PUBLISHED))
    assert list(rows.columns) == ["task", "length", "model", "score", "source", "judge"]
    assert rows.notna().all(axis=None)
    assert set(rows["source"]) == SOURCES and set(rows["task"]) <= {*RULER_TASKS, AVERAGE_OF_TEN, "hotpotqa"}
    assert not rows.duplicated(["task", "length", "model", "source"]).any()
    assert rows["score"].between(0, 100).all()
    models = rows["source"].str.startswith("arXiv 2603")
    assert set(rows.loc[models, "judge"]) == {"a model compares the box with the answer"}
    assert set(rows.loc[rows["task"].isin(["hotpotqa", "qa_1"]) & ~models, "judge"]) == {"sub-EM"}


def test_published_hotpotqa_is_the_papers_second_version() -> None:
    rows = pd.read_csv(input_path(PUBLISHED)).set_index(["task", "length", "model"])["score"]
    assert rows["hotpotqa", "3.5M", "RL-MemAgent-14B"] == 71.09
    assert rows["hotpotqa", "112K", "QwenLong-L1-32B"] == 31.25
    assert rows["hotpotqa", "7K", "MemAgent on Qwen3-1.7B by MemFactory"] == 56.84
