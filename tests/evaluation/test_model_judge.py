"""A model as a judge: its prompt, its verdicts, what they cost and how they agree with the rule."""

from dataclasses import replace

import pytest
from hostile import serving

from memagent_lib.agent import Agent
from memagent_lib.backends import BackendError, Scripted, open_backend
from memagent_lib.data import Example
from memagent_lib.evaluation import ModelJudge, evaluate, overview, table, to_frame, verdict_in
from memagent_lib.evaluation.judge_prompts import PROMPT_FILE, longmemeval_kind, words_of
from memagent_lib.scoring import judge_named
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
    return ModelJudge("wise", backend, tokenizer, words), backend


def lenient(prompt: str) -> Reply:
    return Reply("CORRECT" if "capital of Portugal" in prompt else "INCORRECT.", prompt_tokens=100, reply_tokens=1)


def test_verdicts_stand_beside_scores_with_agreement_and_cost(results, tokenizer):
    judge, backend = opened(tokenizer, lenient)
    judgement = judge.judge(results)
    assert [verdict and verdict.value for verdict in judgement.verdicts] == [0, 1, 0, None]
    assert judgement.metrics(results) == {
        "overwrite/decided": 3, "overwrite/undecided": 0, "overwrite/right": 1, "overwrite/agreement": 0.0,
        "requested": 3, "cached": 0, "prompt_tokens": 300, "reply_tokens": 3,
    }  # fmt: skip
    assert judgement.summary(results) == (
        "model judge wise: overwrite: 1 of 3 right, the rule agrees on 0.0 %; 3 distinct replies, 0 verdicts saved "
        "before; 300 prompt and 3 reply tokens"
    )
    prompt = next(request.text for request in backend.requests if "One?" in request.text)  # they are sent at once
    assert "any one of them is enough" in prompt and "\nLisbon\n" in prompt
    assert "===\n\\boxed{Lisbon}\n===" in prompt


def test_each_reader_has_its_own_agreement(results, tokenizer):
    """Both judges find a guess without the document wrong, which says nothing about the answers of another reader."""
    judge, _ = opened(tokenizer, lenient)
    guesses = [replace(result, reader="blind", score=replace(results[0].score, value=0.0)) for result in results[::2]]
    numbers = judge.judge([*results, *guesses]).metrics([*results, *guesses])
    assert (numbers["overwrite/agreement"], numbers["blind/agreement"]) == (0.0, 1.0)


def test_equal_prompts_are_judged_once_and_saved(results, tokenizer, tmp_path):
    judge, backend = opened(tokenizer, lenient)
    twice = [results[0], results[1], results[0]]
    assert judge.judge(twice, tmp_path).requested == 2 == len(backend.requests)
    again, fresh = opened(tokenizer, lenient)
    judgement = again.judge(twice, tmp_path)
    assert (judgement.cached, len(fresh.requests)) == (2, 0)
    assert judgement.metrics(twice)["overwrite/decided"] == 2, "a question in two data files counts once"
    assert [verdict.value for verdict in judgement.verdicts] == [0, 1, 0]
    other, asked = opened(tokenizer, lenient, WORDS + "\nBe strict.")
    assert other.judge(twice, tmp_path).cached == 0 and len(asked.requests) == 2


def test_a_served_judge_finds_its_own_verdicts_and_older_ones(results, tokenizer, tmp_path):
    def judged(folder) -> int:
        served = open_backend("openai", "wise", base_url=server.url, api="chat")
        judge = ModelJudge("wise", served, tokenizer, WORDS)
        try:
            return judge.judge(results, tmp_path / folder).cached
        finally:
            judge.close()

    older, backend = opened(tokenizer, lenient)
    older._agent = replace(older._agent, tokenizer_digest="")  # as in versions that recorded neither it nor the server
    older.judge(results, tmp_path / "older")
    prompts = len(backend.requests)
    with serving() as server:
        server.reply = lambda _: {"choices": [{"message": {"content": "CORRECT"}, "finish_reason": "stop"}]}
        found = []
        for model in ("a.gguf", "b.gguf"):  # llama.cpp serves its only model under any name
            server.cards = [{"id": model, "owned_by": "llamacpp", "context_length": 4096}]
            found += [judged("new"), judged("new"), judged("older")]
    assert found == [0, prompts, prompts] * 2
    for folder in ("before", "after"):
        judge, _ = opened(tokenizer, lenient)
        judge._agent = replace(judge._agent, tokenizer_digest=folder)  # a chat template that was mended, say
        assert judge.judge(results, tmp_path / "mended").cached == 0


