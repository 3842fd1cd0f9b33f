"""Convert Word documents (.docx, by mammoth and the HTML converter) and RTF (by striprtf) to text.

This module adds what those libraries leave out: headers, footers, equations and comments of Word, footnotes of RTF.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

from memagent_lib.documents.converters.archives import member, open_archive
from memagent_lib.documents.converters.converted import (
    Converted,
    ConverterOptions,
    Piece,
    Source,
    Unreadable,
    counted,
    natural_order,
)
from memagent_lib.documents.converters.html_text import html_text
from memagent_lib.documents.converters.word_numbers import NO_NUMBERING, write_numbers
from memagent_lib.text import whole_characters

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATHS = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_EQUATION = re.compile(rb"<m:oMath[ >].*?</m:oMath>", re.DOTALL)
_HIDDEN_RUN = re.compile(rb"<w:r(?: [^>]*)?>(?:(?!</w:r>).)*?<w:vanish\s*/>(?:(?!</w:r>).)*</w:r>", re.DOTALL)
_FOOTNOTE_RETURN = re.compile(r' ?<a href="#[^"]*">↑</a>')
_MATHS_NAMESPACE = b'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
_BETWEEN_PARTS = {"f": "/", "sSup": "^", "sSub": "_", "sSubSup": "_^"}
_WORD_TYPE = re.compile(rb"(?:wordprocessingml|ms-word)\.(?:document|template)[\w.]*\.main\+xml")
_RTF_PAGES = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}


def is_word(archive: zipfile.ZipFile) -> bool:
    """Return whether the archive declares itself a Word document. Word Online does not call its text document.xml."""
    types = "[Content_Types].xml"
    return types in archive.namelist() and bool(_WORD_TYPE.search(member(archive, types)))


def word_text(source: Source, _: ConverterOptions) -> Converted:
    """Convert a .docx: headers, body with tables, text boxes, footnotes and comments, footers."""
    import mammoth

    with source.open() as stream:
        archive = open_archive(stream)
        around = {kind: list(_around(archive, kind)) for kind in ("header", "footer")}
        body, hidden, unnumbered = _prepared(archive)
        try:
            page = mammoth.convert_to_html(
                body, style_map="comment-reference => sup", convert_image=mammoth.images.img_element(_no_picture)
            )
        except Exception as broken:  # mammoth checks nothing: KeyError, ExpatError and others for a damaged file
            raise Unreadable(f"no Word document that mammoth can read ({broken}); save it again") from broken
    text, notes = html_text(_FOOTNOTE_RETURN.sub("", page.value))
    if hidden:
        notes.append(f"{counted(hidden, 'hidden passage')} left out")
    if unnumbered:
        notes.append(f"{counted(unnumbered, 'paragraph number')} in an unknown format left out")
    # Once each, not once per page as they are printed.
    pieces = [Piece(f"{line}\n", "header") for line in around["header"]]
    pieces.append(Piece(text))
    pieces += [Piece(f"{line}\n", "footer") for line in around["footer"]]
    return Converted(pieces, [f"{note} from {source.name}" for note in notes])


def _no_picture(_: object) -> dict[str, str]:
    return {"src": ""}


def _around(archive: zipfile.ZipFile, kind: str) -> Iterator[str]:
    """Return the distinct texts of all headers or all footers. Left and right pages often repeat them."""
    texts = {}
    for name in sorted(archive.namelist(), key=natural_order):
        if re.fullmatch(rf"word/{kind}\d*\.xml", name):
            try:
                root = ElementTree.fromstring(member(archive, name))
            except (ElementTree.ParseError, Unreadable):
                texts[f"[a {kind} of this document is damaged]"] = None
                continue
            for paragraph in root.iter(f"{_WORD}p"):
                line = "".join(_run_text(element) for element in paragraph.iter())
                texts[" ".join(line.split())] = None
    return (text for text in texts if text)


def _run_text(element: ElementTree.Element) -> str:
    if element.tag == f"{_WORD}t":
        return element.text or ""
    if element.tag in (f"{_WORD}tab", f"{_WORD}br"):
        return " "
    return ""


def _prepared(archive: zipfile.ZipFile) -> tuple[io.BytesIO, int, int]:
    """Return a copy of the document for mammoth, and how many hidden passages and how many numbers it lacks.

    In the copy, equations are text, because mammoth would leave them out. So are the numbers of paragraphs, which
    mammoth would count anew after each paragraph without one. Hidden text and pictures are removed.
    """
    unnumbered = 0
    main = _related(archive, "", "officeDocument") or "word/document.xml"
    numbering = _related(archive, main, "numbering")
    styles = _related(archive, main, "styles")
    hidden = 0
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as written:
        for info in archive.infolist():
            if info.filename.startswith("word/media/"):
                written.writestr(info.filename, b"")
                continue
            data = member(archive, info.filename)
            if info.filename.startswith("word/") and b"<m:oMath" in data:
                data = _EQUATION.sub(_equation_run, data)
            if info.filename == main and b"<w:vanish" in data:
                data, count = _HIDDEN_RUN.subn(b"", data)
                hidden += count
            if info.filename == main and numbering:
                try:
                    parts = (member(archive, numbering), member(archive, styles) if styles else None)
                    data, unnumbered = write_numbers(data, *parts)
                except ElementTree.ParseError as broken:
                    raise Unreadable(f"no Word document that can be read ({broken}); save it again") from broken
            if info.filename == numbering:
                data = NO_NUMBERING
            written.writestr(info.filename, data)
    copy.seek(0)
    return copy, hidden, unnumbered


def _related(archive: zipfile.ZipFile, part: str, kind: str) -> str | None:
    """Return the name of the file that is the ``kind`` of another file, such as its numbering, or of the archive."""
    folder, name = posixpath.split(part)
    try:
        relations = ElementTree.fromstring(member(archive, posixpath.join(folder, "_rels", f"{name}.rels")))
    except (ElementTree.ParseError, Unreadable):
        return None
    for relation in relations:
        target = posixpath.normpath(posixpath.join(folder, relation.get("Target", ""))).lstrip("/")
        if relation.get("Type", "").endswith(f"/{kind}") and target in archive.namelist():
            return target
    return None


def _equation_run(equation: re.Match[bytes]) -> bytes:
    try:
        # An equation cut out of its document lacks the declarations of its prefixes, without which no parser reads it.
        namespaces = dict.fromkeys(re.findall(rb"[ <](\w+):\w", equation[0]))
        declared = b" ".join(b'xmlns:%s="x"' % prefix for prefix in namespaces if prefix not in (b"m", b"xmlns"))
        root = ElementTree.fromstring(b"<x %s %s>%s</x>" % (_MATHS_NAMESPACE, declared, equation[0]))
    except ElementTree.ParseError:
        return equation[0]
    text = _linear(root)
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").encode()
    return b'<w:r><w:t xml:space="preserve"> %s </w:t></w:r>' % escaped


def _linear(element: ElementTree.Element) -> str:
    """Return an equation on one line: ``x^2 = (a + b)/2``."""
    kind = element.tag.removeprefix(_MATHS)
    if kind == "t":
        return element.text or ""
    parts = [text for text in (_linear(child) for child in element) if text]
    if kind == "rad":
        return f"√({''.join(parts)})"
    signs = _BETWEEN_PARTS.get(kind)
    if signs is None:
        return "".join(parts)
    parts = [part if part.isalnum() else f"({part})" for part in parts]
    joined = parts[0] if parts else ""
    for number, part in enumerate(parts[1:]):
        joined += signs[min(number, len(signs) - 1)] + part
    return joined


def rtf_text(source: Source, _: ConverterOptions) -> Converted:
    """Convert an RTF file to text, decoding it with the code page that it declares.

    Footnotes are inserted where they are referenced; hidden text is left out.
    """
    from striprtf.striprtf import rtf_to_text

    # RTF is ASCII: other characters are escapes, which striprtf decodes by the code page.
    markup = source.read().decode("latin-1")
    markup, _ = _rewritten(markup, re.compile(r"\{\\footnote(?![a-z])"), "{ [footnote:", "]}")
    markup, hidden = _rewritten(markup, re.compile(r"\{\\v(?![a-z0-9])"))
    markup = markup.replace(r"\ansicpg10000", "")  # Macintosh, which Python knows by another name
    page = re.search(r"\\(mac|pca|pc)\b", markup[:400])
    encoding = "cp1252"
    if page and r"\ansicpg" not in markup[:400]:
        encoding = _RTF_PAGES[page[1]]
    try:
        text = rtf_to_text(markup, encoding=encoding, errors="replace")
    except Exception as broken:  # striprtf has no error of its own
        raise Unreadable(f"no RTF that striprtf can read ({broken}); save it again, or as .docx") from broken
    text = whole_characters(text)
    notes = []
    if hidden:
        notes.append(f"{counted(hidden, 'hidden passage')} left out from {source.name}")
    invalid = text.count("\ufffd")
    if invalid:
        notes.append(f"{counted(invalid, 'character')} of {source.name} could not be read")
    if not text.endswith("\n"):
        text += "\n"
    return Converted([Piece(text)], notes)


def _rewritten(markup: str, start: re.Pattern[str], begin: str = "", end: str = "") -> tuple[str, int]:
    """Replace the ends of groups that begin with ``start`` by ``begin`` and ``end``; also return the number of groups.

    If ``begin`` and ``end`` are empty, the groups are removed.
    """
    parts = []
    at = count = 0
    for found in start.finditer(markup):
        close = _closing_brace(markup, found.start())
        if found.start() < at or close is None:
            continue
        inside = markup[found.end() : close] if begin else ""
        parts += [markup[at : found.start()], begin, inside, end]
        at = close + 1
        count += 1
    return "".join([*parts, markup[at:]]), count


def _closing_brace(markup: str, start: int) -> int | None:
    depth = 0
    for brace in re.compile(r"\\[{}\\]|[{}]").finditer(markup, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None
