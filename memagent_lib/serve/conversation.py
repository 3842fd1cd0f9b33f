"""Find the document and the question in a chat request, by the first rule that applies; every reply names that rule.

1. The fields ``document`` and ``question`` of the request's body are used; the messages supply a field that is not set.
   Messages before the last one go before the field ``document``.
2. The last of several messages is the question if it fits ``question_tokens``; those before it are the document.
3. A single message that fits ``question_tokens`` is a question without a document, unless the request names a split.
4. A split divides the last message: the request's ``split``, or the server's. Earlier messages go before the document.

A cue for the reply ("Answer:", or a last message of the assistant) is never the question: :mod:`message` states how
cues are recognised and how the default split finds the question. System messages are instructions, and other messages
may contain some. Instructions go before the question if both fit ``question_tokens``, else before the document. Nothing
here depends on the web server or the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from memagent_lib.serve.message import MessageParts, divide_message, set_aside_cue, without_label

MARK = "mark:"
CUE_CONTEXT = 1000
"""How many characters of the previous message decide whether a short last message is a cue."""
SPLITS = {
    "last_paragraph": "the last paragraph, or the line in it that asks; options belong to it, a cue does not",
    "first_paragraph": "the text before the first empty line is the question",
    "last_line": "the last line is the question",
    "first_line": "the first line is the question",
    f"{MARK}TEXT": "the question begins at the last TEXT",
    "none": "a long single message is refused",
}
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_LINE = re.compile(r"\n")
_TEXT_PARTS = ("text", "input_text", "output_text", "str")  # of chat completions, of OpenAI's Responses, bare strings
_INSTRUCTIONS = ("system", "developer")


class ChatError(ValueError):
    """A request cannot be answered. ``param`` names the field that is wrong, and ``status`` is the HTTP status."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


