"""Which rows are one line: named by what varied, and no document counts twice in one n."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib import plots
from memagent_lib.agent import Agent
from memagent_lib.backends import Sampling, Scripted
from memagent_lib.data import save
from memagent_lib.evaluation import (
    EvaluationPlan,
    MixedRowsError,
    Result,
    against,
    cost_overview,
    gather_rows,
    in_several_files,
    judges,
    keyed,
    mixtures,
    overview,
    paired,
    question_columns,
    rows_of,
    save_rows,
    score_and_cost,
    table,
    to_frame,
    with_all_tasks,
)
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.tracking import settings_of


def frame(results: list[Result], policy: str = "small", **settings) -> pd.DataFrame:
    return to_frame(results).assign(policy=policy, **settings)


@pytest.fixture
def grid(kept: Result, lost: Result, tmp_path: Path) -> Path:
    """What a sweep of 03_evaluate over two settings leaves: two questions on one document, asked four times."""
    for memory in (8, 16):
        for temperature in (0.0, 0.7):
            results = [kept, lost if memory == 8 else replace(lost, score=kept.score)]
            rows = frame(results, memory_tokens=memory, temperature=temperature, chunk_tokens=48)
            save_rows(rows, tmp_path / f"memory_tokens={memory},_temperature={temperature}-0badcafe", "small")
    return tmp_path


def test_a_grid_is_a_line_per_point_and_counts_nothing_twice(grid: Path) -> None:
    rows = gather_rows(grid)
    made = table(rows)
    assert made[["policy", "settings", "4 chunks"]].values.tolist() == [
        ["small", "memory 8, temperature 0", "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["small", "memory 8, temperature 0.7", "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["small", "memory 16, temperature 0", "100.0 % [20.7, 100.0] (n=2 on 1 document)"],
        ["small", "memory 16, temperature 0.7", "100.0 % [20.7, 100.0] (n=2 on 1 document)"],
    ]


def test_every_line_has_its_colour_and_its_name_in_figures(grid: Path) -> None:
    rows = gather_rows(grid)
    names = sorted(rows["line"].unique())
    for draw in (plots.accuracy_by_length, plots.capture_and_retention, plots.cost_by_length):
        ax = draw(rows)
        solid = [line for line in ax.lines if line.get_linestyle() == "-" and line.get_marker() == "o"]
        assert len({line.get_color() for line in solid}) == 4, draw.__name__
        assert len({float(line.get_xdata()[0]) for line in solid}) == 4, "drawn over one another"
        (legend,) = ax.figure.legends
        legend_names = {text.get_text().partition(":")[0] for text in legend.get_texts()}
        assert legend_names == set(names)


def test_differences_over_whatever_varied_from_a_chosen_baseline(grid: Path) -> None:
    rows = gather_rows(grid)
    found = against(rows, "small, memory 16, temperature 0")
    assert found[["right", "difference", "n"]].values.tolist() == [
        ["small, memory 8, temperature 0", -0.5, 2],
        ["small, memory 8, temperature 0.7", -0.5, 2],
        ["small, memory 16, temperature 0.7", 0.0, 2],
    ]
    ax = plots.paired_differences(found)
    assert "small, memory 8, temperature 0 better on 0, small, memory 16, temperature 0 on 1, of 2" in {
        text.get_text() for text in ax.texts
    }


def test_two_readers_of_a_policy_differ_in_colour_and_are_paired(kept: Result, lost: Result) -> None:
    rows = frame([kept, replace(kept, reader="blind"), replace(kept, reader="gated", score=lost.score)])
    ax = plots.accuracy_by_length(rows)
    colour = {line.get_label(): line.get_color() for line in ax.lines}
    assert colour.keys() == {"small", "small, gated", "small, blind"}
    assert colour["small, blind"] == colour["small"] != colour["small, gated"], (
        "the baseline has the colour of its policy"
    )
    assert paired(rows, "small", "small, gated")["difference"].tolist() == [-1.0]
    assert against(rows)["right"].tolist() == ["small, blind", "small, gated"]


def test_the_parts_of_one_evaluation_are_one_line(kept: Result, lost: Result, tmp_path: Path) -> None:
    for point, results in {"readers=a": [kept], "readers=b": [replace(kept, reader="blind")], "n=1": [lost]}.items():
        save_rows(frame(results), tmp_path / point, "small")
    assert gather_rows(tmp_path)["line"].tolist() == ["small", "small", "small, blind"]


def test_policies_are_in_the_order_of_the_numbers_in_their_names(kept: Result, tmp_path: Path) -> None:
    steps = [f"step {step}" for step in (1, 2, 10, 100, 1000)]
    for step in sorted(steps):
        rows = frame([kept]).assign(policy=step)
        save_rows(rows, tmp_path, step)
        save_rows(rows.assign(policy=f"{step}, of a sweep"), tmp_path / f"step={step}", "sweep")
    lines = list(gather_rows(tmp_path)["line"].unique())
    assert [line for line in lines if line in steps] == steps
    assert [line for line in lines if line not in steps] == [f"{step}, of a sweep" for step in steps]


def test_rows_without_settings_are_told_apart_by_their_point(kept: Result, lost: Result, tmp_path: Path) -> None:
    for point in ("model=x/tiny,_threads=2-0123abcd", "model=x/tiny,_threads=10-ffffffff"):
        save_rows(frame([kept]), tmp_path / point.replace("/", "-"), "small")
    save_rows(frame([lost]), tmp_path / "data=other", "small")
    assert list(gather_rows(tmp_path)["line"].unique()) == [
        "small",
        "small, threads 2",
        "small, threads 10",
    ]


DATA = ("data=runs/easy/data", "data=runs/hard/data")


@pytest.mark.parametrize(
    ("points", "names"),
    [
        (DATA, ["data easy/data", "data hard/data"]),
        (("data=data-0123abcd", "data=data-ffffffff"), ["point 0123abcd", "point ffffffff"]),
        (("", "data=hard-0123abcd"), ["", "data hard"]),
        (("readers=a", "readers=b"), ["", ""]),
    ],
)
def test_other_data_of_one_length_is_a_line_of_its_own(kept: Result, lost: Result, points, names) -> None:
    longer = [replace(kept, example=replace(kept.example, id=name, metadata={"chunks": 8})) for name in ("a", "b")]
    pairs = ((kept, longer[0]), (lost, longer[1]))
    rows = pd.concat([frame(list(pair), point=point) for pair, point in zip(pairs, points, strict=True)])
    assert keyed(rows)["varied"].tolist() == [names[0], names[0], names[1], names[1]]


def test_data_of_another_task_or_length_is_in_the_same_line(kept: Result, lost: Result) -> None:
    other = replace(lost.example, task="update")
    longer = replace(lost.example, metadata={"chunks": 8})
    for example in (other, longer):
        rows = pd.concat([frame([kept], point=DATA[0]), frame([replace(lost, example=example)], point=DATA[1])])
        assert set(keyed(rows)["line"]) == {"small"}


def test_models_are_named_by_the_ends_that_differ(kept: Result) -> None:
    points = ("model=runs/a/model", "model=runs/b/model", "model=experiments/pocket/warm_start")
    rows = pd.concat([frame([kept], point=point) for point in points])
    assert keyed(rows)["varied"].tolist() == ["model a/model", "model b/model", "model warm_start"]


def test_readings_that_nothing_tells_apart_are_refused(kept: Result, lost: Result, tmp_path: Path) -> None:
    save_rows(frame([kept, lost], run_id="one"), tmp_path, "a")
    save_rows(frame([kept], run_id="two"), tmp_path, "b")
    with pytest.raises(MixedRowsError, match=r"1 questions of 'small' were read more than once.* \(runs one, two\)"):
        gather_rows(tmp_path)


def test_two_sets_of_weights_of_one_name_are_refused(kept: Result, lost: Result) -> None:
    rows = pd.concat([frame([kept], weights="aaaa"), frame([lost], weights="bbbb")])
    with pytest.raises(MixedRowsError, match=r"rows of 'small' differ in their weights \(aaaa and bbbb\)"):
        keyed(rows)
    assert set(keyed(rows.assign(policy=["old", "new"]))["line"]) == {"old", "new"}


def test_a_name_of_several_lines_lists_them(grid: Path) -> None:
    with pytest.raises(ValueError, match="'small' are several lines; choose from 'small, memory 8, temperature 0', "):
        rows_of(gather_rows(grid), "small")
    with pytest.raises(ValueError, match="no results of 'large'; there are 'small, memory 8, temperature 0', "):
        gather_rows(grid, ["large"])
    assert gather_rows(grid, ["small, memory 16, temperature 0.7"])["variant"].iloc[0].endswith("16, temperature 0.7")


def test_terminal_tables_begin_with_all_tasks(kept: Result, lost: Result) -> None:
    other = replace(lost, example=replace(lost.example, task="update"))
    rows = frame([kept, other], run_id="one").assign(file=["needle_4", "update_4"])
    rows = pd.concat([rows, rows.iloc[:1].assign(file="copy_4")], ignore_index=True)  # a document in two files
    made = overview(rows)
    assert made[["task", "file", "n", "score"]].values.tolist() == [
        ["all tasks", "", 2, "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["needle", "copy_4", 1, "100.0 % [20.7, 100.0] (n=1)"],
        ["needle", "needle_4", 1, "100.0 % [20.7, 100.0] (n=1)"],
        ["update", "update_4", 1, "0.0 % [0.0, 79.3] (n=1)"],
    ]
    assert cost_overview(rows)[["task", "file", "n"]].values.tolist() == made[["task", "file", "n"]].values.tolist()
    unnamed = rows.iloc[:2].assign(file=None)
    assert overview(unnamed)["chunks"].tolist() == ["", "4", "4"]


def test_all_tasks_name_every_rule_of_their_line(kept: Result, lost: Result) -> None:
    other = replace(lost, example=replace(lost.example, task="update", rule="contains"))
    alone = replace(kept, reader="blind")
    made = table(frame([kept, other, alone]))
    assert made[["task", "reader", "judge", "4 chunks"]].values.tolist() == [
        ["all tasks", "overwrite", "boxed, contains", "50.0 % [5.5, 94.5] (n=2 on 1 document)"],
        ["needle", "overwrite", "boxed", "100.0 % [20.7, 100.0] (n=1)"],
        ["update", "overwrite", "contains", "0.0 % [0.0, 79.3] (n=1)"],
        ["needle", "blind", "boxed", "100.0 % [20.7, 100.0] (n=1)"],
    ]


def test_documents_of_no_set_length_have_a_column(kept: Result, lost: Result) -> None:
    other = replace(lost.example, metadata={})
    made = table(frame([kept, replace(lost, example=other)]))
    assert made.iloc[0].to_dict() == {
        "policy": "small",
        "reader": "overwrite",
        "judge": kept.example.rule,
        "4 chunks": "100.0 % [20.7, 100.0] (n=1)",
        "of no set length": "0.0 % [0.0, 79.3] (n=1)",
    }


def test_rows_record_every_setting_that_changes_a_reply(tokenizer) -> None:
    budget = Budget(chunk_tokens=48, memory_tokens=24, answer_tokens=12, question_tokens=32)

    def settings(template: str = "short", temperature: float = 0.7) -> dict:
        backend = Scripted(str)
        backend.sampling = Sampling(temperature=temperature, seed=3)
        return settings_of(Agent(Encoder(tokenizer, Template.load(template), budget), backend, reader_named("gated")))

    found = settings()
    assert {name: found[name] for name in ("memory_tokens", "template", "temperature", "sampling_seed")} == {
        "memory_tokens": 24, "template": "short", "temperature": 0.7, "sampling_seed": 3,
    }  # fmt: skip
    assert found["wording"] != settings("memory_first")["wording"]
    assert settings(temperature=0.0)["sampling_seed"] is None, "greedy replies depend on no seed"


def test_adding_replaces_only_rows_of_the_same_settings(kept: Result, lost: Result, tmp_path: Path) -> None:
    def add(result: Result, memory: int | None) -> None:
        settings = {"file": "a.parquet"} | ({"memory_tokens": memory} if memory else {})
        save_rows(frame([result], **settings), tmp_path, "small")

    add(lost, None)
    add(lost, 8)
    add(replace(lost, score=kept.score), 16)
    add(kept, 8)
    rows = gather_rows(tmp_path)
    assert rows[["line", "score"]].values.tolist() == [["small, memory 8", 1.0], ["small, memory 16", 1.0]]


def test_a_document_without_a_file_replaces_itself_alone(kept: Result, lost: Result, tmp_path: Path) -> None:
    assert save_rows(frame([kept, lost]), tmp_path, "small") == []
    (note,) = save_rows(frame([replace(lost, score=kept.score)]), tmp_path, "small")
    assert note.startswith("1 earlier results of overwrite")
    assert gather_rows(tmp_path)[["example", "score"]].values.tolist() == [["kept", 1.0], ["lost", 1.0]]


def test_rows_without_a_later_setting_are_a_line_of_their_own(kept: Result, tmp_path: Path) -> None:
    """A server's rows have ``extra`` only if it was set, and rows of older versions have no ``shared_reading``."""
    old = frame([kept], file="a.parquet", run_id="old").drop(columns=["shared_reading"])
    assert save_rows(old, tmp_path, "small") == []
    shared = old.assign(shared_reading="once for all", run_id="shared")
    assert save_rows(shared, tmp_path, "small") == []
    assert save_rows(old.assign(extra='{"top_k": 20}', run_id="extra"), tmp_path, "small") == []
    thought = old.assign(thinking_tokens=512, on_bad_memory="keep", run_id="thought")
    assert save_rows(thought, tmp_path, "small") == []
    assert gather_rows(tmp_path).groupby("run_id")["line"].first().to_dict() == {
        "old": "small",
        "shared": "small, reading once for all",
        "extra": 'small, request {"top_k": 20}',
        "thought": "small, thought 512, bad memories keep",
    }


