"""Compare a memory with the one that replaced it, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class WordChange(NamedTuple):
    """A run of words in both texts (``same``), only in the second (``new``), or only in the first (``gone``)."""

    text: str
    change: str


class _Stretch(NamedTuple):
    """Words ``old_start`` to ``old_end`` of one text, and the equal or different words of the other text."""

    equal: bool
    old_start: int
    old_end: int
    new_start: int
    new_end: int


def word_changes(before: str, after: str) -> list[WordChange]:
    """Return all words of both texts as changes, in order; words that both texts share appear once."""
    old = _words(before)
    new = _words(after)
    # autojunk would ignore frequent words, and a memory is made of them.
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    stretches = [_Stretch(what == "equal", *bounds) for what, *bounds in opcodes]
    changes: list[WordChange] = []
    for stretch in _joined(stretches, old):
        old_text = "".join(old[stretch.old_start : stretch.old_end])
        new_text = "".join(new[stretch.new_start : stretch.new_end])
        if stretch.equal:
            changes.append(WordChange(old_text, "same"))
            continue
        if old_text:
            changes.append(WordChange(old_text, "gone"))
        if new_text:
            changes.append(WordChange(new_text, "new"))
    return changes


def _joined(stretches: Sequence[_Stretch], old: Sequence[str]) -> list[_Stretch]:
    """Join changes that only white space separates, because alternating old and new words would be unreadable."""
    joined: list[_Stretch] = []
    for i, stretch in enumerate(stretches):
        inside = 0 < i < len(stretches) - 1
        blank = stretch.equal and inside and not "".join(old[stretch.old_start : stretch.old_end]).strip()
        changed = not stretch.equal or blank
        last = joined[-1] if joined else None
        if changed and last is not None and not last.equal:
            joined[-1] = last._replace(old_end=stretch.old_end, new_end=stretch.new_end)
        else:
            joined.append(stretch)
    return joined


def _words(text: str) -> list[str]:
    # White space counts as a word, so that the changes together are the whole text.
    return re.findall(r"\w+|\s+|[^\w\s]", text)
