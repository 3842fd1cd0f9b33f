"""The report: one page of evaluations with warnings, numbers and links to the readings behind them."""

import gzip
import json
import re
import shutil
from base64 import b64decode
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.cli.main import main
from memagent_lib.data import make, save
from memagent_lib.evaluation import EvaluationPlan, mixtures, to_frame
from memagent_lib.inspector import EvaluationReport
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import reader_named
from memagent_lib.sweeps.specification import PointState
from memagent_lib.tracking import Experiment, TrackingError, evaluate_files


def _reads(text: str, forgets: bool) -> str:
    """A perfect reader of needles, or one that never notes anything."""
    key = re.search(r"code of the (\w+ \w+)\?", text).group(1)
    found = None if forgets else re.search(rf"The code of the {key} is (\d+)\.", text)
    if "Write the answer" in text:
        return f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return found.group(0) if found else "nothing yet"


def _parquet_of_something_else() -> bytes:
    return pd.DataFrame({"question": ["q?"]}).to_parquet()


def _refuses(text: str) -> str:
    raise BackendError("the server went away")


@pytest.fixture
def evaluated(tokenizer, workspace, tmp_path):
    """Two policies on needle documents of two lengths, the second of them failing on the long ones if it refuses."""
    files = []
    for chunks in (2, 3):
        files.append(tmp_path / f"test_{chunks}.parquet")
        save(make("needle", 4, 5, tokenizer, chunks=chunks, chunk_tokens=200), files[-1])

    def run(policy: str, reply, lengths=slice(None), reader="overwrite", memory_tokens=60) -> str:
        budget = Budget(chunk_tokens=200, memory_tokens=memory_tokens, answer_tokens=16, question_tokens=64)
        encoder = Encoder(tokenizer, Template.load("short"), budget)
        agent = Agent(encoder, Scripted(reply), reader_named(reader))
        plan = EvaluationPlan(files[lengths], readers=[reader])
        with Experiment.open(workspace).run(f"evaluate {policy}", {"policy": policy}) as tracked:
            _, rows = evaluate_files(tracked, agent, plan, workspace / "out" / policy, policy=policy)
            rows = rows.assign(flops=2.5e9)  # a scripted policy has no shape
            rows.to_parquet(next((workspace / "out" / policy).glob("*.parquet")))
        for file in (workspace / "out" / policy).glob("*.parquet"):
            file.rename(workspace / "out" / file.name)
        return tracked.id

    return run


CELL = re.compile(r'data-key="([^"]+)" data-policy="([^"]+)" title="([^"]+)">([^<]+)</button>')


def catalog_of(page: str) -> dict[str, dict]:
    """The list of readings in a report, by key; each has the ``turns_here`` whose texts are in the page."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    packs = {name: json.loads(gzip.decompress(b64decode(pack))) for name, pack in data["packs"].items()}
    return {
        entry["key"]: entry | {"turns_here": len(packs[entry["document"]]["details"].get(entry["key"], ()))}
        for entry in data["catalog"]
    }


def test_every_number_has_its_interval_and_a_link_to_a_reading(evaluated, workspace):
    ids = [evaluated("forgets", partial(_reads, forgets=True)), evaluated("keeps", partial(_reads, forgets=False))]
    report = EvaluationReport.of(workspace / "out", workspace, "forgets")
    page = report.page().body
    assert report.warnings == []
    assert all(run in page for run in ids)
    cells = CELL.findall(page)
    none, all_four = "0.0 % [0.0, 49.0] (n=4)", "100.0 % [51.0, 100.0] (n=4)"
    assert [cell[1:] for cell in cells] == [
        ("forgets", "0.0 % [0.0, 32.4] (n=8)", "0 of 8"), ("keeps", "100.0 % [67.6, 100.0] (n=8)", "8 of 8"),
        ("forgets", none, "0 of 4"), ("keeps", all_four, "4 of 4"),
        ("forgets", none, "0 of 4"), ("keeps", all_four, "4 of 4"),
    ]  # fmt: skip
    catalog = catalog_of(page)
    for key, policy, *_, value in cells:
        assert (catalog[key]["policy"], catalog[key]["right"]) == (policy, not value.startswith("0"))
        assert catalog[key]["turns_here"] == catalog[key]["turns"]
    assert page.count("<td>2.5</td>") == len(cells), "GFLOPs of every cell"
    assert page.count("<td>keeps</td><td>2 chunks</td><td><b>+100.0</b></td>") == 1 and page.count("<svg") == 2
    assert "<th>seconds, median</th><th>seconds, 95 %</th><th>GFLOPs</th>" in page
    assert "minus forgets, same documents" in page


def test_a_grid_is_a_column_per_point_beside_a_chosen_baseline(evaluated, workspace):
    """A sweep over the memory's limit: the same documents, counted once in each column."""
    for memory in (20, 60):
        evaluated("small", partial(_reads, forgets=memory == 20), memory_tokens=memory)
        (workspace / "out" / "small.parquet").rename(workspace / "out" / f"small {memory}.parquet")
    report = EvaluationReport.of(workspace / "out", workspace, "small, memory 60")
    page = report.page().body
    assert [(policy, value) for _, policy, _, value in CELL.findall(page)][:2] == [
        ("small, memory 60", "8 of 8"), ("small, memory 20", "0 of 8"),
    ]  # fmt: skip
    assert "minus small, memory 60, same documents" in page
    assert "<td>small, memory 20</td><td>all lengths</td><td><b>-100.0</b></td>" in page
    assert {entry["policy"] for entry in catalog_of(page).values()} == {"small, memory 20", "small, memory 60"}