def _text(content: Any) -> Any:
    """Join content that is sent as a list of parts. Other content is returned unchanged, for pydantic to check.

    Each part becomes a separate paragraph, so that a question in the last part is found.
    """
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = type(part).__name__
        text = part
        if isinstance(part, dict):
            kind = part.get("type", "text")
            text = part.get("text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise ValueError(f"a document is text, and this part is {kind!r}")
        texts.append(text)
    joined = ""
    for text in texts:
        is_apart = joined.endswith("\n") or text.startswith("\n") or not joined
        joined += text if is_apart else f"\n\n{text}"
    return joined


_Text = Annotated[str, BeforeValidator(_text)]


class ChatMessage(BaseModel):
    """One text message. Clients send ``content`` as a text or as a list of parts."""

    role: str
    content: _Text = ""


class ChatRequest(BaseModel):
    """The body of ``/v1/chat/completions``.

    Other fields that would change a reply are refused (:func:`~memagent_lib.serve.wire.require_supported`) or reported
    back as ignored.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    document: _Text | None = None
    question: _Text | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None


class ReadingTask(NamedTuple):
    """The question and the document of a request. The document is None if there is only a question.

    ``rule`` names the rule that found them.
    """

    question: str
    document: str | None
    rule: str
    instructions: str = ""

    @property
    def prompt(self) -> str:
        """The instructions for the answer, followed by the question: what the model reads as the question."""
        return _joined([self.instructions, self.question])


def task_of(chat: ChatRequest, fits: Callable[[str], bool], split: str = "last_paragraph") -> ReadingTask:
    """Find the question and the document in a chat request, following the rules in this module's docstring.

    ``fits`` returns whether a text is short enough to be a question. Raises :class:`ChatError` if there is no question,
    or if it is too long.
    """
    system = _joined([m.content for m in chat.messages if m.role in _INSTRUCTIONS])
    messages = [m for m in chat.messages if m.role not in _INSTRUCTIONS and m.content.strip()]
    task = _divided(chat, messages, fits, chat.split or split)
    if not task.question.strip():
        raise ChatError("there is no question: the last message has no text", "messages")
    # What is too long for a question is read as the beginning of the document instead of being cut.
    if task.instructions and not fits(task.prompt):
        document = _joined([task.instructions, task.document or ""])
        task = task._replace(document=document, instructions="", rule=f"{task.rule}, instructions before the document")
    if system and fits(f"{system}\n\n{task.prompt}"):
        task = task._replace(question=f"{system}\n\n{task.question}")
    elif system:
        document = _joined([system, task.document or ""])
        task = task._replace(document=document, rule=f"{task.rule}, system messages before the document")
    if not fits(task.prompt):
        fix = "send the document apart, in the field document or in earlier messages, or name another split"
        raise ChatError(f"the question is longer than question_tokens allows ({task.rule}); {fix}", "messages")
    return task


def _divided(
    chat: ChatRequest, messages: Sequence[ChatMessage], fits: Callable[[str], bool], split: str
) -> ReadingTask:
    """Return the task before the system messages are added to it."""
    require_split(split)
    if chat.document is not None and chat.question:  # the messages are then not needed
        return ReadingTask(chat.question, chat.document, "field document")
    if chat.question is not None:
        return ReadingTask(chat.question, _transcript(messages) or None, "field question")
    if not messages:
        return ReadingTask("", None, "no message")
    messages, cue = _without_cues(messages)
    *earlier, last = messages
    if chat.document is not None:
        rule = "field document, earlier messages before it" if earlier else "field document"
        return _whole_question(last.content, _joined([_transcript(earlier), chat.document]), rule, cue)
    if earlier and fits(last.content):
        return _whole_question(last.content, _transcript(earlier), "earlier messages", cue)
    if fits(last.content) and chat.split is None:  # a named split implies that there is a document
        return _whole_question(last.content, None, "question without a document", cue)
    parts = split_message(last.content, split, fits, cue)
    document = _joined([_transcript(earlier), parts.document])
    rule = f"split {split}, earlier messages before the document" if earlier else f"split {split}"
    return ReadingTask(parts.question, document, _with_cue(rule, parts.cue), parts.instructions)


def _without_cues(messages: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], str]:
    """Return the messages without cues at their end, and the first of these cues.

    A cue is a message of the assistant, with which the client begins the reply, or a short one such as "Answer:".
    """
    cue = ""
    while len(messages) > 1:
        last = messages[-1].content.strip()
        before = messages[-2].content.strip()
        if messages[-1].role != "assistant" and set_aside_cue(f"{before[-CUE_CONTEXT:]}\n\n{last}")[1] != last:
            break
        cue = last
        messages = messages[:-1]
    return messages, cue


def _whole_question(question: str, document: str | None, rule: str, cue: str) -> ReadingTask:
    """Return a task whose question is a whole message, without a cue at its end."""
    text, own_cue = set_aside_cue(question)
    if own_cue:
        question = without_label(text)
    return ReadingTask(question, document, _with_cue(rule, cue or own_cue))


def _with_cue(rule: str, cue: str) -> str:
    """Return ``rule`` with the cue added, so that a client sees what was not read as a question."""
    return f"{rule}, cue {cue!r} set aside" if cue else rule


def split_message(text: str, split: str, fits: Callable[[str], bool], cue: str) -> MessageParts:
    """Divide one text into its parts by a named split. Raises :class:`ChatError` if the split does not apply."""
    if split == "last_paragraph":
        parts = divide_message(text, fits, cue)
    else:
        body, own_cue = set_aside_cue(text.strip())  # a last empty line would make an empty question
        parts = _divided_at(body, split, cue or own_cue)
    if parts is None:
        fix = "send the document in the field document or in earlier messages, or name another split"
        raise ChatError(f"a long single message cannot be divided by the split {split!r}; {fix}", "messages")
    return parts


def _divided_at(text: str, split: str, cue: str) -> MessageParts | None:
    """Divide a text at the last mark, or at its first or last break between lines or paragraphs, or return None."""
    if split.startswith(MARK):
        at = text.rfind(split.removeprefix(MARK))
        if at > 0:
            return MessageParts(text[at:], text[:at], cue=cue)
        return None
    separator = _PARAGRAPH if split.endswith("paragraph") else _LINE
    breaks = list(separator.finditer(text))
    if breaks and split.startswith("last"):
        return MessageParts(text[breaks[-1].end() :], text[: breaks[-1].start()], cue=cue)
    if breaks and split.startswith("first"):
        return MessageParts(text[: breaks[0].start()], text[breaks[0].end() :], cue=cue)
    return None


def require_split(split: str) -> None:
    """Raise :class:`ChatError` if no split is called ``split``."""
    is_mark = split.startswith(MARK) and len(split) > len(MARK)
    if split not in SPLITS and not is_mark:
        raise ChatError(f"no split {split!r}; choose from {', '.join(SPLITS)}", "split")


def _transcript(messages: Sequence[ChatMessage]) -> str:
    """Join messages into one text, each after its role. The role of a single message is left out."""
    if len(messages) == 1:
        return messages[0].content
    return _joined([f"{m.role}: {m.content}" for m in messages])


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
