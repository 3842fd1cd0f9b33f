"""A user's own records: answers in the shapes of public data sets, fields under many names, hints that are right."""

from __future__ import annotations

import json

import pytest

from memagent_lib.cli import main
from memagent_lib.data import load, read_original
from memagent_lib.data.formats import likely_format

QUESTION = {"question": "Who?", "document": "Odo paid."}


def plain(folder, *records, **options):
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return list(read_original(path, "plain", **options))


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ({"text": ["Odo"], "answer_start": [0]}, ("Odo",)),  # SQuAD as on the Hub
        ([{"text": "Odo", "tokens": ["Odo"]}, {"text": "O."}], ("Odo", "O.")),
        ({"value": "Odo", "aliases": ["O."], "normalized_value": "odo"}, ("Odo", "O.")),  # TriviaQA
        ({"number": "", "spans": ["Odo", "O."]}, ("Odo", "O.")),  # DROP
        ({"answer": [{"unanswerable": False, "extractive_spans": ["Odo"], "yes_no": None}]}, ("Odo",)),  # Qasper
        ({"answer": [{"unanswerable": True, "extractive_spans": []}, {"extractive_spans": ["a", "b"]}]}, ("a, b",)),
        ({"answer": [{"extractive_spans": [], "yes_no": False, "free_form_answer": ""}]}, ("no", "false")),
        ({"answer": [{"extractive_spans": [], "yes_no": None, "free_form_answer": "Odo did"}]}, ("Odo did",)),
        ("Odo", ("Odo",)),
        (["Odo", "O.", "Odo"], ("Odo", "O.")),
        (3.0, ("3",)),
        ([3, 0.1, 1e-7], ("3", "0.1", "0.0000001")),
        (True, ("yes", "true")),
        # cdqa-suite/cdQA#201, huggingface/datasets#1566, vectara/open-rag-eval#24: lists and objects that became texts
        ('["Odo", "O."]', ("Odo", "O.")),
        ("['Odo', 'O.']", ("Odo", "O.")),
        ("['Odo' 'O.']", ("Odo", "O.")),
        ("['Odo'\n 'O.']", ("Odo", "O.")),
        ("array(['Odo', 'O.'], dtype=object)", ("Odo", "O.")),
        ("{'text': array(['Odo'], dtype=object), 'answer_start': array([0], dtype=int32)}", ("Odo",)),
        # confident-ai/deepeval#3299, wri/project-zeno#266: signs of ordinary text separate nothing
        ("Odo|O.", ("Odo|O.",)),
        ("ANY: a; b", ("ANY: a; b",)),
        ("[redacted]", ("[redacted]",)),
        ("(0, 5)", ("(0, 5)",)),
        (["[1, 2]"], ("[1, 2]",)),
        (["A", "B", "C"], ("A", "B", "C")),
    ],
)
def test_answers_of_every_public_shape_are_read(answers, right, tmp_path):
    (example,) = plain(tmp_path, QUESTION | {"answers": answers})
    assert example.answers == right


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["Odo", None], "an answer is null"),
        (None, r"missing field 'answers' \(it is null\)"),
        (float("nan"), "an answer is nan"),
        ([["Odo", "O."], ["A."]], "a list of lists: .* Write one list of the wordings that are right"),
        ([], r"there is no answer, or an empty one: \[\]"),
        ({"text": ["Odo", " "]}, "there is no answer, or an empty one"),
        ({"label": 1}, "an object with label; expected one with text, value, answer or spans"),
        (["O", "d", "o"], "one text split into its letters"),  # huggingface/datasets#5023
        ("['Odo', x]", "looks like a list or an object; write a list as JSON"),
        ("[1, 2]", "looks like a list or an object; .* as the only entry of a list"),
    ],
)
def test_an_answer_of_no_clear_meaning_is_refused(answers, message, tmp_path):
    with pytest.raises(ValueError, match=f"mine.jsonl, line 2.*{message}") as refused:
        plain(tmp_path, QUESTION | {"answers": ["Odo"]}, QUESTION | {"answers": answers})
    assert "--from" not in str(refused.value)  # the file is plain; only one of its records is odd


def test_records_without_an_answer_are_left_out_and_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = {"text": [], "answer_start": []}  # SQuAD v2 on the Hub
    plain(tmp_path, QUESTION | {"answers": ["Odo"]}, QUESTION | {"answers": nothing})
    assert main(["data", "--from", "plain", "mine.jsonl", "--out", "mine.parquet"]) == 0
    assert "1 questions of mine.jsonl in mine.parquet (1 left out as unanswerable)" in capsys.readouterr().out
    assert [example.answers for example in load("mine.parquet")] == [("Odo",)]


