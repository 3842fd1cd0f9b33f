"""Find the document and the question in a chat request. Every reply names the rule that was used.

1. The fields ``document`` and ``question`` of the request; without ``question``, the last message is the question.
2. The last of several messages is the question, and those before it are the document.
3. A single message of up to ``question_tokens`` is a question without a document.
4. A split (:data:`SPLITS`) divides a longer message: the request's field ``split``, or the server's.

A last message of the assistant, with which a client begins the reply, is not read. System messages go before the
question if both fit ``question_tokens``, else before the document. Nothing here depends on the web server or the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

SPLITS = ("auto", "last_paragraph", "last_line", "first_paragraph", "first_line")
"""Which part of a long message is the question; ``auto`` takes its end, if that is marked as a question."""
TAIL_CHARS = 20_000
"""How far from the end of a message its question, with options, may begin."""
CUE_WORDS = 5
INSTRUCTION_CHARS = 400

_INSTRUCTIONS = ("system", "developer")
_CUE = re.compile(r"\n[^\S\n]*([^\n]{1,240}[:：])[\s*_]*$")
_OPTIONS = re.compile(r"(?:\n[^\n]{0,40}:[^\S\n]*)?\n+\(?A[).:] [^\n]*(?:\n+\(?[B-Z][).:] [^\n]*)+$")
_LABEL = re.compile(r"^(?:question|query|frage|问题|質問)\s?[:：]\s*", re.IGNORECASE | re.MULTILINE)
_ASKS = ("?", "？", "؟")


class ChatError(ValueError):
    """A request cannot be answered. ``param`` names the field that is wrong, and ``status`` is the HTTP status."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.param = param
        self.status = status


def _text(content: Any) -> Any:
    """Join a list of text parts, as clients may send it, to one text of paragraphs."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a document is text, and a part of this message is not")
    return "\n\n".join(text.strip("\n") for text in texts)


_Text = Annotated[str, BeforeValidator(_text)]


class ChatMessage(BaseModel):
    """One message of text."""

    role: str
    content: _Text = ""


class ChatRequest(BaseModel):
    """The body of ``/v1/chat/completions``, with the fields ``document``, ``question`` and ``split`` of our own."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: list[ChatMessage] = []
    document: _Text | None = None
    question: _Text | None = None
    split: str | None = None
    stream: bool | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None


class ReadingTask(NamedTuple):
    """The question and the document of a request, and the rule that found them.

    ``document`` is None if there is only a question. ``instructions`` say how to answer.
    """

    question: str
    document: str | None
    rule: str
    instructions: str = ""

    @property
    def prompt(self) -> str:
        """What the model reads as the question: the instructions, then the question."""
        return _joined([self.instructions, self.question])


def task_of(chat: ChatRequest, fits: Callable[[str], bool], split: str = "auto") -> ReadingTask:
    """Find the question and the document in a chat request, following the rules in this module's docstring.

    ``fits`` returns whether a text is short enough to be a question. Raises :class:`ChatError` if no question is found,
    or if it is too long.
    """
    messages = [m for m in chat.messages if m.role not in _INSTRUCTIONS and m.content.strip()]
    cue = ""
    while len(messages) > 1 and messages[-1].role == "assistant":
        cue = messages.pop().content
    task = _divided(chat, messages, fits, split, cue)
    if not task.question.strip():
        raise ChatError("there is no question; send it as the last message, or in the field question", "messages")
    system = _joined([m.content for m in chat.messages if m.role in _INSTRUCTIONS])
    if not fits(task.prompt):
        task = task._replace(instructions="")  # they are a part of the document too
    if system and fits(_joined([system, task.prompt])):
        task = task._replace(instructions=_joined([system, task.instructions]))
    elif system:
        rule = f"{task.rule}, system messages before the document"
        task = task._replace(document=_joined([system, task.document or ""]), rule=rule)
    if not fits(task.question):
        raise ChatError(
            f"the question is longer than question_tokens ({task.rule}); send the document in the field document"
        )
    return task


