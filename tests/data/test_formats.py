"""Files of other projects and users, in their schemas: read as they are; broken ones are errors with their place."""

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
from memagent_lib.data import FORMATS, Selection, convert, format_named, load, make, read_original, save
from memagent_lib.data.formats import read_pool
from memagent_lib.scoring import score


def lines(path, *records) -> str:
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return str(path)


def read(path, form, **options):
    return list(read_original(path, form, **options))


def test_ruler_jsonl_is_split_into_document_and_question(tmp_path):
    noise = "The grass was wet.\nNothing moved.\nThe magic number for red-fox is: 1234567.\nNothing moved."
    question = "What is the special magic number for red-fox mentioned in the provided text?"
    record = {"index": 3, "outputs": ["1234567"], "length": 99, "input": f"{noise}\n{question}"}
    folder = tmp_path / "niah_single_1"
    folder.mkdir()
    (example,) = read(lines(folder / "validation.jsonl", record), "ruler")
    assert (example.id, example.document, example.question) == ("niah_single_1-1", noise, question)
    assert (example.rule, example.answers, example.metadata["length"]) == ("match_all", ("1234567",), 99)
    (folder / "link").symlink_to(folder / "validation.jsonl")  # as in the cache of huggingface_hub
    (again,) = read((folder / "link").rename(tmp_path / "vt.jsonl"), "ruler")
    assert again.task == "ruler/vt"


def test_rulers_qa_and_counting_prompts_are_split_too(tmp_path):
    documents = "Document 1:\nA town.\n\nDocument 2:\nA river."
    instruction = "Answer the question based on the given documents. Only give the answer."
    qa = f"Answer it.\n\n{documents}\n\n{instruction}\n\nQuestion: Which river?"
    cwe = "Below is a list. 1. cat 2. dog\nQuestion: What are the 10 most common words in the above list?"
    rows = [
        {"index": 0, "input": qa, "outputs": ["Po", "the Po"]},
        {"index": 1, "input": cwe, "outputs": ["cat", "dog"]},
        {"index": 1, "input": "Continue this text", "outputs": ["x"]},
    ]
    a, b, c = read(lines(tmp_path / "validation.jsonl", *rows), "ruler")
    assert (a.document, a.rule, a.question) == (f"Answer it.\n\n{documents}", "match_part", "Question: Which river?")
    assert (b.document, b.rule) == ("Below is a list. 1. cat 2. dog", "match_all")
    assert (c.document, c.question[:15]) == ("Continue this text", "Follow the task")


def test_rulers_mirror_is_split_already(tmp_path):
    needle = {"context": "It is 4711.", "question": "What is it?", "answer": ["4711"], "task": "niah_single_1"}
    pq.write_table(pa.Table.from_pylist([needle, needle | {"task": "qa_1"}]), tmp_path / "4096.parquet")
    first, second = read(tmp_path / "4096.parquet", "ruler")
    assert (first.document, first.question, first.rule) == (needle["context"], needle["question"], "match_all")
    assert (second.rule, second.id) == ("match_part", "qa_1-2")


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
    # MemAgent's evaluation files point into this order by number.
    every = {f"{t}\n{''.join(s)}" for record in raw for t, s in record["context"]}
    assert list(read_pool(hotpot_file, "hotpot").documents) == sorted(every)


