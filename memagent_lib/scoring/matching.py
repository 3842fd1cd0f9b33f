r"""Find the answer in a reply and compare it with an accepted one, as this library's own judges do.

An answer is read as a sequence of words, numbers and dates (:mod:`memagent_lib.scoring.numbers`). Each Chinese,
Japanese or Korean character is a word, and full-width letters and digits match ordinary ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from memagent_lib.scoring.numbers import Value, date_at, number_at

_TYPOGRAPHIC = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u00b4", "''\"\"-----'")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|mathit|emph)[a-z]*\s*\{([^{}]*)\}")
_ESCAPED = re.compile(r"\\([%&$#_{}])")
_SPACES = re.compile(r"\\[ ,;:]|~")
# Only the width forms: NFKC would also turn a circled one into 1 and m² into m2.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_NARROW |= {0x3000: " ", ord("。"): ". ", ord("、"): ", ", ord("・"): " ", 0x2212: "-", 0x2044: "/", ord("×"): "*"}
_BEFORE_PLAIN = (
    (re.compile(r"(?<!\w)(?:~|\\approx)\s?(?=[\d$.])"), "≈"),  # elsewhere ``~`` is TeX's space
    (re.compile(r"\\(?:left|right|!)"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "*"),
    (re.compile(r"\\l(?:e|eq|eqslant)(?![a-z])"), "≤"),
    (re.compile(r"\\g(?:e|eq|eqslant)(?![a-z])"), "≥"),
    (re.compile(r"(?<=\d)(?=\\[dt]?frac)"), " "),  # 1\frac12 is one and a half
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r"\1/\2"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)"), "°"),
    (re.compile(r"^\s*\$([^$]*)\$\s*$"), r"\1"),
    (re.compile(r"^\s*\\\((.*)\\\)\s*$"), r"\1"),
)
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")  # as Unicode names their characters
_PARTICLES = "是在为為于於到从從叫即はがをにでとのも"  # after which a word begins
# Scripts of India and South-East Asia write vowels as signs, which are not letters to Python.
_SIGNS = "\u0900-\u0963\u0966-\u0eff\u1000-\u1049\u1780-\u17d3"
_BLANKS = re.compile(r"[^\S\n]{2,}")
_INITIALS = re.compile(r"\b([^\W\d_]\.)\s+(?=[^\W\d_]\.)")  # J. K. Rowling is J.K. Rowling
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}](?:[^\s{_CJK},;:!?()\[\]{{}}<>=|]*(?:[^\W{_CJK}]|[{_SIGNS}])|)[+#]*")
_MARKS = re.compile(rf"[^\w+#{_SIGNS}]|_")
_MEASURED = re.compile(r"(?:km|cm|mm|m|kg|mg|g|ml|l|kb|mb|gb|tb|[kmg]?hz|kwh|kw|mph|kmh|min|ms|am|pm)\b")
_LONGEST_ANSWER = 4000  # characters; longer text is no answer, and takes seconds to read
_MOST_BOXES = 100
_BETWEEN_BOXES = re.compile(r"\}\$?\s*(?:[,;&、，；]|\band\b|\n)[\s\-*•\d.$]*(?:and\s+)?$")
_ARTICLES = ("a", "an", "the")

# A server removes the closing tag if it is the stop sequence.
_ANSWER_TAG = re.compile(r"<((?:final[_-]?)?answer)>(.*?)(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FBOX = "\\fbox{"
_IS = r"(?:\s+(?:is|was|are|were|would\ be|should\ be|must\ be|seems\ to\ be)\b\s*[:：]?|\s*[:：=])"
_EST = r"(?:es|é|è|est|ist|lautet)"
_CUE = re.compile(
    rf"""\banswers?{_IS}
    | ^(?:[^\S\n]|\#)*(?:final\ |correct\ )?answer[ ]*$  # a heading
    | \b(?:respuesta|resposta|risposta|réponse|antwort|lösung|ответ)
      (?:\s+(?:final|finale|correcta))?(?:\s+{_EST}\b|\s*[:：])
    | (?:答案|回答|答え|正解|정답|答)\s*(?:应该|應該)?(?:是|为|為|は|은|는|：|:)\s*[:：]?
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)

_EXPLANATION = re.compile(r"\n\W{0,9}(?:explanation|reasoning|reasons?|justification|evidence|note)\b", re.IGNORECASE)
_BOLD_LINE = re.compile(r"[ \t]*\*\*([^*]+)\*\*[.。]?\s*")

