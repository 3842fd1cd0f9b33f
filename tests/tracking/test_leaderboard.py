"""The leaderboard: a row per policy, reader and length with score and cost, as page, CSV and LaTeX."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.cli import main
from memagent_lib.data import make, save
from memagent_lib.evaluation import EvaluationPlan, overview, table
from memagent_lib.inspector import leaderboard_page, save_leaderboard
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.tracking import (
    Experiment,
    TrackingError,
    different_kinds,
    evaluate_files,
    leaderboard,
    rows_file,
)

SIZES = {"chunk_tokens": 200, "answer_tokens": 16, "question_tokens": 64}


@pytest.fixture
def board(tokenizer, workspace: Path, tmp_path: Path) -> pd.DataFrame:
    """Two policies with memories of two sizes, read by two readers; the second policy knows the answers."""
    file = save(make("needle", 3, 5, tokenizer, chunks=2, chunk_tokens=200), tmp_path / "test_2.parquet")
    answers = {row.question: row.answers[0] for row in make("needle", 3, 5, tokenizer, chunks=2, chunk_tokens=200)}

    def knows(text: str) -> str:
        return next(f"\\boxed{{{answer}}}" for question, answer in answers.items() if question in text)

    experiment = Experiment.open(workspace)
    for policy, reply, memory in (("guesses", lambda text: "\\boxed{0}", 20), ("knows", knows, 60)):
        encoder = Encoder(tokenizer, Template.load("short"), Budget(memory_tokens=memory, **SIZES))
        agent = Agent(encoder, Scripted(reply))
        with experiment.run(f"evaluate {policy}", {"policy": policy}) as run:
            evaluate_files(run, agent, EvaluationPlan([file], readers=["overwrite", "blind"]), tmp_path, policy=policy)
    return leaderboard(experiment)


def test_each_reader_of_each_policy_has_score_and_cost(board) -> None:
    assert board[["file", "chunks", "policy", "reader", "settings", "accuracy", "scored", "turns"]].values.tolist() == [
        ["test_2.parquet", 2, "knows", "blind", "memory 60", 1.0, 3, 1.0],
        ["test_2.parquet", 2, "knows", "overwrite", "memory 60", 1.0, 3, 3.0],
        ["test_2.parquet", 2, "guesses", "blind", "memory 20", 0.0, 3, 1.0],
        ["test_2.parquet", 2, "guesses", "overwrite", "memory 20", 0.0, 3, 3.0],
    ]
    assert board["documents"].nunique() == board["code"].nunique() == 1
    assert {"tokens", "seconds", "seconds_95"} <= set(board) and different_kinds(board) == []


def test_rows_of_different_kinds_are_named_on_the_page(board) -> None:
    mixed = board.assign(code=["1", "2", "1", "1"], judge=["boxed", "boxed", "contains", "boxed"])
    mixed.attrs["without_rows"] = ["abc"]
    note = (
        "needle test_2.parquet at 2 chunks: rows of 2 judges, 2 versions of the code are not compared with each other"
    )
    assert different_kinds(mixed) == [note]
    page = leaderboard_page(mixed.assign(policy="</script><b>bold")).body
    assert note in page and "not listed, because they have no table of rows: the runs abc" in page
    data = json.loads(re.search(r'application/json">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["columns"][:6] == ["task", "file", "length", "policy", "reader", "settings"]
    assert data["rows"][0][3] == ["</script><b>bold"] * 2
    assert data["rows"][0][data["columns"].index("accuracy")] == [1.0, "100.0 % [43.9, 100.0]"]


def test_a_board_is_saved_as_page_csv_or_latex(board, tmp_path: Path) -> None:
    saved = pd.read_csv(save_leaderboard(board, tmp_path / "board.csv"))
    assert saved["accuracy"].tolist() == board["accuracy"].tolist()
    latex = save_leaderboard(board, tmp_path / "board.tex").read_text()
    assert latex.count("\\\\") == 5
    assert r"test\_2.parquet & 2 & knows & blind & memory 60 & 100.0 \% [43.9, 100.0]" in latex
    assert "<h1>Leaderboard</h1>" in save_leaderboard(board, tmp_path / "board.html").read_text()
    with pytest.raises(ValueError, match=r"written as .html, .csv, .tex, by the file's suffix; got 'board.xlsx'"):
        save_leaderboard(board, tmp_path / "board.xlsx")


def test_the_command_prints_the_path_or_one_line(board, workspace: Path, tmp_path: Path, capsys) -> None:
    assert main(["leaderboard", "--tracking", str(workspace)]) == 0
    assert capsys.readouterr().out == f"{workspace / 'leaderboard.html'}\n"
    assert main(["leaderboard", "--tracking", str(tmp_path / "empty")]) == 2
    assert f"no MLflow store in {tmp_path / 'empty'}: there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "empty").exists(), "to look creates nothing"


def test_a_store_without_evaluations_names_the_command(workspace: Path) -> None:
    with pytest.raises(TrackingError, match=r"no evaluation in .*; make one with: memagent evaluate"):
        leaderboard(Experiment.open(workspace))


def test_a_run_of_several_tasks_has_a_first_row_over_them(board, workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    rows = experiment.join(board["run_id"].iloc[0]).read_table("results.parquet")
    tasks = dict(zip(rows["example"].unique(), ("b", "a", "a"), strict=True))
    with experiment.run("evaluate tasks", {"policy": "tasks"}) as run:
        run.table(rows.assign(policy="tasks", task=rows["example"].map(tasks)), "results.parquet")
        run.metrics({"scored": len(rows)})
    found = leaderboard(experiment)
    assert found["task"].tolist() == ["all tasks"] * 2 + ["a"] * 2 + ["b"] * 2 + ["needle"] * 4
    assert found[["policy", "scored", "accuracy"]].values.tolist()[:2] == [["tasks", 3, 1.0]] * 2
    assert found[["file", "chunks"]].isna().all(axis="columns").tolist() == [True] * 2 + [False] * 8


def test_a_model_judge_has_rows_of_its_own(board, workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    rows = experiment.join(board["run_id"].iloc[0]).read_table("results.parquet")
    with experiment.run("evaluate judged", {"policy": "judged"}) as run:
        judged = rows.assign(policy="judged", model_judge="wise (LongMemEval)", model_verdict=0.0)
        run.table(judged, "results.parquet")
        run.metrics({"scored": len(rows)})
    found = leaderboard(experiment)
    found = found[(found["policy"] == "judged") & (found["reader"] == "overwrite")]
    assert dict(zip(found["judge"], found["accuracy"], strict=True)) == {
        rows["rule"].iloc[0]: 1.0,
        "wise (LongMemEval)": 0.0,
    }
    assert any("rows of 2 judges are not compared" in note for note in different_kinds(leaderboard(experiment)))


def test_undecided_verdicts_are_counted_beside_the_score(board, workspace: Path, tmp_path: Path) -> None:
    """One right answer and a judge that decided on no other one is no score of 100 % without a word."""
    experiment = Experiment.open(workspace)
    rows = experiment.join(board["run_id"].iloc[0]).read_table("results.parquet")
    rows = rows[rows["reader"] == "overwrite"]
    verdicts = [1.0] + [None] * (len(rows) - 1)
    judged = rows.assign(policy="judged", model_judge="wise", model_verdict=verdicts)
    with experiment.run("evaluate judged", {"policy": "judged"}) as run:
        run.table(judged, "results.parquet")
        run.metrics({"scored": len(rows)})
    found = leaderboard(experiment)
    (row,) = found[found["judge"] == "wise"].to_dict("records")
    assert (row["accuracy"], row["scored"], row["undecided"]) == (1.0, 1, len(rows) - 1)
    told = f"1, {len(rows) - 1} undecided"
    assert told in save_leaderboard(found, tmp_path / "board.html").read_text()
    assert f"(n=1), {len(rows) - 1} undecided" in "".join(table(judged)["2 chunks"])
    assert f"(n=1), {len(rows) - 1} undecided" in "".join(overview(judged)["by the model judge"])


def test_two_models_of_one_name_are_told_apart(board, workspace: Path) -> None:
    experiment = Experiment.open(workspace)
    rows = experiment.join(board["run_id"].iloc[0]).read_table("results.parquet")
    for weights in ("aaaa", "bbbb"):
        with experiment.run("evaluate final", {"policy": "final"}) as run:
            run.table(rows.assign(policy="final", weights=weights), "results.parquet")
            run.metrics({"scored": len(rows)})
    found = leaderboard(experiment)
    of_two = found[(found["policy"] == "final") & (found["reader"] == "blind")]
    assert sorted(of_two["settings"]) == ["memory 60, weights aaaa", "memory 60, weights bbbb"]


def test_artifacts_that_have_moved_are_named_with_their_place(board, workspace: Path, tmp_path: Path) -> None:
    (workspace / "artifacts").rename(tmp_path / "moved")
    with pytest.raises(TrackingError, match=r"has 2 evaluations, and none of them has its results\.parquet") as found:
        leaderboard(Experiment.open(workspace))
    assert all(run_id in str(found.value) for run_id in board["run_id"])
    assert f"is expected in {(workspace / 'artifacts').as_uri()}/" in str(found.value)


def test_two_policies_never_share_a_file_of_rows() -> None:
    assert rows_file("step 20, seed-1") != rows_file("step 20- seed-1")
    assert rows_file("step 20 seed-1") == "step 20 seed-1"
    assert len({rows_file(name) for name in ("7B/RL", "7B:RL", "7B-RL")}) == 3
    long = [rows_file(letter * 90) for letter in ("x", "記", "記記")]
    assert long[0] == "x" * 90 and max(len(name.encode()) for name in long) < 200 and len(set(long)) == 3


def test_a_damaged_table_leaves_out_its_run_alone(board, workspace: Path, tmp_path: Path) -> None:
    experiment = Experiment.open(workspace)
    (tmp_path / "results.parquet").write_bytes(b"PAR1")
    with experiment.run("evaluate broken", {"policy": "broken"}) as run:
        run.file(tmp_path / "results.parquet")
        run.metrics({"scored": 1})
    found = leaderboard(experiment)
    assert found.attrs["without_rows"] == [run.id]
    assert len(found) == len(board)
