"""One record of a result: what it holds, that it comes back, and what of it a table shows."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import replace

import pandas as pd
import pytest
from metric_history import history

from memagent_lib.evaluation import (
    COLUMNS,
    Result,
    gather_rows,
    read_results,
    save_rows,
    summarise,
    table,
    to_frame,
    turns_to_frame,
    write_results,
)
from memagent_lib.evaluation.results import Column
from memagent_lib.journal import JournalError
from memagent_lib.trace import Trace
from memagent_lib.tracking import Experiment, log_results


def back(result: Result, document: str | None = None, stored: bool = False) -> Result:
    return Result.from_record(json.loads(json.dumps(result.to_record(stored))), document)


def test_a_result_survives_its_record_without_its_document_too(kept, lost):
    failed = replace(kept, trace=None, score=None, error="BackendError: gone")
    for result in (kept, lost):
        assert back(result, result.example.document, stored=True) == result
        assert back(result).trace == result.trace
        bare = back(result, stored=True)
        assert bare.example.document == "" and not any(t.prompt.chunk.text for t in bare.trace.reads)
        assert bare.row() == result.row() and bare.key == result.key
    assert (again := back(failed)).error == "BackendError: gone" and again.trace is None
    assert again.row() == failed.row()


def test_a_chunk_that_is_no_slice_of_the_document_keeps_its_text(kept):
    turn = kept.trace.turns[0]
    joined = replace(turn, prompt=replace(turn.prompt, chunk=replace(turn.prompt.chunk, text="head ... tail")))
    result = replace(kept, trace=Trace("q", (joined, *kept.trace.turns[1:])))
    texts = [turn["chunk"].get("text") for turn in result.to_record(stored=True)["trace"]["turns"] if "chunk" in turn]
    assert texts == ["head ... tail", None, None, None]
    assert back(result, kept.example.document, stored=True) == result


def test_files_of_results_have_each_document_once_wrong_first(kept, lost, tmp_path):
    assert write_results([kept, lost], tmp_path / "whole") == 0
    assert read_results(tmp_path / "whole") == [lost, kept] == read_results(tmp_path / "whole" / "results.jsonl")
    assert len((tmp_path / "whole" / "documents.jsonl").read_text().splitlines()) == 1
    size = len((tmp_path / "whole" / "results.jsonl").read_bytes())
    assert write_results([kept, lost], tmp_path / "cut", limit_bytes=size) == 1
    assert read_results(tmp_path / "cut") == [lost]
    (tmp_path / "whole" / "documents.jsonl").unlink()
    assert [r.example.document for r in read_results(tmp_path / "whole")] == ["", ""], "and everything else is there"
    with pytest.raises(FileNotFoundError, match="no results at"):
        read_results(tmp_path / "nowhere")


def test_a_cut_file_gives_its_lines_and_a_damaged_one_its_number(kept, lost, tmp_path):
    write_results([kept, lost], tmp_path)
    file = tmp_path / "results.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-200])
    assert [r.example.id for r in read_results(tmp_path)] == ["lost"]
    file.write_bytes(whole.replace(b'"reader": "overwrite"', b'"reader": overwrite', 1))
    with pytest.raises(JournalError, match=r"results.jsonl: line 1 is damaged"):
        read_results(tmp_path)


def test_a_result_is_a_row_of_the_declared_columns(kept, lost):
    frame = to_frame([kept, lost])
    assert list(frame.columns) == list(COLUMNS)
    columns = ["example", "score", "answer", "capture", "retention", "fate", "turns", "rule"]
    assert frame[columns].to_numpy().tolist() == [
        ["kept", 1.0, "4711", 1.0, 1.0, "in memory", 5, "boxed"],
        ["lost", 0.0, "9", 1.0, 0.0, "noted and lost", 5, "boxed"],
    ]
    assert turns_to_frame({"a": [kept], "b": [lost]})["policy"].tolist() == ["a"] * 5 + ["b"] * 5
    assert list(to_frame([]).columns) == list(COLUMNS)


def test_a_model_that_always_fails_has_failed_and_is_not_at_0(kept):
    gone = [replace(kept, trace=None, score=None, error="BackendError: gone", example=replace(kept.example, id=str(i)))
            for i in range(3)]  # fmt: skip
    frame = to_frame([*gone, kept]).assign(policy=["gone"] * 3 + ["kept"])
    summary = summarise(frame, ["policy"]).set_index("policy")
    assert summary.loc["gone", ["scored", "failed"]].tolist() == [0, 3] and summary["accuracy"].isna().tolist() == [
        True,
        False,
    ]
    assert table(frame)["4 chunks"].tolist() == ["none scored, 3 failed", "100.0 % [20.7, 100.0] (n=1)"]


def test_two_writers_of_one_file_at_once_lose_no_row(kept, tmp_path, monkeypatch):
    """Issue 47, item 10: two readers on one ``--out`` lost 24 of 48 rows."""
    both_have_read = threading.Barrier(2)

    def read_slowly(path):
        frame = read(path)
        with suppress(threading.BrokenBarrierError):  # with the lock, the second writer never comes this far
            both_have_read.wait(0.1)
        return frame

    read = pd.read_parquet
    readers = ("overwrite", "truncated", "gated")
    first, *others = (to_frame([replace(kept, reader=name)]).assign(file="a", policy="p") for name in readers)
    save_rows(first, tmp_path, "p")
    monkeypatch.setattr(pd, "read_parquet", read_slowly)
    writers = [threading.Thread(target=save_rows, args=(frame, tmp_path, "p")) for frame in others]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    monkeypatch.undo()
    assert sorted(gather_rows(tmp_path)["reader"]) == sorted(readers)


def test_a_declared_column_reaches_tables_parquet_and_mlflow(kept, lost, workspace, monkeypatch):
    words = Column(lambda r: len(r.trace.answer.split()) + 6, "words of the answer", mean=True, tag=True)
    monkeypatch.setitem(COLUMNS, "answer_words", words)
    with Experiment.open(workspace).run("one") as run:
        rows = log_results(run, [kept, lost], policy="p")
    assert rows["answer_words"].tolist() == [7, 7]
    save_rows(rows, workspace, "p")
    assert gather_rows(workspace)["answer_words"].tolist() == [7, 7]
    assert summarise(rows)["answer_words"].tolist() == [7.0]
    assert history(run, "overwrite/answer_words") == [(4, 7.0)]
    where = [run.experiment.experiment_id]
    assert len(run.experiment.client.search_traces(where, filter_string="tags.answer_words = '7'")) == 2
