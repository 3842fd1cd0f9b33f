"""What every task and every format promises; the pocket world's tasks are loaded by their path, as a user's are."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from foreign_records import OPTIONS, RECORDS
from pocket import fair_task, pocket_task

from memagent_lib.data import FORMATS, TASKS, Example, configured, load, make, preset, read_original, save
from memagent_lib.data.formats import likely_format, read_pool
from memagent_lib.scoring import judge_named
from memagent_lib.settings import key_value
from memagent_lib.text import chunks

KINDS = ("needle", "multivalue", "multikey", "bridge", "update", "chain", "mix")
POCKET = [task(kind) for task in (pocket_task, fair_task) for kind in KINDS]
EVERY = [*TASKS, *POCKET]
MADE = [name for name in EVERY if not preset(name).needs]
CHUNK_TOKENS = 4200
"""Room for all chains of documents that a task needs, in the test tokenizer's tokens."""


def examples(name: str, tokenizer, seed: int = 3, n: int = 3) -> list[Example]:
    own = preset(name).chunk_tokens
    size = min(own, CHUNK_TOKENS) if own == 5000 else 2 * own
    return list(make(name, n, seed, tokenizer, chunks=2, chunk_tokens=size))


def short(name: str) -> str:
    return name.rpartition(":")[2]


@pytest.mark.parametrize("name", EVERY, ids=short)
def test_a_task_describes_itself_and_cannot_be_changed(name):
    entry = preset(name)
    assert entry.description and entry.family
    assert 0 <= entry.chance <= 1
    with pytest.raises(FrozenInstanceError):
        setattr(entry.task, fields(entry.task)[0].name, 7)


@pytest.mark.parametrize("name", EVERY, ids=short)
def test_a_task_takes_the_parameters_that_it_prints(name):
    # Commas also stand inside values, such as the kinds of questions of the pocket world's mix.
    parts = [f"{field.name}={getattr(preset(name).task, field.name)!r}" for field in fields(preset(name).task)]
    assert preset(name).parameters == ", ".join(parts)
    written = [part.replace("=None", "=''").replace("=False", "=false") for part in parts]
    parameters = {key: value for key, value in map(key_value, written) if value not in ("", None)}
    assert configured(name, **parameters) == preset(name).task


@pytest.mark.parametrize("name", EVERY, ids=short)
def test_an_unknown_parameter_of_a_task_is_an_error(name):
    with pytest.raises(ValueError, match=r"has no key no_such_key; it has \w+"):
        configured(name, no_such_key=1)


@pytest.mark.parametrize("name", MADE, ids=short)
def test_an_example_is_whole_and_its_evidence_is_in_its_document(name, tokenizer):
    made = examples(name, tokenizer)
    assert len({example.id for example in made}) == 3
    for example in made:
        assert example.id.startswith(f"{short(name)}-2x")
        assert judge_named(example.rule)
        assert example.evidence
        assert all(0 <= start < end <= len(example.document) for start, end in example.evidence)
        assert Example.from_record(json.loads(json.dumps(example.to_record()))) == example


@pytest.mark.parametrize("name", MADE, ids=short)
def test_a_document_has_exactly_the_requested_chunks(name, tokenizer):
    for example in examples(name, tokenizer):
        assert example.metadata["chunks"] == 2
        assert len(chunks(example.document, tokenizer, example.metadata["chunk_tokens"])) == 2


@pytest.mark.parametrize("name", MADE, ids=short)
def test_an_example_is_a_function_of_task_seed_and_index(name, tokenizer):
    first = examples(name, tokenizer, n=2)
    assert examples(name, tokenizer, n=1) == first[:1]
    other = examples(name, tokenizer, seed=4, n=2)
    assert {example.document for example in first}.isdisjoint(example.document for example in other)


@pytest.mark.parametrize("name", [name for name in EVERY if preset(name).needs])
def test_a_task_that_needs_a_file_names_its_option(name, tokenizer):
    option = preset(name).needs.partition(":")[0]
    with pytest.raises(ValueError, match=f"no.* is named; set {option} to "):
        list(make(name, 1, 1, tokenizer, length_tokens=900))


@pytest.fixture(params=FORMATS)
def foreign(request, tmp_path) -> tuple[str, Path]:
    """A format's name and a file with one record of it."""
    form = request.param
    text = json.dumps(RECORDS[form])
    path = tmp_path / "one.json"
    path.write_text(text if form == "squad" else f"[{text}]")
    return form, path


def test_every_format_is_under_its_own_name_and_has_a_record():
    assert {name: known.name for name, known in FORMATS.items()} == {name: name for name in FORMATS}
    assert RECORDS.keys() == FORMATS.keys()
    assert all(known.files for known in FORMATS.values())
    assert not any(known.recognises({}) for known in FORMATS.values())


