"""Find the answer in a reply, and normalise answers for comparison."""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TYPOGRAPHIC = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u00b4", "''\"\"-----'")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|mathit|emph)[a-z]*\s*\{([^{}]*)\}")
_ESCAPED = re.compile(r"\\([%&$#_{}])")
_SPACES = re.compile(r"\\[ ,;:]|~")


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict on a reply: ``value`` in [0, 1], the answer found in the reply, and the reason in one line."""

    value: float
    answer: str
    reason: str


def boxed(reply: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` with its braces matched; ``None`` if it does not close."""
    start = reply.rfind("\\boxed{")
    if start < 0:
        return None
    inside = start + len("\\boxed{")
    depth = 0
    for at in range(inside - 1, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[at], 0)
        if depth == 0:
            return reply[inside:at]
    return None


def stated(reply: str) -> str | None:
    """Return the answer as MemAgent finds it: the box, or else the text after the last ``the answer is``.

    Returns ``None`` if the reply has neither, or if what it has is empty.
    """
    found = boxed(reply)
    if found is None:
        _, mark, after = reply.replace("*", "").rpartition("the answer is")
        if mark:
            found = after.strip().strip(".").strip()
    return found or None


def box_or_all(reply: str) -> str:
    """Return the content of the box, or the whole reply if there is none. Many benchmarks' judges score this."""
    found = boxed(reply)
    return reply if found is None else found


def plain(text: str) -> str:
    r"""Return ``text`` in one uniform spelling.

    Letters are composed, quotes and dashes are ASCII, and ``\text{}`` and TeX escapes are removed.
    """
    text = unicodedata.normalize("NFC", text).translate(_TYPOGRAPHIC)
    unwrapped = 1
    while unwrapped:  # ``\mathrm{\text{x}}`` takes two rounds
        text, unwrapped = _WRAPPED.subn(r"\1", text)
    return _ESCAPED.sub(r"\1", _SPACES.sub(" ", text))


def squeezed(text: str) -> str:
    """Return the text in the spelling of :func:`plain`, in lower case and without white space."""
    return "".join(plain(text).lower().split())


def normalise(text: str) -> str:
    """Return SQuAD's normal form (Rajpurkar et al. 2016): lower case, no punctuation or articles, single spaces."""
    # Punctuation goes first, as in SQuAD's script: "a.b" becomes "ab", not "a b".
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normal_words(text: str) -> str:
    """Return SQuAD's normal form of the text in the spelling of :func:`plain`."""
    return normalise(plain(text))