def test_what_new_rows_replace_is_named(kept: Result, lost: Result, tmp_path: Path) -> None:
    rows = frame([kept, lost], file="a.parquet", run_id="one")
    assert save_rows(rows, tmp_path, "small") == []
    assert save_rows(rows.assign(run_id="again"), tmp_path, "small") == [], "the same results are no loss"
    other = frame([kept], file="a.parquet", run_id="two", score=0.5)
    assert save_rows(other, tmp_path, "small") == [
        "2 earlier results of overwrite on a.parquet are replaced in small.parquet (runs again); 1 of these "
        "questions were not read this time"
    ]
    assert gather_rows(tmp_path)["run_id"].tolist() == ["two"]


def test_a_document_in_two_files_counts_once_with_a_warning(kept: Result) -> None:
    rows = pd.concat([frame([kept], run_id="one", file=file) for file in ("a.parquet", "b.parquet")])
    assert table(rows)["4 chunks"].tolist() == ["100.0 % [20.7, 100.0] (n=1)"]
    assert mixtures(rows) == ["1 readings are of documents that are in several data files; they count once"]


def about(result: Result, question: str, **more) -> Result:
    """The result as one about another question, with the same id and document."""
    return replace(result, example=replace(result.example, question=question, **more))


def test_two_questions_of_one_number_about_one_document_are_two(kept: Result) -> None:
    wrong = replace(kept.score, value=0.0)
    both = [about(kept, "heron?"), replace(about(kept, "fox?"), score=wrong)]
    for questions in (both, [both[0], about(both[1], "fox?", task="other")]):
        rows = pd.concat([frame(questions, name, run_id=name) for name in ("left", "right")], ignore_index=True)
        assert not in_several_files(rows).any()
        first = next(section for _, section in with_all_tasks(keyed(rows), ["line"]).groupby("task", sort=False))
        (difference,) = paired(first, "left", "right").to_dict("records")
        assert (difference["n"], difference["right_only"], difference["left_only"]) == (2, 0, 0)
        assert score_and_cost(rows)["n"].tolist() == [2, 2]