def test_a_judge_without_a_verdict_is_undecided_and_not_wrong(results, tokenizer):
    judge, _ = opened(tokenizer, lambda prompt: Reply("I would rather not say."))
    judgement = judge.judge(results)
    assert [verdict and verdict.value for verdict in judgement.verdicts] == [None] * 4
    assert "no verdict, 3 undecided" in judgement.summary(results)

    def broken(prompt: str) -> Reply:
        raise BackendError("no reply")

    judge, _ = opened(tokenizer, broken)
    assert judge.judge(results).verdicts[0].reply == "BackendError: no reply"


def test_a_table_has_a_row_per_judge(results, tokenizer):
    judge, _ = opened(tokenizer, lenient)
    rows = to_frame(results).assign(policy="p", chunks=1, **judge.judge(results).columns)
    wide = table(rows)
    assert wide["judge"].tolist() == ["contains", "wise"]
    assert [cell.split(" [")[0] for cell in wide["1 chunks"]] == ["66.7 %", "33.3 %"]
    assert table(rows.drop(columns=["model_judge", "model_verdict"]))["judge"].tolist() == ["contains"]


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("CORRECT", 1), ("INCORRECT", 0), ("**Incorrect.**", 0), ("correct\n\nBecause it names Lisbon.", 1),
        ("It names Porto.\nINCORRECT", 0), ("The answer is correct.", 1), ("not correct", None), ("", None),
        ("It is CORRECT, not INCORRECT.", None), ("CORRECT or INCORRECT?", None), ("corrected", None),
    ],
)  # fmt: skip
def test_a_verdict_is_one_word_or_none(reply, value):
    assert verdict_in(reply) == value


def test_placeholders_in_a_reply_are_its_own_text(results, tokenizer):
    judge, _ = opened(tokenizer, lenient, "{question} {needed} {answers} {reply}")
    odd = results[0]
    example = Example(id="1", task="own", question="{reply}?", document="x", answers=("{needed}",), rule="items")
    odd = type(odd)(example, "overwrite", 1.0, odd.trace, odd.score)
    assert judge.prompt(odd) == "{reply}? all of them are needed {needed} \\boxed{Lisbon}"


def test_a_prompt_without_a_part_or_without_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"the judge's prompt does not use \{needed\}, \{reply\}"):
        opened(tokenizer, lenient, "{question} {answers}")
    with pytest.raises(
        ValueError, match=r"the judge's window is 1,030 tokens; its prompt takes [\d,]+ without a reply"
    ):
        ModelJudge("small", Scripted(lenient, window=1030), tokenizer, WORDS)


@pytest.mark.parametrize("rule", ["model", "model:wise", "llm"])
def test_no_rule_is_a_model_so_no_recipe_trains_on_one(rule):
    with pytest.raises(ValueError, match=f"no judge '{rule}'.*a model judges only evaluations"):
        judge_named(rule)


LONGMEMEVAL = words_of()[1]
KINDS = {"multi-session": "plain", "temporal-reasoning": "temporal-reasoning", "knowledge-update": "knowledge-update",
         "single-session-preference": "single-session-preference"}  # fmt: skip
PUBLISHED = """
def get_anscheck_prompt(task, question, answer, response, abstention=False):
    if not abstention:
        if task in ['single-session-user', 'single-session-assistant', 'multi-session']:
            template = "A {} B {} C {} plain"
            prompt = template.format(question, answer, response)
        elif task == 'temporal-reasoning':
            template = "A {} B {} C {} time"
        elif task == 'knowledge-update':
            template = "A {} B {} C {} update"
        elif task == 'single-session-preference':
            template = "A {} B {} C {} rubric"
        else:
            raise NotImplementedError
    else:
        template = "A {} B {} C {} unanswerable"
    return prompt
"""


def memeval(kind: str, answer: str = "May", task: str = "longmemeval/any") -> Example:
    question = "Current date: 2023/05/30\nWhen?"
    return Example(
        id=kind, task=task, question=question, document="rain", answers=(answer,), rule="contains",
        metadata={"category": kind},
    )  # fmt: skip


