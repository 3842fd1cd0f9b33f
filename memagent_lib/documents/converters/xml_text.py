"""Convert XML of any vocabulary (JATS, TEI, DocBook, feeds, exports) to the text of its elements.

In an element with text of its own, as in prose, children are part of the line; otherwise each stands on its own line.
The cells of a table's row are on one line, separated by `` | ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5
from itertools import pairwise
from xml.etree import ElementTree

from memagent_lib.documents.converters.converted import Converted, ConverterOptions, Piece, Source, Unreadable, counted
from memagent_lib.documents.converters.encodings import codec_of
from memagent_lib.documents.converters.html_text import html_text
from memagent_lib.documents.converters.plain_text import whole_text

_CELLS = ("td", "th", "cell", "entry")  # of XHTML and JATS, TEI, DocBook
_FEEDS = ("rss", "feed", "RDF")
_PAGES = ("content", "description", "encoded", "summary")  # elements of a feed that hold HTML
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)(\w+;)")
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([\w.:-]+)["']""")
_XML = "{http://www.w3.org/XML/1998/namespace}"


def xml_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert an XML file. An element without text is read by its attributes; other attributes are counted."""
    text, notes = _decoded(source, options)
    # Names such as &nbsp; are defined in a DTD that is somewhere else.
    text = _ENTITY.sub(lambda found: html5.get(found[1], found[0]), text)
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as broken:
        raise Unreadable(f"no well-formed XML ({broken}); mend it, or save it as text") from broken
    left_out = 0
    for element in root.iter():
        if len(element) or _has_text(element.text):
            left_out += len(_attributes(element))
    lines = "\n".join(_lines(root, _name(root) in _FEEDS))
    if left_out:
        notes.append(f"{counted(left_out, 'attribute')} of elements with text left out from {source.name}")
    return Converted([Piece(f"{lines}\n" if lines else "")], notes)


def _decoded(source: Source, options: ConverterOptions) -> tuple[str, list[str]]:
    """Decode a file by the encoding that ``options`` name, or else by the one that its declaration names."""
    data = source.read()
    declared = _DECLARED.match(data)
    codec = codec_of(declared[1].decode("ascii")) if declared else None
    # A declaration that can be read as ASCII is not UTF-16. Programs on .NET write it into UTF-8.
    if options.encoding or codec is None or codec.startswith(("utf-16", "utf-32")):
        return whole_text(source, options)
    try:
        return data.decode(codec), []
    except UnicodeDecodeError:
        raise Unreadable(f"not in {codec.upper()}, which its first line declares; name its encoding") from None


def _lines(element: ElementTree.Element, in_feed: bool) -> Iterator[str]:
    if not len(element) and not _has_text(element.text):
        if _attributes(element):
            yield f"{_name(element)}: {', '.join(_attributes(element))}"
    elif _has_text(element.text) or any(_has_text(child.tail) for child in element):
        line = _inline(element)
        if in_feed and _name(element) in _PAGES:
            line = html_text(line)[0]
        yield line.strip()
    elif not in_feed and all(_name(child) in _CELLS for child in element):
        yield " | ".join(" ".join(_inline(cell).split()) for cell in element)
    else:
        for child in element:
            yield from _lines(child, in_feed)


def _inline(element: ElementTree.Element) -> str:
    """Return the text of an element and its children.

    A space parts two numbers, two children without text between them, and the text around an empty child (a break).
    """
    parts = [(element.text or "", False)]
    for child in element:
        inner = _inline(child) or " "
        parts += [(inner, True), (child.tail or "", False)]
    parts = [part for part in parts if part[0]] or [("", False)]
    text = parts[0][0]
    for (before, was_child), (after, is_child) in pairwise(parts):
        both_digits = before[-1].isdigit() and after[0].isdigit()
        text += f" {after}" if both_digits or (was_child and is_child) else after
    return text


def _attributes(element: ElementTree.Element) -> list[str]:
    return [f"{name.rpartition('}')[2]} {value}" for name, value in element.items() if value and _XML not in name]


def _name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _has_text(text: str | None) -> bool:
    return bool(text and text.strip())
