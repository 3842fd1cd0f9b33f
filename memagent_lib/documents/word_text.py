"""Convert Word documents by docx2python, after changes to their XML for what it would drop, double or glue together.

Hidden and moved text is removed, a formula becomes one line (``(a+b)/2``), and each paragraph gets the number that Word
displays. A document stores only a list and a level for it; the numbers result from counting.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from html import unescape
from typing import Any

from lxml import etree

from memagent_lib.documents.encodings import Piece, Source, archive_of

_NAMES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
}
_W = f"{{{_NAMES['w']}}}"
_M = f"{{{_NAMES['m']}}}"
_TEXT_PARTS = re.compile(r"word/(document|header|footer|footnotes|endnotes|comments)\d*\.xml")
_HIDDEN = "//w:r[w:rPr/w:vanish[not(@w:val='0' or @w:val='false')]][w:t]"
_NUMBERING = ("word/numbering.xml", "word/styles.xml")
_SIGNS = {"num": "", "den": "/", "sup": "^", "sub": "_", "rad": "√"}


def word_text(source: Source) -> Iterator[Piece]:
    """Read headers, body, notes, footers and comments. Every table row is one line."""
    from docx2python import docx2python

    with docx2python(_prepared(source)) as word:
        parts = [*word.header, *word.body, *word.footnotes, *word.endnotes, *word.footer]
        comments = [f"[comment of {who}: {said}]" for _, who, _, said in word.comments]
    lines = []
    for row in (row for table in parts for row in table):
        cells = row[0] if len(row) == 1 else [" | ".join(" ".join(" ".join(cell).split()) for cell in row)]
        lines += [line.rstrip(" |") for line in cells]
    text = re.sub(r"</?(?:a|latex|span)\b[^>]*>|----media/.*?----", "", "\n".join([*lines, *comments]))
    text = re.sub(r"----(?:foot|end)note(\d+)----", r"^[\1]", unescape(text))
    yield Piece(re.sub(r"\n\s*\n+", "\n", text).strip() + "\n")


def _prepared(source: Source) -> io.BytesIO:
    """Return a copy of the document for docx2python."""
    gaps = {"hidden passages": 0, "paragraph numbers in an unknown format": 0}
    copy = io.BytesIO()
    with source.open() as stream, zipfile.ZipFile(copy, "w") as written:
        archive = archive_of(stream)
        for name in archive.namelist():
            data = archive.read(name)
            if _TEXT_PARTS.fullmatch(name):
                tree = etree.fromstring(data)
                gaps["paragraph numbers in an unknown format"] += _write_numbers(tree, archive)
                gaps["hidden passages"] += _make_readable(tree)
                data = etree.tostring(tree)
            written.writestr(name, data)
    source.notes += [f"{number:,} {what} left out from {source.name}" for what, number in gaps.items() if number]
    return copy


def _make_readable(tree: Any) -> int:
    """Rewrite a part's formulas, and remove hidden text and second forms; return how many hidden passages it had."""
    hidden = tree.xpath(_HIDDEN, namespaces=_NAMES)
    # A text box is stored in two forms, moved text in two places.
    for element in [*hidden, *tree.xpath("//w:moveFrom | //mc:Fallback", namespaces=_NAMES)]:
        if element.getparent() is not None:
            element.getparent().remove(element)
    for part in reversed(list(tree.iter(*(f"{_M}{name}" for name in _SIGNS)))):  # the inner ones first
        text = "".join(part.itertext())
        grouped = f"({text})" if len(text) > 1 else text
        part[:] = [_run(_SIGNS[etree.QName(part).localname] + grouped if text else "", _M)]
    return len(hidden)


def _run(text: str, namespace: str) -> Any:
    run = etree.Element(f"{namespace}r")
    etree.SubElement(run, f"{namespace}t").text = text
    return run


def _write_numbers(document: Any, archive: zipfile.ZipFile) -> int:
    """Write the number of each paragraph into its text, and return how many have an unknown format and are left out."""
    parts = {name: etree.fromstring(archive.read(name)) for name in _NUMBERING if name in archive.namelist()}
    numbering, styles = (parts.get(name, etree.Element("none")) for name in _NUMBERING)
    lists = {
        one.get(f"{_W}abstractNumId"): {level.get(f"{_W}ilvl"): level for level in one.iter(f"{_W}lvl")}
        for one in numbering.iter(f"{_W}abstractNum")
    }
    list_of = {num.get(f"{_W}numId"): _value(num, "w:abstractNumId") for num in numbering.iter(f"{_W}num")}
    restarts = {
        (num.get(f"{_W}numId"), change.get(f"{_W}ilvl")): int(_value(change, "w:startOverride") or 1)
        for num in numbering.iter(f"{_W}num")
        for change in num.iter(f"{_W}lvlOverride")
    }
    by_name = {style.get(f"{_W}styleId"): style for style in styles.iter(f"{_W}style")}
    counts: dict[str | None, dict[str, int]] = defaultdict(dict)
    unknown = 0
    for paragraph in document.iter(f"{_W}p"):
        num, at = _item(paragraph, by_name)
        levels = lists.get(list_of.get(num), {})
        if at not in levels:
            continue
        reached = counts[list_of[num]]
        first = int(_value(levels[at], "w:start") or 1)
        reached[at] = restarts.pop((num, at), reached.get(at, first - 1) + 1)
        for deeper in [level for level in reached if level > at]:
            del reached[deeper]
        label = _label(levels, at, reached)
        unknown += label is None
        paragraph.insert(1, _run(f"{label} " if label else "", _W))
        for listed in paragraph.findall("w:pPr/w:numPr", _NAMES):
            listed.getparent().remove(listed)  # docx2python would number the paragraph too
    return unknown


def _item(paragraph: Any, styles: dict[str | None, Any]) -> tuple[str | None, str]:
    """Return the list and the level of a paragraph. Either may be that of its style, or of the style's own."""
    found = paragraph.find("w:pPr", _NAMES)
    num = _value(found, "w:numPr/w:numId")
    level = _value(found, "w:numPr/w:ilvl")
    style = styles.get(_value(found, "w:pStyle"))
    for _ in styles:
        if num or style is None:
            break
        num = _value(style, "w:pPr/w:numPr/w:numId")
        level = level or _value(style, "w:pPr/w:numPr/w:ilvl")
        style = styles.get(_value(style, "w:basedOn"))
    return num, level or "0"


def _label(levels: dict[str, Any], at: str, reached: dict[str, int]) -> str | None:
    """Return a number such as ``2.1`` or ``(a)``; ``None`` if its format is not known, as a wrong one is worse."""
    from docx2python import numbering_formats

    label = _value(levels[at], "w:lvlText") or ""
    if _value(levels[at], "w:numFmt") == "bullet":
        return "-"
    for digit in set(re.findall(r"%([1-9])", label)):
        level = str(int(digit) - 1)
        kind = _value(levels.get(level), "w:numFmt") or "decimal"
        written = getattr(numbering_formats, re.sub("[A-Z]", r"_\g<0>", kind).lower(), None)  # such as lower_roman
        if written is None:
            return None
        label = label.replace(f"%{digit}", written(reached.get(level, 1)))
    return label


def _value(element: Any, path: str) -> str | None:
    found = None if element is None else element.find(path, _NAMES)
    return None if found is None else found.get(f"{_W}val")
