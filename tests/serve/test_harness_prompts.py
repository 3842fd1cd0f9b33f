"""The prompts of evaluation harnesses, rebuilt from records made here: what is the document, what is asked.

The templates are those of lm-eval 0.4.13 (`lm_eval/tasks/*`) and inspect_ai 0.3.285; neither package is needed.
"""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from pydantic import ValidationError

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.prompts import Budget, Encoder, Template
from memagent_lib.serve import ServeSettings, make_app
from memagent_lib.serve.conversation import ChatRequest, ReadingTask, task_of
from memagent_lib.serve.message import set_aside_cue
from memagent_lib.text import Tokenizer

PROSE = "".join(
    f"Day {day} at the old lighthouse was calm.\nThe keeper wrote: no ship passed, nothing to report.\n\n"
    for day in range(40)
)
STORY = f"{PROSE}The thief was Odo, a keeper of the light."
CODE = "".join(f"def step_{i}(value):\n    return value + {i}\n" for i in range(60))


def task(*messages: tuple[str, str], most: int = 500, **fields) -> ReadingTask:
    chat = [{"role": role, "content": content} for role, content in messages]
    return task_of(ChatRequest(model="m", messages=chat, **fields), lambda text: len(text) <= most)


def user(text: str, **options) -> ReadingTask:
    return task(("user", text), **options)


ONLY_THE_ANSWER = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words."
)
NARRATIVE = "as concisely as you can, using a single phrase if possible. Do not provide any explanation."
LONGBENCH = {
    "hotpotqa": (
        f"{ONLY_THE_ANSWER}\n\nThe following are given passages.\n{STORY}\n\n{ONLY_THE_ANSWER}\n\n"
        "Question: Who is the thief?\nAnswer:",
        "Who is the thief?",
        ONLY_THE_ANSWER,
    ),
    "narrativeqa": (
        "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
        f"{NARRATIVE}\n\nStory: {STORY}\n\nNow, answer the question based on the story {NARRATIVE}\n\n"
        "Question: Who is the thief?\n\nAnswer:",
        "Who is the thief?",
        f"Now, answer the question based on the story {NARRATIVE}",
    ),
    "multifieldqa_en": (
        f"Read the following text and answer briefly.\n\n{STORY}\n\nNow, answer the following question based on the "
        "above text, only give me the answer and do not output any other words.\n\nQuestion: Who?\nAnswer:",
        "Who?",
        "Now, answer the following question based on the above text, only give me the answer and do not output any "
        "other words.",
    ),
    "multifieldqa_zh": (
        f"阅读以下文字并用中文简短回答：\n\n{STORY}\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。"
        "\n\n问题：守卫叫什么？\n回答：",
        "守卫叫什么？",
        "",
    ),
    "dureader": (
        f"请基于给定的文章回答下述问题。\n\n文章：{STORY}\n\n请基于上述文章回答下面的问题。\n\n问题：守卫叫什么？\n回答：",
        "守卫叫什么？",
        "请基于上述文章回答下面的问题。",
    ),
    "qmsum": (
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one "
        f"or more sentences.\n\nTranscript:\n{STORY}\n\nNow, answer the query based on the above meeting transcript in "
        "one or more sentences.\n\nQuery: Summarize what was decided.\nAnswer:",
        "Summarize what was decided.",
        "Now, answer the query based on the above meeting transcript in one or more sentences.",
    ),
    "gov_report": (
        "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n"
        f"{STORY}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        "Now, write a one-page summary of the report.",
        "",
    ),
    "multi_news": (
        f"You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{STORY}\n\n"
        "Now, write a one-page summary of all the news.\n\nSummary:",
        "Now, write a one-page summary of all the news.",
        "",
    ),
    "vcsum": (
        f"下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{STORY}\n\n会议总结：",
        "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。",
        "",
    ),
    "passage_count": (
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read "
        "these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other "
        f"words, how many non-repeating paragraphs are there in total?\n\n{STORY}\n\nPlease enter the final count of "
        "unique paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, "
        "3, and so on.\n\nThe final answer is:",
        "Please enter the final count of unique paragraphs after removing duplicates. The output format should only "
        "contain the number, such as 1, 2, 3, and so on.",
        "",
    ),
    "passage_retrieval_en": (
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract "
        f"is from.\n\n{STORY}\n\nThe following is an abstract.\n\nA keeper stole a lamp.\n\nPlease enter the number of "
        'the paragraph that the abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.'
        "\n\nThe answer is:",
        "The following is an abstract.\n\nA keeper stole a lamp.\n\nPlease enter the number of the paragraph that the "
        'abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.',
        "",
    ),
    "passage_retrieval_zh": (
        f"以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{STORY}\n\n下面是一个摘要\n\n"
        '守卫偷了灯。\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n答案是：',
        '下面是一个摘要\n\n守卫偷了灯。\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式',
        "",
    ),
    "trec": (
        "Please determine the type of the question below. Here are some examples of questions.\n\n"
        + "Question: What is a boat?\nType: Definition\n" * 40
        + "Question: What is an owl?\nType:",
        "What is an owl?",
        "Please determine the type of the question below. Here are some examples of questions.",
    ),
    "triviaqa": (
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. "
        "The following are some examples.\n\n"
        + "Passage:\nA boat is small.\nQuestion:\nWhat is small?\nAnswer:\nboat\n" * 40
        + "Passage:\nThe owl is bold.\nQuestion:\nWho is bold?\nAnswer:\n",
        "Passage:\nThe owl is bold.\nQuestion:\nWho is bold?",
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. "
        "The following are some examples.",
    ),
    "samsum": (
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n"
        + "Dialogue: Ada: Hi!\nOdo: Hello.\nSummary: Ada and Odo greet each other.\n" * 40
        + "Dialogue: Ada: Where is the owl?\nOdo: In the mill.\nSummary: ",
        "Dialogue: Ada: Where is the owl?\nOdo: In the mill.",
        "Summarize the dialogue into a few short sentences. The following are some examples.",
    ),
    "lsht": (
        "请判断给定新闻的类别，下面是一些例子。\n\n"
        + "新闻内容：船到了。\n类别：交通\n" * 80
        + "新闻内容：下雨了。\n类别：",
        "下雨了。",
        "请判断给定新闻的类别，下面是一些例子。",
    ),
    "lcc": (
        f"Please complete the code given below. \n{CODE}def step_60(value):\nNext line of code:",
        "Please complete the code given below.",
        "",
    ),
}