def _divided(
    chat: ChatRequest, messages: Sequence[ChatMessage], fits: Callable[[str], bool], split: str, cue: str
) -> ReadingTask:
    """Return the task before system messages are added to it."""
    if chat.question is not None and chat.document is not None:
        return ReadingTask(chat.question, chat.document, "fields document and question")
    if chat.question is not None:
        return ReadingTask(chat.question, _transcript(messages) or None, "field question")
    if not messages:
        return ReadingTask("", None, "no message")
    *earlier, last = messages
    if chat.document is not None:
        return ReadingTask(last.content, _joined([_transcript(earlier), chat.document]), "field document")
    if chat.split is None and fits(last.content):
        return ReadingTask(last.content, _transcript(earlier) or None, "last message")
    task = split_message(last.content, chat.split or split, fits, cue)
    return task._replace(document=_joined([_transcript(earlier), task.document or ""]))


def split_message(text: str, split: str, fits: Callable[[str], bool], cue: str = "") -> ReadingTask:
    """Divide one message by a named split. ``cue`` is the beginning of the reply, if the client sent one.

    Raises :class:`ChatError` if the split does not apply.
    """
    if split not in SPLITS:
        raise ChatError(f"no split {split!r}; choose from {', '.join(SPLITS)}", "split")
    text = text.strip()
    found = _CUE.search(text, max(0, len(text) - 300))
    if found and len(found[1].split()) <= CUE_WORDS and not _LABEL.match(found[1]):  # "Answer:"
        cue = cue or found[1]
        text = text[: found.start()].rstrip()
    if split == "auto":
        return _marked(text, cue, fits)
    separator = "\n\n" if split.endswith("paragraph") else "\n"
    at = text.find(separator) if split.startswith("first") else text.rfind(separator)
    if at < 0:
        raise ChatError(f"the split {split!r} does not apply to this message", "split")
    parts = (text[:at].strip(), text[at:].strip())
    question, document = parts if split.startswith("first") else parts[::-1]
    return ReadingTask(question, document, f"split {split}")


def _marked(text: str, cue: str, fits: Callable[[str], bool]) -> ReadingTask:
    """Find the question at the end of a message by the marks that evaluation harnesses use.

    It has a label ("Question:") or a question mark, or the cue for the reply repeats its words. Options ("A) ...") and
    a paragraph below a question belong to it.
    """
    opening = text.partition("\n")[0]
    options = _OPTIONS.search(text, max(0, len(text) - TAIL_CHARS))
    body = text[: options.start()].rstrip() if options else text
    at = _question_start(body, cue)
    is_short = len(opening) <= INSTRUCTION_CHARS
    asks_first = _LABEL.match(opening) or (is_short and (opening.endswith(_ASKS) or "? " in opening))
    if not at or asks_first or not fits(text[at:]):
        raise ChatError(
            "it is not clear which part of the message is the question; send the fields document and question, send "
            f"the question as the last message, or name a split ({', '.join(SPLITS)})",
            "messages",
        )
    label = _LABEL.match(text, at)
    instructions = opening if (cue or options) and is_short else ""
    return ReadingTask(text[label.end() if label else at :], text[:at].rstrip(), "split auto", instructions)


def _question_start(body: str, cue: str) -> int | None:
    """Return where the question at the end of ``body`` begins, or None if nothing marks one."""
    from_ = max(0, len(body) - TAIL_CHARS)
    paragraph = body.rfind("\n\n", from_) + 2
    above = body[:paragraph].rstrip()
    line_above = above.rfind("\n") + 1
    labels = list(_LABEL.finditer(body, paragraph))
    if labels:
        return labels[-1].start()
    if body.endswith(_ASKS):
        return body.rfind("\n") + 1
    if above.endswith(_ASKS) or _LABEL.match(body, line_above):  # "Be brief." below a question
        return line_above
    if _long_words(cue) & _long_words(body[paragraph:]):  # "Write a summary." before "Summary:"
        return paragraph
    return None


def _long_words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.casefold()))


def _transcript(messages: Sequence[ChatMessage]) -> str:
    """Join messages into one text, each after its role. The role of a single message is left out."""
    if len(messages) == 1:
        return messages[0].content
    return _joined([f"{m.role}: {m.content}" for m in messages])


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
