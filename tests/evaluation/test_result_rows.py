"""Which rows are one line: keyed by policy, reader and settings, and no document counts twice in one n."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Sampling, Scripted
from memagent_lib.evaluation import (
    Result,
    against,
    gather_rows,
    in_points,
    keyed,
    mixtures,
    overview,
    paired,
    row_settings,
    rows_of,
    save_rows,
    table,
    to_frame,
)
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.scoring import score
from memagent_lib.tracking import settings_of


def frame(results: list[Result], policy: str = "small", settings: dict | None = None, **columns) -> pd.DataFrame:
    return to_frame(results).assign(policy=policy, settings=row_settings(settings or {}), **columns)


def about(result: Result, question: str, **more) -> Result:
    """The result as one about another question, with the same id and document."""
    return replace(result, example=replace(result.example, question=question, **more))


@pytest.fixture
def grid(kept: Result, lost: Result, tmp_path: Path) -> Path:
    """The rows of a sweep of 03_evaluate over two settings: two questions on one document, read four times."""
    for memory in (8, 16):
        for temperature in (0.0, 0.7):
            results = [kept, lost if memory == 8 else replace(lost, score=kept.score)]
            rows = frame(results, settings={"memory_tokens": memory, "temperature": temperature, "chunk_tokens": 48})
            save_rows(rows, tmp_path / f"memory_tokens={memory},_temperature={temperature}-0badcafe", "small")
    return tmp_path


def test_a_grid_is_a_line_per_point_and_counts_nothing_twice(grid: Path) -> None:
    made = table(gather_rows(grid))
    assert made[["policy", "settings", "4 chunks"]].values.tolist() == [
        ["small", "memory 8, temperature 0", "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["small", "memory 8, temperature 0.7", "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["small", "memory 16, temperature 0", "100.0 % [20.7, 100.0] (n=2 on 1 document)"],
        ["small", "memory 16, temperature 0.7", "100.0 % [20.7, 100.0] (n=2 on 1 document)"],
    ]


def test_two_readers_of_a_policy_are_paired(kept: Result, lost: Result) -> None:
    rows = frame([kept, replace(kept, reader="blind"), replace(kept, reader="gated", score=lost.score)])
    assert paired(rows, "small", "small, gated")["difference"].tolist() == [-1.0]
    assert against(rows, "small")["right"].tolist() == ["small, blind", "small, gated"]
    made = against(rows)
    assert made[["left", "right"]].values.tolist() == [["small, blind", "small"], ["small", "small, gated"]]
    assert in_points(made)[["line", "minus", "4 chunks"]].values.tolist() == [
        ["small", "small, blind", "+0.0 [-79.3, +79.3] (n=1)"],
        ["small, gated", "small", "-100.0 [-100.0, +12.2] (n=1)"],
    ]


def test_scores_of_two_rules_are_not_subtracted(kept: Result) -> None:
    rows = pd.concat([frame([about(kept, "q", rule=rule)], rule) for rule in ("boxed", "contains")])
    assert len(against(rows)) == 0
    with pytest.raises(ValueError, match="no question in common"):
        paired(rows, "boxed", "contains")


def test_a_line_read_in_several_points_is_one_unless_a_cell_mixes_them(kept: Result, lost: Result) -> None:
    longer = replace(lost, example=replace(lost.example, metadata={"chunks": 8}))
    apart = pd.concat([frame([kept], point="n=1"), frame([longer], point="n=2")])
    assert set(keyed(apart)["line"]) == {"small"}
    mixed = pd.concat([frame([kept, longer], point="data=easy"), frame([lost], point="data=hard")])
    assert keyed(mixed)["line"].tolist() == ["small, data=easy"] * 2 + ["small, data=hard"]


def test_policies_are_in_the_order_of_the_numbers_in_their_names(kept: Result, tmp_path: Path) -> None:
    for step in (1000, 2, 10, 1):
        save_rows(frame([kept], f"step {step}"), tmp_path, f"step {step}")
    assert list(gather_rows(tmp_path)["line"]) == [f"step {step}" for step in (1, 2, 10, 1000)]
    assert gather_rows(tmp_path, ["step 10"])["line"].iloc[0] == "step 10"


def test_readings_that_nothing_tells_apart_are_refused(kept: Result, lost: Result, tmp_path: Path) -> None:
    save_rows(frame([kept, lost], run_id="one"), tmp_path, "a")
    save_rows(frame([kept], run_id="two"), tmp_path, "b")
    with pytest.raises(ValueError, match=r"'small' has read 1 questions more than once \(runs one, two\)"):
        gather_rows(tmp_path)


def test_two_sets_of_weights_of_one_name_are_two_lines(kept: Result, lost: Result) -> None:
    rows = pd.concat([frame([kept], weights="aaaa"), frame([lost], weights="bbbb")])
    assert keyed(rows)["line"].tolist() == ["small, weights aaaa", "small, weights bbbb"]
    assert set(keyed(rows.assign(policy=["old", "new"]))["line"]) == {"old", "new"}


def test_a_name_of_several_lines_or_none_is_refused(grid: Path) -> None:
    rows = gather_rows(grid)
    for refused in (lambda: rows_of(rows, "small"), lambda: gather_rows(grid, ["large"])):
        with pytest.raises(ValueError, match="small, memory 8, "):
            refused()
    assert gather_rows(grid, ["small, memory 16, temperature 0.7"])["variant"].iloc[0].endswith("16, temperature 0.7")


def test_terminal_tables_begin_with_all_tasks(kept: Result, lost: Result) -> None:
    other = replace(lost, example=replace(lost.example, task="update", rule="contains"))
    rows = frame([kept, other], run_id="one").assign(file=["needle_16", "update_4"])
    rows = pd.concat([rows, frame([about(kept, "more")], run_id="one", file="needle_4")], ignore_index=True)
    made = overview(rows)
    assert made[["task", "file", "judge", "n", "score"]].values.tolist() == [
        ["all tasks", "", "boxed, contains", 3, "66.7 % [9.4, 97.5] (n=3 on 1 document)"],
        ["needle", "needle_4", "boxed", 1, "100.0 % [20.7, 100.0] (n=1)"],
        ["needle", "needle_16", "boxed", 1, "100.0 % [20.7, 100.0] (n=1)"],
        ["update", "update_4", "contains", 1, "0.0 % [0.0, 79.3] (n=1)"],
    ]
    assert table(rows)[["task", "judge", "4 chunks"]].values.tolist() == [
        ["all tasks", "boxed, contains", "66.7 % [9.4, 97.5] (n=3 on 1 document)"],
        ["needle", "boxed", "100.0 % [20.7, 100.0] (n=2 on 1 document)"],
        ["update", "contains", "0.0 % [0.0, 79.3] (n=1)"],
    ]


def test_two_questions_of_one_number_about_one_document_are_two(kept: Result) -> None:
    both = [about(kept, "heron?"), replace(about(kept, "fox?", task="other"), score=replace(kept.score, value=0.0))]
    rows = pd.concat([frame(both, name) for name in ("left", "right")], ignore_index=True)
    assert paired(rows, "left", "right")["n"].tolist() == [2]


def test_a_judge_with_a_detail_of_each_record_is_one(kept: Result) -> None:
    rows = frame([about(kept, word, rule=f"mrcr:{word}") for word in ("heron", "fox")])
    assert (table(rows)["judge"].tolist(), mixtures(rows)) == (["mrcr"], [])


def test_replies_that_a_judge_cannot_read_are_counted(kept: Result) -> None:
    plain = about(kept, "fox?", rule="contains")
    rows = frame([kept, replace(plain, score=score("contains", "The code is 4711.", ("4711",)))])
    assert [warning for warning in mixtures(rows) if warning.startswith("1 of 2 replies state no answer")]


def test_rows_record_every_setting_that_changes_a_reply(tokenizer) -> None:
    budget = Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32)

    def row(template: str = "short", temperature: float = 0.7, shared: bool = False) -> pd.DataFrame:
        backend = Scripted(str)
        backend.sampling = Sampling(temperature=temperature, seed=3)
        agent = Agent(Encoder(tokenizer, Template.load(template), budget), backend, reader_named("gated"))
        return pd.DataFrame([settings_of(agent, shared) | {"policy": "p", "reader": "gated", "task": "t", "chunks": 2}])

    rows = pd.concat([row(), row("memory_first"), row(temperature=0.0), row(shared=True)])
    assert rows["wording"].nunique() == 2
    assert [words.split(", wording")[0] for words in keyed(rows)["varied"]] == [
        "sampling seed 3, temperature 0.7, template short",
        "sampling seed 3, temperature 0.7, template memory_first",
        "temperature 0, template short",
        "sampling seed 3, temperature 0.7, template short, shared reading once for all",
    ]


def test_adding_replaces_rows_of_the_same_settings_and_names_them(kept: Result, lost: Result, tmp_path: Path) -> None:
    def add(results: list[Result], memory: int, file: str = "a.parquet", **columns) -> list[str]:
        return save_rows(frame(results, settings={"memory_tokens": memory}, file=file, **columns), tmp_path, "small")

    assert add([kept, lost], 8) == [] == add([lost], 16)
    assert add([kept, lost], 8, run_id="again") == [], "the same results are no loss"
    note = "1 earlier results are replaced in small.parquet"
    assert add([kept], 8, weights="other", run_id="again") == [note]
    assert add([kept], 8, weights="other", model_judge="m", model_verdict=1.0) == []
    assert add([kept], 8, weights="other") == [note], "a model's verdict is lost"
    assert add([lost], 4, "b.parquet", data="11111111 1") == [] == add([lost], 2, "b.parquet", data="11111111 1")
    assert add([kept], 4, "b.parquet", data="11111111 2") == [note], "of the file as it was before"
    assert add([lost], 4, "b.parquet", data="11111111 2") == [], "a part of the same file"
    other_rule = [replace(kept, example=replace(kept.example, rule="exact", id="new"))]
    assert add(other_rule, 4, "b.parquet", data="11111111 3") == [], "of another judge"
    assert add([replace(kept, example=replace(kept.example, id="new"))], 4, "b.parquet", data="22222222 3") == []
    saved = pd.read_parquet(tmp_path / "small.parquet")
    of_b = saved[saved["file"] == "b.parquet"]
    assert of_b[["example", "data"]].values.tolist() == [
        ["lost", "11111111 1"],
        ["kept", "11111111 2"],
        ["lost", "11111111 2"],
        ["new", "11111111 3"],
        ["new", "22222222 3"],
    ]
    saved = saved[saved["file"] == "a.parquet"]
    assert saved[["example", "settings"]].values.tolist() == [
        ["lost", '{"memory_tokens": 16}'], ["lost", '{"memory_tokens": 8}'], ["kept", '{"memory_tokens": 8}'],
    ]  # fmt: skip