@pytest.mark.parametrize(("prompt", "question", "instructions"), LONGBENCH.values(), ids=LONGBENCH)
def test_each_longbench_prompt_has_its_question(prompt: str, question: str, instructions: str) -> None:
    found = user(prompt, most=800)
    assert (found.question, found.instructions) == (question, instructions)
    assert found.rule.startswith("split last_paragraph, cue ")
    document = next(
        text for text in (STORY, CODE, "A boat is small.", "Odo greet", "What is a boat?", "交通") if text in prompt
    )
    assert document in found.document


OPTIONS = "(A) Odo\n(B) Ada\n(C) the owl\n(D) nobody"
LONGBENCH_V2 = (
    f"Please read the following text and answer the question below.\n\n<text>\n{STORY}\n</text>\n\n"
    f"What is the correct answer to this question: Who is the thief?\nChoices:\n{OPTIONS}\n\nAnswer:"
)


def test_longbench_v2_has_its_document_in_tags_and_all_options() -> None:
    found = user(LONGBENCH_V2)
    assert found.document == STORY
    assert found.question == f"What is the correct answer to this question: Who is the thief?\nChoices:\n{OPTIONS}"
    assert found.instructions == "Please read the following text and answer the question below."


MAGIC = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    f"number afterwards.\n{STORY}\nWhat is the special magic number for owl mentioned in the provided text?"
)
RULER = {
    "niah": (
        MAGIC,
        " ",
        "The special magic number for owl mentioned in the provided text is",
        "What is the special magic number for owl mentioned in the provided text?",
    ),
    "cwe": (
        f"Below is a numbered list of words. Memorize the ones that appear most often.\n{PROSE.strip()}\n"
        "Question: What are the 10 most common words in the above list?",
        "\n\n",
        "Answer: The top 10 words that appear most often in the list are:",
        "What are the 10 most common words in the above list?",
    ),
    "fwe": (
        f"Read the following coded text and track the frequency of each coded word. {STORY}\nQuestion: Do not provide "
        "any explanation. Please ignore the dots '....'. What are the three most frequently appeared words in the "
        "above coded text?",
        " ",
        "Answer: According to the coded text above, the three most frequently appeared words are:",
        "Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared "
        "words in the above coded text?",
    ),
    "vt": (
        f"Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{STORY}\n"
        "Question: Find all variables that are assigned the value 12345 in the text above.",
        " ",
        "Answer: According to the chain(s) of variable assignment in the text above, 5 variables are assgined the "
        "value 12345, they are: ",
        "Find all variables that are assigned the value 12345 in the text above.",
    ),
    "qa": (
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
        f"\n\nThe following are given documents.\n\nDocument 1:\n{STORY}\n\nAnswer the question based on the given "
        "documents. Only give me the answer and do not output any other words.\n\nQuestion: Who is the thief?",
        " ",
        "Answer:",
        "Who is the thief?",
    ),
}


