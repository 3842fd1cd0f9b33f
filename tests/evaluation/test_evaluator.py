"""Evaluation: examples x agent, errors apart from wrong answers, and a journal (design, invariants 9 and 11)."""

import re
from dataclasses import replace
from functools import partial

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import load, make, save
from memagent_lib.evaluation import EvaluationPlan, evaluate, evaluator, read_results, save_wrong, summarise, to_frame
from memagent_lib.evaluation.results import DocumentStore, Result, code_of_replies, code_of_results
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.readers import blind
from memagent_lib.scoring import Score, judge_hash


def _careful(text: str) -> str:
    """A perfect reader of needles: what a scripted model of the task says."""
    key = re.search(r"code of the (\w+ \w+)\?", text).group(1)
    found = re.search(rf"The code of the {key} is (\d+)\.", text)
    if "Write the answer" in text:
        return f"\\boxed{{{found.group(1)}}}" if found else "\\boxed{unknown}"
    return found.group(0) if found else "nothing yet"


@pytest.fixture(scope="module")
def needles(tokenizer):
    return list(make("needle", 12, 5, tokenizer, chunks=3, chunk_tokens=200))


@pytest.fixture(scope="module")
def needle_encoder(tokenizer):
    return Encoder(
        tokenizer,
        Template.load("short"),
        Budget(chunk_tokens=200, memory_tokens=60, answer_tokens=16, question_tokens=64),
    )


def test_a_perfect_reader_captures_retains_and_answers_all(needle_encoder, needles):
    frame = to_frame(evaluate(Agent(needle_encoder, Scripted(_careful)), needles, progress=False))
    assert frame["score"].tolist() == [1.0] * 12
    assert frame["capture"].tolist() == frame["retention"].tolist() == [1.0] * 12


def test_a_failed_request_is_an_error_and_no_wrong_answer(needle_encoder, needles):
    def sometimes(text: str) -> str:
        if needles[3].question in text:
            raise BackendError("the server went away")
        return _careful(text)

    frame = to_frame(evaluate(Agent(needle_encoder, Scripted(sometimes)), needles, progress=False))
    failed = frame[frame["error"].notna()]
    assert failed["example"].tolist() == [needles[3].id] and failed["score"].isna().all()
    (row,) = summarise(frame).to_dict("records")
    assert (row["scored"], row["failed"], row["accuracy"]) == (11, 1, 1.0)


def test_a_bug_is_not_taken_for_a_failed_request(needle_encoder, needles):
    with pytest.raises(ZeroDivisionError):
        evaluate(Agent(needle_encoder, Scripted(lambda text: str(1 / 0))), needles, progress=False)


def journal_in(folder):
    (file,) = (f for f in folder.glob("*.jsonl") if f.name != "documents.jsonl")
    return file


def test_finished_examples_stay_and_failed_ones_are_read_again(needle_encoder, needles, tmp_path):
    down = Scripted(
        lambda text: (_ for _ in ()).throw(BackendError("down")) if needles[0].question in text else _careful(text)
    )
    first = evaluate(Agent(needle_encoder, down), needles, folder=tmp_path, progress=False)
    with open(journal_in(tmp_path), "ab") as file:
        file.write(b'{"reading": "x", "rec')
    again = Scripted(_careful)
    second = evaluate(Agent(needle_encoder, again), needles, folder=tmp_path, progress=False)
    assert first[0].error and all(r.score.value == 1 for r in second)
    assert {r.text.count(needles[0].question) for r in again.requests} == {1}
    assert [r.example.id for r in second] == [e.id for e in needles]
    third = Scripted(_careful)
    assert evaluate(Agent(needle_encoder, third), needles, folder=tmp_path, progress=False) == second
    assert third.requests == []


def test_only_what_changes_a_reply_is_read_again(needle_encoder, needles, tmp_path, monkeypatch):
    def requests(agent_of=lambda backend: Agent(needle_encoder, backend), examples=needles[:2]):
        backend = Scripted(_careful)
        found = evaluate(agent_of(backend), examples, folder=tmp_path, progress=False)
        return len(backend.requests), [r.score.value for r in found]

    assert requests() == (8, [1.0, 1.0])
    assert requests() == (0, [1.0, 1.0])
    other_answers = [replace(e, answers=("other",)) for e in needles[:2]]
    assert requests(examples=other_answers) == (0, [0.0, 0.0]), "scores are derived again"
    assert [r.score.value for r in read_results(journal_in(tmp_path))] == [0.0, 0.0]
    assert requests(examples=[replace(e, document=e.document + ".") for e in needles[:2]])[0] > 0
    for changed, read_again in (({"kinds": {"gate": "KEEP or write a new one."}}, 0), ({"empty_memory": "none"}, 8)):
        words = replace(needle_encoder.template, **changed)
        encoder = Encoder(needle_encoder.tokenizer, words, needle_encoder.budget)
        assert requests(lambda backend, encoder=encoder: Agent(encoder, backend))[0] == read_again, changed
    assert requests(lambda backend: Agent(needle_encoder, backend, blind))[0] == 2
    assert requests(lambda backend: Agent(needle_encoder, backend, weights="other"))[0] == 8
    assert len(list(tmp_path.glob("overwrite-*.jsonl"))) == 3 and len(list(tmp_path.glob("blind-*.jsonl"))) == 1
    monkeypatch.setattr(evaluator, "code_of_replies", lambda: "changed")
    assert requests()[0] == 8, "with other code, a new file is begun"


