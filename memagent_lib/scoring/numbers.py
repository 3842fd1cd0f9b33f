r"""Read the values of numbers and dates in the forms that people and models write.

``1,000``, ``2 602``, ``3.5 million``, ``1/2``, ``1 1/2``, ``½``, ``10^{6}``, ``1e6``, ``4,2``, ``$9,500`` and ``$5M``
are numbers. A comma or a space before exactly three digits separates thousands; any other comma inside a number is a
decimal comma. A point is a decimal point (``1.200`` is 1.2), unless a decimal comma follows (``1.234,5``). ``007``,
``12:30`` and ``1.2.3`` are codes and match no number. A date may have a weekday and may lack its year. Texts must have
passed through :func:`memagent_lib.scoring.matching.spelling`.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "bn": 10**9, "trillion": 10**12,
    "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8,
}  # fmt: skip
_LONGEST_NUMBER = 100  # characters; a longer row of digits is compared as a word
_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_LETTER_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
"""After an amount of money, such as ``$5M``."""
_SIGNS = "$€£¥%"
_UNIT_WORDS = {
    "percent": "%", "per cent": "%", "us$": "$", "usd": "$", "dollars": "$", "dollar": "$",
    "eur": "€", "euros": "€", "euro": "€", "gbp": "£",
}  # fmt: skip

# After a letter or digit a hyphen joins (``F-16``, ``1920-1930``); elsewhere it is a sign.
_START = re.compile(
    r"(?P<bound>(?:[<>]=?|[≤≥≈])\s?)?(?P<minus>[-+]\s?)?(?P<currency>(?:[$€£¥]|us\$|usd|eur|gbp)\s?)?(?P<inner>-)?"
    rf"(?=[.\d{_VULGAR}])"
)
_GROUPED = re.compile(r"\d{1,3}([, '\u00a0\u2009\u202f])\d{3}(?:\1\d{3})*(?:\.\d+)?(?![\d,]\d|\d)")
_CONTINENTAL = re.compile(r"\d{1,3}(\.)\d{3}(?:\.\d{3})*,\d+")
_DECIMAL = re.compile(r"\d*\.\d+|(?<!\d,)\d+,\d+(?!,?\d)|\d+")
_BELOW = re.compile(r"\s?/\s?(\d{1,30})(?![\d/])")
_MIXED = re.compile(r"\s(\d{1,2})/(\d{1,2})(?![\d/])")
_POWER = re.compile(r"e([-+]?\d{1,3})\b")
_TEN = re.compile(r"\s?[*x]\s?10\^\{?(-?\d{1,3})\}?")
_EXPONENT = re.compile(r"\^\{?(\d{1,2})\}?")
_SCALE = re.compile(rf"[\s-]?({'|'.join(_SCALES)})(?:s\b)?(?![a-z])")
_LETTER_SCALE = re.compile(rf"\s?([{''.join(_LETTER_SCALES)}])\b")
_SIGN = re.compile(rf"\s{{0,2}}([{_SIGNS}]|(?:{'|'.join(re.escape(word) for word in _UNIT_WORDS)})\b)")
_CODE = re.compile(r"0\d+(?![\d.,])|\d+(?:[:-]\d+)+|\d+(?:[.:/-]\d+){2,}")

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july",
    "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS).replace("sep(?:", "sep(?:t|")
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s)?"
_DATES = tuple(
    re.compile(_WEEKDAY + pattern)
    for pattern in (
        r"(?P<y>\d{4})[-/](?P<m>\d{1,2})[-/](?P<d>\d{1,2})(?![\d-])",
        r"(?P<y>\d{4})\s?年\s?(?P<m>\d{1,2})\s?月\s?(?P<d>\d{1,2})\s?日",
        r"(?P<d>\d{1,2})\.\s?(?P<m>\d{1,2})\.\s?(?P<y>\d{4})\b",
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)?[\s-](?:of\s)?(?P<name>{_MONTH})\b(?:\.?,?[\s-](?P<y>\d{{4}})\b)?",
        rf"(?P<name>{_MONTH})\b\.?\s(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?![\w.:/-]*\d)(?:,?\s(?P<y>\d{{4}})\b)?",
    )
)

Value = str | Fraction | tuple[int, int, int]


class Reading(NamedTuple):
    """A number, date or code that ends at ``end``. ``unit`` is its currency sign or per cent sign, if it has one.

    The value of a date is year (0 if it has none), month, day.
    """

    value: Value
    end: int
    unit: str = ""


def number_at(text: str, start: int) -> Reading | None:
    """Return the number or code that begins at ``start``; ``None`` if there is none.

    After a sign such as ``<`` or ``≥`` a number is a bound, and its value is text that equals no number.
    """
    code = _CODE.match(text, start)
    if code:
        return Reading(code[0], code.end())
    opening = _START.match(text, start)
    if not opening:
        return None
    value, end = _magnitude(text, opening.end())
    if value is None:
        return None
    unit = (opening["currency"] or "").strip()
    value, end = _scaled(text, value, end, is_money=bool(unit))
    after = _SIGN.match(text, end)
    if after and not unit:
        unit = after[1]
        end = after.end()
    unit = _UNIT_WORDS.get(unit, unit)
    if (opening["minus"] or "").startswith("-") or opening["inner"]:
        value = -value
    if opening["bound"]:  # a bound is not the value
        return Reading(f"{opening['bound'].strip()}{value}", end, unit)
    return Reading(value, end, unit)


def date_at(text: str, start: int) -> Reading | None:
    """Return the date that begins at ``start``; ``None`` if there is none.

    ``03/04/2024`` is not a date, because it is the third of April to some people and the fourth of March to others.
    """
    for pattern in _DATES:
        found = pattern.match(text, start)
        if found:
            named = found.groupdict()
            name = named.get("name")
            month = [m[:3] for m in _MONTHS].index(name[:3]) + 1 if name else int(named["m"])
            day = int(named["d"])
            if month <= 12 and day <= 31:
                return Reading((int(named["y"] or 0), month, day), found.end())
    return None


def _magnitude(text: str, start: int) -> tuple[Fraction | None, int]:
    """Return the number at ``start``, without sign and scale, and where it ends."""
    digits = _CONTINENTAL.match(text, start) or _GROUPED.match(text, start) or _DECIMAL.match(text, start)
    if digits and len(digits[0]) > _LONGEST_NUMBER:
        return None, start
    end = digits.end() if digits else start
    value = None
    if digits:
        grouping = digits[1] if digits.re is not _DECIMAL else ""
        value = Fraction(digits[0].replace(grouping, "").replace(",", "."))
    if text[end : end + 1] and text[end] in _VULGAR:
        # unicodedata gives ⅓ as a float, whose nearest fraction with a small denominator is meant.
        value = (value or 0) + Fraction(unicodedata.numeric(text[end])).limit_denominator(100)
        end += 1
    below = _BELOW.match(text, end)
    if value is not None and below and int(below[1]):
        return value / int(below[1]), below.end()
    mixed = _MIXED.match(text, end)
    if value is not None and value.denominator == 1 and mixed and int(mixed[1]) < int(mixed[2]):
        return value + Fraction(int(mixed[1]), int(mixed[2])), mixed.end()
    return value, end


def _scaled(text: str, value: Fraction, end: int, is_money: bool) -> tuple[Fraction, int]:
    """Return the number times the powers and scale words that follow it, for money also ``k``, ``m``, ``b``, ``t``."""
    power = _POWER.match(text, end) or _TEN.match(text, end)
    if power:
        value *= Fraction(10) ** int(power[1])
        end = power.end()
    exponent = _EXPONENT.match(text, end)
    # Small bases only, so that no power has more than 300 digits.
    if exponent and value.denominator == 1 and value < 1000:
        value **= int(exponent[1])
        end = exponent.end()
    scale = _SCALE.match(text, end)
    if scale:
        value *= _SCALES[scale[1]]
        end = scale.end()
    letter = _LETTER_SCALE.match(text, end) if is_money else None
    if letter:
        value *= _LETTER_SCALES[letter[1]]
        end = letter.end()
    return value, end