def test_missing_failed_and_mixed_results_are_warnings(evaluated, workspace):
    evaluated("keeps", partial(_reads, forgets=False))
    evaluated("broken", _refuses, slice(1, 2))
    report = EvaluationReport.of(workspace / "out", workspace, "keeps")
    older = report.rows.assign(code=["00000000", *report.rows["code"][1:]])
    report = replace(report, rows=older, mixed=mixtures(older), missing=("evaluate, policy=other: failed",))
    missing, mixed, apart, broken, why = report.warnings
    assert missing == "missing: evaluate, policy=other: failed"
    assert mixed.startswith("results of 2 versions of the code are mixed: 00000000, ")
    assert apart == (
        "the lines have read 4 to 8 questions, not all the same: scores over all lengths or tasks do not compare"
    )
    assert broken == "broken, overwrite, needle at 3: all 4 failed"
    assert why == "4 failed (overwrite): BackendError: the server went away"
    page = report.page().body
    assert all(warning in page for warning in report.warnings)
    assert "none scored" in page and "4 failed" in page and "–" in page  # failed is not 0 %, unread is neither


def test_results_of_runs_outside_the_store_are_listed(evaluated, workspace, tmp_path):
    evaluated("forgets", partial(_reads, forgets=True))
    known = evaluated("keeps", partial(_reads, forgets=False))
    file = workspace / "out" / "forgets.parquet"
    pd.read_parquet(file).assign(run_id="of another machine").to_parquet(file)
    report = EvaluationReport.of(workspace / "out", workspace)
    page = report.page().body
    (warning,) = report.warnings
    assert warning.startswith("1 of 2 runs are not in sqlite:") and warning.split(";")[0] in page
    assert "forgets, read with overwrite: run of another machine, not in the store" in page
    assert f"keeps, read with overwrite: run {known}, 2" in page
    assert '<b title="0.0 % [0.0, 49.0] (n=4)">0 of 4</b>' in page and page.count("data-key=") == 3  # of the known run
    page = EvaluationReport.of(workspace / "out", tmp_path / "empty").page().body
    assert (
        "2 of 2 runs are not in" in page and "There is no reading to display: their runs are not in the store." in page
    )


def test_runs_without_their_artifacts_are_a_warning(evaluated, workspace):
    gone = evaluated("forgets", partial(_reads, forgets=True))
    evaluated("keeps", partial(_reads, forgets=False))
    shutil.rmtree(workspace / "artifacts" / gone)
    report = EvaluationReport.of(workspace / "out", workspace)
    page = report.page().body
    (warning,) = report.warnings
    assert warning.startswith(
        f"2 artifacts of the runs are missing here, the first: run {gone} has no artifact 'results' in file:"
    )
    assert f"run {gone} has no artifact" in page and "<pre>no environment.json</pre>" in page
    assert page.count("data-key=") == 3, "the readings of the other run"
    shutil.rmtree(workspace / "artifacts")
    page = EvaluationReport.of(workspace / "out", workspace).page().body
    assert "no reading to display: they are not where the store expects them." in page


