"""From a download to a data set: which questions are chosen, over how much text, by commands from an empty folder."""

from __future__ import annotations

import json
import shutil

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.cli.main import main
from memagent_lib.data import (
    Example,
    Length,
    Selection,
    convert,
    known_without_document,
    load,
    make_splits,
    read_original,
    save,
)
from memagent_lib.data.selection import knows
from memagent_lib.paths import root
from memagent_lib.readers import blind

POCKET = str(root() / "experiments" / "pocket" / "warm_start")


def selected_ids(form, path, tokenizer=None, length=None, **choice) -> list[str]:
    _, examples = convert(form, [path], Selection(**choice), length=length, tokenizer=tokenizer)
    return [example.metadata["question_id"] for example in examples]


def test_a_selection_depends_on_its_seed_and_not_on_the_length(hotpot_file, tokenizer):
    short, long = Length(documents=12), Length(documents=40)
    chosen = selected_ids("hotpot", hotpot_file, tokenizer, short, n=30, seed=5)
    assert selected_ids("hotpot", hotpot_file, tokenizer, long, n=30, seed=5) == chosen
    assert set(selected_ids("hotpot", hotpot_file, tokenizer, short, n=30, seed=6)) != set(chosen)
    in_order = [example.metadata["question_id"] for example in read_original(hotpot_file, "hotpot")]
    assert selected_ids("hotpot", hotpot_file, tokenizer, short, n=9) == in_order[:9]
    assert selected_ids("hotpot", hotpot_file, n=9) == in_order[:9]


def as_lines(path, *pairs):
    """A file of questions, each with its own document and answer, without ids."""
    path.parent.mkdir(exist_ok=True)
    rows = [{"question": question, "document": document, "answers": ["a"]} for question, document in pairs]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_question_of_another_data_set_is_known_by_its_text(tmp_path):
    train = as_lines(tmp_path / "train.jsonl", ("q1?", "d1"), ("q2?", "d2"))
    saved = save(convert("plain", [train], Selection())[1], tmp_path / "train.parquet")
    apart = Selection(apart_from=(saved,))
    test = as_lines(tmp_path / "test.jsonl", ("q2?", "other"), ("q3?", "d3"))
    chosen, examples = convert("plain", [test], apart)
    assert [example.question for example in examples] == ["q3?"]
    assert chosen.summary() == "1 in another data set"
    with pytest.raises(ValueError, match="2 in another data set"):
        convert("plain", [train], apart)
    copy = as_lines(tmp_path / "copy" / "train.jsonl", ("q7?", "d7"))
    with pytest.raises(ValueError, match="the id 'train-1'"):
        convert("plain", [train, copy], Selection())
    with pytest.raises(ValueError, match="length"):
        convert("plain", [train], Selection(), length=Length(documents=3))


def test_known_questions_are_replaced_by_later_ones(hotpot_file):
    def known(examples):
        return [int(example.id.rpartition("-")[2]) % 2 == 1 for example in examples]

    chosen, examples = convert("hotpot", [hotpot_file], Selection(n=20, known=known))
    ids = [example.metadata["question_id"] for example in examples]
    assert len(ids) == 20 and all(int(name.rpartition("-")[2]) % 2 == 0 for name in ids)
    assert chosen.left_out["known without the document"] >= 16
    with pytest.raises(ValueError, match=r"n=40.*30 of 60.*30 known"):
        convert("hotpot", [hotpot_file], Selection(n=40, known=known))


def capital(number: int, answer: str) -> Example:
    return Example(
        id=f"c{number}",
        task="t",
        question=f"Capital of country {number}?",
        document="SECRET",
        answers=(answer, "never"),
    )


def agent(encoder, replies: dict[str, str | Exception]) -> Agent:
    def answer(text: str) -> str:
        found = next((reply for key, reply in replies.items() if key in text), "no idea")
        if isinstance(found, Exception):
            raise found
        return found

    return Agent(encoder, Scripted(answer), blind)


def test_known_unknown_and_failed_questions_are_three_verdicts(encoder):
    examples = [capital(i, answer) for i, answer in enumerate(["Oslo", "Rome", "Lima", "Bern", "Cairo"])]
    one = agent(encoder, {"country 0": "\\boxed{oslo}", "country 3": BackendError("down")})
    two = agent(encoder, {"country 2": "I guess lima, or not", "country 4": "\\boxed{Giza}"})
    assert known_without_document(examples, [one, two], samples=2) == [True, False, True, None, False]
    assert len(one.backend.requests) == 10
    assert all("SECRET" not in request.text for request in one.backend.requests)
    assert known_without_document(examples[:1], [agent(encoder, {"country 0": "<think>hm"})]) == [None]


