"""Parquet in and out: a round trip, each document stored once, bounded memory, and errors that name the file."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memagent_lib.data import Example, Span, count, is_as_saved, load, save, stream, stream_records
from memagent_lib.data.examples import COLUMNS


def documents(path) -> int:
    """Count the texts of a file, each as often as it is stored."""
    file = pq.ParquetFile(path, read_dictionary=["document"])
    columns = (file.read_row_group(i, columns=["document"])["document"] for i in range(file.num_row_groups))
    return sum(len(column.combine_chunks().dictionary) for column in columns)


def example(number: int, document: str = "one two three", **more) -> Example:
    made = {"id": f"e{number}", "task": "t", "question": f"q{number}?", "document": document}
    made |= {"answers": ("two",) * (1 + number % 2), "evidence": (Span(4, 7),) * (number % 3)}
    return Example(**(made | {"metadata": {"number": number, "depths": [0.5] * number}} | more))


def test_what_is_written_is_what_is_read_in_order(tmp_path):
    rules = ("mrcr:ab", "match_all")
    examples = [example(i, f"one two {i} é \U0001f989 \x00 end", rule=rules[i % 2]) for i in range(11)]
    path = save(examples, tmp_path / "sub" / "x.parquet")
    assert load(path) == examples
    assert load(path, limit=3) == examples[:3]
    assert list(stream(path, limit=0)) == []
    assert [p.name for p in path.parent.iterdir()] == ["x.parquet"]
    assert count(path) == 11 and is_as_saved(path)


def test_a_document_is_stored_once_for_all_its_questions(tmp_path):
    books = [f"one two book {i} " + "lorem ipsum " * 4000 for i in range(3)]
    for order in ([0] * 40 + [1] * 25 + [2] * 31, [i % 3 for i in range(96)]):
        path = save((example(i, books[book]) for i, book in enumerate(order)), tmp_path / "x.parquet")
        assert documents(path) == 3
        assert path.stat().st_size < sum(map(len, books))
        back = load(path)
        assert [e.document for e in back] == [books[i] for i in order]
        assert len({id(e.document) for e in back}) == 3


def test_any_parquet_reader_sees_verls_columns(tmp_path):
    path = save([example(i) for i in range(5)], tmp_path / "x.parquet")
    table = pq.read_table(path)
    assert tuple(table.column_names) == COLUMNS
    assert table.schema.field("document").type == pa.string()
    row = table.to_pylist()[4]
    assert row["prompt"] == [{"role": "user", "content": "q4?"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": ["two"]}
    assert (row["extra_info"]["id"], row["extra_info"]["evidence"], row["agent_name"]) == ("e4", [[4, 7]], "memagent")
    assert json.loads(row["extra_info"]["metadata"])["number"] == 4
    assert Example.from_record(row) == example(4)


def test_a_failed_write_leaves_the_old_file_in_place(tmp_path):
    def broken():
        yield example(1)
        raise RuntimeError("the generator broke")

    with pytest.raises(RuntimeError, match="the generator broke"):
        save(broken(), tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []
    path = save([example(1)], tmp_path / "x.parquet")
    for wrong, named in (([example(2), example(2, "another")], "e2"), ([], "no examples")):
        with pytest.raises(ValueError, match=named):
            save(wrong, path)
    with pytest.raises(ValueError, match=r"\.parquet"):
        save([example(1)], tmp_path / "x.jsonl")
    assert load(path) == [example(1)]
    pq.write_table(pa.table({"score": [1.0]}), path)
    with pytest.raises(ValueError, match=r"x\.parquet is there already"):
        save([example(1)], path)


def test_a_missing_foreign_or_damaged_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "x.parquet"
    with pytest.raises(FileNotFoundError, match="memagent data"):
        load(path)
    with pytest.raises(IsADirectoryError, match="folder"):
        load(tmp_path)
    path.write_text('{"input": 1}')
    with pytest.raises(ValueError, match=r"x\.parquet"):
        load(path)
    pq.write_table(pa.table({"context": ["a"]}), path)
    with pytest.raises(ValueError, match=r"x\.parquet .*memagent data --from"):
        load(path)
    data = save([example(1), example(2)], tmp_path / "good.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for damaged in (data[:-20], data[:footer] + b"\xff" * 20 + data[footer + 20 :], data[:30] + bytes(60) + data[90:]):
        path.write_bytes(damaged)
        for read in (load, lambda path: list(stream_records(path))):
            with pytest.raises(ValueError, match=r"x\.parquet[^\n]*$"):
                read(path)
    rows = [example(1).to_record(), example(2).to_record() | {"prompt": [{"content": " "}]}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(ValueError, match="'e2' has an empty question"):
        load(path)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"answers": ()}, "answer"),
        ({"answers": ("a", "")}, "answer"),
        ({"rule": "strict"}, "strict"),
        ({"evidence": (Span(4, 99),)}, "evidence"),
    ],
)
def test_an_example_that_cannot_be_scored_or_traced_is_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        example(1, **wrong)