def test_the_command_writes_the_page_or_one_line_of_error(evaluated, workspace, tmp_path, capsys):
    evaluated("keeps", partial(_reads, forgets=False))
    page = tmp_path / "page.html"
    assert main(["report", str(workspace / "out"), "--tracking", str(workspace), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page) and "<h1>out</h1>" in page.read_text()
    assert main(["report", str(tmp_path / "nothing"), "--tracking", str(workspace)]) == 2
    assert (
        f"no folder {tmp_path / 'nothing'}; give a sweep's folder, or fill one: memagent evaluate DATA --out FOLDER"
        in (capsys.readouterr().err)
    )
    assert main(["report", str(page), "--tracking", str(workspace)]) == 2
    assert f"{page} is a file; give a sweep's folder" in capsys.readouterr().err
    (empty := tmp_path / "empty").mkdir()
    assert main(["report", str(empty), "--tracking", str(workspace)]) == 2
    assert f"no results in {empty}; give a sweep's folder" in capsys.readouterr().err
    (empty / "data.parquet").write_bytes(_parquet_of_something_else())
    assert main(["report", str(empty), "--tracking", str(workspace)]) == 2
    assert f"{empty / 'data.parquet'} holds no results of an evaluation" in capsys.readouterr().err


def _sweep_of(folder, uri: str, run_id: str) -> None:
    """Write the files of a sweep whose only point has finished as the run ``run_id``."""
    point = {"stage": "own", "point": "n=2", "varied": {"n": 2}, "key": "1", "record": "point.json"}
    sweep = {"name": "own", "run_id": run_id, "tracking": uri, "points": [point]}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    (folder / "point.json").write_text(json.dumps({"key": "1", "status": PointState.FINISHED, "run_id": run_id}))


def test_a_sweep_of_other_tables_is_one_line_of_error(workspace, tmp_path, capsys):
    experiment = Experiment.open(workspace)
    with experiment.run("a notebook of one's own") as run:
        run.table(pd.DataFrame({"word": ["owl"]}), "results.parquet")
    _sweep_of(tmp_path, experiment.uri, run.id)
    assert main(["report", str(tmp_path)]) == 2
    assert "a results.parquet without policy, task, reader, score" in capsys.readouterr().err


def test_the_store_of_a_sweep_is_its_own_or_the_one_named(evaluated, workspace, tmp_path):
    known = evaluated("keeps", partial(_reads, forgets=False))
    _sweep_of(tmp_path, Experiment.open(workspace).uri, known)
    report = EvaluationReport.of(tmp_path)
    assert report.experiment.uri == f"sqlite:///{workspace}/mlflow.db" and report.warnings == []
    _sweep_of(tmp_path, f"sqlite:///{tmp_path}/another machine/mlflow.db", known)
    with pytest.raises(TrackingError, match=r"no MLflow store .*/another machine/"):
        EvaluationReport.of(tmp_path)
    assert not (tmp_path / "another machine").exists()
    assert EvaluationReport.of(tmp_path, workspace).warnings == []


def test_what_is_dropped_or_differs_is_a_warning(kept, workspace, tmp_path):
    """Two judges of one question, and policies that have read different questions."""

    def saved(policy, *questions, rules=("boxed",)):
        made = [replace(kept.example, question=each, rule=rule) for each in questions for rule in rules]
        rows = to_frame([replace(kept, example=example) for example in made])
        rows.assign(policy=policy, run_id=policy).to_parquet(tmp_path / f"{policy}.parquet")

    saved("one", "heron?", "fox?", rules=("boxed", "contains"))
    saved("two", "fox?", "owl?")
    saved("three", "heron?")
    assert EvaluationReport.of(tmp_path, workspace).warnings[:3] == [
        "needle was judged by several rules: boxed, contains",
        "2 readings are of documents that are in several data files; they count once",
        "needle at 4: the lines have read different questions, 0 of them in common; compare them by the paired "
        "differences alone, or evaluate all on the same data",
    ]