def test_hotpot_in_the_hubs_forms_is_the_same_as_in_its_own(tmp_path, hotpot_file):
    raw = json.loads(Path(hotpot_file).read_text(encoding="utf-8"))
    names = {"supporting_facts": ("title", "sent_id"), "context": ("title", "sentences")}
    columns = [
        row | {name: {a: [x for x, _ in row[name]], b: [y for _, y in row[name]]} for name, (a, b) in names.items()}
        for row in raw
    ]
    packed = [row | {name: json.dumps(row[name]) for name in names} for row in raw]  # 2WikiMultihopQA's parquet
    own = read(hotpot_file, "hotpot")
    for name, rows in (("hub", columns), ("wiki", packed)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        assert read(tmp_path / f"{name}.parquet", "hotpot") == own
    assert read(lines(tmp_path / "hub.jsonl", *columns), "hotpot") == own


def test_supporting_facts_that_are_nowhere_are_no_evidence_and_questions_without_theirs_left_out(tmp_path):
    record = RECORDS["hotpot"] | {"supporting_facts": [["A", 0], ["A", 7]]}
    context = [["A", ["Ann came.", " She left."]], ["A", ["Nothing."]]]
    path = lines(tmp_path / "h.json", record | {"context": context})
    (example,) = read(path, "hotpot")
    assert [example.document[s.start : s.end] for s in example.evidence] == ["Ann came.", "Nothing."]
    # A pool is read again when its file changes.
    lines(tmp_path / "h.json", RECORDS["hotpot"], record | {"context": context[:1], "supporting_facts": [["Z", 0]]})
    chosen, examples = convert("hotpot", path, Selection())
    assert (len(list(examples)), chosen.left_out.total()) == (1, 1)


def test_squad_has_answerable_questions_with_their_spans(squad_file, tmp_path):
    examples = read(squad_file, "squad")
    assert len(examples) == 10
    for example in examples:
        assert [example.document[s.start : s.end] for s in example.evidence] == [example.answers[0]]
        assert score(example.rule, f"\\boxed{{{example.answers[1]}}}", example.answers).value == 1
    wrong = [{"id": str(at), "question": "q", "answers": [{"text": "c", "answer_start": at}]} for at in (-1, 1, 99)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "c d", "qas": wrong}]}]}))
    assert [example.evidence for example in read(path, "squad")] == [(), (), ()]


