"""Read replies to questions with several answers or options: the items of a list, or the letter of an option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from memagent_lib.scoring.matching import answer_in, answers_in, denied, plain, spans, spelling, tokens

_BULLET = re.compile(r"^[^\S\n]*(?:[-*•]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s+", re.MULTILINE)
_AND = r"\b(?:and|und|y|et(?!\s+al\b))\b|以及|(?<=[\u3040-\u9fff])[和と](?=[\u3040-\u9fff])"
_SEPARATORS = (
    re.compile(rf"(?<!\d),|,(?!\d)|[;\n&]|{_AND}"),  # a comma between digits is a number's
    re.compile(rf"[,;\n&]|{_AND}"),
    re.compile(r"[;\n]"),
)
_CJK = r"\u3040-\u9fff\uac00-\ud7af"
_MASK = "\ue000"  # private use: stands for an accepted answer, whose own commas separate nothing

_LEAD_IN = re.compile(r"\A[^\n,;:]{0,200}\b(?:are|were|is|was|includes?|following)\b(?:[^\n,;:]{0,200}:)?\s+")
_LONGEST_PART = 1000  # characters
_CUE = re.compile(
    r"answer|option|choice|choose|pick|select|antwort|respuesta|réponse|risposta|答案|选|選|答え|正解|回答|정답",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?<![\w'’])(?P<open>[(\[]?)(?P<letter>[A-Z])(?P<close>[)\].:]?)(?![\w'’+#])")
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{([^{}]*)\}")
_OPENING = re.compile(r"^[(\[]?([A-Z])(?:[)\].:]+(?=\s|$)|\s*$)", re.MULTILINE)
_AS_A_WORD = re.compile(
    r"\s+(?!because\b|since\b|as\b|so\b|is\b|was\b|and\b|or\b|not\b|but\b|which\b|seems\b|with\b|for\b)[a-z]"
)
_MORE_LETTERS = re.compile(
    r"[)\]*]*\s*(?:,|/|;|\||&|\bor\b|\band\b|或|和)?\s*[(\[*]*(?P<letter>[A-Z])(?![\w'’])(?P<after>.{0,40})", re.DOTALL
)


def items_in(reply: str, answers: Sequence[str]) -> list[list[str]]:
    """Return every way to split a reply into items.

    The ways differ in what separates items, and in whether words such as ``The numbers are`` precede the first one.
    Bullets and line numbers are removed. Commas and ``and`` inside an accepted answer do not separate items.
    """
    text = spelling(_BULLET.sub("", answers_in(reply)))
    masked, hidden = _masked(text, answers)
    readings = []
    for listed, separator in product(dict.fromkeys((masked, _LEAD_IN.sub("", masked))), _SEPARATORS):
        parts = (
            re.sub(f"{_MASK}(\\d+){_MASK}", lambda found: hidden[int(found[1])], part).strip()
            for part in separator.split(listed)
        )
        found = _distinct(part for part in parts if re.search(r"\w", part))
        if found not in readings:
            readings.append(found)
    return readings


def option_letter(reply: str) -> str | None:
    """Return the capital letter of the option that a reply chooses.

    Returns "" if the reply names several options, and ``None`` if it names none. The letter is in a box or
    ``<answer>`` or after ``answer is``; else it is the only one that begins a line, which is the first; else it follows
    the last ``option`` or the like; else it begins the reply, is in brackets or is the only letter. The article ``A``
    and the pronoun ``I`` do not count.
    """
    text = _bare(reply)
    marked = answer_in(reply)
    chosen = _chosen(_bare(marked), opening=True) if marked is not None else None
    opening = _OPENING.findall(text)
    # An explanation that follows discusses the other options.
    if chosen is None and _OPENING.match(text) and len(set(opening)) == 1:
        chosen = opening[0]
    # The last cue first: models often discuss the options before they choose.
    for cue in reversed(list(_CUE.finditer(text))):
        if chosen is None:
            chosen = _chosen(text[cue.end() :].lstrip(" *:：\n").split("\n")[0])
    return _chosen(text, opening=True) if chosen is None else chosen


def _bare(text: str) -> str:
    """Return a text without marks of emphasis and TeX."""
    if len(text) > 2 * _LONGEST_PART:  # a letter is chosen at the beginning or at the end
        text = f"{text[:_LONGEST_PART]}\n{text[-_LONGEST_PART:]}"
    text = _BOX.sub(r"\1", plain(text))
    # Han characters, kana and Hangul are letters to ``\w``; an option's letter may follow them without a space.
    text = re.sub(rf"(?<=[{_CJK}])(?=[A-Z])|(?<=[A-Z])(?=[{_CJK}])", " ", text)
    return re.sub(r"[*`\"“”$]", "", text).strip()


def _chosen(text: str, opening: bool = False) -> str | None:
    """Return the first letter of a text that is not denied, or "" if more letters follow it as in a list.

    With ``opening``, a letter counts only if it is at the beginning, in brackets, or the only one.
    """
    if re.fullmatch(r"\W*[a-z]\W*", text):
        return text.strip("()[].: ").upper()
    letters = [
        found
        for found in _LETTER.finditer(text)
        if not (found["letter"] in "AI" and not found["close"] and _AS_A_WORD.match(text, found.end()))
        and not denied(text.casefold(), found.start("letter"), found.end("letter"))
    ]
    if not letters:
        return None
    first = letters[0]
    if opening and first.start() > 0:
        bracketed = [found for found in letters if found["open"]]
        if not bracketed and len({found["letter"] for found in letters}) > 1:
            return None
        first = bracketed[-1] if bracketed else first
    more = _MORE_LETTERS.match(text, first.end("letter"))
    if more and more["letter"] != first["letter"] and not _AS_A_WORD.match(more["after"]):
        return ""
    return first["letter"]


def _masked(text: str, answers: Sequence[str]) -> tuple[str, list[str]]:
    hidden: list[str] = []
    for answer in sorted(answers, key=len, reverse=True):
        for start, end in sorted(set(spans(text, spelling(answer))), reverse=True):
            if _MASK not in text[start:end]:
                hidden.append(text[start:end])
                text = f"{text[:start]}{_MASK}{len(hidden) - 1}{_MASK}{text[end:]}"
    return text, hidden


def _distinct(items: Iterator[str]) -> list[str]:
    """Return the items, without any item that has the same words and numbers as an earlier one."""
    found = {}
    for item in items:
        found.setdefault(tuple(token.value for token in tokens(item)), item)
    return list(found.values())
