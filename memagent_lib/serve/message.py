"""Divide one long message into the document, the question, and instructions on how to answer.

Harnesses fill a template: an instruction, the document, the instruction again, a question, options, and a cue that the
model's reply continues ("Answer:", "会议总结：", "The code of the owl is"). The rules read the form of the text and the
words that its parts share, so they hold in any language:

1. A *cue* is an unfinished sentence at the end. It ends in a colon, and is short, or follows a question or another
   line with a label; or it follows a question and is a single word or repeats the question's words. A cue is never the
   question.
2. Tags on lines of their own around most of the message enclose the document. Headings may also divide a message.
3. The question is the last example, if earlier, answered examples have the same cue; else the last line, if it has a
   label ("Question:") or a question mark; else, if there is a cue, a question by itself at the beginning, or the first
   line if the cue repeats its words; else the last paragraph. Options ("A) ...") and a line below a question
   ("Be brief.") belong to the question.
4. Short paragraphs before the question that repeat the words of the first line are instructions. If the message has
   options or examples, its first line is an instruction.

Nothing here depends on the chat protocol or a model.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

Fits = Callable[[str], bool]

# tests/serve/test_harness_prompts.py has the prompts of public harnesses that these limits must suit.
CUE_CHARS = 240
CUE_WORDS = 5
INSTRUCTION_CHARS = 800
OPTIONS_CHARS = 20_000
CLOSING_PARAGRAPHS = 3
"""The most paragraphs above the question that can be instructions, such as an introduction, an abstract, a request."""
REPEATED = 0.2
"""The share of common words, of all words of two texts, from which one repeats the other; in prose it is under 0.1."""

_BREAK = re.compile(r"\n[^\S\n]*\n\s*")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")  # in scripts without spaces a character counts as a word
_CLOSING_MARKS = r"[\"'“”」』》)\]*_\s]*$"
_QUESTION_END = re.compile(r"[?？؟]" + _CLOSING_MARKS)
_FINISHED = re.compile(r"[.!?؟。！？]" + _CLOSING_MARKS)
_COLON_END = re.compile(r"[:：][\s*_\"'“”「『《\[(]*$")  # the reply may continue an open quotation
_SENTENCE_END = re.compile(r"[.!?؟][\"')\]]*\s+|[。！？][”」』]?\s*|\n\s*")
_LABEL = re.compile(r"^[^\S\n]*[*#_]*[^\S\n]*(?:\w{1,40}[^\S\n]){0,2}\w{1,40}[*_]*[^\S\n]?[:：][*_]*", re.MULTILINE)
_OPTION = re.compile(r"^[^\S\n]*\(?([A-Z])[).:][^\S\n]", re.MULTILINE)
_HEADING = re.compile(r"^#+[^\S\n]+[^\n]+$", re.MULTILINE)
_ENCLOSED = re.compile(r"<([\w-]+)>\s*(.*\S)\s*</\1>", re.DOTALL)
_OPENING_TAG = re.compile(r"^<([\w-]+)>[^\S\n]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MessageParts:
    """The parts of a message. ``cue`` is the end of the message, which only prompts the reply."""

    question: str
    document: str
    instructions: str = ""
    cue: str = ""


def divide_message(message: str, fits: Fits, cue: str = "") -> MessageParts | None:
    """Divide a message by this module's rules. Returns None if no part of it is short enough to be a question.

    ``cue`` is a cue that was found outside the message, in a later message of the assistant.
    """
    body, own_cue = set_aside_cue(message.strip())
    cue = cue or own_cue
    parts = _divide_at_tags(body, bool(cue), fits)
    if parts is None:
        body, options = _set_aside_options(body)
        parts = _divide_body(body, cue, bool(options), lambda text: fits(text + options))
        if parts is None:
            return None
        parts = replace(parts, question=parts.question + options)
    return replace(parts, cue=cue)


def set_aside_cue(text: str) -> tuple[str, str]:
    """Return the text without the cue at its end, and the cue. A text that consists only of a cue is not divided."""
    text = text.rstrip()
    start = max(0, len(text) - CUE_CHARS)
    ends = [end.end() for end in _SENTENCE_END.finditer(text, start) if end.end() < len(text)]
    tail_at = ends[-1] if ends else 0
    before = text[:tail_at].rstrip()
    if not before or not _is_cue(text[tail_at:], before):
        return text, ""
    line_at = text.rfind("\n", 0, tail_at) + 1
    line_start = text[line_at:tail_at]  # of "Let's think step by step. The thief is:"
    if _is_question(text[:line_at]) and not _LABEL.match(line_start) and not re.search("[?？؟]", line_start):
        tail_at = line_at
    return text[:tail_at].rstrip(), text[tail_at:]


def without_label(question: str) -> str:
    """Return the question without a label such as "Question:" at its beginning.

    If the question has further labels, it is returned unchanged.
    """
    labels = list(_LABEL.finditer(question))
    if len(labels) != 1 or labels[0].start() > 0:
        return question
    return question[labels[0].end() :].strip() or question


def _is_cue(tail: str, before: str) -> bool:
    follows_question = _is_question(before)
    last_line = before[before.rfind("\n") + 1 :]
    if _COLON_END.search(tail):
        both_labelled = bool(_LABEL.match(tail) and _LABEL.match(last_line))
        return len(_words(tail)) <= CUE_WORDS or follows_question or both_labelled
    if not follows_question or _FINISHED.search(tail):
        return False
    is_one_word = len(tail) <= 12 and not re.search(r"\s", tail)
    return is_one_word or len(_words(tail) & _words(last_line)) >= 0.5 * len(_words(tail))


def _divide_at_tags(body: str, has_cue: bool, fits: Fits) -> MessageParts | None:
    """Divide a message in which tags enclose the document; return None if they do not."""
    tag = _OPENING_TAG.search(body, 0, INSTRUCTION_CHARS)
    end = body.rfind(f"\n</{tag[1]}>") if tag else -1
    if tag is None or 2 * (end - tag.end()) < len(body):
        return None
    instructions = body[: tag.start()].strip()
    question = body[end:].partition(">")[2].strip()
    if not question:  # the question comes first
        question = instructions
        instructions = ""
    enclosed = _ENCLOSED.fullmatch(question)
    question = enclosed[2] if enclosed else question
    if not question or not fits(question):
        return None
    if has_cue:
        question = without_label(question)
    return MessageParts(question, body[tag.end() : end], instructions)


def _divide_at_headings(body: str, cue: str, fits: Fits) -> MessageParts | None:
    """Divide a message like "### Instruction: ... ### Input: ... ### Response:", as in Alpaca's training data."""
    headings = list(islice(_HEADING.finditer(body), 2)) if cue.startswith("#") else []
    if len(headings) < 2:
        return None
    question = body[headings[0].end() : headings[1].start()].strip()
    if not question or not fits(question):
        return None
    return MessageParts(question, body[headings[1].end() :].strip(), body[: headings[0].start()].strip())


