"""Convert an EPUB to text: its chapters in reading order (the package's spine), read by the HTML converter.

A chapter that is missing, damaged or empty is reported as left out; the others are read.
"""

from __future__ import annotations

import posixpath
import zipfile
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from memagent_lib.documents.converters.archives import member, open_archive
from memagent_lib.documents.converters.converted import Converted, ConverterOptions, Piece, Source, Unreadable
from memagent_lib.documents.converters.html_text import PageText, html_text, page_label
from memagent_lib.documents.converters.plain_text import part_text

# Other chapters are pictures (SVG, JPEG).
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


class _Chapter(NamedTuple):
    name: str
    is_page: bool


def book_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert the chapters of a book.

    Raises :class:`Unreadable` if the book is protected or lists no chapters, or if its archive or package is damaged.
    """
    pieces = []
    notes = []
    with source.open() as stream:
        archive = open_archive(stream)
        if _is_protected(archive):
            raise Unreadable("a protected book (DRM); give a copy without protection")
        for number, chapter in enumerate(_chapters(archive), 1):
            where = f"chapter {number} ({posixpath.basename(chapter.name)})"
            name = f"{where} of {source.name}"
            try:
                text, flaws = _read(archive, chapter, name, options)
            except Unreadable as damaged:
                notes.append(f"{name} is {damaged}")
                continue
            if not text.strip():
                notes.append(f"{name} has no text")
                continue
            pieces.append(Piece(text, where))
            notes += flaws
    return Converted(pieces, notes)


def _read(archive: zipfile.ZipFile, chapter: _Chapter, name: str, options: ConverterOptions) -> PageText:
    if not chapter.is_page:
        return PageText("", [])
    data = member(archive, chapter.name)
    page, flaws = part_text(Source.memory(name, data), options, page_label(data))
    text, left_out = html_text(page, is_xml=True)
    return PageText(text, [*flaws, *(f"{note} from {name}" for note in left_out)])


def _is_protected(archive: zipfile.ZipFile) -> bool:
    """Return whether the book's text is encrypted. Many books without protection encrypt only their fonts."""
    if "META-INF/encryption.xml" not in archive.namelist():
        return False
    names = [
        element.get("URI", "") for element in _xml(archive, "META-INF/encryption.xml").iter() if "URI" in element.attrib
    ]
    return not names or any(name.lower().endswith((".xhtml", ".html", ".htm", ".xml", ".opf")) for name in names)


def _chapters(archive: zipfile.ZipFile) -> list[_Chapter]:
    containers = _xml(archive, "META-INF/container.xml").iter()
    # A book may list several renditions; the first is the default one.
    package = next((element.get("full-path") for element in containers if _tag(element) == "rootfile"), None)
    if not package:
        raise Unreadable("an EPUB that names no package; save it again")
    content = list(_xml(archive, package).iter())
    items = {element.get("id"): element for element in content if _tag(element) == "item"}
    chapters = []
    for element in content:
        if _tag(element) != "itemref":
            continue
        item = items.get(element.get("idref"))
        if item is None:
            chapters.append(_Chapter(element.get("idref") or "", True))
            continue
        # Links are relative to the package file and percent-encoded; names in the archive are neither.
        name = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(item.get("href") or "")))
        chapters.append(_Chapter(name, item.get("media-type", _PAGES[0]) in _PAGES))
    if not chapters:
        raise Unreadable("an EPUB that lists no chapters; save it again")
    return chapters


def _xml(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(member(archive, name))
    except (ElementTree.ParseError, Unreadable) as broken:
        raise Unreadable(f"an EPUB whose {name} cannot be read ({broken}); save it again") from broken


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
