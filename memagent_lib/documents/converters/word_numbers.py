"""Write the numbers of a Word document's paragraphs into their text as Word displays them: ``2.1``, ``(a)``, ``IV``.

A document stores no numbers. A paragraph, or its style, names a list and a level; the numbering part has the format and
the first number of each level; the numbers result from counting. A number in a format that is not known here is left
out and counted, because a wrong one is worse than none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple
from xml.etree.ElementTree import Element

from memagent_lib.documents.converters.html_text import roman_number
from memagent_lib.documents.converters.word_markup import WORD, parsed, text_run

NO_NUMBERING = b'<w:numbering xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"/>'


class _Level(NamedTuple):
    """The format of one level of a list; ``restart`` is the number of levels above it that restart its count."""

    first: int
    format: str
    text: str
    style: str | None
    restart: int | None
    is_decimal: bool
    separator: str


class _Item(NamedTuple):
    num: str
    level: int


def write_numbers(document: Element, numbering: bytes, styles: bytes | None) -> int:
    """Write the number of each paragraph into its text, and return how many numbers are left out.

    Raises ``ElementTree.ParseError`` if the numbering or the styles are damaged.
    """
    numbers = _Numbers(parsed(numbering), parsed(styles) if styles else Element("none"))
    left_out = 0
    for paragraph in document.iter(f"{WORD}p"):
        properties = paragraph.find(f"{WORD}pPr")
        item = None if properties is None else numbers.item(properties)
        if item is None:
            continue
        label = numbers.next_label(item)
        if label is None:
            left_out += 1
        elif label:
            paragraph.insert(list(paragraph).index(properties) + 1, text_run(label))
    return left_out


class _Numbers:
    """The lists of a document, and the numbers that their paragraphs have reached."""

    def __init__(self, numbering: Element, styles: Element):
        self._lists = {each.get(f"{WORD}abstractNumId"): each for each in numbering.iter(f"{WORD}abstractNum")}
        self._nums = {each.get(f"{WORD}numId"): each for each in numbering.iter(f"{WORD}num")}
        self._styles = {each.get(f"{WORD}styleId"): each for each in styles.iter(f"{WORD}style")}
        self._levels: dict[str, dict[int, _Level]] = {}
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._begun: set[_Item] = set()

    def item(self, properties: Element) -> _Item | None:
        """Return the list and level of a paragraph; ``None`` if it is in no list, is hidden or is deleted."""
        marks = properties.find(f"{WORD}rPr")
        # A deleted paragraph mark joins the paragraph with the next one.
        if marks is not None and any(marks.find(f"{WORD}{name}") is not None for name in ("vanish", "del")):
            return None
        own = properties.find(f"{WORD}numPr")
        num = _value(own, "numId")
        level = _value(own, "ilvl")
        style = _value(properties, "pStyle")
        seen = set()
        while num is None and style in self._styles and style not in seen:
            seen.add(style)
            of_style = self._styles[style].find(f"{WORD}pPr/{WORD}numPr")
            num = _value(of_style, "numId")
            if num is not None and level is None:
                linked = [at for at, each in self.levels(num).items() if each.style == style]
                level = str(linked[0]) if linked else _value(of_style, "ilvl")
            style = _value(self._styles[style], "basedOn")
        # 0 takes a paragraph out of the list of its style.
        if num is None or num == "0":
            return None
        return _Item(num, _number(level, 0))

    def levels(self, num: str) -> dict[int, _Level]:
        if num not in self._levels:
            levels = {}
            name = self._list_of(num)
            if name is not None:
                defined = self._lists[name].iter(f"{WORD}lvl")
                levels = {_number(each.get(f"{WORD}ilvl"), 0): each for each in defined}
                for override in self._nums[num].iter(f"{WORD}lvlOverride"):
                    for each in override.iter(f"{WORD}lvl"):
                        levels[_number(override.get(f"{WORD}ilvl"), 0)] = each
            self._levels[num] = {at: _level(each) for at, each in levels.items()}
        return self._levels[num]

    def next_label(self, item: _Item) -> str | None:
        """Count a paragraph and return its number with the space after it; ``None`` if its format is not known.

        A bullet's label is a dash.
        """
        levels = self.levels(item.num)
        level = levels.get(item.level)
        if level is None:
            return ""
        if level.format == "bullet":
            return "- "
        counts = self._counts[self._list_of(item.num) or item.num]
        restarted = None
        if item not in self._begun:
            self._begun.add(item)
            restarted = self._restarted(item)
        before = counts.get(item.level, level.first - 1)
        counts[item.level] = before + 1 if restarted is None else restarted
        for deeper in [at for at in counts if at > item.level]:
            restart = levels[deeper].restart if deeper in levels else None
            if restart is None or item.level < restart:
                del counts[deeper]
        label = level.text
        for found in set(re.findall(r"%([1-9])", level.text)):
            at = int(found) - 1
            other = levels.get(at, level)
            number = counts.get(at, max(0, other.first - 1))
            written = _written(number, "decimal" if level.is_decimal else other.format)
            if written is None:
                return None
            label = label.replace(f"%{found}", written)
        return f"{label}{level.separator}" if label.strip() else ""

    def _restarted(self, item: _Item) -> int | None:
        for override in self._nums[item.num].iter(f"{WORD}lvlOverride"):
            first = _value(override, "startOverride")
            if first is not None and _number(override.get(f"{WORD}ilvl"), 0) == item.level:
                return _number(first, 1)
        return None

    def _list_of(self, num: str) -> str | None:
        """Return the name of the definition that counts a list. Some definitions only refer to a style with one."""
        seen = set()
        while num in self._nums and num not in seen:
            seen.add(num)
            name = _value(self._nums[num], "abstractNumId")
            if name not in self._lists:
                return None
            style = _value(self._lists[name], "numStyleLink")
            if style is None:
                return name
            if style not in self._styles:
                return None
            num = _value(self._styles[style].find(f"{WORD}pPr/{WORD}numPr"), "numId") or ""
        return None


def _level(element: Element) -> _Level:
    fallback = next((each for each in element.iter() if each.tag.endswith("}Fallback")), None)
    kind = _value(element, "numFmt") or _value(fallback, "numFmt") or "decimal"
    restart = _value(element, "lvlRestart")
    return _Level(
        first=_number(_value(element, "start"), 0),
        format="custom" if fallback is not None else kind,
        text=_value(element, "lvlText") or "",
        style=_value(element, "pStyle"),
        restart=None if restart is None else _number(restart, 0),
        is_decimal=element.find(f"{WORD}isLgl") is not None,
        separator="" if _value(element, "suff") == "nothing" else " ",
    )


def _written(number: int, kind: str) -> str | None:
    if kind == "none":
        return ""
    if kind in ("decimal", "decimalZero"):
        return f"{number:02}" if kind == "decimalZero" else str(number)
    if kind in ("lowerLetter", "upperLetter") and 0 < number <= 26 * 30:
        # After z come aa, bb, cc.
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
        return letters if kind == "lowerLetter" else letters.upper()
    if kind in ("lowerRoman", "upperRoman") and 0 < number < 4000:
        letters = roman_number(number)
        return letters.lower() if kind == "lowerRoman" else letters
    return None


def _value(element: Element | None, name: str) -> str | None:
    """Return the value of the child ``name``."""
    child = None if element is None else element.find(f"{WORD}{name}")
    return None if child is None else child.get(f"{WORD}val")


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,9}", text) else otherwise
