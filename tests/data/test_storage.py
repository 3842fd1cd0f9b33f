"""Parquet in and out: a round trip, each document stored once, bounded memory, and errors that help."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memagent_lib.data import (
    Example,
    Span,
    copy_without,
    count,
    is_as_saved,
    load,
    save,
    storage,
    stream,
    stream_records,
)
from memagent_lib.data.storage import COLUMNS


def documents(path) -> int:
    """Count the texts of a file, each as often as it is stored."""
    file = pq.ParquetFile(path, read_dictionary=["document"])
    columns = (file.read_row_group(i, columns=["document"])["document"] for i in range(file.num_row_groups))
    return sum(len(column.combine_chunks().dictionary) for column in columns)


def example(number: int, document: str = "one two three", **more) -> Example:
    default = {
        "id": f"e{number}",
        "task": "t",
        "question": f"q{number}?",
        "document": document,
        "answers": ("two",) * (1 + number % 2),
    }
    return Example(
        **(
            default
            | {"metadata": {"number": number, "depths": [0.5] * number}, "evidence": (Span(4, 7),) * (number % 3)}
            | more
        )
    )


def test_what_is_written_is_what_is_read_in_order(tmp_path):
    examples = [
        example(i, f"one two {i} é \U0001f989 \x00 end", rule="one_of:a|b" if i % 2 else "match_all") for i in range(11)
    ]
    path = save(examples, tmp_path / "sub" / "x.parquet")
    assert load(path) == examples
    assert load(path, limit=3) == examples[:3]
    assert list(stream(path, limit=0)) == []
    assert [p.name for p in path.parent.iterdir()] == ["x.parquet"]


def test_a_document_is_stored_once_for_all_its_questions(tmp_path):
    books = [f"one two book {i} " + "lorem ipsum " * 4000 for i in range(3)]
    for order in ([0] * 40 + [1] * 25 + [2] * 31, [i % 3 for i in range(96)]):
        path = save((example(i, books[book]) for i, book in enumerate(order)), tmp_path / "x.parquet")
        assert documents(path) == 3
        assert path.stat().st_size < sum(map(len, books))
        back = load(path)
        assert [e.document for e in back] == [books[i] for i in order]
        assert len({id(e.document) for e in back}) == 3


def test_row_groups_end_only_where_a_new_document_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "GROUP_CHARS", 1000)
    sizes = [700, 700, 10, 10, 10, 2000, 300, 300]
    texts = ["one two " + str(i) * size for i, size in enumerate(sizes)]
    rows = [text for i, text in enumerate(texts) for _ in range(i + 2)]
    path = save((example(i, text) for i, text in enumerate(rows)), tmp_path / "x.parquet")
    assert documents(path) == len(texts)
    assert pq.ParquetFile(path).num_row_groups > 3
    assert [e.document for e in stream(path)] == rows


def test_row_groups_stay_below_a_plain_readers_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "READ_CHARS", 5000)
    text = "one two " + "x" * 992
    path = save((example(i, text) for i in range(23)), tmp_path / "x.parquet")
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [5, 5, 5, 5, 3]


def test_any_parquet_reader_sees_verls_columns(tmp_path):
    path = save([example(i) for i in range(5)], tmp_path / "x.parquet")
    table = pq.read_table(path)
    assert tuple(table.column_names) == COLUMNS
    assert table.schema.field("document").type == pa.string()
    row = table.to_pylist()[4]
    assert row["document"] == "one two three"
    assert row["prompt"] == [{"role": "user", "content": "q4?"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": ["two"]}
    assert (row["extra_info"]["id"], row["extra_info"]["evidence"], row["agent_name"]) == ("e4", [[4, 7]], "memagent")
    assert json.loads(row["extra_info"]["metadata"])["number"] == 4
    assert Example.from_record(row) == example(4)


def test_hugging_face_datasets_reads_the_file_as_verl_does(tmp_path):
    datasets = pytest.importorskip("datasets")
    path = save([example(i) for i in range(7)], tmp_path / "x.parquet")
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert [Example.from_record(row) for row in rows] == [example(i) for i in range(7)]


def test_a_stream_that_breaks_leaves_no_file_behind(tmp_path):
    def broken():
        yield example(1)
        raise RuntimeError("the generator broke")

    with pytest.raises(RuntimeError, match="the generator broke"):
        save(broken(), tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_in_place(tmp_path):
    path = save([example(1)], tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="two examples are called 'e2'; ids must differ"):
        save([example(2), example(2, "another one")], path)
    with pytest.raises(ValueError, match="no examples to write"):
        save([], path)
    assert load(path) == [example(1)]


def test_a_missing_or_foreign_file_is_an_error_with_the_fix(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"; make some with: memagent data TASK --out '.*my x\.parquet'"):
        load(tmp_path / "my x.parquet")
    (tmp_path / "x.parquet").write_text('{"input": 1}')
    with pytest.raises(ValueError, match=r"x.parquet is not a parquet file .*memagent data --from FORMAT"):
        load(tmp_path / "x.parquet")
    pq.write_table(
        pa.table({"context": ["a"], "prompt": [[{"role": "user", "content": "b"}]]}), tmp_path / "theirs.parquet"
    )
    with pytest.raises(
        ValueError,
        match=r"lacks the column data_source, .*; it has context, prompt; it looks like MemAgent's .*--from memagent",
    ):
        load(tmp_path / "theirs.parquet")


def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path):
    path = save([example(1), example(2)], tmp_path / "x.parquet")
    data = path.read_bytes()
    table = pq.read_table(path)
    path.write_bytes(data[:-20])
    with pytest.raises(ValueError, match=r"x\.parquet is a damaged or unfinished parquet file \(.*\); make it again"):
        load(path)
    path.write_bytes(data[:30] + bytes(60) + data[90:])
    with pytest.raises(ValueError, match=r"x\.parquet is damaged after example 0 \(.*\); make it again"):
        load(path)
    at = table.schema.get_field_index("document")
    for documents, message in (
        ([None, None], "not texts"),
        (pa.array(["a" * 20, None]).dictionary_encode(), "document is null"),
    ):
        pq.write_table(table.set_column(at, "document", [documents]), path)
        with pytest.raises(ValueError, match=rf"is damaged after example \d \(.*{message}"):
            load(path)


def test_every_reader_names_a_damaged_file(tmp_path):
    path = save([example(1), example(2)], tmp_path / "x.parquet")
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    message = r"x\.parquet is a damaged or unfinished parquet file \(.*[^\n]\); make it again"
    path.write_bytes(data[:footer] + b"\xff" * 20 + data[footer + 20 :])
    for read in (count, load, is_as_saved):
        with pytest.raises(ValueError, match=message):
            read(path)
    path.write_bytes(data[:30] + bytes(60) + data[90:])
    with pytest.raises(ValueError, match=message):
        list(stream_records(path))
    with pytest.raises(ValueError, match=message):
        copy_without(path, set(), tmp_path / "copy.parquet")


def test_an_example_that_is_wrong_is_named_with_its_file(tmp_path):
    path = tmp_path / "x.parquet"
    row = example(2).to_record()
    pq.write_table(pa.Table.from_pylist([example(1).to_record(), row | {"prompt": [{"content": " "}]}]), path)
    with pytest.raises(ValueError, match=r"x\.parquet, example 2: example 'e2' has an empty question"):
        load(path)
    torn = row | {"extra_info": row["extra_info"] | {"metadata": "{torn"}}
    pq.write_table(pa.Table.from_pylist([torn]), path)
    with pytest.raises(ValueError, match=r"x\.parquet, example 1: Expecting property name"):
        load(path)


def test_a_file_to_write_must_end_in_parquet(tmp_path):
    with pytest.raises(ValueError, match=r"examples are written as parquet, .*end the name .*x.jsonl in .parquet"):
        save([example(1)], tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_not_replaced(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"score": [1.0]})
    pq.write_table(table, path)
    with pytest.raises(
        ValueError, match=r"x\.parquet is there already and is no file of examples; choose another name"
    ):
        save([example(1)], path)
    assert pq.read_table(path) == table
    path.write_bytes(path.read_bytes()[:-8])  # damaged, so it has nothing to lose
    assert load(save([example(1)], path)) == [example(1)]
    assert load(save([example(2)], path)) == [example(2)]


def test_a_limit_below_zero_is_an_error_with_its_value(tmp_path):
    path = save([example(1), example(2)], tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="limit must be at least 0, or None for all examples, got -1"):
        load(path, limit=-1)
    assert (load(path, 0), load(path, 1), len(load(path))) == ([], [example(1)], 2)


def test_an_example_that_cannot_be_scored_or_traced_is_an_error():
    for wrong, message in [
        ({"question": " "}, "'e1' has an empty question"),
        ({"answers": ()}, "'e1' has no accepted answer"),
        ({"answers": ("a", "")}, "'e1' has no accepted answer, or an empty one"),
        ({"answers": "a"}, r"'e1': answers must be a tuple of texts, such as \('Odo',\), got 'a'"),
        ({"answers": (3,)}, r"'e1': answers must be a tuple of texts, such as \('Odo',\), got \(3,\)"),
        ({"rule": "strict"}, "example 'e1': no judge 'strict'; choose from abstains, boxed"),
        ({"evidence": (Span(4, 99),)}, "evidence 4:99 lies outside its document of 13 characters"),
    ]:
        with pytest.raises(ValueError, match=message):
            example(1, **wrong)
