"""A model as a judge: its prompt, its verdicts, what they cost and how they agree with the rule."""

import pandas as pd
import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted
from memagent_lib.data import Example
from memagent_lib.evaluation import (
    ModelJudge,
    agreement,
    evaluate,
    model_judge,
    open_judge,
    overview,
    table,
    to_frame,
)
from memagent_lib.evaluation.model_judge import PROMPT_FILE, verdict_in, worded
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.trace import Reply

WORDS = PROMPT_FILE.read_text(encoding="utf-8")
REPLIES = {
    "One?": "\\boxed{Lisbon}",
    "Two?": "It is the capital of Portugal.",
    "Three?": "\\boxed{Lisbon}",
    "Four?": "",
}


@pytest.fixture
def results(encoder):
    """Four results: right by the rule, right in other words, as the first with another question, and failed."""

    def reply(prompt: str) -> Reply:
        question = next(question for question in REPLIES if question in prompt)
        if not REPLIES[question]:
            raise BackendError("gone")
        return Reply(REPLIES[question])

    examples = [
        Example(id=question, task="own", question=question, document="rain", answers=("Lisbon",), rule="contains")
        for question in REPLIES
    ]
    return evaluate(Agent(encoder, Scripted(reply)), examples, progress=False)


def opened(tokenizer, verdict, words: str = WORDS) -> tuple[ModelJudge, Scripted]:
    backend = Scripted(verdict, window=4096)
    agent = Agent(Encoder(tokenizer, Template.load("short"), Budget(chunk_tokens=64)), backend)
    return ModelJudge("wise", agent, worded(words), words), backend


def lenient(prompt: str) -> Reply:
    return Reply("CORRECT" if "capital of Portugal" in prompt else "INCORRECT.", prompt_tokens=100, reply_tokens=1)


def test_verdicts_stand_beside_scores_with_agreement_and_cost(results, tokenizer):
    judge, backend = opened(tokenizer, lenient)
    columns = judge.judge(results)
    assert columns["model_verdict"] == [0, 1, 0, None]
    rows = to_frame(results).assign(**columns)
    assert agreement(rows) == ["the rule agrees on 0.0 % of the model judge's 3 verdicts on overwrite"]
    guesses = rows[::2].assign(reader="blind", score=0.0)  # that these are wrong says nothing about the others
    assert agreement(pd.concat([rows, guesses]))[1].startswith("the rule agrees on 100.0 %")
    prompt = next(request.text for request in backend.requests if "One?" in request.text)  # they are sent at once
    assert "any one of them is enough" in prompt and "\nLisbon\n" in prompt
    assert "===\n\\boxed{Lisbon}\n===" in prompt


def test_equal_prompts_are_judged_once_and_saved(results, tokenizer, tmp_path):
    judge, backend = opened(tokenizer, lenient)
    twice = [results[0], results[1], results[0]]
    judge.judge(twice, tmp_path)
    assert len(backend.requests) == 2
    again, fresh = opened(tokenizer, lenient)
    assert again.judge(twice, tmp_path)["model_verdict"] == [0, 1, 0]
    assert fresh.requests == []
    other, requested = opened(tokenizer, lenient, WORDS + "\nBe strict.")
    other.judge(twice, tmp_path)
    assert len(requested.requests) == 2


def test_a_judge_without_a_verdict_is_unclear_beside_the_score(results, tokenizer):
    judge, _ = opened(tokenizer, lambda prompt: Reply("CORRECT" if "capital" in prompt else "I would rather not say."))
    rows = to_frame(results).assign(policy="p", chunks=1, **judge.judge(results))
    assert rows["model_verdict"].fillna(-1).tolist() == [-1, 1, -1, -1]
    assert table(rows)["judge"].tolist() == ["contains", "wise"]
    assert table(rows)["1 chunks"].iloc[1].endswith("(n=1), 1 failed, 2 unclear")
    assert overview(rows)[["judge", "n"]].values.tolist() == [["contains", 4], ["wise", 4]]

    judge, _ = opened(tokenizer, lambda _: Reply("One may call it\nCORRECT", "length"))
    assert judge.judge(results)["model_verdict"] == [None] * 4

    def broken(prompt: str) -> Reply:
        raise BackendError("no reply")

    judge, _ = opened(tokenizer, broken)
    assert judge.judge(results)["model_judge_reply"][0] == "BackendError: no reply"


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("CORRECT", 1), ("INCORRECT", 0), ("**Incorrect.**", 0), ("It names Porto.\nINCORRECT", 0), ("yes", 1),
        ("**Verdict:** no", 0), ('{"correct": false}', 0), ('{"verdict": "CORRECT"}', 1),
        ("not correct", None), ("", None), ("It is CORRECT, not INCORRECT.", None), ("CORRECT or INCORRECT?", None),
        ("Correct?", None), ("❌ correct", None), ("CORRECT: ❌", None), ("~correct", None), ("正确\nCORRECT。", 1),
        ("CORRECT\nIt names another code.", None),
        ('{"correct": false, "correct": true}', None), ("[[]]", None), ("5", None),
        ("Wrong: the correct value is 5.", None), ('{"correct": true, "sure": false}', None), ("[" * 5000, None),
    ],
)  # fmt: skip
def test_a_verdict_is_one_word_or_unclear(reply, value):
    assert verdict_in(reply) == value


def test_placeholders_in_a_reply_are_its_own_text():
    example = Example(id="1", task="own", question="{reply}?", document="x", answers=("{needed}",), rule="items")
    prompt = worded("{question} {needed} {answers} {reply}")(example, "{question}")
    assert prompt == "{reply}? all of them are needed {needed} {question}"
    with pytest.raises(ValueError, match=r"\{reply\}"):
        worded("{question} {answers}")


def test_a_function_in_a_file_words_the_prompts_of_a_benchmark(tokenizer, tmp_path, monkeypatch, results):
    file = tmp_path / "bench.py"
    file.write_text("def ask(example, reply): return f'{example.task}: {reply}? yes or no'")
    agent = opened(tokenizer, lambda prompt: Reply("yes" if "own: " in prompt else "no"))[0]._agent
    monkeypatch.setattr(model_judge, "open_agent", lambda *_, **__: agent)
    judgement = open_judge("wise", prompt=f"{file}:ask").judge(results)
    assert (judgement["model_judge"], judgement["model_verdict"]) == ("wise (bench)", [1, 1, 1, None])
