"""Rewrite the text of a Word document so that mammoth reads all of it: equations, text boxes, fields, ruby, symbols.

mammoth leaves out each element that it does not know, with the text in it. Here such an element becomes one that it
reads through. Of the two forms in which a document may store a text box, one is chosen; hidden text is removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MATHS = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}"
_CHARTS = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_DIAGRAMS = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_SHAPE = "{urn:schemas-microsoft-com:vml}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_STRICT = {  # the namespaces of the strict form of the format
    b"http://purl.oclc.org/ooxml/wordprocessingml/main": WORD,
    b"http://purl.oclc.org/ooxml/officeDocument/math": MATHS,
    b"http://purl.oclc.org/ooxml/drawingml/wordprocessingDrawing": _DRAWING,
    b"http://purl.oclc.org/ooxml/drawingml/chart": _CHARTS,
    b"http://purl.oclc.org/ooxml/drawingml/diagram": _DIAGRAMS,
}


def _named(namespace: str, names: str) -> set[str]:
    return {f"{namespace}{name}" for name in names.split()}


# The elements with text that mammoth reads, and those that it leaves out because a person does not see their text.
_KNOWN = _named(WORD, "body footnote endnote comment p r t tbl tr tc sdt sdtContent customXml smartTag hyperlink ins")
_KNOWN |= _named(WORD, "moveTo object drawing pict txbxContent pPr rPr sectPr del moveFrom")
_KNOWN |= _named(_SHAPE, "group rect roundrect shape textbox")
_READ_THROUGH = f"{WORD}smartTag"
_RENAMED = {f"{WORD}ptab": f"{WORD}tab", f"{WORD}cr": f"{WORD}br"}
_LEFT_OUT = {  # elements whose text stands in other files, or nowhere
    f"{_CHARTS}chart": "chart",
    f"{_DIAGRAMS}relIds": "diagram",
    f"{WORD}altChunk": "embedded document",
    f"{WORD}subDoc": "linked document",
}
_OFF = ("0", "false", "off")
_SYMBOL_FONTS = ("Symbol", "Webdings", "Wingdings")
_BETWEEN_PARTS = {
    "f": "/",
    "sSup": "^",
    "sSub": "_",
    "sSubSup": "_^",
    "limLow": "_",
    "limUpp": "^",
    "m": "; ",
    "mr": ", ",
    "eqArr": "; ",
}
_UNGROUPED = ("m", "mr", "eqArr")


def parsed(part: bytes) -> Element:
    """Parse a part of a document. Raises ``ElementTree.ParseError`` if it is damaged."""
    for strict, usual in _STRICT.items():
        for quote in (b'"', b"'"):
            part = part.replace(strict + quote, usual.strip("{}").encode() + quote)
    return ElementTree.fromstring(part)


def text_run(text: str) -> Element:
    run = Element(f"{WORD}r")
    run.append(_text(text))
    return run


def make_readable(part: Element) -> Counter[str]:
    """Rewrite a part, and return how many things are left out of it, such as charts and hidden passages."""
    left_out = Counter(_LEFT_OUT[element.tag] for element in part.iter() if element.tag in _LEFT_OUT)
    _rewrite(part, left_out)
    return left_out


def _rewrite(parent: Element, left_out: Counter[str]) -> None:
    children = []
    for child in _without_alternatives(parent):
        if child.tag == f"{WORD}r" and _is_hidden(child):
            left_out["hidden passage"] += _has_text(child)
            continue
        if child.tag == f"{MATHS}oMath":
            children.append(text_run(f" {_linear(child)} "))
            continue
        if child.tag == f"{WORD}ruby":
            _put_reading_last(child)
        _rewrite(child, left_out)
        _rename(child)
        children.append(child)
        if child.tag == f"{WORD}fldChar":
            children += [_text(text) for text in _chosen_entry(child)]
    parent[:] = children


def _without_alternatives(parent: Element) -> Iterator[Element]:
    """Yield the children. Of content that is stored in alternative forms, yield the older form if it has the text."""
    for child in parent:
        if child.tag != f"{_COMPATIBILITY}AlternateContent":
            yield child
            continue
        forms = [*child.findall(f"{_COMPATIBILITY}Fallback"), *child.findall(f"{_COMPATIBILITY}Choice")]
        for form in [form for form in forms if _has_text(form)][:1] or forms[:1]:
            yield from _without_alternatives(form)


def _has_text(element: Element) -> bool:
    return any(inner.tag in (f"{WORD}t", f"{MATHS}t") for inner in element.iter())


def _is_hidden(run: Element) -> bool:
    mark = run.find(f"{WORD}rPr/{WORD}vanish")
    return mark is not None and mark.get(f"{WORD}val") not in _OFF


def _rename(element: Element) -> None:
    if element.tag in _RENAMED:
        element.tag = _RENAMED[element.tag]
    elif element.tag == f"{WORD}sym":
        _spell(element)
    elif element.tag == f"{_SHAPE}textpath" and element.get("string"):
        element.tag = f"{WORD}r"
        element[:] = [_text(f" {element.get('string')} ")]
    elif element.tag in (f"{_DRAWING}inline", f"{_DRAWING}anchor") and _has_text(element):
        # Of these, mammoth reads only a picture. It reads this one after the paragraph.
        element.tag = f"{WORD}pict"
    elif element.tag not in _KNOWN and _has_text(element):
        element.tag = _READ_THROUGH


def _spell(symbol: Element) -> None:
    """Make text of a symbol that is an ordinary character. mammoth reads only those of the symbol fonts."""
    font = symbol.get(f"{WORD}font", "")
    code = symbol.get(f"{WORD}char", "")
    if font.startswith(_SYMBOL_FONTS) or not re.fullmatch("[0-9A-Fa-f]{2,5}", code):
        return
    character = chr(int(code, 16))
    # The characters for private use mean something in their font only.
    if character.isprintable():
        symbol.tag = f"{WORD}t"
        symbol.text = character


def _put_reading_last(ruby: Element) -> None:
    """Put the reading of a word, which is stored first, after it in brackets."""
    readings = ruby.findall(f"{WORD}rt")
    for reading in readings:
        ruby.remove(reading)
        if _has_text(reading):
            ruby.extend([text_run("("), reading, text_run(")")])


def _chosen_entry(field: Element) -> Iterator[str]:
    """Yield the entry that is chosen in a form's list. It is stored only among the settings of the field."""
    entries = field.find(f"{WORD}ffData/{WORD}ddList")
    if entries is None:
        return
    texts = [entry.get(f"{WORD}val", "") for entry in entries.findall(f"{WORD}listEntry")]
    marks = (entries.find(f"{WORD}{name}") for name in ("result", "default"))
    chosen = next((mark.get(f"{WORD}val", "") for mark in marks if mark is not None), "0")
    if chosen.isdecimal() and int(chosen) < len(texts):
        yield texts[int(chosen)]