SHAPES = {
    "capital names with blanks": ({"Question ": "Who?", "Context": "Odo paid.", " ANSWER": "Odo"}, ("Odo",)),
    "ctxs": ({"question": "Who?", "ctxs": [{"title": "Rent", "text": "Odo paid."}], "answers": ["Odo"]}, ("Odo",)),
    "aliases": (QUESTION | {"answer": "Odo", "answer_aliases": ["O.", "Odo"]}, ("Odo", "O.")),
    "MuSiQue": (
        {"question": "Who?", "answer": "Odo", "paragraphs": [{"paragraph_text": "Odo paid."}], "answerable": True},
        ("Odo",),
    ),
    "a box": (QUESTION | {"answer": "\\boxed{Odo}"}, ("Odo",)),
    "Dolly": ({"instruction": "Who?", "context": "Odo paid.", "response": "Odo", "category": "closed_qa"}, ("Odo",)),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_records_of_other_shapes_are_read(name, tmp_path):
    record, answers = SHAPES[name]
    (example,) = plain(tmp_path, record)
    assert (example.question, example.answers) == ("Who?", answers)
    assert example.document.endswith("Odo paid.")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (QUESTION | {"answer": "It is 1000 + 200.\n#### 1200"}, "the answer is a worked solution.*keep only the final"),
        (QUESTION | {"answer": "So it is \\boxed{1200} in all."}, "the answer is a worked solution"),
        ({"question": "Who?", "document": " ", "answers": ["Odo"]}, "'document' is empty; fill it in, or remove"),
        (QUESTION | {"response": "Ada", "reference": "Odo"}, "reference and response may both be the answers"),  # ragas
    ],
)
def test_a_record_that_no_reply_could_satisfy_is_refused(record, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        plain(tmp_path, record)


@pytest.mark.parametrize("flag", [{"answerable": False}, {"is_impossible": True}, {"unanswerable": True}])
def test_a_record_marked_unanswerable_is_left_out(flag, tmp_path):
    found = plain(tmp_path, QUESTION | {"answer": "Odo"}, QUESTION | {"answer": "Odo"} | flag)
    assert len(found) == 1


def test_a_file_of_only_unanswerable_records_has_their_number(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = QUESTION | {"answers": {"text": [], "answer_start": []}}
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(nothing)}\n" * 3)
    assert main(["data", "--from", "plain", "mine.jsonl", "--out", "mine.parquet"]) == 2
    assert "no question is left: all 3 in the files are marked as unanswerable" in capsys.readouterr().err
    assert not (tmp_path / "mine.parquet").exists()


def test_the_fields_that_were_taken_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain(tmp_path, {"input": "Who?", "context": "Odo paid.", "answers": ["Odo"]})
    assert main(["data", "--from", "plain", "mine.jsonl", "--out", "mine.parquet"]) == 0
    assert capsys.readouterr().out.startswith("mine.jsonl: question from 'input', document from 'context'\n1 questions")
    plain(tmp_path, QUESTION | {"label": "Odo"}, answers="label")
    assert main(["data", "--from", "plain", "mine.jsonl", "answers=label", "--out", "mine.parquet"]) == 0
    assert capsys.readouterr().out.startswith("mine.jsonl: answers from 'label'\n1 questions")


@pytest.mark.parametrize(
    ("record", "document"),
    [
        ({"question": "Who?", "context": "Odo paid.", "answer": "Odo"}, "Odo paid."),
        ({"query": "Who?", "passage": "Odo paid.", "target": "Odo"}, "Odo paid."),
        ({"input": "Who?", "context": "Odo paid.", "outputs": ["Odo"]}, "Odo paid."),
        ({"question": "Who?", "input": "Odo paid.", "reference": "Odo"}, "Odo paid."),
        ({"instruction": "Who?", "input": "Odo paid.", "output": "Odo"}, "Odo paid."),
        ({"question": "Who?", "document": "Odo paid.", "context": "other", "answer": "Odo"}, "Odo paid."),
        ({"question": "Who?", "document": {"text": "Odo paid."}, "answer": "Odo"}, "Odo paid."),
        # vibrantlabsai/ragas#191: lists of retrieved texts
        ({"question": "Who?", "contexts": ["Odo paid.", "Ada left."], "answer": "Odo"}, "Odo paid.\n\nAda left."),
        ({"question": "Who?", "context": [{"title": "Rent", "text": "Odo paid."}], "answer": "Odo"}, "Rent\nOdo paid."),
    ],
)
def test_question_document_and_answer_have_many_names(record, document, tmp_path):
    (example,) = plain(tmp_path, {"id": None, **record})
    assert (example.id, example.question, example.document) == ("mine-1", "Who?", document)
    assert example.answers == ("Odo",)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "q", "answer": "a"}, "missing field 'document'; .* name another with document=FIELD"),
        ({"question": "q", "context": "c", "text": "t", "answer": "a"}, "context and text may both be the document"),
        ({"question": "q", "context": ["O", "d", "o"], "answer": "a"}, "'context' looks like one text split"),
        ({"question": "q", "context": [{"body": "x"}], "answer": "a"}, "expected a text as 'context', or a list of"),
        ({"question": "q", "context": "c", "answer": 2, "choices": ["a", "b"]}, "is a multiple-choice question"),
    ],
)
def test_a_record_without_a_clear_part_is_refused(record, message, tmp_path):
    with pytest.raises(ValueError, match=f"mine.jsonl, line 1: {message}"):
        plain(tmp_path, record)


def test_an_option_names_the_field_of_a_part(tmp_path):
    record = {"question": "Who?", "context": "c", "text": "Odo paid.", "label": "Odo"}
    (example,) = plain(tmp_path, record, document="text", answers="label")
    assert (example.document, example.answers) == ("Odo paid.", ("Odo",))


PARAGRAPHS = [["Rent", ["Odo paid."]]]


@pytest.mark.parametrize(
    ("record", "form"),
    [
        ({"question": "q", "context": "c", "answer": "a"}, "plain"),
        ({"question": "q", "context": PARAGRAPHS, "answer": "a", "supporting_facts": [["Rent", 0]]}, "hotpot"),
        ({"question": "q", "input": "d", "target": "Odo"}, "plain"),
        ({"question": "q", "input": "d", "target": "garden"}, "babilong"),
        ({"input": "q", "context": "c", "answer": "a"}, "plain"),
        ({"input": "q", "context": "c", "answers": ["a"], "index": 0}, "memagent"),
        ({"input": "q", "context": "c", "answers": ["a"], "dataset": "mine"}, "plain"),
        ({"input": "q", "context": "c", "answers": ["a"], "dataset": "qasper"}, "longbench"),
        ({"context": "c"}, None),
    ],
)
def test_a_hint_names_the_format_of_the_values(record, form, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    assert likely_format(tmp_path / "x.jsonl") == form
