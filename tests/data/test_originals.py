"""Files of other projects, written here in their schemas: read as they are; broken ones are errors with their line."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign_records import OPTIONS, RECORDS

from memagent_lib.cli import main
from memagent_lib.data import FORMATS, Selection, convert, load, make, read_original, save
from memagent_lib.data.formats import likely_format, read_pool
from memagent_lib.scoring import score


def lines(path, *records) -> str:
    path.write_text(
        "\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records) + "\n",
        encoding="utf-8",
    )
    return str(path)


def read(path, form, **options):
    return list(read_original(path, form, **options))


def test_ruler_jsonl_is_split_into_document_and_question(tmp_path):
    noise = "The grass was wet.\nNothing moved.\nThe magic number for red-fox is: 1234567.\nNothing moved."
    record = {
        "index": 3,
        "outputs": ["1234567"],
        "length": 99,
        "answer_prefix": " The special magic number for red-fox",
        "token_position_answer": 12,
    }
    question = "What is the special magic number for red-fox mentioned in the provided text?"
    folder = tmp_path / "niah_single_1"
    folder.mkdir()
    (example,) = read(lines(folder / "validation.jsonl", record | {"input": f"{noise}\n{question}"}), "ruler")
    assert (example.id, example.document, example.question) == ("niah_single_1-1", noise, question)
    assert (example.rule, example.answers, example.metadata["length"]) == ("match_all", ("1234567",), 99)
    renamed = folder.with_name("downloads")
    renamed.mkdir()
    (again,) = read((folder / "validation.jsonl").rename(renamed / "niah_single_1.jsonl"), "ruler")
    assert (again.id, again.task) == (example.id, example.task) == ("niah_single_1-1", "ruler/niah_single_1")


def test_rulers_qa_and_counting_prompts_are_split_too(tmp_path):
    documents = "Document 1:\nA town.\n\nDocument 2:\nA river."
    instruction = "Answer the question based on the given documents. Only give the answer."
    qa = f"Answer it.\n\n{documents}\n\n{instruction}\n\nQuestion: Which river?"
    cwe = "Below is a list. 1. cat 2. dog\nQuestion: What are the 10 most common words in the above list?"
    odd = "Continue this text without a question"
    path = lines(
        tmp_path / "validation.jsonl",
        {"index": 0, "input": qa, "outputs": ["Po", "the Po"]},
        {"index": 1, "input": cwe, "outputs": ["cat", "dog"], "answer_prefix": " Answer: The top 10 words"},
        {"index": 1, "input": odd, "outputs": ["x"]},
    )
    a, b, c = read(path, "ruler")
    assert (a.document, a.rule) == (f"Answer it.\n\n{documents}", "match_part")
    assert a.question.endswith("Question: Which river?")
    assert (b.document, b.rule) == ("Below is a list. 1. cat 2. dog", "match_all")
    assert b.question == "Question: What are the 10 most common words in the above list?"
    assert c.document == odd
    assert [e.id.rpartition("-")[2] for e in (a, b, c)] == ["1", "2", "3"]  # RULER's needle files repeat their index
    with pytest.raises(ValueError, match="format 'ruler' takes no rule; it takes no options"):
        read(path, "ruler", rule="contains")


def test_hotpots_json_is_paragraphs_and_supporting_sentences(hotpot_file):
    examples = read(hotpot_file, "hotpot")
    raw = json.loads(Path(hotpot_file).read_text(encoding="utf-8"))
    assert len(examples) == len(raw) == 60
    for example, record in zip(examples, raw, strict=True):
        texts = [f"{title}\n{''.join(sentences)}" for title, sentences in record["context"]]
        assert example.document == "\n\n".join(f"Document {i}:\n{text}" for i, text in enumerate(texts, 1))
        titles = {title: sentences for title, sentences in record["context"]}
        support = [titles[title][number].strip() for title, number in record["supporting_facts"]]
        assert [example.document[s.start : s.end] for s in example.evidence] == support
        assert (example.answers, example.metadata["type"]) == ((record["answer"],), record["type"])


def test_the_hotpot_pool_is_memagents(hotpot_file):
    raw = json.loads(Path(hotpot_file).read_text(encoding="utf-8"))
    assert list(read_pool(hotpot_file, "hotpot").documents) == sorted(
        {f"{t}\n{''.join(s)}" for record in raw for t, s in record["context"]}
    )


def test_supporting_facts_past_the_end_are_skipped(tmp_path):
    record = {
        "_id": "1",
        "question": "Who?",
        "answer": "Ann",
        "type": "bridge",
        "supporting_facts": [["A", 0], ["A", 7], ["Z", 0]],
    }
    path = lines(tmp_path / "h.json", [record | {"context": [["A", ["Ann came.", " She left."]], ["B", ["Nothing."]]]}])
    (example,) = read(path, "hotpot")
    assert [example.document[s.start : s.end] for s in example.evidence] == ["Ann came."]


def test_squad_has_answerable_questions_with_their_spans(squad_file):
    examples = read(squad_file, "squad")
    assert len(examples) == 10
    for example in examples:
        assert example.question.startswith("Who is the patron of")
        assert [example.document[s.start : s.end] for s in example.evidence] == [example.answers[0]]
        assert len(example.answers) == 2
        assert score(example.rule, f"\\boxed{{{example.answers[1]}}}", example.answers).value == 1
    assert len(read_pool(squad_file, "squad").documents) == 10


@pytest.mark.parametrize(
    ("name", "kind"), [("qa_1", "squad_file"), ("qa_2", "hotpot_file"), ("ruler_hqa", "hotpot_file")]
)
def test_a_questions_own_documents_come_before_others(name, kind, tokenizer, request):
    path = request.getfixturevalue(kind)
    pool = read_pool(path, kind.removesuffix("_file"))
    found = {question.question: question for question in pool.questions}
    for example in make(name, 5, 3, tokenizer, documents=9, pool_path=path):
        question = found[example.question]
        near = {*question.own, *question.gold}
        assert example.metadata["documents"] == 9
        assert example.metadata["question_id"] == question.id
        assert sum(pool.documents[i] in example.document for i in near) == min(9, len(near))
        assert example.rule == ("contains" if name == "ruler_hqa" else "match_part")
    (by_length,) = make(name, 1, 3, tokenizer, length_tokens=700, pool_path=path)
    assert tokenizer.count(by_length.document) <= 700


def test_stretches_of_one_seeds_order_share_no_question(tokenizer, hotpot_file):
    def ids(n: int, seed: int, first: int = 0) -> list[str]:
        examples = make("ruler_hqa", n, seed, tokenizer, documents=4, pool_path=hotpot_file, first=first)
        return [example.metadata["question_id"] for example in examples]

    everything = ids(60, 0)
    assert len(set(everything)) == 60
    assert ids(12, 0) == everything[:12]
    assert ids(12, 0, first=12) == everything[12:24]
    assert set(ids(12, 1)) != set(everything[:12])


def test_gold_documents_are_elsewhere_in_every_example(tokenizer, hotpot_file):
    positions = [
        tuple(e.metadata["gold_places"])
        for e in make("ruler_hqa", 20, 3, tokenizer, documents=60, pool_path=hotpot_file)
    ]
    assert len(set(positions)) > 15


def test_requests_beyond_a_pool_are_errors_with_its_size(tokenizer, squad_file):
    for size, n, message in [
        (
            {"documents": 11},
            1,
            "the pool .*dev-v2.0.json has 10 units of text and 11 are needed; .*use a larger pool",
        ),
        ({"documents": 4}, 11, "has 10 questions and number 11 was requested"),
        ({"length_tokens": 9000}, 1, r"the pool .*json has [\d,]+ tokens and [\d,]+ are needed"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(make("qa_1", n, 1, tokenizer, pool_path=squad_file, **size))


def test_memagents_training_and_evaluation_files_are_read(tmp_path, tokenizer, hotpot_file):
    rows = [
        {
            "data_source": "hotpotqa",
            "prompt": [{"role": "user", "content": f"q{i}?"}],
            "context": f"Document 1:\ntext {i}",
            "ability": "memory",
            "reward_model": {"style": "rule", "ground_truth": [f"a{i}", "b"]},
            "extra_info": {"index": i, "question": f"q{i}?", "num_docs": 200},
        }
        for i in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    examples = read(tmp_path / "train.parquet", "memagent")
    assert (examples[2].id, examples[2].question, examples[2].answers) == ("memagent-200-2", "q2?", ("a2", "b"))
    assert {e.rule for e in examples} == {"boxed"}
    made = list(make("ruler_hqa", 3, 1, tokenizer, documents=8, pool_path=hotpot_file))
    records = [
        {"context": e.document, "input": e.question, "answers": [*e.answers, "x"], "num_docs": 8, "index": i}
        for i, e in enumerate(made)
    ]
    again = read(lines(tmp_path / "eval_8.json", json.dumps(records, indent=4)), "memagent")
    assert [(e.document, e.question, e.answers) for e in again] == [(e.document, e.question, e.answers) for e in made]
    assert {e.rule for e in again} == {"lenient"}
    assert load(save(again, tmp_path / "ours.parquet")) == again


def test_memagents_ruler_files_are_scored_by_their_tasks_rule(tmp_path):
    record = {"context": "all of it", "input": "what?", "outputs": ["one", "two"], "index": 7, "length": 8192}
    (niah,) = read(lines(tmp_path / "eval_niah_multivalue_8192.json", json.dumps([record])), "memagent")
    assert (niah.task, niah.rule, niah.answers) == ("ruler/niah_multivalue", "match_all", ("one", "two"))
    assert (niah.document, niah.question) == ("all of it", "what?")
    alike = lines(tmp_path / "eval_fwe_8192.json", json.dumps([record, record | {"context": "other words"}]))
    out = tmp_path / "fwe.parquet"
    assert main(["data", "--from", "memagent", str(alike), "--out", str(out)]) == 0, "made questions may be alike"
    assert len({example.id for example in load(out)}) == 2
    (qa,) = read(lines(tmp_path / "eval_qa_1_8192.json", json.dumps([record])), "memagent")
    assert (qa.task, qa.rule, qa.answers) == ("ruler/qa_1", "lenient", ("one",))


def test_evaluation_json_that_stores_indices_needs_its_own_pool(tmp_path, hotpot_file, squad_file):
    pool = read_pool(hotpot_file, "hotpot")
    question = pool.questions[3]
    numbers = [4, 0, *question.gold]
    record = {"context": numbers, "input": question.question, "answers": ["a"], "num_docs": 4, "index": 5}
    path = lines(tmp_path / "eval_12800.json", json.dumps([record]))
    (example,) = read(path, "memagent", pool=hotpot_file)
    expected = [f"Document {i}:\n{pool.documents[number]}" for i, number in enumerate(numbers, 1)]
    assert example.document == "\n\n".join(expected)
    squad = read_pool(squad_file, "squad").questions[0]
    of_squad = {"context": [*squad.gold, 0], "input": squad.question, "outputs": ["a"], "index": 0}
    (example,) = read(lines(tmp_path / "eval_qa_1_99.json", json.dumps([of_squad])), "memagent", pool=squad_file)
    assert example.document.startswith("Document 1:\n")
    with pytest.raises(ValueError, match=r"record 1: 'context' lists 4 numbers .*set pool= to the hotpot_dev"):
        read(path, "memagent")
    for change, message in [
        ({"context": [1, 99999]}, r"document 99999 is not in the pool .* of [\d,]+"),
        ({"context": [i for i in range(4) if i not in question.gold]}, "has the question's documents at other numbers"),
        ({"input": "Another file's?"}, "does not have this question, so it is not the one that the file was made from"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(lines(tmp_path / "bad.json", json.dumps([record | change])), "memagent", pool=hotpot_file)


def test_hotpot_in_the_hubs_form_is_the_same_as_in_its_own(tmp_path, hotpot_file):
    raw = json.loads(Path(hotpot_file).read_text(encoding="utf-8"))
    hub = [
        {
            **{name: record[name] for name in ("question", "answer", "type", "level")},
            "id": record["_id"],
            "supporting_facts": {
                "title": [title for title, _ in record["supporting_facts"]],
                "sent_id": [number for _, number in record["supporting_facts"]],
            },
            "context": {
                "title": [title for title, _ in record["context"]],
                "sentences": [sentences for _, sentences in record["context"]],
            },
        }
        for record in raw
    ]
    pq.write_table(pa.Table.from_pylist(hub), tmp_path / "hub.parquet")
    own = read(hotpot_file, "hotpot")
    assert read(tmp_path / "hub.parquet", "hotpot") == own
    assert read(lines(tmp_path / "hub.jsonl", *hub), "hotpot") == own


def test_lists_of_2wikis_parquet_are_json_texts(tmp_path, hotpot_file):
    plain = list(read_original(hotpot_file, "hotpot"))
    rows = json.loads(Path(hotpot_file).read_text())
    packed = [row | {name: json.dumps(row[name]) for name in ("context", "supporting_facts")} for row in rows]
    pq.write_table(pa.Table.from_pylist(packed), tmp_path / "dev.parquet")
    assert likely_format(tmp_path / "dev.parquet") == "hotpot"
    assert list(read_original(tmp_path / "dev.parquet", "hotpot")) == plain


def test_questions_without_a_supporting_paragraph_are_noted(tmp_path, hotpot_file):
    rows = json.loads(Path(hotpot_file).read_text())
    assert FORMATS["hotpot"].note(hotpot_file) == ""
    for row in rows[:3]:  # as in HotpotQA's fullwiki files
        del row["context"][[title for title, _ in row["context"]].index(row["supporting_facts"][0][0])]
    path = tmp_path / "hotpot_dev_fullwiki_v1.json"
    path.write_text(json.dumps(rows))
    note = convert("hotpot", [path], Selection())[0].notes[0]
    assert "fullwiki_v1.json: 3 of 60 questions lack a paragraph that their answer needs" in note


def test_a_file_of_ones_own_is_read_from_lines_a_list_or_parquet(tmp_path):
    rows = [{"question": "Who?", "document": "Ann came.", "answers": ["Ann"]}] * 2
    files = [lines(tmp_path / "mine.jsonl", *rows), lines(tmp_path / "sub.json", json.dumps(rows))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    for path in [*files, tmp_path / "p.parquet"]:
        examples = read(path, "plain")
        assert [(e.question, e.document, e.answers, e.rule) for e in examples] == [
            ("Who?", "Ann came.", ("Ann",), "contains")
        ] * 2
    (one,) = read(lines(tmp_path / "one.jsonl", {"question": "q", "document": "d", "answer": 7, "id": "x"}), "plain")
    assert (one.id, one.answers) == ("x", ("7",))


def test_longbench_is_scored_by_its_own_metrics(tmp_path):
    def record(dataset, number, **more):
        plain = {
            "input": f"q{number}",
            "context": "c",
            "answers": ["red fox"],
            "length": 9,
            "dataset": dataset,
            "language": "en",
        }
        return plain | {"all_classes": None, "_id": f"id{number}"} | more

    path = lines(
        tmp_path / "all.jsonl",
        record("hotpotqa", 1),
        record("gov_report", 2, input=""),
        record("trec_e", 3, all_classes=["Animal", "Place"], answers=["Animal"]),
        record("triviaqa", 4),
        record("passage_count", 5, input="", answers=["7"]),
        record("passage_retrieval_en", 6, answers=["Paragraph 3"]),
    )
    examples = read(path, "longbench")
    assert [e.rule for e in examples][:5] == ["f1", "rouge_l", "classes:Animal|Place", "first_line:f1", "number_share"]
    assert all(any(word in e.question for word in ("?", ".")) for e in examples[1:])
    assert "Which type has this question?" in examples[2].question
    assert "Which of them does this abstract summarise?" in examples[5].question
    assert examples[5].question.endswith("q6")
    assert examples[0].id == "hotpotqa-id1"
    assert score(examples[4].rule, "There are 7.", examples[4].answers).value == 1
    assert {e.rule for e in read(path, "longbench", rule="contains")} == {"contains"}
    with pytest.raises(
        ValueError, match=r"line 1: LongBench scores 'dureader' on segmented Chinese.*rule='characters'"
    ):
        read(lines(tmp_path / "zh.jsonl", record("dureader", 1)), "longbench")
    with pytest.raises(ValueError, match=r"line 1: no LongBench task 'newqa'; expected one of 2wikimqa"):
        read(lines(tmp_path / "new.jsonl", record("newqa", 1)), "longbench")


def test_babilongs_labels_leave_out_those_of_the_question(tmp_path):
    folder = tmp_path / "qa3"
    folder.mkdir()
    record = {"input": "Long story.", "question": "Where was the milk before the kitchen?", "target": "garden"}
    (example,) = read(lines(folder / "0000.jsonl", record), "babilong")
    assert example.rule == "one_of:bathroom|bedroom|garden|hallway|office"
    assert score(example.rule, "Before the kitchen the milk was in the garden.", example.answers).value == 1
    assert score(example.rule, "In the garden or the office.", example.answers).value == 0
    (again,) = read(lines(tmp_path / "data.json", json.dumps([record])), "babilong", task="qa3")
    assert (again.question, again.task) == (example.question, "babilong/qa3")
    with pytest.raises(ValueError, match="its name does not state a BABILong task; set task= to one of qa1, qa2, qa3"):
        read(tmp_path / "data.json", "babilong")
    with pytest.raises(ValueError, match=r"no BABILong task 'qa99'; choose from qa1, .* qa9, qa10, .* qa20$"):
        read(tmp_path / "data.json", "babilong", task="qa99")


def test_infinitebench_files_have_their_tasks_judges(tmp_path):
    def one(task, reply, **record):
        (example,) = read(
            lines(tmp_path / f"{task}.jsonl", {"id": 0, "context": "c", "input": "q", "options": []} | record),
            "infinitebench",
        )
        return score(example.rule, reply, example.answers).value, example

    assert one("kv_retrieval", 'It is "c14c-83".', answer="c14c-83")[0] == 1
    assert one("passkey", "The pass key is 71432.", answer="71432")[0] == 1
    assert one("math_find", "88", answer=88)[0] == 1
    assert one("math_find", "8", answer=88)[0] == 0
    assert one("code_run", "so the return value is: -9", answer=-9)[0] == 1
    assert one("math_calc", "4, 14, 7", answer=[4, 14, 6, 2])[0] == 0.5
    assert one("longdialogue_qa_eng", "ACE, I think", answer=["ACE", "ACE ROTHSTEIN"])[0] == 1
    value, example = one("longbook_choice_eng", "B", answer=["Amy"], options=["Bob", "Amy", "Cat", "Dan"])
    assert (value, example.answers) == (1, ("Amy", "B"))
    assert "B. Amy" in example.question
    with pytest.raises(ValueError, match=r"line 1: the answer 'Zed' is none of the options"):
        one("code_debug", "A", answer=["Zed"], options=["Bob", "Amy", "Cat", "Dan"])
    with pytest.raises(ValueError, match="no InfiniteBench task 'poems'; set task= to one of code_debug"):
        one("poems", "x", answer="y")


def test_every_reader_gives_examples_that_can_be_stored(tmp_path, hotpot_file, squad_file):
    for path, form in ((hotpot_file, "hotpot"), (squad_file, "squad")):
        examples = read(path, form)
        assert load(save(examples, tmp_path / f"{form}.parquet")) == examples


MINE = RECORDS["plain"]
GOOD = RECORDS["ruler"]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        (
            "ruler",
            [GOOD, "{not json}"],
            r"x.jsonl, line 2: expected RULER's JSON lines .*, found '\{not json\}', which is not JSON",
        ),
        ("ruler", [GOOD, "[1, 2]"], r"x.jsonl, line 2: expected a JSON object, found a list"),
        ("ruler", [{"index": 0, "outputs": ["a"]}], "line 1: missing field 'input'; found index, outputs"),
        ("ruler", [GOOD | {"outputs": []}], "line 1: the answer list 'outputs' is empty"),
        (
            "ruler",
            [GOOD | {"outputs": ["a", " "]}],
            "line 1: the answer list 'outputs' is empty or has an empty answer",
        ),
        ("ruler", [GOOD | {"input": 5}], "line 1: expected a text as 'input', found a whole number '5'"),
        ("plain", [MINE, "", MINE], r"the id 'one' comes twice; ids must differ"),
        ("plain", ["[1]"], "record 1: expected a JSON object, found a whole number '1'"),
        (
            "longbench",
            [{"dataset": "qasper", "input": "q", "context": None, "answers": ["a"]}],
            "line 1: missing field 'context'",
        ),
        ("babilong", [{"input": "x", "question": "q", "target": ""}], "line 1: 'target' is empty"),
        ("hotpot", ['{"a": 1}'], "line 1: missing field 'context'; found a"),
        ("hotpot", ["[{"], "line [12]: expected HotpotQA's questions.*found text that is not JSON"),
        ("hotpot", [" "], "expected HotpotQA's questions, .*found a file without records"),
        ("squad", [""], "expected an object with 'data', as in dev-v2.0.json, found an empty file"),
        ("squad", ['{"data": []}', '{"data": []}'], "line 2: .*these are JSON lines, one object to a line"),
        ("hotpot", ['[{"question": "q", "answer": "a"}]'], "record 1: missing field 'context'"),
        (
            "hotpot",
            ['[{"question": "q", "answer": " ", "context": [["T", ["s"]]]}]'],
            "record 1: 'answer' is empty",
        ),
        (
            "hotpot",
            ['[{"question": "q", "answer": "a", "context": ["T"]}]'],
            r"a paragraph of 'context' is \[title, \[sentence",
        ),
        ("squad", ["[]"], "expected an object with 'data', as in dev-v2.0.json, found a list"),
        (
            "squad",
            ['{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q", "answers": []}]}]}]}'],
            "question '1': the answer list is empty and is_impossible is not set",
        ),
        (
            "memagent",
            ['[{"input": "q", "context": "c", "answers": [], "index": 0}]'],
            "record 1: the answer list 'answers' is empty",
        ),
        ("memagent", ["nothing"], "expected MemAgent's parquet, or its evaluation JSON .*found 'nothing'"),
        ("memagent", ["PAR1 and no more"], "begins like a parquet file and cannot be read as one"),
    ],
)
def test_a_broken_file_is_an_error_that_says_where_and_what(form, content, message, tmp_path):
    options = {"task": "qa1"} if form == "babilong" else {}
    with pytest.raises(ValueError, match=message):
        read(lines(tmp_path / "x.jsonl", *content), form, **options)


def test_duplicate_ids_within_a_file_are_an_error(tmp_path, hotpot_file):
    raw = json.loads(Path(hotpot_file).read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="the id 'world-3-0' comes twice; ids must differ"):
        read(lines(tmp_path / "twice.json", json.dumps(raw[:2] + raw[:1])), "hotpot")


def test_bytes_that_are_not_utf8_are_an_error_with_the_line(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(json.dumps(GOOD).encode() + b'\n{"input": "caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"x.jsonl, line 2: byte 0xe9 at offset 14 is not UTF-8; convert the file"):
        read(tmp_path / "x.jsonl", "ruler")
    (tmp_path / "h.json").write_bytes(b'[\n{"question": "caf\xe9"}]')
    with pytest.raises(ValueError, match=r"h.json, line 2: byte 0xe9"):
        read(tmp_path / "h.json", "hotpot")


def test_unknown_formats_and_missing_or_empty_files_are_errors(tmp_path):
    with pytest.raises(ValueError, match="no format 'csv'; choose from babilong, beam, graphwalks"):
        read_original(tmp_path / "x", "csv")
    with pytest.raises(FileNotFoundError, match=r"no file at .*; these files are their projects' own"):
        read_original(tmp_path / "x", "squad")
    (tmp_path / "x").write_text("\n")
    with pytest.raises(ValueError, match=r"expected RULER's JSON lines .*, found a file without records"):
        read(tmp_path / "x", "ruler")


ODD = (None, 5, -1.5, "", " ", "x", "\\ud800", [], {}, [[]], [None], [{"a": 1}], {"a": []}, True)


def changed(rng: random.Random, value):
    """A copy of a record with one thing in it changed or taken away, at any depth."""
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        copy = value.copy()
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if rng.random() < 0.1:
            del copy[key]
        else:
            copy[key] = changed(rng, value[key])
        return copy
    return rng.choice(ODD)


def test_a_record_of_any_shape_is_read_or_a_one_line_error(tmp_path):
    rng = random.Random(7)
    errors = Counter()
    for number in range(800):
        form = rng.choice(list(RECORDS))
        text = json.dumps(changed(rng, RECORDS[form])).replace("\\\\ud800", "\\ud800")
        path = tmp_path / f"{number}.json"
        path.write_text(text if form == "squad" else f"[{text}]")
        options = OPTIONS.get(form, {})
        with suppress(ValueError):
            examples = read(path, form, **options)
            assert not examples or load(save(examples, tmp_path / "x.parquet"))
            continue
        errors[form] += 1
        with pytest.raises(ValueError, match=rf"^[^\n]*/{path.name}\b[^\n]*$"):
            read(path, form, **options)
    assert errors.keys() == RECORDS.keys()


def test_endless_nesting_or_digits_are_errors_with_their_line(tmp_path):
    number = "found a whole number of more than 4,300 digits; write it as a text, in quotes"
    nested = "found lists or objects that are nested too deeply"
    for odd, why in ((f'{{"input": {"[" * 100_000}', nested), (f'{{"input": {"1" * 5000}}}', number)):
        with pytest.raises(ValueError, match=f"x.jsonl, line 1: expected RULER's JSON lines .*, {why}$"):
            read(lines(tmp_path / "x.jsonl", odd), "ruler")
        with pytest.raises(ValueError, match=f"x.json: expected RULER's JSON lines .*, {why}$"):
            read(lines(tmp_path / "x.json", f"[\n\n{odd}]"), "ruler")


def test_memagent_refuses_the_records_of_every_other_set(tmp_path):
    for form, record in RECORDS.items():
        path = lines(tmp_path / f"{form}.jsonl", record)
        if form == "memagent":
            assert len(read(path, form)) == 1
        else:
            with pytest.raises(ValueError, match=f"missing field .*--from {form}$|'prompt', found .*--from {form}$"):
                read(path, "memagent")


def test_a_missing_field_has_the_name_that_the_set_gives_it(tmp_path):
    for form, name, other in (
        ("graphwalks", "answer_nodes", "answer"),
        ("infinitebench", "context", "content"),
        ("oolong", "task_group", "task"),
    ):
        record = RECORDS[form]
        without = {field: value for field, value in record.items() if field != name}
        options = OPTIONS.get(form, {})
        (known,) = read(lines(tmp_path / "x.jsonl", record), form, **options)
        (same,) = read(lines(tmp_path / "x.jsonl", without | {other: record[name]}), form, **options)
        assert (same.task, same.document, same.answers) == (known.task, known.document, known.answers)
        with pytest.raises(ValueError, match=f"line 1: missing field '{name}'; found "):
            read(lines(tmp_path / "x.jsonl", without), form, **options)


def test_a_null_id_is_a_missing_one(tmp_path):
    entry = RECORDS["squad"]["data"][0]["paragraphs"][0]["qas"][0]
    squad = {"data": [{"paragraphs": [{"context": "c", "qas": [entry | {"id": None}, entry | {"question": "r"}]}]}]}
    trained = {"prompt": [{"content": "q"}], "context": "c", "reward_model": {"ground_truth": "a"}}
    for form, record, null, ids in (
        ("hotpot", RECORDS["hotpot"], {"_id": None}, ["hotpotqa-1", "hotpotqa-2"]),
        ("infinitebench", RECORDS["infinitebench"], {"id": None}, ["longbook_choice_eng-0", "longbook_choice_eng-1"]),
        ("longbench", RECORDS["longbench"], {"_id": None}, ["trec-1", "trec-2"]),
        ("longbench_v2", RECORDS["longbench_v2"], {"_id": None}, ["longbench_v2-1", "longbench_v2-2"]),
        ("memagent", trained, {"extra_info": {"num_docs": 9, "index": None}}, ["memagent-9-0", "memagent-9-1"]),
        ("oolong", RECORDS["oolong"], {"id": None}, ["oolong-1", "oolong-2"]),
        ("plain", RECORDS["plain"], {"id": None}, ["x-1", "x-2"]),
        ("squad", squad, {}, ["squad-q", "squad-1"]),
    ):
        changed = [record | null] * (1 if form == "squad" else 2)
        found = read(lines(tmp_path / "x.jsonl", *changed), form, **OPTIONS.get(form, {}))
        assert [example.id for example in found] == ids


def test_a_truth_value_is_no_number(tmp_path):
    entry = {"id": "1", "question": "q", "answers": [{"text": "c", "answer_start": True}]}
    for form, record, message in (
        ("squad", {"data": [{"paragraphs": [{"context": "cc", "qas": [entry]}]}]}, "a whole number as 'answer_start'"),
        ("memagent", RECORDS["memagent"] | {"index": True}, "a whole number as 'index'"),
        ("longbench_v2", RECORDS["longbench_v2"] | {"answer": True}, "a letter, an option or its number as 'answer'"),
    ):
        with pytest.raises(ValueError, match=f"expected {message}, found .*True"):
            read(lines(tmp_path / "x.jsonl", record), form)
