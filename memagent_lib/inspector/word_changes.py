"""Compare a memory with the one that replaced it, word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple


class WordChange(NamedTuple):
    """A run of words in both texts (``same``), only in the second (``new``), or only in the first (``gone``)."""

    text: str
    change: str


def word_changes(before: str, after: str) -> list[WordChange]:
    """Return all words of both texts as changes, in order; words that both texts share appear once.

    White space between changes counts as changed, because alternating old and new words would be unreadable.
    """
    old = _words(before)
    new = _words(after)
    # autojunk would ignore frequent words, and a memory is made of them.
    opcodes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes: list[WordChange] = []
    gone = added = ""
    for at, (what, old_start, old_end, new_start, new_end) in enumerate(opcodes):
        text = "".join(old[old_start:old_end])
        if what != "equal" or (0 < at < len(opcodes) - 1 and not text.strip()):
            gone += text
            added += "".join(new[new_start:new_end])
        else:
            changes += [WordChange(gone, "gone"), WordChange(added, "new"), WordChange(text, "same")]
            gone = added = ""
    changes += [WordChange(gone, "gone"), WordChange(added, "new")]
    return [change for change in changes if change.text]


def _words(text: str) -> list[str]:
    # White space counts as a word, so that the changes together are the whole text.
    return re.findall(r"\w+|\s+|[^\w\s]", text)