@pytest.mark.parametrize(("prompt", "delimiter", "prefix", "question"), RULER.values(), ids=RULER)
def test_a_ruler_prefix_is_a_cue_as_a_message_and_as_text(prompt, delimiter, prefix, question) -> None:
    for found in (task(("user", prompt), ("assistant", prefix)), user(prompt + delimiter + prefix)):
        assert found.question == question
        assert found.rule == f"split last_paragraph, cue {prefix.strip()!r} set aside"
        assert PROSE.strip() in found.document


BABILONG = (
    "I will give you context with the facts about positions of different persons hidden in some random text and a "
    "question. You need to answer the question based only on the information from the facts."
)


@pytest.mark.parametrize("most", [500, 150])
def test_babilong_asks_its_last_line_and_keeps_the_system_text(most: int) -> None:
    shots = "Charlie went to the hallway.\nWhere is Charlie? The most recent location of Charlie is hallway.\n\n"
    found = task(("system", BABILONG), ("user", f"{shots}{STORY}\nWhere is Alan?"), most=most)
    assert STORY in found.document and BABILONG in (found.question if most == 500 else found.document)
    assert found.question.endswith("Where is Alan?") and "Odo" not in found.question


def test_babilong_examples_as_turns_stand_before_the_document() -> None:
    turns = [("user", "Charlie went to the hallway.\nWhere is Charlie?"), ("assistant", "Charlie is in the hallway.")]
    found = task(*turns, ("user", f"{STORY}\nWhere is Alan?"))
    assert found.question == "Where is Alan?"
    assert found.document.startswith("user: Charlie went") and found.document.endswith(STORY)
    assert found.rule == "split last_paragraph, earlier messages before the document"


INSPECT = (
    "Answer the following multiple choice question. The entire content of your response should be of the following "
    "format: 'ANSWER: $LETTER' (without quotes) where LETTER is one of A,B."
)


@pytest.mark.parametrize("content", [str, lambda text: [{"type": "text", "text": text}]], ids=["text", "parts"])
def test_an_inspect_choice_has_question_options_and_form(content) -> None:
    found = user(content(f"{INSPECT}\n\n{STORY}\n\nWho is the thief?\n\nA) Odo\nB) Ada"))
    assert found.question == "Who is the thief?\n\nA) Odo\nB) Ada"
    assert found.instructions == INSPECT and STORY in found.document


