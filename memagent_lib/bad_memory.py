"""Recognise replies that should be a memory and are not: nothing, a refusal, an echo, a comment about the memory.

A model that was not trained for this sometimes writes about the memory ("No changes needed to the original summary",
langchain#2504), refuses (companion-emergence#77), acknowledges (koboldcpp#213) or repeats its instruction (mem0#2736),
and the old memory is lost. The rules would rather miss such a reply than turn a memory away. They know English, and how
a refusal begins in a few other languages. This module depends on strings alone, not on models, readers or traces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_COMMENT_CHARS = 800
"""A longer reply is not a comment; those in public reports have at most 250 characters."""
# A Chinese, Japanese or Korean character counts as a word.
_WORD = re.compile(r"[\u3040-\u9fff\uac00-\ud7af]|[^\W\u3040-\u9fff\uac00-\ud7af]+(?:'[a-z]+)?")
_CLAUSE = re.compile(r"[.!?;:,()\n]+|\s[-–—]+\s|\s(?:as|because|since|and|so)\s")
_ABOUT_MEMORY = re.compile(
    r"\bno (?:\w+ ){0,3}(?:change|update|modification|revision|refinement|edit|addition)s?\b"
    r"|\b(?:memory|summary|notes?|answer)\b.*\b(?:remains?|stays?|is|are|not)\b"
    r"|\b(?:keep|keeping|retain|return|leave|repeat)\b.*\b(?:memory|summary|notes|answer)\b"
    r"|\b(?:not|no|never) (?:\w+ )?(?:need|requir|necessary|warrant)|\b(?:unchanged|unnecessary)\b"
)
_ACKNOWLEDGED = re.compile(r"\W*(?:ok(?:ay)?|understood|done|certainly|sure|got it|noted|thanks?|ready)\b")
_BRINGS_NOTHING = re.compile(
    r"\bno (?:\w+ ){0,3}(?:information|details?|facts?|content|data|evidence|mention|answers?)\b"
    r"|\b(?:not|n't) (?:\w+ )?(?:contain|provide|mention|include|add|contribute|help|relevant|related)"
    r"|\bnothing\b|\b(?:irrelevant|unrelated|disregarded)\b|^\W*(?:n/?a|none|null|empty)\W*$"
)
_OF_CHUNK = re.compile(r"\W*(?:the|this) (?:\w+ ){0,3}?(?:section|piece|chunk|text|passage|document|context)\b")
_REFUSAL = re.compile(
    r"\W*(?:unfortunately,? )?(?:(?:i'm |i am )?(?:really |very |so )?sorry\b|i apologi[sz]e\b|as an? (?:ai|language)\b"
    r"|i (?:cannot|can't|won't|must decline|do not have access)\b|(?:i am|i'm) (?:not going|not able|unable) to\b"
    r"|please (?:provide|share|upload)\b|it (?:seems|looks like|appears) (?:that )?(?:you|there is no)\b"
    r"|(?:非常|很)?抱歉|对不起|我(?:无法|不能)|申し訳|es tut mir leid|leider kann ich|(?:je suis )?désolée?|lo siento)"
)
# Words with which a model speaks of its task. A clause of them alone brings nothing of the document.
_EMPTY_WORDS = frozenset(
    """
    a about above accurate additional all already an and answer any anything appropriate are as be because been
    before brings by certainly change changed changes chunk clear complete contain contains content context current
    data detail details discussed does document done each earlier edits evidence excerpt existing fact facts far for
    found from got have help here i i'll i'm in include information intact is it its keep keeping key leave memory
    mention mentioned my na necessary need needed needs new next no none not note noted notes nothing of ok okay on
    or original other our passage piece point points previous previously provide provided provides question read
    reading ready refinement relevant remain remains repeat require required requires retain return revision same
    section so stated stay stays still sufficient summary sure takeaways text than thank thanks that the them there
    these they this to unaltered unchanged understood unnecessary until up update updated updates useful valid was
    we were will with yet you your
    """.split()  # noqa: SIM905
)


class OnBadMemory(StrEnum):
    """What happens to a reply that is not a memory."""

    TAKE = "take"
    """It becomes the memory, as in the paper, and is counted."""
    KEEP = "keep"
    """The old memory stays."""
    RETRY = "retry"
    """The prompt is sent once more, sampled with another seed; if that fails too, the old memory stays."""

    @classmethod
    def of(cls, name: str) -> OnBadMemory:
        """Return the action called ``name``. Raises :class:`ValueError` for any other name."""
        if name not in list(cls):
            raise ValueError(f"on_bad_memory must be one of {', '.join(cls)}, got {name!r}")
        return cls(name)


class Fault(StrEnum):
    """Why a reply is not a memory."""

    EMPTY = "empty"
    ECHO = "echo"
    REFUSAL = "refusal"
    COMMENT = "comment"
    UNFINISHED = "unfinished thought"
    COMMAND = "malformed command"
    """A reader's command (KEEP, RECALL: ...) in a form or position in which it means nothing."""


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
    """Return why ``reply`` is not a memory, or ``None`` if it is one. A repeated old memory always is."""
    words = _words(reply)
    if words == _words(parts.memory) or (not parts.memory and words == _words(parts.empty_memory)):
        return None
    if not words:
        return Fault.EMPTY
    if _is_echo(" ".join(words), parts):
        return Fault.ECHO
    own = set(_content(parts.memory)).difference(_words(parts.question))
    if own and 2 * len(own & set(words)) >= len(own):
        return None
    if _is_refusal(reply, parts):
        return Fault.REFUSAL
    return Fault.COMMENT if len(reply) <= MOST_COMMENT_CHARS and _is_comment(_plain(reply), parts) else None


