"""Find the document and the question in a chat request, by one rule that every reply names.

1. The fields ``document`` and ``question`` of the request's body come first; the messages supply the one that is unset.
2. Else the last message is the question, and the messages before it are the document.
3. Else a single message that fits ``question_tokens`` is a question without a document.
4. Else a named split divides the single message: the request's ``split``, or the server's.

System messages are instructions: they go before the question if both fit ``question_tokens``, else before the document.
Knows no web server and no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

MARK = "mark:"
SPLITS = {
    "last_paragraph": "the text after the last empty line is the question",
    "first_paragraph": "the text before the first empty line is the question",
    "last_line": "the last line is the question",
    "first_line": "the first line is the question",
    f"{MARK}TEXT": "the question begins at the last TEXT",
    "none": "a long single message is refused",
}
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_LINE = re.compile(r"\n")
_INSTRUCTIONS = ("system", "developer")


class ChatError(ValueError):
    """A request that cannot be answered; ``param`` names the field that is wrong."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


class ChatMessage(BaseModel):
    """One message of text, sent whole or in parts."""

    role: str
    content: str = ""

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: Any) -> Any:
        if content is None:
            return ""
        if not isinstance(content, list):
            return content
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else part
            if kind != "text":
                raise ValueError(f"a document is text, and this part is {kind!r}")
        return "".join(str(part.get("text", "")) for part in content)


class ChatRequest(BaseModel):
    """The body of ``/v1/chat/completions``; any other field is reported back as ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    document: str | None = None
    question: str | None = None
    split: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None


class ReadingTask(NamedTuple):
    """The question and the document, ``None`` for a question alone; ``rule`` names how they were found."""

    question: str
    document: str | None
    rule: str


def task_of(chat: ChatRequest, fits: Callable[[str], bool], split: str = "last_paragraph") -> ReadingTask:
    """Apply the rule of this module; ``fits`` returns whether a text is short enough for a question."""
    instructions = _joined([m.content for m in chat.messages if m.role in _INSTRUCTIONS])
    messages = [m for m in chat.messages if m.role not in _INSTRUCTIONS and m.content.strip()]
    question, document, rule = _divided(chat, messages, fits, chat.split or split)
    if not question.strip():
        raise ChatError("there is no question: the last message has no text", "messages")
    if instructions and fits(f"{instructions}\n\n{question}"):
        question = f"{instructions}\n\n{question}"
    elif instructions:
        document = _joined([instructions, document or ""])
        rule += ", system messages before the document"
    if not fits(question):
        fix = "send the document apart, in the field document or in earlier messages, or name another split"
        raise ChatError(f"the question is longer than question_tokens allows ({rule}); {fix}", "messages")
    return ReadingTask(question, document, rule)


def _divided(
    chat: ChatRequest, messages: Sequence[ChatMessage], fits: Callable[[str], bool], split: str
) -> tuple[str, str | None, str]:
    """Return question, document and rule, without the instructions."""
    if chat.document is not None:
        return chat.question or (messages[-1].content if messages else ""), chat.document, "field document"
    if chat.question is not None:
        return chat.question, _transcript(messages) or None, "field question"
    if not messages:
        return "", None, "no message"
    *earlier, last = messages
    if earlier:
        return last.content, _transcript(earlier), "earlier messages"
    if fits(last.content) and chat.split is None:  # a named split implies that there is a document
        return last.content, None, "question without a document"
    question, document = split_message(last.content, split)
    return question, document, f"split {split}"


def split_message(text: str, split: str) -> tuple[str, str]:
    """Divide one text into question and document, in this order, by a named split."""
    require_split(split)
    text = text.strip()  # a last empty line would make an empty question
    if split.startswith(MARK):
        at = text.rfind(split.removeprefix(MARK))
        if at > 0:
            return text[at:], text[:at]
    separator = _PARAGRAPH if split.endswith("paragraph") else _LINE
    breaks = list(separator.finditer(text))
    if breaks and split.startswith("last"):
        return text[breaks[-1].end() :], text[: breaks[-1].start()]
    if breaks and split.startswith("first"):
        return text[: breaks[0].start()], text[breaks[0].end() :]
    fix = "send the document in the field document or in earlier messages, or name another split"
    raise ChatError(f"a long single message cannot be divided by the split {split!r}; {fix}", "messages")


def require_split(split: str) -> None:
    """Raise :class:`ChatError` for an unknown split."""
    is_mark = split.startswith(MARK) and len(split) > len(MARK)
    if split not in SPLITS and not is_mark:
        raise ChatError(f"no split {split!r}; choose from {', '.join(SPLITS)}", "split")


def _transcript(messages: Sequence[ChatMessage]) -> str:
    """Join messages, each after its role; a single one has none."""
    if len(messages) == 1:
        return messages[0].content
    return _joined([f"{m.role}: {m.content}" for m in messages])


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
