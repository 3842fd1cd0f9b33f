"""The rules, from the surest to the least sure: :func:`fault_of` returns the first one that a reply breaks."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice, pairwise

from memagent_lib.bad_memory.faults import Fault
from memagent_lib.bad_memory.wording import (
    ACKNOWLEDGEMENT,
    BRINGS_NOTHING,
    CLAUSE,
    COMMAND,
    EMPTY_WORDS,
    FOREIGN_NOTHING,
    FOREIGN_STAYS,
    GROUPED,
    IS_CJK,
    NOTHING_RELEVANT,
    OF_SECTION,
    OF_TOPIC,
    POLITE_WORDS,
    REFUSAL,
    SENTENCE,
    STAYS,
    STOP,
    TOOL_CALL,
    WORD,
)

FEWEST_WORDS = 3
RELATED_SHARE = 0.05
REPEATED_SHARE = 0.5
MOST_COMMENT_CHARS = 800
"""A longer reply is no comment and no acknowledgement; the reports have at most 250 characters."""
_FIRST_WORDS = 8
_MARKS = 8  # characters by which a repeated memory may differ in white space and punctuation
_OPENING_CHARS = 400  # of a reply in which a refusal is looked for
_MOST_WORDS = 200  # of a reply that are compared


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What the prompt displayed: the old memory, the chunk (for a merge, the other memory), and the template's words.

    ``wording`` has the template's literal texts with the part that follows each, ``("<piece>\\n", "chunk")``.
    """

    memory: str = ""
    chunk: str = ""
    question: str = ""
    wording: Sequence[tuple[str, str | None]] = ()
    empty_memory: str = ""


def fault_of(reply: str, parts: PromptParts) -> Fault | None:
    """Return why ``reply`` is no memory, or ``None`` if it is one. A repeated old memory is always one."""
    if reply.strip() == parts.memory.strip():
        return None
    if not any(map(str.isalnum, reply)):
        return Fault.EMPTY
    before = parts.memory or parts.empty_memory
    if abs(len(reply) - len(before)) <= _MARKS and _words(reply) == _words(before):
        return None
    if _is_tool_call(reply, parts):
        return Fault.TOOL_CALL
    if _is_echo(reply, parts):
        return Fault.ECHO
    if _is_refusal(reply, parts):
        return Fault.REFUSAL
    if _is_comment(reply, parts):
        return Fault.COMMENT
    if _is_acknowledgement(reply, parts):
        return Fault.ACKNOWLEDGEMENT
    if _is_unrelated(reply, parts) and not _states_nothing(reply, parts):
        return Fault.UNRELATED
    return None


def _is_tool_call(reply: str, parts: PromptParts) -> bool:
    opening = reply.strip()[:20]
    return bool(TOOL_CALL.match(reply)) and opening not in parts.chunk and opening not in parts.memory


def _is_echo(reply: str, parts: PromptParts) -> bool:
    """Whether the reply has only words of the template, or restarts the prompt and stops within its chunk."""
    if not parts.wording:
        return False
    lines, template = _template_text(tuple(parts.wording))
    question = _normal(parts.question)
    longest = len(template) + len(parts.question)
    left = []
    is_echoed = False
    for written in _sentences(reply):
        if not is_echoed and len(written) > longest:
            return False
        sentence = _normal(written)
        # A short run of words, such as "the new memory", may stand in a template by chance.
        in_template = sentence in lines or (sentence.count(" ") >= FEWEST_WORDS and f" {sentence} " in template)
        in_question = bool(question) and (sentence == question or sentence.removesuffix(question).strip() in lines)
        if in_template or in_question:
            is_echoed = True
        elif sentence and (parts.memory or sentence != _normal(parts.empty_memory)):
            if not is_echoed:  # an echo begins with the template's words, and most replies end the search here
                return False
            left.append(sentence)
    if not left:
        return is_echoed
    return _restarts(reply, parts) and all(each in _normal(f"{parts.memory} {parts.chunk}") for each in left[1:])