def test_memagents_training_and_evaluation_files_are_read(tmp_path, tokenizer, hotpot_file):
    rows = [
        {
            "data_source": "hotpotqa",
            "prompt": [{"role": "user", "content": f"q{i}?"}],
            "context": f"Document 1:\ntext {i}",
            "reward_model": {"style": "rule", "ground_truth": [f"a{i}", "b"]},
            "extra_info": {"index": i, "num_docs": 200},
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
    (tmp_path / "eval_8.json").write_text(json.dumps(records, indent=4))
    again = read(tmp_path / "eval_8.json", "memagent")
    assert [(e.document, e.question, e.answers) for e in again] == [(e.document, e.question, e.answers) for e in made]
    assert {e.rule for e in again} == {"lenient"}


def test_memagents_ruler_files_are_scored_by_their_tasks_rule(tmp_path):
    record = {"context": "all of it", "input": "what?", "outputs": ["one", "two"], "index": 7}
    (niah,) = read(lines(tmp_path / "eval_niah_multivalue_8192.json", record), "memagent")
    assert (niah.task, niah.rule, niah.answers) == ("ruler/niah_multivalue", "match_all", ("one", "two"))
    alike = lines(tmp_path / "eval_fwe_8192.json", record, record | {"context": "other words"})
    assert len(list(convert("memagent", alike, Selection())[1])) == 2, "made questions may be alike"
    (qa,) = read(lines(tmp_path / "eval_qa_1_8192.json", record), "memagent")
    assert (qa.task, qa.rule, qa.answers) == ("ruler/qa_1", "lenient", ("one",))


@pytest.mark.parametrize("kind", ["hotpot", "squad"])
def test_evaluation_json_that_stores_indices_needs_its_own_pool(kind, tmp_path, request):
    file = request.getfixturevalue(f"{kind}_file")
    pool = read_pool(file, kind)
    question = pool.questions[3]
    numbers = [4, 0, *question.gold]
    record = {"context": numbers, "input": question.question, "answers": ["a"], "num_docs": 4, "index": 5}
    path = lines(tmp_path / "eval.json", record)
    (example,) = read(path, "memagent", pool=file)
    expected = [f"Document {i}:\n{pool.documents[number]}" for i, number in enumerate(numbers, 1)]
    assert example.document == "\n\n".join(expected)
    elsewhere = {"context": [i for i in range(4) if i not in question.gold]}
    for change, given in (({}, {}), (elsewhere, {"pool": file}), ({"input": "Another file's?"}, {"pool": file})):
        with pytest.raises(ValueError, match=r"record 1.*pool="):
            read(lines(tmp_path / "bad.json", record | change), "memagent", **given)


QUESTION = {"question": "Who?", "document": "Odo paid."}
ANSWERS = [
    ({"text": ["Odo"], "answer_start": [0]}, ("Odo",)),  # SQuAD as on the Hub
    ([{"text": "Odo", "tokens": ["Odo"]}, {"text": "O."}], ("Odo", "O.")),
    ({"value": "Odo", "aliases": ["O."], "normalized_value": "odo"}, ("Odo", "O.")),  # TriviaQA
    ({"number": "", "spans": ["Odo", "O."]}, ("Odo", "O.")),  # DROP
    ("Odo", ("Odo",)),
    ([3, 3.0, 0.1, 1e-7], ("3", "0.1", "0.0000001")),
    # cdqa-suite/cdQA#201, huggingface/datasets#1566: lists and objects that became texts
    ('["Odo", "O."]', ("Odo", "O.")),
    ("Odo|O.", ("Odo|O.",)),
]


@pytest.mark.parametrize(("answers", "right"), ANSWERS)
def test_answers_of_public_shapes_are_read(answers, right, tmp_path):
    (example,) = read(lines(tmp_path / "mine.jsonl", QUESTION | {"answers": answers}), "plain")
    assert example.answers == right


SHAPES = [
    ({"question": "Who?", "context": "Odo paid.", "answer": "Odo"}, "Odo paid."),
    ({"question": "Who?", "document": [{"title": "Rent", "text": "Odo paid."}], "answers": ["Odo"]}, "Rent\nOdo paid."),
    ({"question": "Who?", "context": ["Odo paid.", "Ada left."], "answer": "Odo"}, "Odo paid.\n\nAda left."),
    ({"question": "Who?", "context": "['Odo paid.', \"It's late.\"]", "answer": "Odo"}, "Odo paid.\n\nIt's late."),
    ({"question": "Who?", "document": "[Scene] Odo paid. [Exit]", "answer": "Odo"}, "[Scene] Odo paid. [Exit]"),
]


@pytest.mark.parametrize(("record", "document"), SHAPES)
def test_documents_and_answers_have_two_names_and_several_shapes(record, document, tmp_path):
    (example,) = read(lines(tmp_path / "mine.jsonl", {"id": None, **record}), "plain")
    assert (example.id, example.question, example.document) == ("mine-1", "Who?", document)
    assert example.answers == ("Odo",)


REFUSED = [
    (QUESTION | {"answers": ["Odo", None]}, "None"),
    (QUESTION | {"answers": [["Odo", "O."], ["A."]]}, "list of lists"),
    (QUESTION | {"answers": float("nan")}, "nan"),
    (QUESTION, "answers=FIELD"),
    (QUESTION | {"context": "other", "answers": "a"}, "document=FIELD"),
    ({"question": "q", "context": "c", "answer": 2, "choices": ["a", "b"]}, "choice"),
]


@pytest.mark.parametrize(("record", "named"), REFUSED)
def test_a_record_of_no_clear_meaning_is_refused_with_its_number(record, named, tmp_path):
    path = lines(tmp_path / "mine.jsonl", RECORDS["plain"], record)
    with pytest.raises(ValueError, match=f"mine.jsonl, record 2.*{named}"):
        read(path, "plain", **({"answers": "answers"} if "answers" in record else {}))


def test_records_inside_one_object_are_read_and_contradictions_are_counted(tmp_path):
    same = {"question": "Who?", "document": "d"}
    found = [same | {"answers": [answer]} for answer in ("Ada", "Odo", "ada")]
    found.append({"question": " who?", "document": "d\n", "answers": ["Ida"]})
    (tmp_path / "mine.json").write_text(json.dumps({"data": found}, indent=1))
    selected, _ = convert("plain", tmp_path / "mine.json", Selection())
    assert len(selected.questions) == 4 and selected.summary().startswith("2 with other answers")


def test_records_without_an_answer_are_left_out_and_counted_and_fields_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = {"text": [], "answer_start": []}  # SQuAD v2 on the Hub
    flags = [{"answerable": False}, {"is_impossible": True}, {"unanswerable": True}]
    rows = [{"query": "Who?", "text": "Odo paid.", "label": answer} for answer in (["Odo"], nothing)]
    lines(tmp_path / "mine.jsonl", *rows, *(rows[0] | flag for flag in flags))
    names = ["question=query", "document=text", "answers=label"]
    assert main(["data", "--from", "plain", "mine.jsonl", *names, "--out", "mine.parquet"]) == 0
    assert "4 left out as unanswerable" in capsys.readouterr().out
    assert [example.answers for example in load("mine.parquet")] == [("Odo",)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", '\ufeffquestion,document,answers\n"Who, then?","Odo\npaid ""1,200"".",00123\n\n'),
        ("x.csv", 'question;document;answers\n"Who, then?";"Odo\npaid ""1,200"".";00123\n'),
        ("x.tsv", 'question\tdocument\tanswers\nWho, then?\t"Odo\npaid ""1,200""."\t00123\n'),
        ("x.csv", 'question\tdocument\tanswers\nWho, then?\t"Odo\npaid ""1,200""."\t00123\n'.encode("utf-16")),
    ],
)
def test_csv_of_office_programs_keep_texts_as_they_are(name, content, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (example,) = read(tmp_path / name, "plain")
    assert (example.question, example.document) == ("Who, then?", 'Odo\npaid "1,200".')
    assert example.answers == ("00123",)


BROKEN = [
    ("x.jsonl", '{"question": "q"\n'),
    ("x.json", "[" * 100_000),
    ("x.jsonl", b'{"question": "caf\xe9"}'),
    ("x.parquet", "PAR1 and no more"),
    ("x.csv", "question,document,answer\nq,d,e, and more,a\n"),
    ("x.jsonl", b"\x1f\x8b packed"),
]


@pytest.mark.parametrize("form", ["plain", "ruler"])
@pytest.mark.parametrize(("name", "content"), BROKEN)
def test_a_broken_file_is_a_one_line_error_that_names_it(name, content, form, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"^[^\n]*{name}[^\n]*$"):
        read(tmp_path / name, form)


def test_unknown_formats_and_files_that_are_none_are_errors(tmp_path):
    with pytest.raises(ValueError, match="no format 'csv'; choose from babilong, beam, graphwalks"):
        format_named("csv")
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "x", "squad")
    with pytest.raises(IsADirectoryError, match="folder"):
        read(tmp_path, "plain")
    with pytest.raises(ValueError, match="length of their own"):
        read_pool(lines(tmp_path / "x.jsonl", RECORDS["plain"]), "plain")
    for form in set(FORMATS) - {"hotpot", "squad"}:
        with pytest.raises(ValueError, match="without records"):
            read(lines(tmp_path / "none.json", *[]), form)


ODD = (None, 5, -1.5, "", " ", "x", [], {}, [[]], [None], [{"a": 1}], {"a": []}, True)


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
    for number in range(600):
        form = rng.choice(list(RECORDS))
        text = json.dumps(changed(rng, RECORDS[form]))
        path = tmp_path / f"{number}.json"
        path.write_text(text if form == "squad" else f"[{text}]")
        options = OPTIONS.get(form, {})
        with suppress(ValueError):
            examples = [example for example in read(path, form, **options) if example]
            assert not examples or load(save(examples, tmp_path / "x.parquet"))
            continue
        errors[form] += 1
        with pytest.raises(ValueError, match=rf"^[^\n]*/{path.name}\b[^\n]*$"):
            read(path, form, **options)
    assert errors.keys() == RECORDS.keys()
