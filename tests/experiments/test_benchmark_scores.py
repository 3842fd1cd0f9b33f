"""Scores in the form of a benchmark's paper, beside published ones that name their set, model, source and judge."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pandas as pd

from experiments.scores.benchmarks import AVERAGE_OF_TEN, PUBLISHED, RULER_TASKS, benchmark_rows, benchmark_table
from memagent_lib.evaluation import Result, to_frame
from memagent_lib.scoring import score
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind

SOURCES = {"arXiv 2507.02259 v1", "arXiv 2507.02259 v2", "arXiv 2603.29493: avg@4 of its own judge"}


def test_every_published_number_names_source_and_judge() -> None:
    rows = pd.read_csv(PUBLISHED)
    assert list(rows.columns) == ["task", "length", "model", "score", "source", "judge"]
    assert rows.notna().all(axis=None)
    assert set(rows["source"]) == SOURCES and set(rows["task"]) <= {*RULER_TASKS, AVERAGE_OF_TEN, "hotpotqa"}
    assert not rows.duplicated(["task", "length", "model", "source"]).any()
    assert rows["score"].between(0, 100).all()
    models = rows["source"].str.startswith("arXiv 2603")
    assert set(rows.loc[models, "judge"]) == {"a model compares the box with the answer"}
    assert set(rows.loc[rows["task"].isin(["hotpotqa", "qa_1"]) & ~models, "judge"]) == {"sub-EM"}


def of_task(
    kept: Result, task: str, rule: str, answer: str, answers: tuple[str, ...], chars: int, **metadata: int
) -> Result:
    changes = {"id": uuid.uuid4().hex, "task": task, "rule": rule, "answers": answers, "document": "x" * chars}
    changes |= {"evidence": ()}
    example = replace(kept.example, **changes, metadata=kept.example.metadata | metadata)
    turns = kept.trace.turns
    said = replace(turns[-1], reply=replace(turns[-1].reply, text=answer))
    trace = replace(kept.trace, turns=(said,))
    return replace(kept, example=example, trace=trace, score=score(rule, answer, answers))


def test_benchmarks_have_their_own_metrics_and_published_numbers(kept):
    tokens = 8192
    results = [
        of_task(
            kept,
            "niah_multivalue",
            "match_all",
            "it is alpha, beta",
            ("alpha", "beta", "gamma", "delta"),
            int(4.4 * tokens),
        ),
        of_task(kept, "ruler/niah_single_1", "match_all", "it is 7", ("7",), 99, length=tokens),  # as a baseline has it
        of_task(kept, "hotpotqa", "lenient", "\\boxed{in Paris}", ("Paris",), int(4.4 * 7000)),
        of_task(kept, "ruler_hqa", "lenient", "\\boxed{Rome}", ("Paris",), int(4.4 * 7000)),
        of_task(kept, "longbench/qasper", "f1", "\\boxed{a red fox runs far}", ("red fox",), 5000),
        of_task(kept, "longbench/qasper", "f1", "red owl", ("the fox", "red", "owl red"), 90_000),
        of_task(kept, "longbench/trec", "longbench/classes:City|Person", "City\nor Person", ("City",), 5000),
    ]
    rows = benchmark_rows(results).set_index(["task", "metric"])
    assert rows["score"].round(1).to_dict() == {
        ("niah_multivalue", "RULER match"): 50.0,
        ("niah_single_1", "RULER match"): 100.0,
        ("hotpotqa", "sub-EM strict"): 50.0,
        ("hotpotqa", "sub-EM lenient"): 50.0,
        ("RULER average", "of 2 tasks"): 75.0,
        ("longbench/qasper", "f1"): 83.3,
        ("longbench/trec", "longbench/classes"): 100.0,
        ("LongBench average", "of 2 tasks"): 91.7,
    }
    table = benchmark_table(results, "mine").set_index(["task", "model"])
    assert table.index[0] == ("RULER average", "mine, overwrite")
    assert table.loc[("niah_multivalue", "mine, overwrite"), "8K"] == "50.0 [5.5, 94.5] (n=1)"
    published = [model for task, model in table.index if task == "hotpotqa" and model != "mine, overwrite"]
    metrics = table.loc["hotpotqa"].groupby(level="model")["metric"].agg(list)
    assert metrics["mine, overwrite"] == ["sub-EM strict", "sub-EM lenient"]
    assert set(metrics.drop("mine, overwrite").sum()) == {"sub-EM", "a model compares the box with the answer"}
    assert published and all(
        re.fullmatch(r"published: .* \(arXiv (2507\.02259 v[12]|2603\.29493: .*)\)", model) for model in published
    )
    cells = table.loc[("RULER average", "published: RL-MemAgent-14B (arXiv 2507.02259 v1)"), "8K"]
    assert cells == "97.5" or cells == "97.4"


def test_a_document_left_early_keeps_its_length(kept):
    read = [of_task(kept, "vt", "match_all", "7", ("7",), 64_000) for _ in range(3)]
    for number, chunks in enumerate((1, 2, 8)):
        parts = [Chunk(i, "", 8000 * i, 8000 * (i + 1), 2000) for i in range(chunks)]
        (turn,) = read[number].trace.turns
        turns = [replace(turn, prompt=replace(turn.prompt, kind=Kind.READ, chunk=part)) for part in parts]
        read[number] = replace(read[number], trace=replace(read[number].trace, turns=(*turns, turn)))
    assert to_frame(read)["document_tokens"].tolist() == [16_000] * 3
    assert benchmark_rows(read)[["length", "n"]].to_numpy().tolist() == [["16K", 3]]
