"""From a download to a data set: which questions are chosen, over how much text, by commands from an empty folder."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from foreign_records import RECORDS

from memagent_lib.cli.main import main
from memagent_lib.data import Length, Selection, convert, load, read_original, save
from memagent_lib.data.storage import question_keys
from memagent_lib.paths import root

POCKET = str(root() / "experiments" / "pocket" / "warm_start")


def selected_ids(form, path, tokenizer=None, length=None, **choice) -> list[str]:
    _, examples = convert(form, [path], Selection(**choice), length=length, tokenizer=tokenizer)
    return [example.metadata["question_id"] for example in examples]


def test_stretches_of_one_order_share_no_question_at_any_length(hotpot_file, tokenizer):
    short = Length(documents=12)
    long = Length(documents=40)
    train = selected_ids("hotpot", hotpot_file, tokenizer, short, n=30, seed=5)
    test = selected_ids("hotpot", hotpot_file, tokenizer, long, first=30, n=20, seed=5)
    assert len({*train, *test}) == 50
    assert selected_ids("hotpot", hotpot_file, tokenizer, long, n=30, seed=5) == train
    assert set(selected_ids("hotpot", hotpot_file, tokenizer, short, n=30, seed=6)) != set(train)
    in_order = [example.metadata["question_id"] for example in read_original(hotpot_file, "hotpot")]
    assert selected_ids("hotpot", hotpot_file, tokenizer, short, n=9, first=2) == in_order[2:11]


def test_files_with_documents_of_their_own_are_chosen_from_alike(tmp_path):
    rows = [{"question": f"q{i}?", "document": f"d{i}", "answers": ["a"]} for i in range(40)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    everything = selected_ids("plain", path)
    assert everything == [f"mine-{i}" for i in range(1, 41)]
    train = selected_ids("plain", path, n=25, seed=1)
    test = selected_ids("plain", path, first=25, seed=1)
    assert sorted([*train, *test]) == sorted(everything)
    with pytest.raises(ValueError, match="have a length of their own; leave it out"):
        selected_ids("plain", path, length=Length(documents=3))


def test_questions_of_another_data_set_are_left_out_and_counted(hotpot_file, tmp_path, tokenizer):
    first = save(convert("hotpot", [hotpot_file], Selection(n=20, seed=1))[1], tmp_path / "first.parquet")
    choice = Selection(n=30, seed=2, apart_from=(first,))
    chosen, examples = convert("hotpot", [hotpot_file], choice, length=Length(documents=12), tokenizer=tokenizer)
    second = save(examples, tmp_path / "second.parquet")
    assert set(question_keys(first)).isdisjoint(question_keys(second))
    assert len(question_keys(second)) == 30
    assert chosen.summary() == "20 in another data set"


def as_lines(path, *pairs):
    """A file of questions, each with its own document and answer, without ids."""
    path.parent.mkdir(exist_ok=True)
    rows = [{"question": question, "document": document, "answers": ["a"]} for question, document in pairs]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_question_of_another_data_set_is_known_by_its_text(tmp_path):
    train = as_lines(tmp_path / "train.jsonl", ("q1?", "d1"), ("q2?", "d2"), ("Where?", "d3"), ("Where?", "d4"))
    saved = save(convert("plain", [train], Selection())[1], tmp_path / "train.parquet")
    apart = Selection(apart_from=(saved,))
    # Ids are line numbers here: q2 is the same question on another line, and each Where? has a document of its own.
    test = as_lines(tmp_path / "test.jsonl", ("q2?", "d2"), ("q3?", "d3"), ("Where?", "d5"))
    chosen, examples = convert("plain", [test], apart)
    assert [example.question for example in examples] == ["q3?", "Where?"]
    assert chosen.summary() == "1 in another data set"
    namesake = as_lines(tmp_path / "other" / "train.jsonl", ("q7?", "d7"), ("q8?", "d8"))
    assert convert("plain", [namesake], apart)[0].summary() == "none left out"
    with pytest.raises(ValueError, match=r"no question is left: 4 in the files.* 4 in another data set"):
        convert("plain", [train], apart)


def test_memagents_training_questions_are_found_in_hotpot(hotpot_file, tmp_path):
    questions = [example.question for example in read_original(hotpot_file, "hotpot")][:7]
    training = {"prompt": [], "context": "c", "reward_model": {"ground_truth": ["a"]}, "extra_info": {"num_docs": 200}}
    rows = [training | {"prompt": [{"role": "user", "content": question}]} for question in questions]
    path = tmp_path / "hotpotqa_train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    saved = save(convert("memagent", [path], Selection())[1], tmp_path / "train.parquet")
    chosen, examples = convert("hotpot", [hotpot_file], Selection(apart_from=(saved,)))
    assert {example.question for example in examples}.isdisjoint(questions)
    assert chosen.summary() == "7 in another data set"


def test_known_questions_are_replaced_by_later_ones(hotpot_file):
    seen: list[str] = []

    def known(examples):
        seen.extend(example.id for example in examples)
        return [int(example.id.rpartition("-")[2]) % 2 == 1 for example in examples]

    chosen, examples = convert("hotpot", [hotpot_file], Selection(n=20, known=known))
    ids = [example.metadata["question_id"] for example in examples]
    assert len(ids) == 20
    assert all(int(name.rpartition("-")[2]) % 2 == 0 for name in ids)
    assert chosen.known == len(seen) - len([s for s in seen if int(s.rpartition("-")[2]) % 2 == 0])
    with pytest.raises(ValueError, match=r"40 questions were requested and 30 are left: 60 in the files, .*30 known"):
        convert("hotpot", [hotpot_file], Selection(n=40, known=known))


@pytest.mark.parametrize("length", [None, Length(documents=3)])
@pytest.mark.parametrize("form", ["hotpot", "squad"])
def test_a_question_of_two_files_is_an_error_at_any_length(form, length, tmp_path, tokenizer, request):
    path = Path(request.getfixturevalue(f"{form}_file"))
    copy = shutil.copy(path, tmp_path / "copy.json")
    with pytest.raises(
        ValueError, match=rf"{path.name}, .*copy.json: the id '.*' comes twice; ids must differ: convert the"
    ):
        convert(form, [path, copy], Selection(), length=length, tokenizer=tokenizer)


def test_a_file_without_questions_does_not_ask_for_fewer(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(RECORDS["beam"] | {"probing_questions": {}}))
    with pytest.raises(ValueError, match=r"no question is left: the files have none .*; give a file with some$"):
        convert("beam", [path], Selection())


@pytest.fixture
def empty_folder(tmp_path, monkeypatch, hotpot_file, squad_file):
    shutil.copy(hotpot_file, tmp_path / "hotpot_train_v1.1.json")
    shutil.copy(hotpot_file, tmp_path / "hotpot_dev_distractor_v1.json")
    shutil.copy(squad_file, tmp_path / "dev-v2.0.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(*words: str | int) -> int:
    return main(["data", *map(str, words), "--model", POCKET])


def test_hotpot_training_and_evaluation_sets_share_no_question(empty_folder, capsys):
    train = ("--from", "hotpot", "hotpot_train_v1.1.json", "--rule", "boxed", "--seed", 0)
    assert data(*train, "--n", 20, "--length-tokens", 3000, "--out", "train.parquet") == 0
    assert "20 questions of hotpot_train_v1.1.json in train.parquet (none left out)" in capsys.readouterr().out
    evaluate = ("--from", "hotpot", "hotpot_dev_distractor_v1.json", "--apart-from", "train.parquet", "--n", 10)
    for documents in (12, 50):
        assert data(*evaluate, "--documents", documents, "--out", f"hqa_{documents}.parquet") == 0
        assert "20 in another data set" in capsys.readouterr().out
    made, short, long = (load(f"{name}.parquet") for name in ("train", "hqa_12", "hqa_50"))
    assert {e.rule for e in made} == {"boxed"}
    assert {e.rule for e in short} == {"contains"}
    assert [e.metadata["documents"] for e in long] == [50] * 10
    assert [e.question for e in short] == [e.question for e in long]
    assert {e.question for e in made}.isdisjoint(e.question for e in short)
    assert all(e.metadata["tokens"] <= 3000 for e in made)


def test_every_format_is_converted_by_one_command(empty_folder):
    folder = empty_folder / "niah_single_1"
    folder.mkdir()
    needle = "noise\nThe magic number for red-fox is: 12.\nnoise"
    asks = "What is the special magic number for red-fox mentioned in the provided text?"
    eval_record = {"context": "Document 1:\nA", "input": "q?", "answers": ["a"], "num_docs": 1, "index": 0}
    longbench = {"dataset": "qasper", "input": "q?", "context": "c", "answers": ["a"], "_id": "x"}
    own = {"question": "q?", "document": "d", "answers": ["a"]}
    content = {
        "niah_single_1/validation.jsonl": json.dumps({"index": 0, "input": f"{needle}\n{asks}", "outputs": ["12"]}),
        "eval_50.json": json.dumps([eval_record]),
        "eval_niah_single_1_8192.json": json.dumps([{"context": needle, "input": asks, "outputs": ["12"]}]),
        "qasper.jsonl": json.dumps(longbench),
        "qa1.json": json.dumps([{"input": "i", "question": "Where is Mary?", "target": "garden"}]),
        "passkey.jsonl": json.dumps({"id": 0, "context": "c", "input": "q", "answer": "71432"}),
        "mine.jsonl": json.dumps(own),
    }
    for name, text in content.items():
        (empty_folder / name).write_text(text)
    for form, name in [
        ("ruler", "niah_single_1/validation.jsonl"),
        ("memagent", "eval_50.json"),
        ("memagent", "eval_niah_single_1_8192.json"),
        ("longbench", "qasper.jsonl"),
        ("babilong", "qa1.json"),
        ("infinitebench", "passkey.jsonl"),
        ("plain", "mine.jsonl"),
        ("hotpot", "hotpot_dev_distractor_v1.json"),
        ("squad", "dev-v2.0.json"),
    ]:
        assert data("--from", form, name, "--out", "out.parquet", "--n", 1) == 0, form
        assert len(load("out.parquet")) == 1


def test_a_judge_is_an_option_of_command_and_format_alike(empty_folder):
    (empty_folder / "mine.jsonl").write_text(json.dumps({"question": "q?", "document": "d", "answers": ["a"]}))
    record = {"dataset": "qasper", "input": "q?", "context": "c", "answers": ["a"], "_id": "x"}
    (empty_folder / "qasper.jsonl").write_text(json.dumps(record))
    for form, name in (("plain", "mine.jsonl"), ("longbench", "qasper.jsonl"), ("squad", "dev-v2.0.json")):
        for words in (["rule=exact"], ["--rule", "exact"]):
            assert data("--from", form, name, *words, "--out", "out.parquet") == 0
            assert {example.rule for example in load("out.parquet")} == {"exact"}


def test_unanswerable_questions_are_counted_among_those_left_out(empty_folder, capsys):
    for length in ([], ["--documents", 5]):
        assert data("--from", "squad", "dev-v2.0.json", *length, "--out", "out.parquet") == 0
        assert "10 questions of dev-v2.0.json in out.parquet (10 left out as unanswerable)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "hotpot", "--out", "x.parquet"], "no file after --from hotpot; give at least one"),
        (["--from", "csv", "a.csv", "--out", "x.parquet"], "no format 'csv'; choose from babilong"),
        (["--from", "squad", "gone.json", "--out", "x.parquet"], "no file at gone.json"),
        (["--from", "squad", "dev-v2.0.json", "--out", "x.jsonl"], "end the name x.jsonl in .parquet"),
        (["--from", "squad", "dev-v2.0.json", "--n", "99", "--out", "x.parquet"], "99 questions were requested and 10"),
        (["--from", "squad", "dev-v2.0.json", "pool=x", "--out", "x.parquet"], "format 'squad' takes no pool"),
        (["--from", "squad", "dev-v2.0.json", "--rule", "odd", "--out", "x.parquet"], "no judge 'odd'"),
        (
            ["needle", "chunk_tokens=96", "--chunks", "2", "--out", "x.parquet"],
            "option of every task: --chunk-tokens 96",
        ),
        (
            ["--from", "squad", "dev-v2.0.json", "--chunks", "2", "--chunk-tokens", "0", "--out", "x.parquet"],
            "chunk_tokens must be at least 1, got 0",
        ),
        (["needle", "--chunks", "2", "--out", "x.jsonl"], "end the name x.jsonl in .parquet"),
        (["--out", "x.parquet"], "nothing to make or no file to write to"),
        (["--from", "squad", "dev-v2.0.json", "rule=odd", "--out", "x.parquet"], "no judge 'odd'"),
        (["--from", "squad", "dev-v2.0.json", "length=3", "--out", "x.parquet"], "format 'squad' takes no length"),
        (
            ["--from", "squad", "dev-v2.0.json", "rule=f1", "--rule", "boxed", "--out", "x.parquet"],
            "--rule boxed and rule=f1 contradict each other; leave one of them out",
        ),
        (["needle", "--chunks", "2", "--apart-from", "y", "--out", "x.parquet"], "--apart-from goes with --from"),
        (["needle", "--chunks", "2", "--drop-known", "m", "--out", "x.parquet"], "--drop-known goes with --from"),
        (["--from", "plain", ".", "--out", "x.parquet"], ". is a folder; name the files in it"),
        (["--from", "plain", "gone.jsonl", "--out", "x.parquet"], "no file at gone.jsonl\n"),
        (["--from", "plain", "bare.jsonl", "--out", "x.parquet"], "missing field 'answers'"),
        (["needle", "--chunks", "2", "--samples", "3", "--out", "x.parquet"], "--samples goes with --from"),
        (["needle", "--chunks", "2", "--backend", "vllm", "--out", "x.parquet"], "--backend goes with --from"),
        (["needle", "--chunks", "2", "--first", "0", "--out", "x.parquet"], "--first goes with --from"),
        (
            ["--from", "squad", "dev-v2.0.json", "--samples", "3", "--out", "x.parquet"],
            "--samples goes with --drop-kno",
        ),
        (
            ["--from", "squad", "dev-v2.0.json", "--workers", "2", "--out", "x.parquet"],
            "--workers is for examples that",
        ),
        (["--from", "squad", "dev-v2.0.json", "--chunk-tokens", "9", "--out", "x.parquet"], "goes with --chunks"),
        (["--from", "squad", "dev-v2.0.json", "--chunks", "0", "--out", "x.parquet"], "chunks must be at least 1"),
        (["--from", "squad", "dev-v2.0.json", "--first", "99", "--out", "x.parquet"], "no question is left: 10 in"),
        (["--from", "squad", "dev-v2.0.json", "--first", "-1", "--out", "x.parquet"], "first must be at least 0, got"),
        (["--from", "squad", "dev-v2.0.json", "./dev-v2.0.json", "--out", "x.parquet"], "is named more than once"),
        (["--from", "plain", "bare.jsonl", "copy/bare.jsonl", "--out", "x.parquet"], "the id 'bare-1' comes twice"),
        (["--from", "longbench", "bare.jsonl", "--out", "x.parquet"], "it looks like your own records with question"),
        (["--from", "plain", "packed.jsonl", "--out", "x.parquet"], "found a file compressed by gzip; decompress it"),
        (["--from", "plain", "-", "--out", "x.parquet"], "- stands for a pipe, which is not read; write"),
        (["--from", "plain", "/dev/stdin", "--out", "x.parquet"], "/dev/stdin is a pipe or device"),
        (["--from", "squad", "dev-v2.0.json", "--out", "bare.jsonl/x.parquet"], "bare.jsonl is a file, so"),
        (
            ["--from", "squad", "dev-v2.0.json", "--drop-known", "./gone", "--rule", "odd", "--out", "x.parquet"],
            "no judge 'odd'",
        ),
        (
            ["--from", "squad", "dev-v2.0.json", "--drop-known", "./gone", "--out", "bare.jsonl/x.parquet"],
            "bare.jsonl is a file, so",
        ),
        (["--from", "plain", "indented.json", "--out", "x.parquet"], "write one list of objects, or one object to a l"),
        (
            ["squad", "--chunks", "2", "--out", "x.parquet"],
            "'squad' is a format of files, not a task: memagent data --",
        ),
        (["needle", "--chunks", "2", "--length-tokens", "9", "--out", "x.parquet"], "got length_tokens and chunks"),
    ],
)
def test_a_wrong_command_names_the_fix_and_writes_nothing(words, message, empty_folder, capsys):
    record = {"question": "q?", "document": "d"}
    (empty_folder / "bare.jsonl").write_text(json.dumps(record))
    (empty_folder / "packed.jsonl").write_bytes(gzip.compress(json.dumps(record | {"answers": ["a"]}).encode()))
    (empty_folder / "indented.json").write_text(json.dumps({"data": [record]}, indent=1))
    (empty_folder / "copy").mkdir()
    if "copy/bare.jsonl" in words:
        for name in ("bare.jsonl", "copy/bare.jsonl"):
            (empty_folder / name).write_text(json.dumps(record | {"answers": ["a"]}))
    assert data(*words) == 2
    assert message in capsys.readouterr().err
    assert not list(empty_folder.glob("x.*"))


def test_every_parameter_that_the_list_prints_can_be_set(capsys):
    from memagent_lib.data import TASKS, configured
    from memagent_lib.settings import key_value

    for name in TASKS:
        assert data("--list", name) == 0
        printed = capsys.readouterr().out.rpartition("parameters: ")[2].strip()
        texts = [text.replace("=None", "=''").replace("=True", "=true") for text in printed.split(", ")]
        parameters = {key: value for key, value in map(key_value, texts) if value not in ("", "False")}
        assert configured(name, **parameters) == TASKS[name].task, name


@pytest.mark.slow
def test_questions_that_the_policy_knows_are_dropped(empty_folder, capsys):
    words = ("--from", "squad", "dev-v2.0.json", "--drop-known", POCKET, "--backend", "transformers", "--samples", 1)
    assert data(*words, "--out", "x.parquet") == 0
    assert "10 questions of dev-v2.0.json" in capsys.readouterr().out