def test_documents_without_room_are_left_out_and_all_else_stays(needle_encoder, needles, tmp_path, monkeypatch):
    limited = partial(DocumentStore, limit_bytes=int(1.5 * len(needles[0].document)))
    monkeypatch.setattr(evaluator, "DocumentStore", limited)
    agent = Agent(needle_encoder, Scripted(_careful))
    whole = evaluate(agent, needles[:2], progress=False)
    found = evaluate(agent, needles[:2], concurrency=1, folder=tmp_path, progress=False)
    assert [bool(r.example.document) for r in found] == [True, False]
    assert not any(t.prompt.chunk.text for t in found[1].trace.reads)
    same = {"seconds", "cached_tokens"}
    for lean, full in zip(found, whole, strict=True):
        assert {k: v for k, v in lean.row().items() if k not in same} == {
            k: v for k, v in full.row().items() if k not in same
        }


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"files": []}, "files"), ({"files": ["a", "a"]}, "files"), ({"readers": ["nobody"]}, "nobody"),
        ({"readers": ["gated", "{folder}/mine.py:gated"]}, "readers"), ({"n": (1, 1)}, "n has 2"),
        ({"n": (2,)}, "n asks for 2"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_read_is_refused(options, named, kept, tmp_path) -> None:
    file = save([kept.example], tmp_path / "a.parquet")
    (tmp_path / "mine.py").write_text("def gated(question, memory):\n    yield\n")
    options = {"files": [file]} | options
    options["files"] = [file for _ in options["files"]]
    options["readers"] = [name.format(folder=tmp_path) for name in options.get("readers", ["blind"])]
    with pytest.raises(ValueError, match=named):
        EvaluationPlan(**options)


def test_files_of_one_name_have_their_folders_in_tables_and_a_question_counts_once(kept, tmp_path, caplog) -> None:
    names = ("a/test.parquet", "b/test.parquet", "c.parquet")
    files = [save([replace(kept.example, id=name), kept.example], tmp_path / name) for name in names]
    named = [example.metadata["file_name"] for example in EvaluationPlan(files).examples()]
    assert sorted(set(named)) == ["a/test.parquet", "b/test.parquet", "c.parquet"]
    assert len(named) == 4 and "1 questions are in another file too" in caplog.text


def test_files_of_a_length_in_tokens_have_one_in_chunks(kept, tmp_path) -> None:
    files = []
    for name, tokens in {"short": (9_000, 11_000), "long": (90_000, 88_000), "none": (0, 0)}.items():
        made = [replace(kept.example, id=f"{name}{n}", metadata={"tokens": n} if n else {}) for n in tokens[:1]]
        made += [replace(made[0], id=f"{name} 2", metadata={"tokens": tokens[1]} if tokens[1] else {})]
        files.append(save(made, tmp_path / f"{name}.parquet"))
    found = {(e.metadata["file_name"], e.metadata.get("chunks")) for e in EvaluationPlan(files).examples()}
    assert found == {("short.parquet", 2), ("long.parquet", 18), ("none.parquet", None)}


def test_wrong_examples_of_files_with_one_id_are_saved(kept, tmp_path) -> None:
    examples = [replace(kept.example, question=question, id="1") for question in ("Who?", "Where?", "Who?")]
    files = [save([example], tmp_path / f"{n}.parquet") for n, example in enumerate(examples)]
    right = replace(examples[0], task="other")
    files.append(save([right], tmp_path / "right.parquet"))
    results = [Result(example, "overwrite", 1.0, None, Score(0.0, "", "")) for example in examples]
    plan = EvaluationPlan(files)
    results.append(Result(right, "overwrite", 1.0, None, Score(1.0, "", "")))
    assert save_wrong(plan, results, tmp_path / "wrong.parquet") == 2
    assert {example.task for example in load(tmp_path / "wrong.parquet")} == {kept.example.task}
    assert sorted(example.question for example in load(tmp_path / "wrong.parquet")) == ["Where?", "Who?"]


def test_a_judge_or_reader_of_ones_own_changes_the_code_of_its_results(kept, tmp_path) -> None:
    file = tmp_path / "mine.py"
    rule = f"{file}:judge"
    file.write_text("def judge(reply, answers): ...")
    first = code_of_results(rule)
    file.write_text("def judge(reply, answers): return None")
    judge_hash.cache_clear()
    assert len({first, code_of_results(rule), code_of_results("boxed"), code_of_results("boxed", rule)}) == 4
    assert code_of_results("boxed", rule).startswith(code_of_results("boxed"))
    assert kept.code == code_of_results("boxed") != code_of_replies()