def test_a_format_reads_its_record_as_an_example(foreign, tmp_path):
    form, path = foreign
    (example,) = read_original(path, form, **OPTIONS.get(form, {}))
    assert example.question and example.answers and judge_named(example.rule)
    assert load(save([example], tmp_path / "x.parquet")) == [example]


def test_a_format_recognises_its_records_by_their_fields(foreign):
    form, path = foreign
    assert likely_format(path) == form


def test_a_format_takes_its_options_and_no_others(foreign):
    form, path = foreign
    assert set(OPTIONS.get(form, {})) <= set(FORMATS[form].options)
    with pytest.raises(ValueError, match=f"format '{form}' takes no no_such_option; it takes"):
        read_original(path, form, no_such_option=1)


def test_a_file_without_records_is_an_error_that_names_it(foreign):
    form, path = foreign
    path.write_text('{"data": []}' if form == "squad" else "[]")
    with pytest.raises(ValueError, match=r"one.json: expected .*, found (a file without records|no paragraph)$"):
        list(read_original(path, form, **OPTIONS.get(form, {})))


def squad(context: str, question: str) -> dict:
    entry = {"id": "1", "question": question, "answers": [{"text": "c", "answer_start": 0}]}
    return {"data": [{"paragraphs": [{"context": context, "qas": [entry]}]}]}


EMPTY = [
    ("babilong", {"input": ""}, "'input'"),
    ("babilong", {"question": " "}, "'question'"),
    ("beam", {"chat": []}, "the document"),
    ("beam", {"probing_questions": {"abstention": [{"question": "", "answer": "a"}]}}, "'question'"),
    ("graphwalks", {"prompt": "\n\nOperation:\nFind the parents of node b."}, "the document"),
    ("hotpot", {"context": []}, "'context'"),
    ("hotpot", {"context": {"title": [], "sentences": []}}, "'context'"),
    ("hotpot", {"context": [["", [" "]]], "supporting_facts": []}, "'context'"),
    ("hotpot", {"question": ""}, "'question'"),
    ("infinitebench", {"context": "\n"}, "'context'"),
    ("infinitebench", {"input": ""}, "'input'"),
    ("locomo", {"conversation": {}}, "the document"),
    ("locomo", {"qa": [{"question": " ", "answer": "a", "category": 4}]}, "'question'"),
    ("longbench", {"context": ""}, "'context'"),
    ("longbench", {"input": ""}, "'input'"),
    ("longbench_v2", {"context": ""}, "'context'"),
    ("longbench_v2", {"question": ""}, "'question'"),
    ("longmemeval", {"haystack_sessions": [], "haystack_dates": []}, "the document"),
    ("longmemeval", {"question": ""}, "'question'"),
    ("memagent", {"context": ""}, "'context'"),
    ("memagent", {"input": " "}, "'input'"),
    ("memoryagentbench", {"context": ""}, "'context'"),
    ("memoryagentbench", {"questions": [""]}, "the question"),
    ("mrcr", {"prompt": [{"role": "user", "content": "c"}, {"role": "user", "content": ""}]}, "the question"),
    ("oolong", {"context_window_text": ""}, "'context_window_text'"),
    ("oolong", {"question": ""}, "'question'"),
    ("plain", {"document": ""}, "'document'"),
    ("plain", {"document": []}, "the document"),
    ("plain", {"document": ["", " "]}, "the document"),
    ("plain", {"question": ""}, "'question'"),
    ("ruler", {"input": ""}, "'input'"),
    ("ruler", {"input": "\nQuestion: q?"}, "the document"),
    ("squad", squad(" ", "q"), "'context'"),
    ("squad", squad("c", ""), "'question'"),
]


@pytest.mark.parametrize(("form", "change", "what"), EMPTY)
def test_an_empty_question_or_document_is_an_error(form, change, what, tmp_path):
    text = json.dumps(RECORDS[form] | change)
    path = tmp_path / "x.json"
    path.write_text(text if form == "squad" else f"[{text}]")
    where = "article 1" if form == "squad" else "record 1"
    with pytest.raises(ValueError, match=f"x.json, {where}.*: {what} is empty; fill it in, or remove the record"):
        list(read_original(path, form, **OPTIONS.get(form, {})))
    if FORMATS[form].pool:
        with pytest.raises(ValueError, match=f"x.json, {where}: {what} is empty"):
            read_pool(path, form)


def test_every_format_has_an_empty_document_to_refuse():
    assert {form for form, *_ in EMPTY} == FORMATS.keys()


def test_a_pool_has_the_documents_and_questions_of_its_file(foreign):
    form, path = foreign
    pool = read_pool(path, form)
    assert (pool is not None) == (form in ("hotpot", "squad"))
    if pool:
        assert len(pool.documents) == len(pool.questions) == 1
        assert pool.questions[0].gold == (0,)
