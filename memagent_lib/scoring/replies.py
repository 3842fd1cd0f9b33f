"""The answer in a reply, and the forms in which answers are compared."""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TYPOGRAPHIC = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u00b4", "''\"\"-----'")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|mathit|emph)[a-z]*\s*\{([^{}]*)\}")
_ESCAPED = re.compile(r"\\([%&$#_])")
_SPACES = re.compile(r"\\[ ,;:]|~")
_MATH_FORM = (
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."), (" ", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` in [0, 1], the answer that was found in the reply, and the reason."""

    value: float
    answer: str
    reason: str


def boxed(reply: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces matched; ``None`` where there is none or it never closes."""
    start = reply.rfind("\\boxed{")
    if start < 0:
        return None
    depth, inside = 0, start + len("\\boxed{")
    for at in range(inside - 1, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[at], 0)
        if depth == 0:
            return reply[inside:at]
    return None


def stated(reply: str) -> str | None:
    """The answer as the reference reads it: the box, else what follows the last ``the answer is``; else ``None``."""
    if (found := boxed(reply)) is None:
        _, mark, after = reply.replace("*", "").rpartition("the answer is")
        found = after.strip().strip(".").strip() if mark else None
    return found or None


def box_or_all(reply: str) -> str:
    """The box, or the whole reply where nothing is boxed: what benchmarks with metrics of their own are shown."""
    found = boxed(reply)
    return reply if found is None else found


def plain(text: str) -> str:
    r"""Text in one spelling: composed letters, typewriter quotes and dashes, without ``\text{}`` and escapes of TeX."""
    text = unicodedata.normalize("NFC", text).translate(_TYPOGRAPHIC)
    while (bare := _WRAPPED.sub(r"\1", text)) != text:
        text = bare
    return _ESCAPED.sub(r"\1", _SPACES.sub(" ", text))


def squeezed(text: str) -> str:
    """The plain spelling in lower case without white space."""
    return "".join(plain(text).lower().split())


def normalise(text: str) -> str:
    """SQuAD's normal form (Rajpurkar et al. 2016): lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normal_words(text: str) -> str:
    """SQuAD's normal form of the plain spelling."""
    return normalise(plain(text))


def math_form(text: str) -> str:
    """Hendrycks MATH's normal form in lower case, as MemAgent's training reward has it."""
    text = text.lower()
    for old, new in _MATH_FORM:
        text = text.replace(old, new)
    return text