def _divide_body(body: str, cue: str, has_options: bool, fits: Fits) -> MessageParts | None:
    """Divide a message without its cue and its options."""
    opening, _, after_opening = body.partition("\n")
    example = _last_example_start(body, cue)
    if example is not None and fits(body[example:]):
        return MessageParts(without_label(body[example:].strip()), body[:example].rstrip(), _instruction(opening))
    start = _question_start(body, cue, has_options, fits)
    is_marked = start is not None and _is_marked(body[start:], has_options)
    if cue and not is_marked:
        under_heading = _divide_at_headings(body, cue, fits)
        if under_heading is not None:
            return under_heading
        first = _first_question(body)
        if first and fits(first[0]) and _cue_prefers(first[0], body, cue) >= 0:
            return MessageParts(without_label(first[0]), body[first.end() :].strip(), body[: first.start()].strip())
        if after_opening.strip() and _opening_asks(body, opening, cue, fits):
            return MessageParts(opening.strip(), after_opening.strip())
    if start is None:
        return None
    question = body[start:].strip()
    document = body[:start].rstrip()
    if not cue and not has_options:
        return MessageParts(question, document)
    closing = _closing_start(document, opening)
    if closing is None:
        is_apart = _BREAK.match(body, len(opening)) and not _second_paragraph_repeats(body, opening)
        instructions = ""
        if has_options and is_apart:
            instructions = _instruction(opening)
        return MessageParts(without_label(question), document, instructions)
    if not is_marked and fits(body[closing:]):  # an abstract and what to do with it, say
        return MessageParts(body[closing:].strip(), document[:closing].rstrip())
    return MessageParts(without_label(question), document[:closing].rstrip(), document[closing:].strip())


def _question_start(body: str, cue: str, has_options: bool, fits: Fits) -> int | None:
    """Return where the question at the end begins, or None if no part of the end is short enough."""
    paragraph = _last_paragraph_start(body)
    line = body.rfind("\n", paragraph) + 1 or paragraph
    labels = list(_LABEL.finditer(body, paragraph))
    has_only_label = len(labels) == 1 and labels[0].start() == paragraph
    candidates = [paragraph, line]
    if _is_marked(body[line:], has_options) and not has_only_label:
        while line > paragraph and _is_question(body[:line]):
            line = max(paragraph, body.rfind("\n", 0, line - 1) + 1)  # questions above the last line belong to it
        candidates = [line]
    elif _is_question(body[:paragraph]):  # "Be brief." below a question
        above = body.rfind("\n", 0, len(body[:paragraph].rstrip())) + 1
        if _LABEL.match(body, above) or not _words(cue) & _words(body[paragraph:]):
            candidates.insert(0, above)
    return next((at for at in candidates if at and fits(body[at:])), None)