def test_rows_of_an_older_version_are_told_apart_by_their_task(kept: Result) -> None:
    rows = frame([kept, about(kept, "fox?", task="other")]).drop(columns="question")
    assert question_columns(rows) == ["task", "example", "document"]
    assert len(keyed(rows)) == 2
    mixed = pd.concat([rows, frame([about(kept, "third?")])])
    assert question_columns(mixed) == ["task", "example", "document"], "some rows do not name their question"


def test_a_judge_with_a_detail_of_each_record_is_one(kept: Result) -> None:
    rows = frame([about(kept, word, rule=f"mrcr:{word}") for word in ("heron", "fox")])
    assert table(rows)["judge"].tolist() == ["mrcr"]
    assert judges(rows) == "mrcr (2)"
    assert mixtures(rows) == []


def test_one_question_judged_by_two_rules_names_them(kept: Result) -> None:
    rows = pd.concat([frame([about(kept, "q", rule=rule)], run_id=rule) for rule in ("boxed", "contains")])
    with pytest.raises(MixedRowsError, match=r"read more than once, once for each of the judges boxed and contains;"):
        keyed(rows)


def test_a_greedy_line_has_no_seed_beside_a_sampled_one(kept: Result) -> None:
    greedy = frame([kept], temperature=0.0, sampling_seed=None)
    sampled = frame([kept], temperature=1.0, sampling_seed=3)
    assert keyed(pd.concat([greedy, sampled], ignore_index=True))["varied"].tolist() == [
        "temperature 0",
        "temperature 1, sampling seed 3",
    ]


