"""The prompts of evaluation harnesses, rebuilt from records made here: what is the document, what is the question.

The templates are those of lm-eval 0.4.13 (`lm_eval/tasks/*`) and inspect_ai 0.3.285; neither package is needed.
"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from memagent_lib.serve.conversation import ChatError, ChatRequest, ReadingTask, task_of

PROSE = "".join(
    f"Day {day} at the old lighthouse was calm.\nThe keeper wrote: no ship passed, nothing to report.\n\n"
    for day in range(40)
)
STORY = f"{PROSE}The thief was Odo, a keeper of the light."
WHO = "Who is the thief?"
OPTIONS = "(A) Odo\n(B) Ada\n(C) the owl\n(D) nobody"


def task(*messages: tuple[str, object], most: int = 500, **fields) -> ReadingTask:
    chat = [{"role": role, "content": content} for role, content in messages]
    return task_of(ChatRequest(model="m", messages=chat, **fields), lambda text: len(text) <= most)


ONLY = "Answer the question based on the given passages. Only give me the answer and do not output any other words."
SUMMARY = "Now, write a one-page summary of the report."
MAGIC = "A special magic number is hidden within the following text. I will quiz you about the number afterwards."
NUMBER = "What is the special magic number for owl mentioned in the provided text?"
VT = "Find all variables that are assigned the value 12345 in the text above."
BABILONG = "I will give you context with the facts. Answer the question based only on the information from the facts."
CHOICE = "Answer the following multiple choice question. The response should be 'ANSWER: $LETTER' (without quotes)."
STEPS = 'Before answering, reason step by step. Provide your answer at the end in the form "ANSWER: $ANSWER".'

HARNESSES = {  # messages, question, instructions
    "hotpotqa": ([f"{ONLY}\n\nGiven passages.\n{STORY}\n\n{ONLY}\n\nQuestion: {WHO}\nAnswer:"], WHO, ONLY),
    "multifieldqa_zh": ([f"阅读文字。\n\n{STORY}\n\n问题：守卫叫什么？\n回答："], "守卫叫什么？", "阅读文字。"),
    "gov_report": ([f"Given is a report.\n\nReport:\n{STORY}\n\n{SUMMARY}\n\nSummary:"], SUMMARY, "Given is a report."),
    "longbench_v2": (
        [f"Please read the following text.\n\n<text>\n{STORY}\n</text>\n\n{WHO}\nChoices:\n{OPTIONS}\n\nAnswer:"],
        f"{WHO}\nChoices:\n{OPTIONS}",
        "Please read the following text.",
    ),
    "ruler_niah": ([f"{MAGIC}\n{STORY}\n{NUMBER}", "The special magic number for owl is"], NUMBER, MAGIC),
    "ruler_vt": ([f"Track it.\n\n{STORY}\nQuestion: {VT}", "Answer: The variables are: "], VT, "Track it."),
    "inspect_choice": ([f"{CHOICE}\n\n{STORY}\n\n{WHO}\n\nA) Odo\nB) Ada"], f"{WHO}\n\nA) Odo\nB) Ada", CHOICE),
    "inspect_steps": ([f"{STORY}\n\n{WHO}\n\n{STEPS}"], f"{WHO}\n\n{STEPS}", ""),
    "plain": ([f"{STORY}\n\n{WHO}"], WHO, ""),
    "field_narrative": ([f"Read a story. {PROSE}\n\nNow answer.\n\nQuestion: {WHO}\n\nAnswer:"], WHO, "Read a"),
}  # fmt: skip


def chat_of(messages: list[str]) -> list[tuple[str, str]]:
    return list(zip(("user", "assistant"), messages, strict=False))


@pytest.mark.parametrize(("messages", "question", "instructions"), HARNESSES.values(), ids=HARNESSES)
def test_each_harness_has_its_question(messages: list[str], question: str, instructions: str) -> None:
    found = task(*chat_of(messages))
    assert (found.question, found.rule) == (question, "split auto")
    assert found.instructions.startswith(instructions)
    assert PROSE.strip() in found.document


@pytest.mark.parametrize(
    "message",
    [
        f"{WHO} Answer in one word.\n\n{STORY}\n\nEnd of story.",
        f"Question: {WHO}\n\nContext:\n{STORY}\n\nAnswer:",
        f"Summarize the dialogue.\n\n{STORY}\nOdo: In the mill.\nSummary:",
        STORY,
    ],
)
def test_a_question_that_is_not_at_the_end_is_refused_or_named(message: str) -> None:
    with pytest.raises(ChatError, match="document and question"):
        task(("user", message))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("first_line", f"{WHO}\n{STORY}"),
        ("first_paragraph", f"{WHO}\n\n{STORY}\n\nAnswer:"),
        ("last_line", f"{STORY}\n{WHO}\nAnswer:"),
        ("last_paragraph", f"{STORY}\n\n{WHO}"),
    ],
)
def test_a_named_split_decides(split: str, message: str) -> None:
    found = task(("user", message), split=split)
    assert (found.question, found.document, found.rule) == (WHO, STORY, f"split {split}")


@pytest.mark.parametrize("most", [500, 90])
def test_a_system_message_stands_before_the_question_or_the_document(most: int) -> None:
    found = task(("system", BABILONG), ("user", f"{STORY}\nWhere is Alan?"), most=most)
    assert STORY in found.document and found.question == "Where is Alan?"
    assert (found.instructions == BABILONG) == (most == 500) != (BABILONG in found.document)


def test_examples_as_turns_stand_before_the_document() -> None:
    turns = [("user", "Charlie went to the hallway.\nWhere is Charlie?"), ("assistant", "Charlie is in the hallway.")]
    found = task(*turns, ("user", f"{STORY}\nWhere is Alan?"))
    assert found.question == "Where is Alan?"
    assert found.document.startswith("user: Charlie went") and found.document.endswith(STORY)


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": STORY}, {"type": "text", "text": WHO}],
        [{"type": "input_text", "text": STORY}, {"type": "input_text", "text": f"\n\n{WHO}"}],  # OpenAI's Responses
    ],
)
def test_each_part_of_a_content_is_a_paragraph(parts: list) -> None:
    found = task(("user", parts))
    assert (found.question, found.document) == (WHO, STORY)


@pytest.mark.parametrize("part", [{"type": "input_audio", "input_audio": {}}, {"type": "text", "text": None}, 7])
def test_a_part_without_text_is_refused(part: object) -> None:
    with pytest.raises(ValidationError, match="messages"):
        task(("user", [part]))
