"""Records of other projects that are nearly right: what can be read is right, and what cannot says where."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memagent_lib.data import Length, Selection, convert, read_original
from memagent_lib.data.formats import hotpot, likely_format

HOTPOT = {
    "_id": "1",
    "question": "Who?",
    "answer": "Odo",
    "context": [["A", ["Odo paid.", " He left."]], ["B", ["No."]]],
}
SQUAD = {"question": "Who paid?", "is_impossible": False}


def written(path, value) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def evidence(path, form) -> list[list[str]]:
    return [[example.document[start:end] for start, end in example.evidence] for example in read_original(path, form)]


def test_a_position_without_the_answer_is_no_evidence(tmp_path):
    starts = {"right": 10, "none": -1, "wrong": 3, "outside": 999}
    questions = [SQUAD | {"id": id, "answers": [{"text": "Odo", "answer_start": at}]} for id, at in starts.items()]
    paragraphs = [{"context": "On Monday Odo paid.", "qas": questions}]
    assert evidence(written(tmp_path / "x.json", {"data": [{"paragraphs": paragraphs}]}), "squad") == [
        ["Odo"],
        [],
        [],
        [],
    ]


def test_all_paragraphs_of_a_supporting_title_are_gold(tmp_path):
    record = HOTPOT | {"context": [["A", ["Odo paid."]], ["A", ["She left."]]], "supporting_facts": [["A", 0]]}
    assert evidence(written(tmp_path / "x.json", [record]), "hotpot") == [["Odo paid.", "She left."]]


def test_columns_of_unequal_length_are_refused(tmp_path):
    columns = {"title": ["A", "B"], "sentences": [["Odo paid."]]}
    with pytest.raises(ValueError, match="record 1: 2 entries in 'title' and 1 in 'sentences'; expected pairs"):
        evidence(written(tmp_path / "x.json", [HOTPOT | {"context": columns}]), "hotpot")
    facts = {"title": ["A"], "sent_id": [0, 1]}
    with pytest.raises(ValueError, match="record 1: 1 entries in 'title' and 2 in 'sent_id'; expected pairs"):
        evidence(written(tmp_path / "x.json", [HOTPOT | {"supporting_facts": facts}]), "hotpot")


def test_a_pool_is_parsed_once_until_its_file_changes(tmp_path, monkeypatch):
    parsed = []
    records = hotpot.records
    monkeypatch.setattr(hotpot, "records", lambda *given: parsed.append(given) or records(*given))
    path = written(tmp_path / "x.json", [HOTPOT | {"supporting_facts": [["A", 0], ["Z", 0]]}])
    chosen, examples = convert("hotpot", path, Selection())
    assert [example.answers for example in examples] == [("Odo",)]
    assert chosen.notes[0].startswith(f"{path}: 1 of 1 questions lack a paragraph that their answer needs")
    assert len(parsed) == 1
    written(tmp_path / "x.json", [HOTPOT | {"answer": "Odo Blau", "supporting_facts": []}])
    chosen, examples = convert("hotpot", path, Selection())
    assert ([example.answers for example in examples], chosen.notes) == ([("Odo Blau",)], [])


def test_a_link_is_named_as_it_is_called(tmp_path, monkeypatch):
    # as in the cache of huggingface_hub
    record = {"index": 0, "input": "Odo paid.\nWhat is the special magic number?", "outputs": ["7"]}
    written(tmp_path / "9f86d081884c", record)
    (tmp_path / "vt").mkdir()
    (tmp_path / "vt" / "validation.jsonl").symlink_to(tmp_path / "9f86d081884c")
    monkeypatch.chdir(tmp_path / "vt")
    assert [example.task for example in read_original("validation.jsonl", "ruler")] == ["ruler/vt"]


def test_a_question_that_is_null_is_refused(tmp_path):
    record = {
        "context": "c",
        "questions": ["Who?", None],
        "answers": [["a"], ["b"]],
        "metadata": {"source": "eventqa_1"},
    }
    with pytest.raises(ValueError, match=r"x.json, record 1, question 2: expected a text, found None"):
        list(read_original(written(tmp_path / "x.json", [record]), "memoryagentbench"))


def test_no_record_stops_the_recognition_of_its_format(tmp_path):
    record = {"question": "q", "context": "c", "answer": "a", "difficulty": 1, "domain": "d", "choices": 4}
    assert likely_format(written(tmp_path / "x.json", [record])) is None


def test_a_damaged_parquet_file_is_named_with_its_error(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"question": ["Who?"] * 99, "document": ["Odo paid."] * 99, "answer": ["Odo"] * 99}), path)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for start in (4, footer):
        path.write_bytes(data[:start] + b"\xff" * 20 + data[start + 20 :])
        with pytest.raises(
            ValueError, match=r"x\.parquet: begins like a parquet file .* after 0 rows \(.*[^\n]\); get the"
        ):
            list(read_original(path, "plain"))


def test_wrong_arguments_of_a_conversion_are_named_first(tmp_path):
    path = written(tmp_path / "x.json", [HOTPOT])
    with pytest.raises(ValueError, match="format 'hotpot' takes no rate; it takes no options"):
        convert("hotpot", [path], Selection(), length=Length(documents=1), rate=1)
    with pytest.raises(ValueError, match="no file to convert; give at least one"):
        convert("hotpot", [], Selection())
