"""The no-context filter, the overview frames and the speed study's naive generator."""

from __future__ import annotations

import pytest

from experiments.studies.speed.data import DataBench, bench_data, naive
from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import Example, make, save
from memagent_lib.data.filtering import known_without_document, knows
from memagent_lib.data.overview import COLUMNS, data_files
from memagent_lib.errors import UserError
from memagent_lib.readers import blind


def capital(number: int, answer: str) -> Example:
    return Example(
        id=f"c{number}", task="t", question=f"Capital of country {number}?", document="x", answers=(answer, "never")
    )


def agent(encoder, replies: dict[str, str | Exception], reader=blind) -> Agent:
    def answer(text: str) -> str:
        found = next((reply for key, reply in replies.items() if key in text), "no idea")
        if isinstance(found, Exception):
            raise found
        return found

    return Agent(encoder, Scripted(answer), reader)


def test_known_unknown_and_failed_questions_are_three_verdicts(encoder):
    examples = [capital(i, answer) for i, answer in enumerate(["Oslo", "Rome", "Lima", "Bern", "Cairo"])]
    one = agent(encoder, {"country 0": "\\boxed{oslo}", "country 3": BackendError("down")})
    two = agent(encoder, {"country 2": "I guess lima, or not", "country 4": "\\boxed{Giza}"})
    found = known_without_document(examples, [one, two], samples=2)
    assert found == [True, False, True, None, False]
    assert len(one.backend.requests) == 10


@pytest.mark.parametrize(
    ("reply", "answers", "verdict"),
    [
        ("I do not know.", ("no",), False),
        ("No, they are not.", ("no",), True),
        ("It was in 1913.", ("19",), False),
        ("It has 19 rooms.", ("19",), True),
        ("答案是北京。", ("北京",), True),
        ("A document is needed to answer.", ("Odo paid", "A"), False),
        ("The answer is B.", ("Odo paid", "A"), False),
        ("The answer is A.", ("Odo paid", "A"), True),
        ("\\boxed{Odo paid}", ("Odo paid", "A"), True),
    ],
)
def test_a_reply_knows_an_answer_by_whole_words_or_letter(reply, answers, verdict):
    assert knows(reply, answers) is verdict


def test_a_filter_of_mostly_unfinished_thoughts_names_the_fix(encoder):
    examples = [capital(i, "Oslo") for i in range(3)]
    thinks = {"country 0": "<think>Oslo or", "country 1": "<think>hm"}
    with pytest.raises(
        UserError, match=r"4 of 6 replies .* were unfinished thoughts.*enable_thinking=false.*--thinking"
    ):
        known_without_document(examples, [agent(encoder, thinks)], samples=2)
    del thinks["country 0"]
    assert known_without_document(examples, [agent(encoder, thinks)], samples=2) == [False, None, False]


def test_the_filter_never_sends_the_document(encoder):
    reader = agent(encoder, {})
    known_without_document([Example(id="a", task="t", question="Who?", document="SECRET", answers=("b",))], [reader])
    assert all("SECRET" not in request.text for request in reader.backend.requests)


def test_an_agent_that_reads_the_document_cannot_filter(encoder):
    from memagent_lib.readers import overwrite

    with pytest.raises(ValueError, match="use the reader 'blind', got 'overwrite'"):
        known_without_document([capital(1, "x")], [agent(encoder, {}, overwrite)])
    with pytest.raises(ValueError, match="at least one agent, got none"):
        known_without_document([capital(1, "x")], [])
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        known_without_document([capital(1, "x")], [agent(encoder, {})], samples=0)


def test_the_overview_frames_have_lengths_depths_and_positions(tokenizer, tmp_path):
    examples = [*make("vt", 3, 1, tokenizer, length_tokens=900), *make("multihop_2", 4, 1, tokenizer, documents=12)]
    found = data_files([save(examples[:3], tmp_path / "x.parquet"), save(examples[3:], tmp_path / "y.parquet")])
    assert {name: tuple(frame.columns) for name, frame in found.items()} == COLUMNS
    frame, depths, gold = found.values()
    assert frame["file"].tolist() == ["x"] * 3 + ["y"] * 4
    assert frame["question"].tolist() == [e.question for e in examples]
    assert frame["tokens"].tolist() == [tokenizer.count(e.document) for e in examples]
    assert frame["facts"].tolist() == [5, 5, 5, 2, 2, 2, 2]
    assert depths.groupby("example", sort=False).size().tolist() == [5, 5, 5, 2, 2, 2, 2]
    assert depths["depth"].between(0, 1).all()
    assert all(text in e.document for e in examples for text in depths[depths["example"] == e.id]["text"])
    assert gold["file"].tolist() == ["y"] * 8
    assert gold.groupby("example", sort=False)["place"].apply(list).tolist() == [
        e.metadata["gold_places"] for e in examples[3:]
    ]
    assert gold["depth"].tolist() == (gold["place"] / 11).tolist()


def test_files_of_one_name_are_told_apart_by_their_folders(tokenizer, tmp_path):
    examples = list(make("vt", 2, 1, tokenizer, length_tokens=900))
    paths = [save(examples[number:], tmp_path / f"part {number}" / "test.parquet") for number in (0, 1)]
    assert data_files(paths)["examples"]["file"].tolist() == ["part 0/test", "part 0/test", "part 1/test"]
    assert data_files(str(paths[1]))["examples"]["file"].tolist() == ["test"]


def test_without_gold_documents_the_frame_has_only_columns(tokenizer, tmp_path):
    path = save(make("vt", 2, 1, tokenizer, length_tokens=900), tmp_path / "x.parquet")
    gold = data_files([path])["gold"]
    assert (len(gold), tuple(gold.columns)) == (0, COLUMNS["gold"])
    with pytest.raises(ValueError, match="no file to describe"):
        data_files([])


def test_the_bench_sets_ours_beside_the_naive_generator(tokenizer_folder):
    sizes = {"task": "niah_single_1", "length_tokens": 4000, "n": 3, "workers": 1}
    found = bench_data(DataBench(model=tokenizer_folder, **sizes), report=lambda line: None)["data"]
    ours, theirs = found.rows
    assert (ours["generator"], ours["examples"], theirs["generator"], theirs["examples"]) == ("ours", 3, "naive", 1)
    assert 3 * 3900 < ours["tokens"] <= 3 * 4000 and ours["file_mb"] > 0
    assert all(row["seconds"] > 0 and row["peak_mb"] > 50 for row in found.rows)
    assert found.ratios[0].value == pytest.approx(theirs["seconds"] / (ours["seconds"] / 3))
    with pytest.raises(ValueError, match="naive_n must be at least 1, got 0"):
        DataBench(naive_n=0)


@pytest.mark.parametrize("task", ["niah_single_1", "multihop_2"])
def test_the_naive_generator_fills_the_same_length(task, tokenizer):
    found = list(naive(tokenizer, task, 5000, 2, seed=4))
    assert len(found) == 2 and all(4650 < tokenizer.count(e.document) <= 5000 for e in found)


def test_the_naive_generator_refuses_what_it_does_not_know(tokenizer):
    with pytest.raises(ValueError, match="not 'cwe'"):
        list(naive(tokenizer, "cwe", 5000, 1, seed=4))