_BETWEEN = re.compile(
    r"\s*[,;\n|]\s*|\s+-+\s+|\s+/\s+|\s*/\s*(?=[^\W\d])|\b(?:and|or|oder|und|y|o|et|ou)\b|&|(?:或者|或|和|以及)"
)
_NO_GUESS = re.compile(
    r"\s*(?:(?:in|on|at|of|by|from|near|for|with|which|who|whose|where|when|while|that|because|since|as|so|thus|hence|"
    r"therefore|though|although|but|rather|not|nor|i|it|he|she|they|we|this|according|based|located|known|born)\b.*"
    r"|(?:so|more|less|thereabouts|etc|jr|sr|inc|ltd)\.?)?\s*",
    re.DOTALL,
)
_NOT_BEFORE = re.compile(
    r"(?:\b(?:not|never|neither|nor|except|without|cannot|\w+n't|nicht|kein\w*)\b"
    r"(?:\s+(?!but\b|only\b|until\b)[\w']+){0,2}"
    r"|\b(?:anything\s+but|other\s+than)(?:\s+\w+)?|不是|并非|不在|除了)\s*[\"'(]*\s*$"
)
_NOT_AFTER = re.compile(r"[\"')]*\s*(?:(?:is|was|are|were)(?:n't|\s+not)\b|(?:is|was)\s+(?:wrong|incorrect|false)\b)")
_POLAR = {"yes", "no", "true", "false", "ja", "nein", "oui", "non", "sí", "sì", "não"}
_HEDGES = {"maybe", "perhaps", "possibly", "probably", "not"}
_APPOSITION = re.compile(r"(?:the|a|an)(?:\s+[\w'-]+){3,}")
_FEW_WORDS = 3  # a sentence of so few words may be a guess
_INITIAL = 3  # letters of an abbreviation, as in ``Mrs.`` and ``St.``
_SENTENCE = re.compile(r"[.!?](?:\s+|$)")


class Token(NamedTuple):
    """A word, number or date at ``text[start:end]``. Units are compared only if both tokens have one."""

    value: Value
    start: int
    end: int
    unit: str = ""

    def same(self, other: Token) -> bool:
        return self.value == other.value and (not self.unit or not other.unit or self.unit == other.unit)