@lru_cache(maxsize=16)
def _template_text(wording: tuple[tuple[str, str | None], ...]) -> tuple[frozenset[str], str]:
    """Return the lines of a template's literal texts, and all of them as one text."""
    lines = [_normal(line) for text, _ in wording for line in text.splitlines()]
    return frozenset(filter(None, lines)), f" {_normal(' '.join(text for text, _ in wording))} "


def _restarts(reply: str, parts: PromptParts) -> bool:
    """Whether the reply contains the chunk's heading, followed by the chunk's first words as far as the reply goes."""
    for literal, part in parts.wording:
        heading = _normal((literal.strip().splitlines() or [""])[-1])
        if part == "chunk" and heading:
            _, found, rest = f" {_normal(reply)} ".partition(f" {heading} ")
            first = rest.split()[:_FIRST_WORDS]
            return bool(found) and len(first) > FEWEST_WORDS and _normal(parts.chunk[:200]).startswith(" ".join(first))
    return False


def _is_refusal(reply: str, parts: PromptParts) -> bool:
    if not REFUSAL.match(_plain(reply[:_OPENING_CHARS])):
        return False
    text = _plain(reply)
    source = f"{parts.memory}\n{parts.chunk}"
    if text[:30] in _plain(source):  # a sentence of the document, or of the memory
        return False
    return not _repeats(text, parts) and not any(name in source for name in _names(reply, parts.question))


def _is_acknowledgement(reply: str, parts: PromptParts) -> bool:
    if len(reply) > MOST_COMMENT_CHARS:
        return False
    text = _plain(reply)
    if COMMAND.fullmatch(text):
        return True
    if not ACKNOWLEDGEMENT.match(text):
        return False
    return not _content(text, POLITE_WORDS) and not _repeats(text, parts)


def _is_comment(reply: str, parts: PromptParts) -> bool:
    if len(reply) > MOST_COMMENT_CHARS:
        return False
    text = _plain(reply)
    if _repeats(text, parts):
        return False
    clauses = [clause for clause in CLAUSE.split(text) if clause]
    if any(STAYS.search(clause) and not _content(clause, EMPTY_WORDS) for clause in (text, *clauses)):
        return True
    if len(text) <= 100 and FOREIGN_STAYS.search(text):
        return True
    return _has_content(parts) and _states_nothing(reply, parts)


def _has_content(parts: PromptParts) -> bool:
    """Whether there is a memory, other than one that states that nothing was found."""
    return bool(parts.memory) and not _brings_nothing(_plain(parts.memory), parts.question)


def _states_nothing(reply: str, parts: PromptParts) -> bool:
    """Whether the reply states only that nothing was found. While there is no memory, that is one: it loses nothing."""
    if len(reply) > MOST_COMMENT_CHARS:
        return False
    return _normal(reply) == _normal(parts.empty_memory) or _brings_nothing(_plain(reply), parts.question)


def _brings_nothing(text: str, question: str) -> bool:
    """Whether the text states that the chunk has nothing for the question, and states nothing else."""
    if FOREIGN_NOTHING.match(text):
        return True
    without_content = EMPTY_WORDS.union(_words(_plain(question)))
    sentences = [sentence for sentence in SENTENCE.split(text) if _words(sentence)]
    is_irrelevant = any(map(NOTHING_RELEVANT.search, sentences))
    is_stated = False
    for sentence in sentences:
        is_negative = bool(BRINGS_NOTHING.search(sentence))
        is_stated = is_stated or is_negative
        if not _content(sentence, without_content):
            continue
        of_section = bool(OF_SECTION.match(sentence)) and is_negative
        if not of_section and not (is_irrelevant and OF_TOPIC.match(sentence)):
            return False
    return is_stated


