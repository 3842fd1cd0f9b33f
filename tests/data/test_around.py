"""The no-context filter, the overview frames and the bench."""

from __future__ import annotations

import pytest

from experiments.bench.data import COLUMNS, bench_data, measure, naive
from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import Example, make, save
from memagent_lib.data.filtering import drop_known
from memagent_lib.data.overview import (
    DEPTH_COLUMNS,
    EXAMPLE_COLUMNS,
    GOLD_COLUMNS,
    data_depths,
    data_examples,
    data_files,
    data_gold_places,
    data_lengths,
)
from memagent_lib.readers import blind


def capital(number: int, answer: str) -> Example:
    return Example(
        id=f"c{number}", task="t", question=f"Capital of country {number}?", document="x", answers=(answer, "never")
    )


def agent(encoder, replies: dict[str, str | Exception], reader=blind) -> Agent:
    def answer(text: str) -> str:
        found = next((reply for key, reply in replies.items() if key in text), "no idea")
        if isinstance(found, Exception):
            raise found
        return found

    return Agent(encoder, Scripted(answer), reader)


def test_what_any_agent_knows_without_the_document_is_dropped_and_its_share_told(encoder):
    examples = [capital(i, answer) for i, answer in enumerate(["Oslo", "Rome", "Lima", "Bern", "Cairo"])]
    one = agent(encoder, {"country 0": "\\boxed{oslo}", "country 3": BackendError("down")})
    two = agent(encoder, {"country 2": "I guess lima, or not", "country 4": "\\boxed{Giza}"})
    found = drop_known(examples, [one, two], samples=2)
    assert [e.id for e in found.kept] == ["c1", "c4"]
    assert [e.id for e in found.known] == ["c0", "c2"]
    assert [e.id for e in found.failed] == ["c3"]
    assert found.share_known == 0.5
    assert str(found) == "2 questions kept; 2 dropped as known without the document (50.0 %); 1 could not be asked"
    assert len(one.backend.requests) == 10


def test_the_filter_never_shows_the_document(encoder):
    shown = agent(encoder, {})
    drop_known([Example(id="a", task="t", question="Who?", document="SECRET", answers=("b",))], [shown])
    assert all("SECRET" not in request.text for request in shown.backend.requests)


def test_an_agent_that_reads_the_document_cannot_filter(encoder):
    from memagent_lib.readers import overwrite

    with pytest.raises(ValueError, match="use the reader 'blind', got 'overwrite'"):
        drop_known([capital(1, "x")], [agent(encoder, {}, overwrite)])
    with pytest.raises(ValueError, match="at least one agent"):
        drop_known([capital(1, "x")], [])
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        drop_known([capital(1, "x")], [agent(encoder, {})], samples=0)


def test_the_overview_frames_say_how_long_how_deep_and_where(tokenizer, tmp_path):
    examples = [*make("vt", 3, 1, tokenizer, length_tokens=900), *make("multihop_2", 4, 1, tokenizer, documents=12)]
    frame = data_examples(examples)
    assert list(frame.columns) == EXAMPLE_COLUMNS
    assert frame["tokens"].tolist() == [tokenizer.count(e.document) for e in examples]
    assert frame["facts"].tolist() == [5, 5, 5, 2, 2, 2, 2]
    lengths = data_lengths(frame).set_index("task")
    assert lengths.loc["vt", "examples"] == 3
    assert lengths.loc["vt", "most_tokens"] <= 900
    depths = data_depths(examples)
    assert list(depths.columns) == DEPTH_COLUMNS
    assert len(depths) == 15 + 8
    assert depths["depth"].between(0, 1).all()
    assert all(text in e.document for e in examples for text in depths[depths["example"] == e.id]["text"])
    gold = data_gold_places(examples)
    assert list(gold.columns) == GOLD_COLUMNS
    assert gold.groupby("example")["place"].apply(list).tolist() == [
        e.metadata["gold_places"] for e in sorted(examples[3:], key=lambda e: e.id)
    ]
    paths = [save(examples[:3], tmp_path / "x.parquet"), save(examples[3:], tmp_path / "y.parquet")]
    found = data_files(paths)
    assert found["examples"]["file"].tolist() == ["x"] * 3 + ["y"] * 4
    assert found["examples"][EXAMPLE_COLUMNS].equals(frame.astype(found["examples"][EXAMPLE_COLUMNS].dtypes))
    assert (len(found["depths"]), len(found["gold"])) == (23, 8)
    with pytest.raises(ValueError, match="no file to describe"):
        data_files([])


def test_the_frames_of_tasks_without_gold_documents_are_empty_and_have_their_columns(tokenizer, tmp_path):
    path = save(make("vt", 2, 1, tokenizer, length_tokens=900), tmp_path / "x.parquet")
    assert list(data_files([path], limit=1)["gold"].columns) == [*GOLD_COLUMNS, "file"]
    assert len(data_files([path], limit=1)["examples"]) == 1


def test_the_bench_sets_ours_beside_the_naive_generator(tokenizer):
    frame = bench_data(tokenizer, "niah_single_1", 4000, n=3, workers=1, naive_n=1)
    assert list(frame.columns) == [*COLUMNS, "speedup"]
    assert frame["generator"].tolist() == ["ours", "naive"]
    assert frame["examples"].tolist() == [3, 1]
    assert 3 * 3900 < frame["tokens"][0] <= 3 * 4000
    assert (frame[["seconds", "peak_mb"]] > 0).all().all()
    assert frame["speedup"][1] == 1.0


@pytest.mark.parametrize("task", ["niah_single_1", "multihop_2"])
def test_the_naive_generator_fills_the_same_length(task, tokenizer):
    found = list(naive(tokenizer, task, 5000, 2, seed=4))
    assert all(4650 < tokenizer.count(e.document) <= 5000 for e in found)
    assert measure(iter(found)).examples == 2


def test_the_naive_generator_refuses_what_it_does_not_know(tokenizer):
    with pytest.raises(ValueError, match="not 'cwe'"):
        list(naive(tokenizer, "cwe", 5000, 1, seed=4))
