"""Benchmarks in the form that the Hub has them now: other columns, the same examples and judges."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memagent_lib.data import read_original
from memagent_lib.data.formats import likely_format
from memagent_lib.scoring import score


def written(path, *records):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


# EleutherAI/lm-evaluation-harness#3361: THUDM/LongBench is a script, which datasets 4 refuses; lm-eval loads this now
LONGBENCH = {
    "dataset": "narrativeqa",
    "task": "narrativeqa",
    "context": "You are given a story. Answer concisely.\n\nStory: Odo paid.\n\nNow, answer the question.\n\n",
    "question": "Question: Who paid?\n\n",
    "answer_prefix": "Answer:",
    "answers": ["Odo"],
    "all_classes": None,
    "length": 9,
    "language": "en",
    "_id": "7",
    "max_new_tokens": 148,
}


def test_longbenchs_mirror_has_its_question_in_another_column(tmp_path):
    report = LONGBENCH | {"dataset": "gov_report", "question": "Now, write a one-page summary.\n\n", "_id": "8"}
    path = written(tmp_path / "x.parquet", LONGBENCH, report)
    story, summary = read_original(path, "longbench")
    assert (story.question, story.rule, story.id) == ("Question: Who paid?", "f1", "narrativeqa-7")
    assert (story.document, story.answers) == (LONGBENCH["context"], ("Odo",))
    assert summary.question.endswith("Now, write a one-page summary.")
    assert summary.rule == "rouge_l"
    assert likely_format(path) == "longbench"


def test_a_mirrored_task_without_a_question_follows_its_document(tmp_path):
    record = LONGBENCH | {"dataset": "vcsum", "question": "", "context": "Summarise this meeting.\n\nOdo spoke."}
    (example,) = read_original(written(tmp_path / "x.jsonl", record), "longbench", rule="characters")
    assert example.question.startswith("Follow the task that the document sets")


def test_rulers_mirror_is_split_already(tmp_path):
    needle = {
        "context": "A special magic number is hidden here.\nThe magic number for owl is: 4711.\n",
        "question": "What is the special magic number for owl mentioned in the provided text?",
        "answer_prefix": " The special magic number for owl is",
        "answer": ["4711"],
        "task": "niah_single_1",
        "max_new_tokens": 128,
    }
    path = written(tmp_path / "4096.parquet", needle, needle | {"task": "qa_1", "answer": ["Po", "the Po"]})
    first, second = read_original(path, "ruler")
    assert (first.document, first.question) == (needle["context"], needle["question"])
    assert (first.task, first.rule, first.answers) == ("ruler/niah_single_1", "match_all", ("4711",))
    assert (second.rule, second.id) == ("match_part", "qa_1-2")
    assert likely_format(path) == "ruler"


CHOICES = ["Ada", "Odo", "Ann", "Bob"]
LONGBENCH_V2 = {
    "_id": "66", "domain": "Single-Document QA", "sub_domain": "Legal", "difficulty": "easy", "length": "short",
    "question": "Who paid?", "context": "Odo paid.", "answer": "B",
}  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        {f"choice_{letter}": choice for letter, choice in zip("ABCD", CHOICES, strict=True)},  # zai-org/LongBench-v2
        {"choices": CHOICES},  # recursal/longbench-v2
        {"choices": CHOICES, "answer": 1},
        {"choices": CHOICES, "answer": "Odo"},
    ],
)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_longbench_v2_shows_its_options_in_both_forms(form, name, tmp_path):
    path = written(tmp_path / name, LONGBENCH_V2 | form)
    (example,) = read_original(path, "longbench_v2")
    assert example.question == "Who paid?\nA. Ada\nB. Odo\nC. Ann\nD. Bob"
    assert (example.answers, example.metadata["length"]) == (("Odo", "B"), "short")
    right = [
        score(example.rule, reply, example.answers).value for reply in ("The correct answer is (B)", "B", "(C)", "Odo")
    ]
    assert right == [1, 1, 0, 1]
    assert likely_format(path) == "longbench_v2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choices": CHOICES, "answer": "E"}, "the answer 'E' is none of the options"),
        ({"choices": CHOICES, "answer": 4}, "the answer '4' is none of the options"),
        ({"choices": CHOICES[:3]}, "expected 4 options as 'choices', found 3"),
        ({}, "missing field 'choice_A'"),
    ],
)
def test_a_question_without_its_options_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=f"line 1: {message}"):
        list(read_original(written(tmp_path / "x.jsonl", LONGBENCH_V2 | change), "longbench_v2"))


def test_plain_names_the_format_of_a_mirror(tmp_path):
    path = written(tmp_path / "x.jsonl", LONGBENCH_V2 | {"choices": CHOICES})
    with pytest.raises(ValueError, match=r"is a multiple-choice question .*it looks like LongBench v2's records"):
        list(read_original(path, "plain"))