def test_a_note_says_what_else_a_replaced_result_had(kept: Result, tmp_path: Path) -> None:
    rows = frame([kept], file="a.parquet", weights="aaaa", model_judge="model", model_verdict=True)
    assert save_rows(rows, tmp_path, "small") == []
    again = frame([kept], file="a.parquet", weights="bbbb")
    assert save_rows(again, tmp_path, "small") == [
        "1 earlier results of overwrite on a.parquet are replaced in small.parquet; they were read with other weights; "
        "with them 1 verdicts of model"
    ]


def test_a_question_in_a_file_of_another_name_replaces_itself(kept: Result, tmp_path: Path) -> None:
    for file, rule in (("a.parquet", "boxed"), ("folder/a.parquet", "boxed"), ("b.parquet", "contains")):
        save_rows(frame([about(kept, "q", rule=rule)], file=file), tmp_path, "small")
    saved = pd.read_parquet(tmp_path / "small.parquet")
    assert saved["file"].tolist() == ["folder/a.parquet", "b.parquet"], "another rule is another result"


def test_another_file_of_one_name_replaces_nothing(kept: Result, lost: Result, tmp_path: Path) -> None:
    results = []
    for folder, result in (("needles", kept), ("multihop", lost), ("needles", kept)):
        metadata = result.example.metadata | {"file": f"{folder}/test_4.parquet", "file_name": "test_4.parquet"}
        result = replace(result, example=replace(result.example, metadata=metadata))
        results += save_rows(frame([result]), tmp_path, "small")
    assert results == []
    saved = pd.read_parquet(tmp_path / "small.parquet")
    assert saved["file"].tolist() == ["multihop/test_4.parquet", "needles/test_4.parquet"]


