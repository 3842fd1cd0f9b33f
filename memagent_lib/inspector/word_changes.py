"""A memory and the one that replaced it, word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

Code = tuple[str, int, int, int, int]


class WordChange(NamedTuple):
    """A run of words and what became of it: ``same``, ``new`` or ``gone``."""

    text: str
    change: str


def word_changes(before: str, after: str) -> list[WordChange]:
    """All words of both texts in order, each once."""
    old, new = _words(before), _words(after)
    pieces: list[WordChange] = []
    for what, a, b, c, d in _joined(SequenceMatcher(None, old, new, autojunk=False).get_opcodes(), old):
        if what == "equal":
            pieces.append(WordChange("".join(old[a:b]), "same"))
            continue
        both = ((old[a:b], "gone"), (new[c:d], "new"))
        pieces += [WordChange("".join(words), change) for words, change in both if words]
    return pieces


def _joined(codes: list[Code], old: list[str]) -> list[Code]:
    """Changes with nothing but a blank between them as one change: word by word, two sentences could not be read."""
    made: list[Code] = []
    for at, (what, a, b, c, d) in enumerate(codes):
        blank = what == "equal" and not "".join(old[a:b]).strip() and 0 < at < len(codes) - 1
        if made and made[-1][0] == "change" and (what != "equal" or blank):
            made[-1] = ("change", made[-1][1], b, made[-1][3], d)
        else:
            made.append((what if what == "equal" else "change", a, b, c, d))
    return made


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)