def boxed(reply: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` with its braces matched; ``None`` if it does not close.

    If all of it is in ``\text{...}`` or the like, return what is inside.
    """
    start = reply.rfind("\\boxed{")
    if start < 0:
        return None
    inside = start + len("\\boxed{")
    depth = 0
    for at in range(inside - 1, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[at], 0)
        if depth == 0:
            wrapped = _WRAPPED.fullmatch(reply[inside:at].strip())
            return wrapped[1] if wrapped else reply[inside:at]
    return None


def plain(text: str) -> str:
    r"""Return ``text`` in one uniform spelling.

    Letters are composed, quotes and dashes are ASCII, and ``\text{}`` and TeX escapes are removed.
    """
    text = unicodedata.normalize("NFC", text).translate(_TYPOGRAPHIC)
    unwrapped = 1
    while unwrapped:  # ``\mathrm{\text{x}}`` takes two rounds
        text, unwrapped = _WRAPPED.subn(r"\1", text)
    return _ESCAPED.sub(r"\1", _SPACES.sub(" ", text))


def box_in(reply: str) -> str | None:
    r"""Return the content of the last ``\boxed{}`` or ``\fbox{}``; of nested boxes, the innermost.

    Returns ``None`` if there is no box, or if it is empty.
    """
    inner = None
    nested = boxed(reply.replace(_FBOX, "\\boxed{"))
    while nested is not None:
        inner = nested
        nested = boxed(inner)
    return inner or None


def answer_in(reply: str) -> str | None:
    r"""Return the answer that a reply states; ``None`` if it states none.

    The answer is the content of the last ``\boxed{}`` or ``\fbox{}``, else that of the last ``<answer>``, else the line
    after the last ``the answer is``, ``Answer:`` or a similar phrase in one of several languages, else the last line,
    if all of it is bold.
    """
    marked = _marked(reply)
    if marked is not None:
        return marked.strip() or None
    stated = _after_cue(reply).partition("\n")[0]  # models go on to explain after the answer
    if not stated:
        *others, last = [line for line in reply.splitlines() if line.strip()][-2:] or [""]
        if _BOLD_LINE.fullmatch(last) and not any(map(_BOLD_LINE.fullmatch, others)):  # several are a list of guesses
            stated = last
    return stated.strip("*_` ").rstrip(".。 ").strip('*`"“”「」『』 ') or None


def answers_in(reply: str) -> str:
    """Return the part of a reply that states its answers (all lines or neighbouring boxes), or else the whole reply.

    An explanation after the answers is not part of it.
    """
    boxes = _neighbouring_boxes(reply)
    if boxes:
        return "\n".join(boxes)
    marked = _marked(reply)
    if marked is not None:
        return marked
    return _EXPLANATION.split(_after_cue(reply) or reply, maxsplit=1)[0]


def spelling(text: str) -> str:
    """Return ``text`` with a uniform spelling: folded case, narrow characters, no TeX around words and numbers."""
    text = text.translate(_NARROW)
    for form, replacement in _BEFORE_PLAIN:
        text = form.sub(replacement, text)
    text = _BLANKS.sub(" ", plain(text)).casefold()
    return _INITIALS.sub(r"\1", text.replace("i\u0307", "i"))


def tokens(text: str, dates: bool = True) -> list[Token]:
    """Return the words, numbers and (with ``dates``) dates of a text with uniform :func:`spelling`.

    A long text is truncated.
    """
    text = text[:_LONGEST_ANSWER]
    found = []
    at = 0
    while at < len(text):
        joined = at and (text[at - 1].isalnum() or text[at - 1] == ")") and text[at] in "+-"
        read = None
        if not joined:
            read = (date_at(text, at) if dates else None) or number_at(text, at)
        if read and (_MEASURED.match(text, read.end) or not _continues(text, read.end)):
            found.append(Token(read.value, at, read.end, read.unit))
            at = read.end
            continue
        word = _WORD.match(text, at)
        if word:
            value = _MARKS.sub("", word[0])
            if value:
                found.append(Token(value, at, word.end()))
        at = word.end() if word else at + 1
    return found


def same_answer(found: str, answer: str) -> bool:
    """Return whether two answers have the same words and numbers, ignoring articles and punctuation.

    Answers without any, such as ``+``, have to be the same text.
    """
    one = spelling(found)
    other = spelling(answer)
    if not tokens(one) and not tokens(other):
        return _squeezed(found) == _squeezed(answer)
    return any(_same_row(_content(tokens(one, dates)), _content(tokens(other, dates))) for dates in (True, False))


def same_text(found: str, answer: str) -> bool:
    """Return whether two answers are the same text, ignoring white space and a final full stop, or have the same value.

    Values are compared if ``answer`` has a number or date; its other words must then be the same too.
    """
    if _squeezed(found) == _squeezed(answer):
        return True
    wanted = tokens(spelling(answer))
    numeric = any(not isinstance(token.value, str) for token in wanted)
    return numeric and _same_row(tokens(spelling(found)), wanted)


def states(found: str, answers: Sequence[str]) -> str:
    """Return why a found answer does not state an accepted one, or "" if it does.

    It states an accepted answer if it contains the accepted words, does not deny them (``not Lisbon``), and does not
    list them among several guesses (``Lisbon, Porto``, ``Lisbon or Porto``). An explanation is not a guess: ``Lisbon,
    because of the letter``.
    """
    text = spelling(found)
    if not tokens(text) and any(same_answer(found, answer) for answer in answers):
        return ""
    reason = ""
    # The longest first, so that the reason names the fullest match.
    for answer in sorted(answers, key=len, reverse=True):
        for start, end in spans(text, spelling(answer)):
            if _in_longer_word(text, start, end):
                reason = "it is a part of a longer word"
                continue
            if denied(text, start, end):
                reason = "it is denied"
                continue
            reason = _guesses(text, start, end, answers)
            if not reason:
                return ""
    return reason or "the words of no accepted answer stand in it"


def spans(text: str, answer: str) -> list[tuple[int, int]]:
    """Return the spans of a text in which the words of an answer, articles aside, follow one another.

    Both texts must have passed through :func:`spelling`.
    """
    found = []
    for dates in (True, False):
        wanted = _content(tokens(answer, dates))
        own = {token.value for token in wanted}
        row = [token for token in tokens(text, dates) if token.value not in _ARTICLES or token.value in own]
        for at in range(len(row) - len(wanted) + 1 if wanted else 0):
            window = row[at : at + len(wanted)]
            if _same_row(window, wanted):
                found.append((window[0].start, window[-1].end))
    return found


def denied(text: str, start: int, end: int) -> bool:
    """Return whether ``not``, ``is wrong`` or the like is next to the words from ``start`` to ``end``."""
    sentence = _SENTENCE.split(text[:start])[-1]
    return bool(_NOT_BEFORE.search(sentence) or _NOT_AFTER.match(text, end))


def _in_longer_word(text: str, start: int, end: int) -> bool:
    """Return whether letters around ``text[start:end]``, in a script without spaces, belong to its word.

    So does one Han character before it (東京都 for 京都); two are a word of their own (法国巴黎), and what follows is
    mostly a suffix (北京市, 리스본입니다). A word in katakana has all letters of its row.
    """
    script = _script(text[start])
    before = list(takewhile(lambda letter: _script(letter) == script and letter not in _PARTICLES, text[:start][::-1]))
    if script == "KATAKANA" and _script(text[end : end + 1]) == script:
        return True
    borders = (text[start - 1 : start + 1], text[end - 1 : end + 1])
    if any(len(pair) == 2 and all(unicodedata.numeric(letter, 0) for letter in pair) for pair in borders):
        return True  # 二十 of 二十三
    return len(before) == 1 if script == "CJK" else script in _SCRIPTS and bool(before)


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0].partition("-")[0] if letter else ""