@pytest.fixture
def memevals(encoder):
    """A result of each kind of LongMemEval's questions and one that cannot be answered, all with one reply."""
    examples = [*map(memeval, KINDS), memeval("multi-session", "no session has it", "longmemeval/abstention")]
    return evaluate(Agent(encoder, Scripted(lambda text: "It was in May.")), examples, progress=False)


def test_longmemevals_questions_have_prompts_by_kind(memevals, tokenizer):
    backend = Scripted(lambda text: "Yes." if "off by one" in text or "cannot be answered" in text else "No", 4096)
    judgement = ModelJudge("wise", backend, tokenizer, WORDS, longmemeval=LONGMEMEVAL).judge(memevals)
    assert [verdict.value for verdict in judgement.verdicts] == [0, 1, 0, 0, 1]
    assert set(judgement.judges) == {"wise (LongMemEval)"}
    texts = [request.text for request in backend.requests]
    kinds = [*KINDS.values(), "abstention"]
    assert len(texts) == len(kinds)
    for kind in kinds:
        answer = "no session has it" if kind == "abstention" else "May"
        filled = LONGMEMEVAL[kind].strip("\n").replace("{question}", "When?").replace("{answers}", answer)
        assert any(filled.replace("{reply}", "It was in May.") in text for text in texts)


def test_longmemevals_verdict_is_a_yes_in_ten_tokens(memevals, tokenizer):
    late = "no " * 30 + "yes"
    for reply, value in (("Well, YES.", 1), ("no", 0), ("", 0), (late, 0)):
        judge = ModelJudge("wise", Scripted(lambda text, reply=reply: reply, 4096), tokenizer, WORDS, "", LONGMEMEVAL)
        assert {verdict.value for verdict in judge.judge(memevals).verdicts} == {value}


def test_published_prompts_are_read_from_longmemevals_file(memevals, tokenizer, tmp_path):
    file = tmp_path / "evaluate_qa.py"
    file.write_text(PUBLISHED)
    words, published = words_of(file)
    backend = Scripted(lambda text: "yes", 4096)
    judge = ModelJudge("wise", backend, tokenizer, words, longmemeval=published)
    prompts = [judge.prompt(result) for result in memevals]
    ends = ["plain", "time", "update", "rubric"]
    assert prompts[:4] == [f"A When? B May C It was in May. {end}" for end in ends]
    assert prompts[4] == "A When? B no session has it C It was in May. unanswerable"
    assert judge.prompt_hash != ModelJudge("wise", backend, tokenizer, words, "", LONGMEMEVAL).prompt_hash


def test_a_python_file_without_the_prompts_is_refused(tmp_path):
    file = tmp_path / "other.py"
    file.write_text(PUBLISHED.replace("C {} rubric", "rubric"))
    with pytest.raises(ValueError, match=r"no prompt with three braces for single-session-preference; give src/"):
        words_of(file)
    file.write_text("def (")
    with pytest.raises(ValueError, match=r"other\.py has no prompt with three braces for plain, "):
        words_of(file)
    own = tmp_path / "own.txt"
    own.write_text(WORDS, encoding="utf-8-sig")
    assert words_of(own) == (WORDS, {})
    own.write_text(f"{WORDS} déjà", encoding="latin-1")
    with pytest.raises(ValueError, match=r"the judge's prompt .*own\.txt is not UTF-8 \(.*\); save it as UTF-8"):
        words_of(own)


def test_memoryagentbench_has_longmemevals_judge(memevals):
    of_bench = memeval("knowledge-update", task="memoryagentbench/longmemeval_s*")
    assert longmemeval_kind(of_bench) == "knowledge-update"
    assert longmemeval_kind(memeval("longmemeval_s*", task="memoryagentbench/longmemeval_s*")) == ""
    assert longmemeval_kind(memeval("multi-session", task="squad")) == ""


def test_an_overview_has_the_model_judges_scores(memevals, tokenizer):
    judge = ModelJudge("wise", Scripted(lambda text: "yes", 4096), tokenizer, WORDS, "", LONGMEMEVAL)
    rows = to_frame(memevals).assign(**judge.judge(memevals).columns)
    found = overview(rows).set_index("task")
    assert found.loc["longmemeval/abstention", "by the model judge"] == "100.0 % [20.7, 100.0] (n=1)"
    assert found.loc["longmemeval/any", "score"].startswith("0.0 %")  # the rule wants a box
    assert "by the model judge" not in overview(to_frame(memevals))