def _is_echo(reply: str, parts: PromptParts) -> bool:
    """Return whether the reply is a stretch of the prompt, and not only of its chunk or question."""
    shown = {"question": parts.question, "chunk": parts.chunk[:200]}
    prompt = "\n".join(f"{text}\n{shown.get(part or '', '')}" for text, part in parts.wording)
    question = " ".join(_words(parts.question))
    is_own = reply in " ".join(_words(shown["chunk"])) or (reply in question and reply != question)
    # A run of fewer words may stand in a template by chance.
    return not is_own and reply.count(" ") >= 3 and f" {reply} " in f" {' '.join(_words(prompt))} "


def _is_refusal(reply: str, parts: PromptParts) -> bool:
    """Return whether the reply begins like a refusal, without a quotation, a name or a number of the document."""
    source = f"{parts.memory}\n{parts.chunk}"
    names = set(re.findall(r"(?<=[\w,;:] )[A-Z]\w+|\d+", reply)) - set(re.findall(r"\w+", parts.question))
    return bool(_REFUSAL.match(_plain(reply))) and reply[:30] not in source and not any(map(source.__contains__, names))


def _is_comment(reply: str, parts: PromptParts) -> bool:
    if _ACKNOWLEDGED.match(reply) and not _content(reply):
        return True
    clauses = _CLAUSE.split(reply)[: None if parts.memory else 1]  # without a memory, a later one may bring the first
    if any(_ABOUT_MEMORY.search(clause) and not _content(clause) for clause in (reply, *clauses)):
        return True
    sentences = [each for each in re.split(r"(?<=[.!?;])\s+|\n+", reply) if each]
    nothing = [each for each in sentences if _BRINGS_NOTHING.search(each.rpartition(", but ")[2])]
    # As long as there is no memory, "nothing relevant so far" is one.
    return bool(parts.memory and nothing) and not any(
        set(_content(each)) - set(_words(parts.question)) and not (each in nothing and _OF_CHUNK.match(each))
        for each in sentences
    )


def _content(text: str) -> list[str]:
    return [word for word in _words(text) if word not in _EMPTY_WORDS]


def _words(text: str) -> list[str]:
    return _WORD.findall(_plain(text))


def _plain(text: str) -> str:
    """Return the text in lower case, with straight apostrophes, without marks of emphasis and without "n't"."""
    text = text.casefold().replace("’", "'").replace("*", "").replace("`", "")
    return re.sub(r"\b(do|does|did|is|are|was|were|has|have)n't\b", r"\1 not", text)