def _is_marked(text: str, has_options: bool) -> bool:
    """Return whether a label, a question mark or, if options follow, a colon marks the text as a question."""
    first_line = text.partition("\n")[0]
    has_mark = _is_question(text) or _is_question(first_line)
    return bool(has_mark or _LABEL.match(text) or (has_options and _COLON_END.search(text)))


def _first_question(body: str) -> re.Match[str] | None:
    """Return the first or second paragraph if it is a single line that ends as a question."""
    line = re.compile(r"[^\n]+")
    first = line.match(body)
    pause = _BREAK.match(body, first.end()) if first else None
    second = line.match(body, pause.end()) if pause else None
    for found in (first, second):
        if found and _is_question(found[0]) and _BREAK.match(body, found.end()):
            return found
    return None


def _opening_asks(body: str, opening: str, cue: str, fits: Fits) -> bool:
    """Return whether the request that the cue belongs to is the first line rather than the last paragraph."""
    if not _instruction(opening) or not fits(opening):
        return False
    is_document_up_to_cue = "\n" in body[_last_paragraph_start(body) :].strip()
    return is_document_up_to_cue or _cue_prefers(opening, body, cue) > 0


def _cue_prefers(first: str, body: str, cue: str) -> int:
    """Return how many more words a cue shares with ``first``, a first line, than with the last paragraph."""
    last = body[_last_paragraph_start(body) :]
    return len(_words(cue) & _words(first)) - len(_words(cue) & _words(last))


def _last_example_start(body: str, cue: str) -> int | None:
    """Return where the text after the last answered example begins, or None if there is no example.

    The text after the example must not contain an empty line.
    """
    label = cue.strip()
    at = body.rfind(f"\n{label}") + 1
    if not at or not _COLON_END.search(label):
        return None
    end = body.find("\n", at)
    if body[at:end].strip() == label:
        end = body.find("\n", end + 1)  # the example's reply is on the line after the cue
    if end > at and not _BREAK.search(body, end):
        return end + 1
    return None


def _closing_start(document: str, opening: str) -> int | None:
    """Return where the instruction at the end begins: short paragraphs that repeat the words of the first line.

    Returns None if the second or all of the last paragraphs repeat these words, because the document then does.
    """
    found = []
    end = len(document)
    if _second_paragraph_repeats(document, opening):
        return None
    for _ in range(CLOSING_PARAGRAPHS):
        start = _last_paragraph_start(document[:end])
        if start == 0:
            break
        paragraph = document[start:end].strip()
        if _instruction(paragraph) and _repeats(paragraph, opening):
            found.append(start)
        end = len(document[:start].rstrip())
    if 0 < len(found) < CLOSING_PARAGRAPHS:
        return found[-1]
    return None


def _is_question(text: str) -> bool:
    return bool(_QUESTION_END.search(text[-40:]))  # a search through a whole document would take seconds


def _instruction(text: str) -> str:
    """Return the text if it can be an instruction (one short line that does not end in a colon), else ""."""
    text = text.strip()
    fits = len(text) <= INSTRUCTION_CHARS and "\n" not in text
    if fits and not _COLON_END.search(text):
        return text
    return ""


def _repeats(paragraph: str, opening: str) -> bool:
    words = _words(paragraph)
    opening_words = _words(opening)
    common = len(words & opening_words)
    return common >= 3 and common >= REPEATED * len(words | opening_words)


def _second_paragraph_repeats(document: str, opening: str) -> bool:
    """Return whether the second paragraph repeats the first line, which is then a part of the document."""
    pause = _BREAK.search(document)
    return pause is not None and _repeats(document[pause.end() :].partition("\n")[0], opening)


def _set_aside_options(body: str) -> tuple[str, str]:
    """Return the text before a list of options A, B, ... at the end, and the list with its heading ("Choices:")."""
    options = list(_OPTION.finditer(body, max(0, len(body) - OPTIONS_CHARS)))
    first = max((i for i, option in enumerate(options) if option[1] == "A"), default=len(options))
    options = options[first:]
    letters = "".join(option[1] for option in options)
    if len(letters) < 2 or not string.ascii_uppercase.startswith(letters):
        return body, ""
    at = options[0].start()
    is_at_end = len(body) - options[-1].end() <= INSTRUCTION_CHARS
    before, announcement = set_aside_cue(body[:at])
    if len(_words(announcement)) > 2:  # longer than "Choices:": the question itself
        before = body[:at].rstrip()
    if before and is_at_end:
        return (before, body[len(before) :])
    return (body, "")


def _last_paragraph_start(text: str) -> int:
    size = 4096
    while True:  # only the tail is searched at first, because a document may have a gigabyte
        from_ = max(0, len(text) - size)
        ends = [found.end() for found in _BREAK.finditer(text, from_) if found.end() < len(text)]
        if ends or from_ == 0:
            return ends[-1] if ends else 0
        size *= 8


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
