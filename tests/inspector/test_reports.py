"""The report of a folder and the leaderboard of a store: numbers, warnings, and the readings behind them."""

import json
import re
from functools import partial

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.cli.main import main
from memagent_lib.data import make, save
from memagent_lib.evaluation import EvaluationPlan
from memagent_lib.inspector import evaluations_in, readings_of, save_leaderboard, score_table
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.tracking import Experiment, TrackingError, evaluate_files, leaderboard


def _reads(text: str, forgets: bool) -> str:
    """A perfect reader of needles, or one that never notes anything."""
    key = re.search(r"code of the (\w+ \w+)\?", text).group(1)
    found = None if forgets else re.search(rf"The code of the {key} is (\d+)\.", text)
    if "Write the answer" in text:
        return f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return found.group(0) if found else "nothing yet"


def _refuses(text: str) -> str:
    raise BackendError("the server went away")


@pytest.fixture
def evaluated(tokenizer, workspace, tmp_path):
    """Evaluate a policy on needle documents of two lengths, or of those in ``lengths``; return its run's id."""
    files = []
    for chunks in (2, 3):
        made = make("needle", 4, 5, tokenizer, chunks=chunks, chunk_tokens=200)
        files.append(save(made, tmp_path / f"test_{chunks}.parquet"))

    def run(policy: str, reply, lengths=slice(None)) -> str:
        budget = Budget(chunk_tokens=200, memory_tokens=60, answer_tokens=16, question_tokens=64)
        agent = Agent(Encoder(tokenizer, Template.load("short"), budget), Scripted(reply))
        plan = EvaluationPlan(files[lengths], readers=["overwrite"])
        with Experiment.open(workspace).run(f"evaluate {policy}", {"policy": policy}) as tracked:
            evaluate_files(tracked, agent, plan, tmp_path / policy, policy=policy)  # each has its own journal
        (workspace / "out").mkdir(exist_ok=True)
        for file in (tmp_path / policy).glob("*.parquet"):
            file.rename(workspace / "out" / file.name)
        return tracked.id

    return run


def test_the_report_is_one_page_of_numbers_figures_and_readings(evaluated, workspace, capsys) -> None:
    ids = [evaluated("forgets", partial(_reads, forgets=True)), evaluated("keeps", partial(_reads, forgets=False))]
    capsys.readouterr()
    assert main(["report", str(workspace / "out"), "--tracking", str(workspace), "--first", "keeps"]) == 0
    assert capsys.readouterr().out == f"{workspace}/out/report.html\n"
    page = (workspace / "out/report.html").read_text()
    assert page.startswith("<!doctype html>") and not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    head = re.search(r'ma-introduction">(.*?)</div>', page, re.DOTALL).group(1)
    words = ("“<bdi>What is the code of", "compared with <b><bdi>keeps", "The data are 8 documents of 2 to 3 chunks")
    assert all(part in head for part in (*words, "test_2.parquet", "Capture", "Retention", "Fate")), head
    assert page.count("data:image/png;base64,") == 3 and all(run in page for run in ids)
    assert page.index("100.0 % [51.0, 100.0]") < page.index("0.0 % [0.0, 49.0]")
    assert "evaluations_in" not in page, "the notebook's code"
    link = "#?policy=keeps&amp;reader=overwrite&amp;task=&amp;length=3"
    assert f'<a href="{link}">100.0 % [51.0, 100.0] (n=4)</a>' in page
    catalog = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL).group(1))["catalog"]
    assert (
        sorted((entry["policy"], entry["right"]) for entry in catalog)
        == [("forgets", False)] * 8 + [("keeps", True)] * 8
    )


def test_a_score_of_unknown_length_is_a_link_too(evaluated, workspace) -> None:
    evaluated("keeps", partial(_reads, forgets=False))
    rows = evaluations_in(workspace / "out", workspace).rows
    mixed = rows.assign(chunks=rows["chunks"].where(rows["chunks"] == 2))
    assert re.findall(r"length=(.*?)\"", score_table(mixed).body) == ["2", "no+set+length"]


def test_what_failed_differs_or_is_elsewhere_is_a_warning(evaluated, workspace, tmp_path) -> None:
    evaluated("keeps", partial(_reads, forgets=False))
    evaluated("broken", _refuses, slice(1, 2))
    file = workspace / "out" / "keeps.parquet"
    rows = pd.read_parquet(file)
    rows.assign(code=["00000000", *rows["code"][1:]], run_id="of another machine").to_parquet(file)
    found = evaluations_in(workspace / "out", workspace)
    for part in ("versions of the code are mixed", "the server went away", "different questions (broken 4, keeps 8)"):
        assert any(part in warning for warning in found.warnings), part
    readings, missing = readings_of(found)
    assert "of another machine" in missing and not readings
    pd.concat([rows, rows.tail(1).assign(example="not saved", document="d")]).to_parquet(file)
    (workspace / "out" / "broken.parquet").unlink()
    readings, missing = readings_of(evaluations_in(workspace / "out", workspace))
    assert missing.startswith("8 of 9 readings are saved") and len(readings["keeps"]) == 8


def test_a_sweep_has_its_own_store_and_names_its_unfinished_points(evaluated, workspace, tmp_path, capsys) -> None:
    known = evaluated("keeps", partial(_reads, forgets=False))

    def swept(store: str) -> None:
        points = []
        for name, status in (("x=1", "finished"), ("x=2", "failed")):
            record = {"key": "k", "status": status, "run_id": known, "seconds": 1.0, "error": None}
            (tmp_path / f"{name}.json").write_text(json.dumps(record))
            points.append({"stage": "one", "point": name, "varied": {}, "parameters": {}, "key": "k"})
            points[-1]["record"] = f"{name}.json"
        (tmp_path / "sweep.json").write_text(json.dumps({"name": "s", "tracking": store, "points": points}))

    swept(Experiment.open(workspace).uri)
    found = evaluations_in(tmp_path)
    assert found.experiment.uri == f"sqlite:///{workspace}/mlflow.db"
    assert found.warnings == ["missing: one, x=2: failed"]
    swept(f"sqlite:///{tmp_path}/another machine/mlflow.db")
    with pytest.raises(TrackingError, match="another machine"):
        evaluations_in(tmp_path)
    assert len(evaluations_in(tmp_path, workspace).rows) == 8
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_rows_of_a_leaderboard_share_a_heading_if_they_compare(evaluated, workspace, tmp_path) -> None:
    evaluated("<b>bold", partial(_reads, forgets=False))
    evaluated("forgets", partial(_reads, forgets=True), slice(1, 2))
    board = leaderboard(Experiment.open(workspace))

    def headings(board: pd.DataFrame) -> list[str]:
        page = save_leaderboard(board, tmp_path / "board.html").read_text()
        assert "<bdi>&lt;b&gt;bold" in page and "<b>bold" not in page and "100.0 % [51.0, 100.0]" in page
        return re.findall(r"rowgroup.*?<span>(.*?), question set .*?, judge", page)

    assert len(board) == 3
    assert headings(board) == ["needle, test_2.parquet, 2 chunks", "needle, test_3.parquet, 3 chunks"]
    assert len(headings(board.assign(judge=["boxed", "boxed", "contains"]))) == 3
    assert headings(board.assign(file=None, chunks=float("nan")))[0] == "needle"