def _text(text: str) -> Element:
    element = Element(f"{WORD}t", {_SPACE: "preserve"})
    element.text = text
    return element


def _linear(element: Element) -> str:
    """Return an equation on one line: ``x^2 = (a + b)/2``."""
    kind = element.tag.removeprefix(MATHS)
    if kind == "t" or element.tag == f"{WORD}t":
        return element.text or ""
    if kind in ("d", "nary", "rad"):
        return _with_signs(element, kind)
    parts = [text for text in (_linear(child) for child in element) if text]
    signs = _BETWEEN_PARTS.get(kind)
    if signs is None:
        return "".join(parts)
    if kind in _UNGROUPED:
        return signs.join(parts)
    parts = [_grouped(part) for part in parts]
    joined = parts[0] if parts else ""
    for number, part in enumerate(parts[1:]):
        joined += signs[min(number, len(signs) - 1)] + part
    return joined


def _with_signs(element: Element, kind: str) -> str:
    """Return a bracket, a sum or a root. Their signs are properties, or are not stored at all."""
    inner = [_linear(each) for each in element.findall(f"{MATHS}e")]
    if kind == "d":
        return _sign(element, "begChr", "(") + _sign(element, "sepChr", "|").join(inner) + _sign(element, "endChr", ")")
    degree, below, above = ("".join(map(_linear, element.findall(f"{MATHS}{name}"))) for name in ("deg", "sub", "sup"))
    if kind == "rad":
        return f"{_grouped(''.join(inner))}^(1/{degree})" if degree else f"√({''.join(inner)})"
    limits = "".join(f"{sign}{_grouped(limit)}" for sign, limit in (("_", below), ("^", above)) if limit)
    return f"{_sign(element, 'chr', '∫')}{limits} {''.join(inner)}"


def _sign(element: Element, name: str, otherwise: str) -> str:
    mark = element.find(f"*/{MATHS}{name}")
    return otherwise if mark is None else mark.get(f"{MATHS}val", "")


def _grouped(part: str) -> str:
    return part if part.isalnum() or re.fullmatch(r"\([^()]*\)", part) else f"({part})"