def test_files_of_one_name_have_their_folders_in_tables(kept: Result, tmp_path: Path) -> None:
    files = [save([kept.example], tmp_path / name) for name in ("a/x/test.parquet", "b/x/test.parquet", "c.parquet")]
    named = [example.metadata["file_name"] for example in EvaluationPlan(files).examples()]
    assert sorted(named) == ["a/x/test.parquet", "b/x/test.parquet", "c.parquet"]
    rows = to_frame(
        [replace(kept, example=replace(kept.example, metadata={"file": "/d/t.parquet", "file_name": "d/t"}))]
    )
    assert rows["file"].tolist() == ["d/t"]


@pytest.mark.parametrize("damaged", [lambda data: data[:-100], lambda data: data[:4] + b"\xff" * 40 + data[44:]])
def test_a_damaged_file_of_rows_is_named_with_the_fix(kept: Result, tmp_path: Path, damaged) -> None:
    save_rows(frame([kept]), tmp_path, "small")
    file = tmp_path / "small.parquet"
    file.write_bytes(damaged(file.read_bytes()))
    says = rf"{file} is damaged, or no parquet file \(.*\); move it out of {tmp_path}"
    with pytest.raises(ValueError, match=says):
        gather_rows(tmp_path)
    with pytest.raises(ValueError, match=says):
        save_rows(frame([kept]), tmp_path, "small")


def test_rows_are_not_added_to_a_file_of_something_else(kept: Result, tmp_path: Path) -> None:
    pd.DataFrame({"example": ["one"]}).to_parquet(tmp_path / "small.parquet")
    with pytest.raises(
        ValueError, match=rf"small\.parquet holds no results of an evaluation; move it out of {tmp_path}"
    ):
        save_rows(frame([kept]), tmp_path, "small")


def test_a_question_that_another_reader_read_stays(kept: Result, tmp_path: Path) -> None:
    """The reader ``blind`` reads the question of an earlier row of ``overwrite``, which now reads another file."""
    save_rows(frame([about(kept, "q")], file="a.parquet"), tmp_path, "small")
    others = [frame([replace(about(kept, "q"), reader="blind")], file="b.parquet")]
    others.append(frame([about(kept, "p")], file="c.parquet"))
    save_rows(pd.concat(others), tmp_path, "small")
    saved = pd.read_parquet(tmp_path / "small.parquet")
    assert saved[["reader", "file"]].values.tolist() == [
        ["overwrite", "a.parquet"], ["blind", "b.parquet"], ["overwrite", "c.parquet"]
    ]  # fmt: skip