FIELD = [
    (f"You are given a story. {STORY}\n\nNow answer the question.\n\nQuestion: Who is the thief?\n\nAnswer:", None),
    (f"Read it.\n\n{STORY}\n\nFrage: Wer ist der Dieb?\n\nAntwort:", "Wer ist der Dieb?"),
    (f"{STORY}\n\n¿Quién es el ladrón?\n\nRespuesta final:", "¿Quién es el ladrón?"),
    (f"{STORY}\n\n質問：泥棒は誰ですか？\n答え：", "泥棒は誰ですか？"),
    (f"{STORY}\n\nWho is the thief?\n\n### Response:\n", None),
    (f"{STORY}\n\nWho is the thief?\n\n**Answer:**", None),
    (f"{STORY}\n\nWho is the thief?\n\n<answer>", None),
    (f"{STORY}\n\nWho is the thief?\n\nLet's think step by step. The thief is:", None),
    (f"{STORY}\n\nWho is the thief? The thief is", None),
    (f"Question: Who is the thief?\n\nContext:\n{STORY}\n\nAnswer:", None),
    (f"Use the context.\n\nQuestion: Who is the thief?\n\nContext:\n{STORY}\n\nAnswer:", None),
    (f"### Instruction:\nWho is the thief?\n\n### Input:\n{STORY}\n\n### Response:", None),
    (f"<context>\n{STORY}\n</context>\n\n<question>\nWho is the thief?\n</question>\n\nAnswer:", None),
    (f"Human: {STORY}\n\nКто вор?\n\nОтвет:", "Кто вор?"),
    (f"{STORY}\n\n누가 도둑입니까?\n\n답변:", "누가 도둑입니까?"),
    (f"{STORY}\n\nمن هو اللص؟\n\nالجواب:", "من هو اللص؟"),
    (
        f"{STORY}\n\nQuestion: Who is the thief?\n\nAnswer the question with one word.\n\nAnswer:",
        "Who is the thief?\n\nAnswer the question with one word.",
    ),
    (f"{STORY}\n\nWho is the thief?\nA. Odo\nB. Ada\nAnswer:", "Who is the thief?\nA. Odo\nB. Ada"),
    (f"{STORY}\n\nTranslate the thief's name. The translation is:", "Translate the thief's name."),
    (f"Who is the thief?\n\n<document>\n{STORY}\n</document>\n\nAnswer:", None),
]


@pytest.mark.parametrize(("prompt", "question"), FIELD)
def test_a_cue_in_any_language_is_never_the_question(prompt: str, question: str | None) -> None:
    found = user(prompt)
    assert found.question == (question or "Who is the thief?")
    assert "Day" not in found.instructions and PROSE.strip() in found.document


def test_what_is_written_below_a_question_belongs_to_it() -> None:
    # inspect_ai's chain_of_thought solver appends such a paragraph.
    form = 'Provide your answer at the end on its own line in the form "ANSWER: $ANSWER" (without quotes).'
    found = user(f"{STORY}\n\nWho is the thief?\n\nBefore answering, reason step by step. {form}")
    assert found.question == f"Who is the thief?\n\nBefore answering, reason step by step. {form}"
    assert found.document == STORY


@pytest.mark.parametrize(
    "text",
    [
        "The text.\n\nWho is the thief?",
        "The text.\n\nSummarize the text above in one short paragraph:",  # a request, though it ends in a colon
        "Which is it?\n\n(A) Odo\n(B) the owl of the mill",
        "Is it so?\n\nBe brief and name the keeper.",
        "Answer:",
    ],
)
def test_a_request_is_not_taken_for_a_cue(text: str) -> None:
    assert set_aside_cue(text) == (text, "")


def text_part(text: object, kind: str = "text") -> dict[str, object]:
    return {"type": kind, "text": text}


@pytest.mark.parametrize(
    "parts",
    [
        [text_part(STORY), text_part("Who is the thief?")],
        [text_part(STORY, "input_text"), text_part("\n\nWho is the thief?", "input_text")],  # OpenAI's Responses
        [{"text": STORY}, "Who is the thief?"],
        [text_part(f"{STORY}\n\n"), text_part("Who is the thief?\n\n"), text_part("Answer:")],
    ],
)
def test_each_part_of_a_content_is_a_paragraph(parts: list) -> None:
    found = user(parts)
    assert (found.question, found.document) == ("Who is the thief?", STORY)


def test_a_document_field_may_be_a_list_of_parts() -> None:
    found = user("Who is the thief?", document=[text_part("Odo is"), text_part("the thief.")])
    assert (found.document, found.rule) == ("Odo is\n\nthe thief.", "field document")