def _marked(reply: str) -> str | None:
    """Return the content of the last box (``""`` if it is empty) or of the last ``<answer>``."""
    if boxed(reply.replace(_FBOX, "\\boxed{")) is not None:
        return box_in(reply) or ""
    tags = _ANSWER_TAG.findall(reply)  # models trained with R1's format write this tag
    return tags[-1][1] if tags else None


def _after_cue(reply: str) -> str:
    """Return the text after the last cue, except cues at the very end of the reply."""
    text = re.sub(r"\*\*|__", "", reply)
    after = [text[cue.end() :].strip() for cue in _CUE.finditer(text)]
    return next(filter(None, reversed(after)), "")


def _neighbouring_boxes(reply: str) -> list[str]:
    """Return the last boxes if there are several with only commas, line breaks, bullets or ``and`` between them."""
    found: list[str] = []
    inner = boxed(reply)
    while inner is not None and len(found) < _MOST_BOXES:
        found.insert(0, inner)
        reply = reply[: reply.rfind("\\boxed{")]
        inner = boxed(reply) if _BETWEEN_BOXES.search(reply) else None
    return found if len(found) > 1 else []


def _continues(text: str, end: int) -> bool:
    """Return whether letters or digits follow without a gap, as in ``7x`` and ``4b``."""
    following = text[end : end + 1]
    return following.isalnum() and not re.match(f"[{_CJK}]", following)


def _content(row: list[Token]) -> list[Token]:
    """Return the tokens without articles, or all tokens if they are all articles.

    An ``a`` at the end is a name, not an article, as in ``Group A``.
    """
    *others, last = row or [None]
    content = [token for token in others if token.value not in _ARTICLES]
    if last and (last.value not in _ARTICLES or (content and last.value == "a")):
        content.append(last)
    return content or row


def _same_row(one: list[Token], other: list[Token]) -> bool:
    return bool(one) and len(one) == len(other) and all(map(Token.same, one, other))


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", spelling(text)).rstrip(".")


def _guesses(text: str, start: int, end: int, answers: Sequence[str]) -> str:
    """Return why the answer ``text[start:end]`` is one of several guesses, or "" if it is not.

    Others are parts of its own sentence, up to an explanation, which has commas of its own, and other sentences of few
    words.
    """
    for date in tokens(text):  # the year of a date is no guess beside its day
        if date.start <= start and end <= date.end:
            start, end = date.start, date.end
    *earlier, before = _SENTENCE.split(text[:start])
    after, *later = _SENTENCE.split(text[end:])
    others = [part for part in _BETWEEN.split(before)[:-1] if not _NO_GUESS.fullmatch(part)]
    others += takewhile(lambda part: not part.strip() or not _NO_GUESS.fullmatch(part), _BETWEEN.split(after)[1:])
    others += [part for part in (*earlier, *later) if len(part.split()) <= _FEW_WORDS and len(part.strip()) > _INITIAL]
    others = [part.strip() for part in others if not _words(part) <= set(_ARTICLES)]
    others = [part for part in others if not any(same_answer(part, answer) for answer in answers)]
    if _words(text[start:end]) <= _POLAR:  # beside a yes, a sentence explains; only a no is another guess
        others = [part for part in others if _words(part) <= _POLAR | _HEDGES]
    if not others or (len(others) == 1 and _APPOSITION.match(others[0])):
        return ""
    return f"one of several guesses, {others[0][:40]!r} among them"


def _words(text: str) -> set[Value]:
    return {token.value for token in tokens(text)}