@pytest.mark.parametrize(
    ("reply", "answers", "verdict"),
    [
        ("I do not know.", ("no",), False),
        ("No, they are not.", ("no",), True),
        ("I have no information about them. \\boxed{unknown}", ("no",), False),
        ("答案是北京。", ("北京",), True),
        ("A document is needed to answer.", ("Odo paid", "A"), False),
    ],
)
def test_a_reply_knows_an_answer_by_whole_words_or_letter(reply, answers, verdict):
    assert knows(reply, answers) is verdict


@pytest.fixture
def empty_folder(tmp_path, monkeypatch, hotpot_file, squad_file):
    shutil.copy(hotpot_file, tmp_path / "hotpot_train_v1.1.json")
    shutil.copy(hotpot_file, tmp_path / "hotpot_dev_distractor_v1.json")
    shutil.copy(squad_file, tmp_path / "dev-v2.0.json")
    (tmp_path / "bare.jsonl").write_text(json.dumps({"question": "q?", "document": "d"}))
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
    assert ({e.rule for e in made}, {e.rule for e in short}) == ({"boxed"}, {"contains"})
    assert [e.metadata["documents"] for e in long] == [50] * 10
    assert [e.question for e in short] == [e.question for e in long]
    assert {e.question for e in made}.isdisjoint(e.question for e in short)
    assert all(e.metadata["tokens"] <= 3000 for e in made)


def test_a_judge_is_an_option_of_command_and_format_and_unanswerable_questions_are_counted(empty_folder, capsys):
    for words in (["rule=exact"], ["--rule", "exact"], ["--rule", "exact", "--documents", "5"]):
        assert data("--from", "squad", "dev-v2.0.json", *words, "--out", "out.parquet") == 0
        assert {example.rule for example in load("out.parquet")} == {"exact"}
        assert "10 questions of dev-v2.0.json in out.parquet (10 left out as unanswerable)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--from", "squad", "dev-v2.0.json", "--n", "99"], "n=99"),
        (["--from", "squad", "dev-v2.0.json", "./dev-v2.0.json"], "twice"),
        (["--from", "plain", "bare.jsonl"], "answers"),
        (["needle", "--chunks", "2", "--apart-from", "y"], "--apart-from"),
        ([], "nothing to make"),
    ],
)
def test_a_wrong_command_names_the_setting_and_writes_nothing(words, named, empty_folder, capsys):
    assert data(*words, "--out", "x.parquet") == 2
    assert named in capsys.readouterr().err
    assert not list(empty_folder.glob("x.*"))


@pytest.mark.slow
def test_questions_that_the_policy_knows_are_dropped(empty_folder, capsys):
    words = f"--from squad dev-v2.0.json --drop-known {POCKET} --backend transformers --samples 1".split()
    assert data(*words, "--out", "x.parquet") == 0
    assert "10 questions of dev-v2.0.json" in capsys.readouterr().out


def test_each_length_of_a_split_has_its_file_and_wrong_sizes_make_none(tmp_path, tokenizer) -> None:
    splits = {"train": ([1, 2], [3, 2]), "test": ([2], [4]), "other": ([], [64, 64, 32])}
    made = make_splits(tmp_path / "a", "needle", splits, tokenizer, seed=1, chunk_tokens=64, distractors=0.5)
    assert made[["split", "chunks", "examples"]].values.tolist() == [["train", 1, 3], ["train", 2, 2], ["test", 2, 4]]
    files = [load(path) for path in made["file"]]
    assert [len(examples) for examples in files] == [3, 2, 4]
    documents = [example.document for examples in files for example in examples]
    assert len(set(documents)) == len(documents), "no document is in two files"
    for lengths, counts in (([1, 2, 4], [3, 2]), ([2, 4, 2], [3]), ([2, 4], [3, 0])):
        with pytest.raises(ValueError, match=r"number|n must"):
            make_splits(tmp_path / "b", "needle", {"train": ([1], [1]), "test": (lengths, counts)}, tokenizer, seed=1)
    assert not (tmp_path / "b").exists()