@pytest.mark.parametrize(
    ("part", "kind"),
    [({"type": "input_audio", "input_audio": {}}, "input_audio"), (text_part(None), "text"), (7, "int")],
)
def test_a_part_without_text_is_refused_by_its_kind(part: object, kind: str) -> None:
    with pytest.raises(ValidationError, match=f"a document is text, and this part is '{kind}'"):
        user([part])


def test_an_assistant_prefix_in_parts_is_a_cue() -> None:
    found = task(("user", [text_part(MAGIC)]), ("assistant", [text_part("The special magic number is")]))
    assert found.question == "What is the special magic number for owl mentioned in the provided text?"


class Thief(Scripted):
    """A model that notes the thief where it reads of him, and answers from its memory."""

    def __init__(self) -> None:
        super().__init__(lambda text: "\nThe thief is Odo." if re.search("thief (is|was) Odo", text) else "nothing yet")


@pytest.fixture
def harness_agent(tokenizer: Tokenizer) -> Agent:
    budget = Budget(chunk_tokens=900, memory_tokens=64, answer_tokens=64, question_tokens=800)
    return Agent(Encoder(tokenizer, Template.load("short"), budget), Thief())


def send(agent: Agent, path: str, body: dict) -> dict:
    async def reply() -> httpx.Response:
        app = make_app(agent, ServeSettings(name="m"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.post(path, json={"model": "m", **body})

    response = asyncio.run(reply())
    assert response.status_code == 200, response.text
    return response.json()


# The fields that lm-eval's local-chat-completions and local-completions add to the messages or the prompt.
LM_EVAL = {"max_tokens": 32, "temperature": 0.0, "stop": ["\n"], "seed": 1234}
CHATS = {
    **{name: ([("user", prompt)], question) for name, (prompt, question, _) in LONGBENCH.items() if STORY in prompt},
    **{name: ([("user", prompt), ("assistant", cue)], question) for name, (prompt, _, cue, question) in RULER.items()},
    "longbench2": (
        [("user", LONGBENCH_V2)],
        f"What is the correct answer to this question: Who is the thief?\nChoices:\n{OPTIONS}",
    ),
    "babilong": ([("system", BABILONG), ("user", f"{STORY}\nWhere is Alan?")], f"{BABILONG}\n\nWhere is Alan?"),
    "inspect": (
        [("user", f"{INSPECT}\n\n{STORY}\n\nWho is the thief?\n\nA) Odo\nB) Ada")],
        "Who is the thief?\n\nA) Odo\nB) Ada",
    ),
}
CUES = re.compile(
    r"^((Final )?Answer|Summary|The (final )?answer is|回答|会议总结|答案是)[:：]|^The special", re.MULTILINE
)


@pytest.mark.parametrize(("messages", "question"), CHATS.values(), ids=CHATS)
def test_a_harness_is_answered_from_the_whole_document(harness_agent, messages, question) -> None:
    chat = [{"role": role, "content": content} for role, content in messages]
    reply = send(harness_agent, "/v1/chat/completions", {"messages": chat, **LM_EVAL})
    prompts = [request.text for request in harness_agent.backend.requests]
    if any(STORY in content for _, content in messages):
        assert reply["choices"][0]["message"]["content"] == "The thief is Odo."
    assert reply["memagent"]["question"] == question
    assert all(question in prompt and not CUES.search(prompt) for prompt in prompts)
    read = "".join(prompts)
    assert all(f"Day {day} at the old lighthouse" in read for day in range(40))


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "token_ids"])
@pytest.mark.parametrize("name", [*RULER, "hotpotqa", "gov_report", "vcsum"])
def test_a_harness_is_answered_over_text_completions(harness_agent, name: str, as_ids: bool) -> None:
    messages, question = CHATS[name]
    delimiter = RULER[name][1] if name in RULER else ""
    prompt = delimiter.join(content for _, content in messages)
    body = {"prompt": [harness_agent.encoder.tokenizer.encode(prompt)] if as_ids else prompt, **LM_EVAL}
    (choice,) = send(harness_agent, "/v1/completions", body)["choices"]
    assert choice["memagent"]["question"] == question
    assert choice["text"] == ("nothing yet" if name == "cwe" else "The thief is Odo.")
