"""Detect a file's format from its bytes, and choose its converter from one table.

Names mislead (an Excel export may be HTML, a .doc may be RTF), so the suffix decides only between text formats: CSV,
and HTML, mail or a notebook without its usual beginning. If a format is recognised but cannot be read, the error names
a workaround if there is one.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import BinaryIO

from memagent_lib.documents.converters.archives import member, open_archive
from memagent_lib.documents.converters.book_text import book_text
from memagent_lib.documents.converters.converted import (
    Converted,
    ConverterOptions,
    Lazily,
    Piece,
    Source,
    Unreadable,
    printable,
)
from memagent_lib.documents.converters.encodings import marked_encoding, unmarked_utf16
from memagent_lib.documents.converters.html_text import html_text, page_label
from memagent_lib.documents.converters.mail_text import mail_text
from memagent_lib.documents.converters.notebook_text import notebook_text
from memagent_lib.documents.converters.office_text import is_word, rtf_text, word_text
from memagent_lib.documents.converters.pdf_text import pdf_text
from memagent_lib.documents.converters.plain_text import plain_text, whole_text
from memagent_lib.documents.converters.subtitle_text import SUBTITLES, subtitle_text
from memagent_lib.documents.converters.table_text import csv_text, spreadsheet_text
from memagent_lib.documents.converters.xml_text import xml_text
from memagent_lib.text import whole_characters

HEAD_BYTES = 1 << 16
TAIL_BYTES = 1 << 10
# Control bytes that occur in text: terminal logs have escapes and backspaces.
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\x1b\x08")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def _page(source: Source, options: ConverterOptions) -> Converted:
    with source.open() as stream:
        label = page_label(stream.read(HEAD_BYTES))
    page, notes = whole_text(source, options, label)
    text, left_out = html_text(page, is_xml=source.name.lower().endswith(_XHTML_SUFFIXES))
    return Converted([Piece(text)], [*notes, *(f"{note} from {source.name}" for note in left_out)])


def _mail(source: Source, options: ConverterOptions) -> Converted:
    return mail_text(source, options, convert)


CONVERTERS: dict[str, Callable[[Source, ConverterOptions], Converted]] = {
    "csv": csv_text,
    "docx": word_text,
    "epub": book_text,
    "html": _page,
    "ipynb": notebook_text,
    "mail": _mail,
    "pdf": pdf_text,
    "rtf": rtf_text,
    "spreadsheet": spreadsheet_text,
    "subtitles": subtitle_text,
    "text": plain_text,
    "xml": xml_text,
}
"""The converter of each format. :func:`format_of` must recognise a new format too: text by :data:`_TEXT_SUFFIXES`."""
_TEXT_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".tab": "csv"}  # text formats that only the name tells apart
_IN_ARCHIVES = {  # a file that only archives of this format have
    "word/document.xml": "docx",
    "xl/workbook.xml": "spreadsheet",
    "xl/workbook.bin": "spreadsheet",
    "META-INF/container.xml": "epub",
}
_UNREAD_ARCHIVES = {
    "ppt/presentation.xml": "a PowerPoint presentation; save it as PDF",
    "visio/document.xml": "a Visio drawing; save it as PDF",
    "fixeddocseq.fdseq": "an XPS document; print it to PDF",
    "index/presentation.iwa": "a Keynote presentation; export it as PDF",
    "index/calculationengine.iwa": "a Numbers spreadsheet; export it as .xlsx or CSV",
    "index/document.iwa": "a Pages document; export it as .docx or PDF",
    "contents/section0.xml": "a Hangul document (.hwpx); save it as .docx or PDF",
    "androidmanifest.xml": "an Android package, which holds no document",
    "meta-inf/manifest.mf": "a Java archive, which holds no document",
}
_UNREAD_ODF = {  # the beginning of the type that an OpenDocument file declares; templates have a suffix
    "application/vnd.oasis.opendocument.text": "an OpenDocument text (.odt); save it as .docx or PDF",
    "application/vnd.oasis.opendocument.presentation": "an OpenDocument presentation; save it as PDF",
    "application/vnd.oasis.opendocument.graphics": "an OpenDocument drawing; save it as PDF",
}
_IN_OLE = {  # names of streams in files of the older Office, in UTF-16
    "EncryptedPackage": "encrypted; save a copy without a password",
    "WordDocument": "a Word 97 document (.doc); save it as .docx or PDF",
    "PowerPoint Document": "a PowerPoint 97 presentation (.ppt); save it as PDF",
    "__substg1.0_": "an Outlook message (.msg); save it as .eml or text",
    "VisioDocument": "a Visio drawing; save it as PDF",
    "HwpSummaryInformation": "a Hangul document (.hwp); save it as .docx or PDF",
    "Quill": "a Publisher document; save it as PDF",
}
_PICTURE = "a picture; its text needs text recognition (OCR) first"
_UNREAD_MARKS = {
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*"), _PICTURE),
    b"AT&TFORM": "a DjVu book; convert it to PDF",
    b"\x1f\x8b": "compressed (gzip); unpack it",
    b"BZh": "compressed (bzip2); unpack it",
    b"\xfd7zXZ": "compressed (xz); unpack it",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"Rar!": "a RAR archive; unpack it",
    b"PAR1": "a Parquet table; save it as CSV",
    b"SQLite format 3": "an SQLite database; export a table as CSV",
    b"\x28\xb5\x2f\xfd": "compressed (zstandard); unpack it",
    b"bplist00": "a web archive or property list of Apple; save the page as HTML or PDF",
    b"ITSF\3": "a compiled help file (.chm); unpack it and give the folder",
    b"ITOLITLS": "a book in Microsoft's .lit; convert it to EPUB",
    b"\xffWPC": "a WordPerfect document; save it as .docx or PDF",
    b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d": "a OneNote section; export it as PDF or .docx",
    b"!BDN": "an Outlook mailbox (.pst); export its messages as .eml or .mbox",
    b"ARROW1\0": "an Arrow table; save it as CSV",
    b"\x93NUMPY": "a NumPy array, which holds no document",
}
_UNREAD_BYTES = (  # marks that would be too short, or are not at the very beginning
    (rb"\x00\x00..ftyp", "a picture, film or recording; its text needs recognition or transcription first"),
    (rb"RIFF.{4}WEBP", _PICTURE),
    (rb"RIFF.{4}WAVE|ID3[\x02-\x04]", "a sound recording; transcribe it first"),
    (rb"\x00\x01\x00\x00Standard (ACE|Jet) DB", "an Access database; export a table as CSV"),
    (rb"GGUF[\x01-\x03]\x00", "a model (GGUF), not a document; give it to --model"),
    (rb".{257}ustar[\x00 ]", "a tar archive; unpack it and give the folder"),
)
_UNREAD_TEXTS = (  # formats that are written as text and are not a text to read
    (r"\s*<\?xml.{0,500}?<\?mso-application\s+progid=.Word", "a Word 2003 document in XML; save it as .docx or PDF"),
    (r"\s*<\?xml.{0,500}?<\?mso-application\s+progid=.Excel", "an Excel 2003 table in XML; save it as .xlsx or CSV"),
    (r"\s*<\?xml.{0,500}?<office:document\b", "a flat OpenDocument file; save it as .docx, .xlsx or PDF"),
    (r"\s*(<\?xml[^>]*>\s*)?(<!--.{0,500}?-->\s*|<!DOCTYPE\s+svg[^>]*>\s*)*<svg\b", "a drawing (SVG); save it as PDF"),
    (r"\s*%!PS", "a PostScript document; convert it to PDF"),
    (r"\s*\[Script Info\]|\s*<SAMI\b", "subtitles in a format that is not read; convert them to .srt"),
    (r"WARC/\d", "a web archive (WARC); unpack it and give the folder"),
)
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_MAIL_HEADER = re.compile(
    r"^(Received|Message-ID|MIME-Version|Return-Path|Delivered-To|DKIM-Signature): ?", re.I | re.M
)
_MAIL_START = re.compile(r"(?:From [^\n]+\n)?(?:[A-Za-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}")
_XHTML_SUFFIXES = (".xhtml", ".xht")
_HTML_SUFFIXES = (".html", ".htm", *_XHTML_SUFFIXES)
_XML_START = re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE\s+(?!html\b)[\w.:-]+[\s>\[])", re.IGNORECASE)
_XML_SUFFIXES = (".xml", ".nxml", ".tei", ".dbk", ".rss", ".atom", ".fb2", ".dita", ".opml", ".tmx", ".xliff", ".xlf")
_SUBTITLE_SUFFIXES = (".srt", ".vtt")
_MAIL_SUFFIXES = (".eml", ".mbox", ".mht", ".mhtml", ".emlx")


def convert(source: Source, options: ConverterOptions | None = None, kind: str | None = None) -> Converted:
    """Convert a file to text. Its format is detected unless ``kind`` names it.

    Raises :class:`Unreadable` if no converter reads the format, or if the file is damaged, encrypted or too large.
    """
    try:
        converted = CONVERTERS[kind or format_of(source, options)](source, options or ConverterOptions())
    except RecursionError:
        raise Unreadable("nested too deep to be read; save it as text") from None
    notes = [printable(note) for note in converted.notes]
    if isinstance(converted.pieces, Lazily):
        return Converted(converted.pieces, notes)
    # Escapes in JSON and RTF can write half a character, which no tokenizer takes.
    pieces = [Piece(whole_characters(text), printable(where)) for text, where in converted.pieces]
    return Converted(pieces, notes)


def format_of(source: Source, options: ConverterOptions | None = None) -> str:
    """Return the key of a file's format in :data:`CONVERTERS`.

    Raises :class:`Unreadable` if the file is empty or no converter reads its format.
    """
    with source.open() as stream:
        head = stream.read(HEAD_BYTES)
        if not head:
            raise Unreadable("empty; there is nothing to read")
        if _is_pdf(head, stream):
            return "pdf"
        if head.startswith(b"PK\x03\x04"):
            return _format_of_archive(stream)
        if head.startswith(_OLE):
            return _format_of_ole(source)
    for mark, reason in _UNREAD_MARKS.items():
        if head.startswith(mark):
            raise Unreadable(reason)
    for pattern, reason in _UNREAD_BYTES:
        if re.match(pattern, head, re.DOTALL):
            raise Unreadable(reason)
    # The type and creator of a Palm database, the container of Kindle's older format.
    if head[60:68] in (b"BOOKMOBI", b"TEXtREAd"):
        raise Unreadable("a Kindle book (.mobi); convert it to EPUB")
    if head.lstrip().startswith(b"{\\rtf"):
        return "rtf"
    if options is None or options.encoding is None:
        _require_text(head)
    return _format_of_text(source, head)


def _is_pdf(head: bytes, stream: BinaryIO) -> bool:
    """Return whether the file is a PDF. Other bytes may come first, as in a download saved with its headers."""
    at = head[:1024].find(b"%PDF-")
    if at <= 0:
        return at == 0
    size = stream.seek(0, 2)
    stream.seek(max(0, size - TAIL_BYTES))
    return b"startxref" in stream.read()


def _format_of_archive(stream: BinaryIO) -> str:
    archive = open_archive(stream)
    names = archive.namelist()
    for name, kind in _IN_ARCHIVES.items():
        if name in names:
            return kind
    if is_word(archive):
        return "docx"
    declared = ""
    if "mimetype" in names:
        declared = member(archive, "mimetype")[:200].decode("ascii", "replace").strip()
    if declared.startswith("application/vnd.oasis.opendocument.spreadsheet"):
        return "spreadsheet"
    # OpenDocument declares its type in a member; the other formats are recognised by a member's name.
    known = {name.lower() for name in names}
    reasons = [reason for mark, reason in _UNREAD_ODF.items() if declared.startswith(mark)]
    reasons += [reason for mark, reason in _UNREAD_ARCHIVES.items() if mark in known]
    raise Unreadable(reasons[0] if reasons else "a zip archive; unpack it and give the folder")


def _format_of_ole(source: Source) -> str:
    data = source.read()
    for name, reason in _IN_OLE.items():
        # The directory of an OLE file lists its streams by name; this finds one without a parser.
        if name.encode("utf-16-le") in data:
            raise Unreadable(reason)
    if any(name.encode("utf-16-le") in data for name in ("Workbook", "Book")):
        return "spreadsheet"
    raise Unreadable("a file of an older Office program; save it as .docx, .xlsx or PDF")


def _require_text(head: bytes) -> None:
    if marked_encoding(head) or unmarked_utf16(head):
        return
    zero = head.find(0)
    if zero >= 0:
        raise Unreadable(
            f"a binary file (a zero byte at {zero:,}); give text, Markdown, HTML, PDF, Word, EPUB or a table"
        )
    odd = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if odd > len(head) / 50:
        raise Unreadable(
            f"a binary file ({odd:,} control bytes in the first {len(head):,}); "
            "give text, Markdown, HTML, PDF, Word, EPUB or a table"
        )


def _format_of_text(source: Source, head: bytes) -> str:
    suffix = "." + source.name.rpartition(".")[2].lower()
    codec = marked_encoding(head) or unmarked_utf16(head) or "latin-1"
    text = codecs.decode(head, codec, "replace").removeprefix("\ufeff")
    for pattern, reason in _UNREAD_TEXTS:
        if re.match(pattern, text[:4096], re.DOTALL):
            raise Unreadable(reason)
    if suffix in _MAIL_SUFFIXES or (_MAIL_START.match(text) and _MAIL_HEADER.search(_headers(text))):
        return "mail"
    if suffix in _HTML_SUFFIXES or _HTML_START.match(text[:4096]):
        return "html"
    if "-->" in text and (suffix in _SUBTITLE_SUFFIXES or SUBTITLES.match(text)):
        return "subtitles"
    if suffix in _XML_SUFFIXES or _XML_START.match(text):
        return "xml"
    if suffix == ".ipynb" or (text.lstrip().startswith("{") and _is_notebook(source, text)):
        return "ipynb"
    return _TEXT_SUFFIXES.get(suffix, "text")


def _headers(text: str) -> str:
    return re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]


def _is_notebook(source: Source, head: str) -> bool:
    """Return whether the file is a notebook: its JSON begins with the cells and ends with the version."""
    with source.open() as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL_BYTES))
        tail = stream.read()
    return '"cells"' in head[:4096] and b'"nbformat"' in tail
