"""All evaluations of a store: two that are compared, and the leaderboard with score and cost of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.data import make, save
from memagent_lib.evaluation import EvaluationPlan, Result, paired
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.tracking import (
    Experiment,
    TrackingError,
    choose,
    differing,
    evaluate_files,
    leaderboard,
    load_readings,
    log_results,
    run_names,
)

SIZES = {"chunk_tokens": 200, "answer_tokens": 16, "question_tokens": 64}


def evaluated(ledger: Experiment, policy: str, *results: Result, **params) -> str:
    with ledger.run(f"evaluate {policy}", {"policy": policy, **params}) as run:
        log_results(run, results, policy=policy)
    return run.id


def test_two_evaluations_are_taken_by_policy_or_run(workspace: Path, kept, lost) -> None:
    ledger = Experiment.open(workspace)
    with ledger.run("make data"):
        pass
    first = evaluated(ledger, "before", lost, lr=1)
    second = evaluated(ledger, "after", lost, lr=2)
    evaluated(ledger, "after", kept)  # newer, without a question in common
    rows = choose(ledger, "before", "after")
    assert rows[["run_id", "line"]].values.tolist() == [[first, "before"], [second, "after"]]
    assert choose(ledger, second[:8], first)["policy"].tolist() == ["after", "before"]
    parameters = differing(ledger, rows)
    assert parameters.loc["lr"].to_dict() == {"before": "1", "after": "2"}
    assert {policy: len(found) for policy, found in load_readings(ledger, rows).items()} == {"before": 1, "after": 1}
    assert paired(rows, "before", "after")[["chunks", "difference", "n"]].values.tolist() == [[4, 0.0, 1]]

    again = evaluated(ledger, "after", lost)
    twice = choose(ledger, "after", "after")
    assert twice[["run_id", "line"]].values.tolist() == [[second, f"after {second[:6]}"], [again, f"after {again[:6]}"]]
    assert run_names(ledger, [first, again, second]) == {
        first: "before", again: f"after, run {again[:6]}", second: f"after, run {second[:6]}",
    }  # fmt: skip
    with pytest.raises(TrackingError, match=r"'befor'.* did you mean 'before'"):
        choose(ledger, "befor", "after")


def test_two_readers_of_one_evaluation_are_compared(workspace: Path, lost) -> None:
    ledger = Experiment.open(workspace)
    run_id = evaluated(ledger, "before", lost, replace(lost, reader="blind"))
    rows = choose(ledger, "before", reader="overwrite", other_reader="blind")
    assert rows[["run_id", "reader"]].values.tolist() == [[run_id, "overwrite"], [run_id, "blind"]]
    for readers in ({"reader": "gated"}, {"reader": "overwrite"}, {"other_reader": "gated"}):
        with pytest.raises(TrackingError, match=next(iter(readers.values()))):
            choose(ledger, "before", **readers)


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
    assert {"tokens", "seconds", "seconds_95"} <= set(board)


def test_a_variant_is_named_as_in_the_results_folder(board, workspace: Path) -> None:
    rows = choose(Experiment.open(workspace), "guesses, memory 20", "knows, memory 60")
    assert rows["policy"].unique().tolist() == ["guesses", "knows"]
    with pytest.raises(TrackingError, match="knows, memory 20"):
        choose(Experiment.open(workspace), "guesses", "knows, memory 20")


def test_runs_whose_rows_are_missing_or_damaged_are_named(board, workspace: Path, tmp_path: Path) -> None:
    experiment = Experiment.open(workspace)
    (tmp_path / "results.parquet").write_bytes(b"PAR1")
    with experiment.run("evaluate broken", {"policy": "broken"}) as run:
        run.file(tmp_path / "results.parquet")
        run.metrics({"scored": 1})
    found = leaderboard(experiment)
    assert (found.attrs["without_rows"], len(found)) == ([run.id], len(board))
    (workspace / "artifacts").rename(tmp_path / "moved")
    with pytest.raises(TrackingError, match=board["run_id"].iloc[0]):
        leaderboard(experiment)