def _is_unrelated(reply: str, parts: PromptParts) -> bool:
    known = _Folded(f"{parts.memory}\n{parts.question}")
    words: dict[str, bool] = {}
    common = 0
    for word in islice(_comparable(reply), _MOST_WORDS):
        if word not in words:
            words[word] = word in known
            common += words[word]
        if common >= RELATED_SHARE * _MOST_WORDS:  # enough for any number of words
            return False
    least = RELATED_SHARE * len(words)
    if len(words) < FEWEST_WORDS or common >= least:
        return False
    if parts.chunk and _script(parts.chunk) != _script(reply):  # a memory in another language than the document
        return False
    chunk = _Folded(parts.chunk)
    # Numbers last, because only they need the chunk without its separators of thousands.
    for word in sorted((word for word, is_known in words.items() if not is_known), key=_has_digit):
        common += word in chunk
        if common >= least:
            return False
    return True


class _Folded:
    """A text in lower case, in which a number is found whether or not its digits are in groups of thousands."""

    def __init__(self, text: str) -> None:
        self._text = text.casefold()

    def __contains__(self, word: str) -> bool:
        return word in (self._ungrouped if _has_digit(word) else self._text)

    @cached_property
    def _ungrouped(self) -> str:
        return GROUPED.sub("", self._text)


def _comparable(text: str) -> Iterator[str]:
    """Yield a text's content words without their endings; a script without spaces gives its pairs of characters."""
    # Sentence by sentence, as a caller usually needs only the first words; no grouped number spans two sentences.
    folded = (GROUPED.sub("", sentence.casefold()) for sentence in _sentences(text))
    for match in chain.from_iterable(map(WORD.finditer, folded)):
        word = match.group()
        if IS_CJK.match(word):
            yield from map("".join, pairwise(word))
        elif _has_digit(word):
            yield word
        elif len(word) >= 3 and word not in STOP:
            yield word[: max(4, len(word) - 3)]


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _repeats(text: str, parts: PromptParts) -> bool:
    """Whether the text has at least :data:`REPEATED_SHARE` of the words that only the old memory can have brought."""
    common = EMPTY_WORDS.union(_words(_plain(parts.question)))
    own = set(_content(_plain(parts.memory), common))
    if not own:
        return False
    return len(own.intersection(_units(text))) >= REPEATED_SHARE * len(own)


def _names(reply: str, question: str) -> Iterator[str]:
    """Yield the numbers and the capitalised words of a reply that do not begin a sentence or occur in the question."""
    for sentence in SENTENCE.split(reply):
        for number, match in enumerate(WORD.finditer(sentence)):
            word = match.group()
            is_name = word[0].isupper() and number > 0 and word.casefold() not in EMPTY_WORDS and len(word) > 1
            if (is_name or word[0].isdigit()) and word not in question:
                yield word


def _sentences(text: str) -> Iterator[str]:
    """Yield what ``SENTENCE.split`` returns, without searching further than the caller needs."""
    start = 0
    for end in SENTENCE.finditer(text):
        yield text[start : end.start()]
        start = end.end()
    yield text[start:]


def _content(text: str, empty: frozenset[str]) -> list[str]:
    return [word for word in _units(text) if word not in empty]


def _units(text: str) -> list[str]:
    """Return the words of a plain text; a run of a script without spaces counts as its pairs of characters."""
    units = []
    for word in _words(text):
        pairs = list(map("".join, pairwise(word))) if IS_CJK.match(word) else []
        units += pairs or [word.removesuffix("'s")]
    return units


def _words(text: str) -> list[str]:
    return [match.group() for match in WORD.finditer(text.casefold())]


def _normal(text: str) -> str:
    return " ".join(_words(text))


def _plain(text: str) -> str:
    """Return the text in lower case, with straight apostrophes and without contractions or marks of emphasis."""
    text = text.casefold().replace("’", "'").replace("*", "").replace("`", "")
    return re.sub(r"\b(do|does|did|is|are|was|were|has|have)n't\b", r"\1 not", text)


def _script(text: str) -> str:
    """Return the script that most of a text's first letters belong to, such as ``LATIN``; "" without letters."""
    letters: Iterable[str] = islice(filter(str.isalpha, text), 400)
    counts = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in letters)
    return max(counts, key=counts.get, default="")
