"""Convert Word documents (.docx, by mammoth and the HTML converter) and RTF (by striprtf) to text.

This module adds what those libraries leave out: headers and footers of both formats, comments, footnotes and text boxes
of RTF. The text of Word is first rewritten so that mammoth reads all of it.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
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
from memagent_lib.documents.converters.word_markup import WORD, make_readable, parsed
from memagent_lib.documents.converters.word_numbers import NO_NUMBERING, write_numbers
from memagent_lib.text import whole_characters

_FOOTNOTE_RETURN = re.compile(r' ?<a href="#[^"]*">↑</a>')
_WORD_TYPE = re.compile(rb"(?:wordprocessingml|ms-word)\.(?:document|template)[\w.]*\.main\+xml")
_BRACES = re.compile(r"\\[{}\\]|[{}]")
_RTF_START = re.compile(r"\{(?:\\[a-z]+-?\d* ?|\s)+")
_RTF_PAGES = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}


def is_word(archive: zipfile.ZipFile) -> bool:
    """Return whether the archive declares itself a Word document. Word Online does not call its text document.xml."""
    types = "[Content_Types].xml"
    return types in archive.namelist() and bool(_WORD_TYPE.search(member(archive, types)))


def word_text(source: Source, _: ConverterOptions) -> Converted:
    """Convert a .docx: headers, body with tables, text boxes, footnotes and comments, footers."""
    import mammoth

    left_out: Counter[str] = Counter()
    with source.open() as stream:
        archive = open_archive(stream)
        around = {kind: list(_around(archive, kind, left_out)) for kind in ("header", "footer")}
        body, unnumbered = _prepared(archive, left_out)
        try:
            page = mammoth.convert_to_html(
                body,
                style_map="comment-reference => sup",
                convert_image=mammoth.images.img_element(lambda _: {"src": ""}),
            )
        except Exception as broken:  # mammoth checks nothing: KeyError, ExpatError and others for a damaged file
            raise Unreadable(f"no Word document that mammoth can read ({broken}); save it again") from broken
    text, notes = html_text(_FOOTNOTE_RETURN.sub("", page.value))
    left_out["unknown symbol"] = sum("w:sym element" in message.message for message in page.messages)
    notes += [f"{counted(number, noun)} left out" for noun, number in left_out.items() if number]
    if unnumbered:
        notes.append(f"{counted(unnumbered, 'paragraph number')} in an unknown format left out")
    # Once each, not once per page as they are printed.
    pieces = [Piece(f"{line}\n", "header") for line in around["header"]]
    pieces.append(Piece(text))
    pieces += [Piece(f"{line}\n", "footer") for line in around["footer"]]
    return Converted(pieces, [f"{note} from {source.name}" for note in notes])


def _around(archive: zipfile.ZipFile, kind: str, left_out: Counter[str]) -> Iterator[str]:
    """Return the distinct texts of all headers or all footers. Left and right pages often repeat them."""
    texts = {}
    for name in sorted(archive.namelist(), key=natural_order):
        if re.fullmatch(rf"word/{kind}\d*\.xml", name):
            try:
                root = _readable(member(archive, name), left_out)
            except Unreadable:
                root = None
            if root is None:
                texts[f"[a {kind} of this document is damaged]"] = None
                continue
            for paragraph in root.iter(f"{WORD}p"):
                texts[" ".join("".join(_words(paragraph)).split())] = None
    return (text for text in texts if text)


def _words(element: ElementTree.Element) -> Iterator[str]:
    """Yield the text of a paragraph without the paragraphs in it, which are those of text boxes."""
    for child in element:
        if child.tag == f"{WORD}t":
            yield child.text or ""
        elif child.tag in (f"{WORD}tab", f"{WORD}br"):
            yield " "
        elif child.tag == f"{WORD}noBreakHyphen":
            yield "-"
        elif child.tag not in (f"{WORD}p", f"{WORD}moveFrom"):
            yield from _words(child)


def _prepared(archive: zipfile.ZipFile, left_out: Counter[str]) -> tuple[io.BytesIO, int]:
    """Return a copy of the document for mammoth, and how many numbers it lacks; count other losses in ``left_out``.

    In the copy, the numbers of paragraphs are text, because mammoth would count them anew after each paragraph without
    one. Hidden text and pictures are removed.
    """
    unnumbered = 0
    main = _related(archive, "", "officeDocument") or "word/document.xml"
    numbering = _related(archive, main, "numbering")
    styles = _related(archive, main, "styles")
    others = [_related(archive, main, kind) or f"word/{kind}.xml" for kind in ("footnotes", "endnotes", "comments")]
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as written:
        for info in archive.infolist():
            if info.filename.startswith("word/media/"):
                written.writestr(info.filename, b"")
                continue
            data = member(archive, info.filename)
            root = _readable(data, left_out) if info.filename in (main, *others) else None
            if root is not None:
                if info.filename == main and numbering:
                    parts = (member(archive, numbering), member(archive, styles) if styles else None)
                    try:
                        unnumbered = write_numbers(root, *parts)
                    except ElementTree.ParseError as broken:
                        raise Unreadable(f"no Word document that can be read ({broken}); save it again") from broken
                data = ElementTree.tostring(root, encoding="utf-8")
            if info.filename == numbering:
                data = NO_NUMBERING
            written.writestr(info.filename, data)
    copy.seek(0)
    return copy, unnumbered


def _readable(data: bytes, left_out: Counter[str]) -> ElementTree.Element | None:
    """Return a part of a document as mammoth reads it; ``None`` if it is damaged, which mammoth then reports."""
    try:
        root = parsed(data)
    except ElementTree.ParseError:
        return None
    left_out += make_readable(root)
    return root


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


def rtf_text(source: Source, _: ConverterOptions) -> Converted:
    """Convert an RTF file to text, decoding it with the code page that it declares: headers, body, footers.

    Footnotes, comments and text boxes are inserted where they are referenced; hidden text is left out.
    """
    # RTF is ASCII: other characters are escapes, which striprtf decodes by the code page.
    markup = source.read().decode("latin-1").lstrip()
    markup, _ = _rewritten(markup, "footnote", lambda note: _bracketed("footnote", note))
    markup, _ = _rewritten(markup, "annotation", lambda comment: _bracketed("comment", comment))
    markup, _ = _rewritten(markup, "shp(?:grp)?", _text_boxes)
    if r"\listtext" not in markup:
        # The numbers of paragraphs, which the newer form has as \listtext.
        markup, _ = _rewritten(markup, "pntext", lambda number: f"{{{number}}}")
    markup, hidden = _rewritten(markup, "v(?![0-9])", lambda _: "")
    equations = sum(1 for _ in _groups(markup, "moMath"))
    markup = markup.replace(r"\ansicpg10000", "")  # Macintosh, which Python knows by another name
    page = re.search(r"\\(mac|pca|pc)\b", markup[:400])
    encoding = "cp1252"
    if page and r"\ansicpg" not in markup[:400]:
        encoding = _RTF_PAGES[page[1]]
    around = {kind: _rtf_around(markup, f"{kind}[lrf]?", encoding) for kind in ("header", "footer")}
    markup, _ = _rewritten(markup, "(?:header|footer)[lrf]?", lambda _: "")
    text = _rtf_to_text(markup, encoding)
    if not text.endswith("\n"):
        text += "\n"
    pieces = [Piece(f"{line}\n", "header") for line in around["header"]]
    pieces.append(Piece(text))
    pieces += [Piece(f"{line}\n", "footer") for line in around["footer"]]
    notes = []
    for number, noun in ((hidden, "hidden passage"), (equations, "equation")):
        if number:
            notes.append(f"{counted(number, noun)} left out from {source.name}")
    invalid = sum(piece.text.count("\ufffd") for piece in pieces)
    if invalid:
        notes.append(f"{counted(invalid, 'character')} of {source.name} could not be read")
    return Converted(pieces, notes)


def _rtf_to_text(markup: str, encoding: str) -> str:
    from striprtf.striprtf import rtf_to_text

    try:
        return whole_characters(rtf_to_text(markup, encoding=encoding, errors="replace"))
    except Exception as broken:  # striprtf has no error of its own
        raise Unreadable(f"no RTF that striprtf can read ({broken}); save it again, or as .docx") from broken


def _rtf_around(markup: str, word: str, encoding: str) -> list[str]:
    """Return the distinct lines of all headers or all footers."""
    start = _RTF_START.match(markup)
    fonts = next(_groups(markup, "fonttbl"), None)
    # Without the file's code page and fonts, no escape could be decoded.
    head = (start[0] if start else "") + (markup[fonts.start : fonts.end] if fonts else "")
    texts = [_rtf_to_text(f"{head} {group.inside}}}", encoding) for group in _groups(markup, word)]
    lines = (" ".join(line.split()) for text in texts for line in text.split("\n"))
    return list(dict.fromkeys(line for line in lines if line))


def _text_boxes(shape: str) -> str:
    return "".join(_bracketed("text box", box.inside) for box in _groups(shape, "shptxt"))


def _bracketed(name: str, inside: str) -> str:
    text = inside.strip().removesuffix(r"\par")
    return f"{{ [{name}: {text}]}}"


class _Group(NamedTuple):
    start: int
    end: int
    inside: str
    """The group without its braces and its first control word."""


def _groups(markup: str, word: str) -> Iterator[_Group]:
    """Yield the groups that begin with the control word of the pattern ``word``, but not the groups inside of them."""
    at = 0
    closing: dict[int, int] | None = None
    # An even number of backslashes before the brace, because \{ is a brace of the text.
    for found in re.compile(rf"(?<!\\)(?:\\\\)*(\{{)\s*(?:\\\*\s*)?\\{word}(?![A-Za-z])").finditer(markup):
        start = found.start(1)
        if start < at:
            continue
        close = _closing_brace(markup, start) if closing is None else closing.get(start)
        if close is not None:
            at = close + 1
            yield _Group(start, at, markup[found.end() : close])
        elif closing is None:
            # A file that is cut off may have many such groups, each of which would be searched to its end.
            closing = _closing_braces(markup)


def _rewritten(markup: str, word: str, rewrite: Callable[[str], str]) -> tuple[str, int]:
    """Replace the groups that begin with a control word by what ``rewrite`` returns; also return their number."""
    parts = []
    at = count = 0
    for group in _groups(markup, word):
        parts += [markup[at : group.start], rewrite(group.inside)]
        at = group.end
        count += 1
    return "".join([*parts, markup[at:]]), count


def _closing_brace(markup: str, start: int) -> int | None:
    depth = 0
    for brace in _BRACES.finditer(markup, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _closing_braces(markup: str) -> dict[int, int]:
    closing = {}
    opened = []
    for brace in _BRACES.finditer(markup):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            closing[opened.pop()] = brace.start()
    return closing
