"""Convert files to text by other projects' libraries, with the position of each piece and a note on each gap.

A file's format is that of its bytes, because names mislead (an Excel export may be HTML, a .doc may be RTF); the suffix
decides only between formats that are text. :data:`CONVERTERS` has one function per format, and a new one needs an entry
there and in :func:`format_of`.
"""

from __future__ import annotations

import csv
import datetime
import email
import email.policy
import io
import json
import logging
import posixpath
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree

from memagent_lib.documents.encodings import Converted, Piece, Source, Unreadable, archive_of, encoding_of, mark_of
from memagent_lib.documents.html_text import html_text
from memagent_lib.documents.word_text import word_text
from memagent_lib.errors import one_line
from memagent_lib.text import whole_characters

BLOCK_CHARS = 1 << 20
MAIL_HEADERS = ("From", "To", "Cc", "Date", "Subject")
SAME_WORDS = 0.7
ROWS_PER_HEADER = 40
STAMP_CHARS = 100
"""On a page that a picture covers, less printed text than this may be a stamp or page number on a scan."""
READ = "text, HTML, JSON, PDF, Word (.docx), RTF, EPUB, e-mail, notebooks, spreadsheets and CSV"
# Ligatures, soft hyphens and the bullets of Word's lists, which no search finds.
_SPELLED = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xAD: "", 0xF0B7: "•", 0xF0A7: "•"}
_UNKNOWN = re.compile(r"[\x00-\x08\x0e-\x1f\ue000-\uf8ff]")
_IN_ARCHIVES = {"word/": "docx", "xl/": "spreadsheet", "META-INF/container.xml": "epub"}
_SUFFIXES = {".htm": "html", ".html": "html", ".xhtml": "html", ".csv": "csv", ".tsv": "csv"}
_SUFFIXES |= {".json": "json", ".jsonl": "json", ".ndjson": "json", ".ipynb": "ipynb", ".eml": "mail", ".mbox": "mail"}
_UNSAVED = re.compile(rb'<c(?![^>]*t="str")[^>]*><f[^<]*(?:/>|</f>)(?:<v/>|<v></v>)?</c>')
_HTML_START = re.compile(rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.I | re.S)
_MAIL_START = re.compile(rb"(?:From [^\n]*\n)?(?:[A-Za-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*){2,}")
# A line that begins a mail in a mailbox. Many programs leave lines of a body that begin with "From " as they are.
_NEXT_MAIL = re.compile(rb"(?:^|\n)\r?\nFrom [^\n]*\b(?:19|20)\d\d\b[^\n]*\n(?=[!-9;-~]+:)")
_MAIL_HEADER = re.compile(rb"^(?:Received|Message-ID|MIME-Version|Return-Path|Delivered-To):", re.I | re.M)


def convert(path: str | Path, name: str | None = None, encoding: str | None = None) -> Converted:
    """Convert a file to text.

    ``encoding`` is that of text, HTML and JSON. By default it is detected. Raises :class:`Unreadable`
    if the file's format is not read, or if it is damaged, encrypted or too large.
    """
    path = Path(path)
    return converted(Source(name or path.name, lambda: path.open("rb"), encoding))


def converted(source: Source) -> Converted:
    kind = format_of(source)
    converter, library = CONVERTERS[kind]
    try:
        found = converter(source)
        pieces = found if callable(found) else [Piece(whole_characters(text), where) for text, where in found]
    except (Unreadable, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:  # the libraries raise almost anything for a damaged file, and Rust's panics
        reason = one_line(broken)[:200] or type(broken).__name__
        raise Unreadable(f"not a file that {library or 'this program'} can read ({reason}); save it again") from broken
    if callable(pieces):
        with source.open() as stream:
            return Converted(pieces, source.notes, stream.seek(0, io.SEEK_END), library)
    pieces = [piece for piece in pieces if piece.text.strip()]
    if not pieces:
        source.notes.append(f"{source.name} has no text")
    return Converted(lambda: pieces, source.notes, sum(len(piece.text) for piece in pieces), library)


def format_of(source: Source) -> str:
    """Return the key of a file's format in :data:`CONVERTERS`. Raises :class:`Unreadable` if it is not read."""
    with source.open() as stream:
        head = stream.read(1 << 16)
    if not head:
        raise Unreadable("empty; there is nothing to read")
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.lstrip().startswith(b"{\\rtf"):
        return "rtf"
    if head.startswith(b"PK\x03\x04"):
        with source.open() as stream:
            archive = archive_of(stream)
            names = archive.namelist()
            kind = archive.read("mimetype") if "mimetype" in names else b""
        for folder, found in _IN_ARCHIVES.items():
            if any(name.startswith(folder) for name in names):
                return found
        if b"opendocument.spreadsheet" in kind:
            return "spreadsheet"
    elif head.startswith(b"\xd0\xcf\x11\xe0") and "Workbook".encode("utf-16-le") in source.read():
        return "spreadsheet"
    is_binary = not mark_of(head) and re.search(rb"[\0-\x06\x0e-\x1a]", head)
    if is_binary or head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise Unreadable(f"not in a format that is read ({READ}); convert it, for instance to PDF or .docx")
    if _HTML_START.match(head):
        return "html"
    if _MAIL_START.match(head) and _MAIL_HEADER.search(head):
        return "mail"
    return _SUFFIXES.get(Path(source.name).suffix.lower(), "text")


# Text and tables, which are read as streams: a gigabyte takes no more memory than a page.


def _codec(source: Source) -> str:
    """Return the encoding of a stream, after a note about its invalid bytes."""
    with source.open() as stream:
        codec = source.encoding or encoding_of(stream)
        stream.seek(0)
        try:
            for _ in _decoded(stream, codec, "strict"):
                pass
        except UnicodeDecodeError:
            stream.seek(0)
            invalid = sum(block.count("\ufffd") for block in _decoded(stream, codec))
            source.note_replaced(invalid, f"stand for bytes that are not valid {codec.upper()}")
    return codec


def _decoded(stream: BinaryIO, codec: str, errors: str = "replace") -> Iterator[str]:
    text = io.TextIOWrapper(stream, encoding=codec, errors=errors, newline="")
    try:
        while block := text.read(BLOCK_CHARS):
            yield block
    finally:
        text.detach()


def plain_text(source: Source) -> Callable[[], Iterator[Piece]]:
    """Read text unchanged, so that positions are those in the file."""
    codec = _codec(source)

    def pieces() -> Iterator[Piece]:
        with source.open() as stream:
            yield from map(Piece, _decoded(stream, codec))

    return pieces


def csv_text(source: Source) -> Callable[[], Iterator[Piece]]:
    codec = _codec(source)
    with source.open() as stream:
        header = next(_decoded(stream, codec), "").partition("\n")[0]
    delimiter = max(",;\t|", key=header.count)
    csv.field_size_limit(sys.maxsize)

    def pieces() -> Iterator[Piece]:
        with source.open() as stream:
            text = io.TextIOWrapper(stream, codec, "replace", newline="")
            yield from map(Piece, _row_lines(csv.reader(text, delimiter=delimiter)))

    return pieces


def _row_lines(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield one line per row, and the header again every :data:`ROWS_PER_HEADER` rows, as later chunks need it.

    A first row with an empty cell or a number is not a header.
    """
    header = ""
    for number, row in enumerate(rows):
        cells = [_cell(value) for value in row]
        line = " | ".join(cells).rstrip(" |")
        if number == 0 and all(re.search(r"[^\W\d]", cell) for cell in cells):
            header = f"{line}\n"
        elif header and number % ROWS_PER_HEADER == 0:
            yield header
        if line:
            yield f"{line}\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"  # the digits that spreadsheets store: 0.1 + 0.2 is 0.3
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    return one_line(value)


def spreadsheet_text(source: Source) -> Iterator[Piece]:
    """Read every sheet with the values that were last calculated, hidden ones too."""
    from python_calamine import CalamineWorkbook, SheetVisibleEnum

    with source.open() as stream:
        _note_gaps(source, stream)
        stream.seek(0)
        book = CalamineWorkbook.from_filelike(stream)
        for listed in book.sheets_metadata:
            sheet = book.get_sheet_by_name(listed.name)
            if listed.visible != SheetVisibleEnum.Visible:
                source.notes.append(f"sheet {listed.name} of {source.name} is hidden; it is read all the same")
            rows = sheet.to_python(skip_empty_area=False)
            # The file has the value of a merged cell once; a chunk that begins below needs it.
            for (top, left), (bottom, _) in sheet.merged_cell_ranges or []:
                for row in rows[top + 1 : bottom + 1]:
                    row[left] = rows[top][left]
            text = "".join(_row_lines(row for row in rows if any(value != "" for value in row)))
            yield Piece(f"Sheet {listed.name}\n{text}\n" if text else "", f"sheet {listed.name}")


def _note_gaps(source: Source, stream: BinaryIO) -> None:
    """Note what calamine leaves out of an .xlsx: values that no program has calculated, errors, charts and comments."""
    if not zipfile.is_zipfile(stream):
        return
    archive = archive_of(stream)
    names = archive.namelist()
    sheets = b"".join(archive.read(name) for name in names if name.startswith("xl/worksheets/sheet"))
    gaps = {
        # A formula may also have an empty text as its value.
        "formulas without a saved value": len(re.findall(_UNSAVED, sheets)),
        "cells with an error": sheets.count(b' t="e"'),
        "charts": sum(name.startswith("xl/charts/chart") for name in names),
        "sheets' comments": sum(name.startswith("xl/comments") for name in names),
    }
    source.notes += [f"{number:,} {what} left out from {source.name}" for what, number in gaps.items() if number]


# Texts with marks.


def page_text(source: Source) -> Iterator[Piece]:
    yield Piece(html_text(source.text(), source.name, source.notes))


def json_text(source: Source) -> Iterator[Piece]:
    """Read a line per value, with its keys, and an empty line after each object or list that stands in a list.

    Text that is not JSON is read as it is, with a note.
    """
    text = source.text()
    # Numbers as they are written, and objects as pairs, because a key may stand in one twice.
    load = json.JSONDecoder(object_pairs_hook=tuple, parse_float=str, parse_int=str).decode
    try:
        values = [load(text)]
    except ValueError:
        try:
            values = [load(line) for line in text.split("\n") if line.strip()]
        except ValueError:
            source.notes.append(f"{source.name} is not valid JSON; it is read as it is")
            yield Piece(text)
            return
    for number, value in enumerate(values, 1):
        lines = "".join(f"{line}\n" for line in _json_lines(value))
        yield Piece(lines, f"record {number}" if len(values) > 1 else "")


def _json_lines(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, tuple) and value:
        for name, inner in value:
            yield from _json_lines(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _json_lines(inner, key)
            if isinstance(inner, tuple | list):  # else its first value would follow the last one of the object before
                yield ""
    else:
        words = value if isinstance(value, str) else json.dumps(value)
        yield f"{key}: {words}" if key else words


def notebook_text(source: Source) -> Iterator[Piece]:
    import nbformat

    with warnings.catch_warnings(action="ignore"):
        cells = nbformat.reads(source.part(source.read(), source.name), as_version=4).cells
    pictures = 0
    for number, cell in enumerate(cells, 1):
        texts = [cell.source if cell.cell_type != "code" else f"```\n{cell.source}\n```"]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            pictures += any(kind.startswith("image/") for kind in data)
            error = f"{output.ename}: {output.evalue}" if "ename" in output else ""
            texts.append(output.get("text") or data.get("text/plain") or error)
        yield Piece(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts)) + "\n\n", f"cell {number}")
    if pictures:
        source.notes.append(f"{pictures:,} pictures left out from {source.name}")


def rtf_text(source: Source) -> Iterator[Piece]:
    from striprtf.striprtf import rtf_to_text

    # RTF is ASCII: other characters are escapes, which striprtf decodes by the file's code page.
    yield Piece(rtf_to_text(source.read().decode("latin-1").lstrip(), errors="replace") + "\n")


def book_text(source: Source) -> Iterator[Piece]:
    """Read the chapters of an EPUB in the order of its spine."""
    with source.open() as stream:
        book = archive_of(stream)
        package = ElementTree.fromstring(book.read("META-INF/container.xml")).find(".//{*}rootfile").get("full-path")
        content = ElementTree.fromstring(book.read(package))
        items = {item.get("id"): item.get("href") for item in content.iterfind(".//{*}item")}
        for number, reference in enumerate(content.iterfind(".//{*}itemref"), 1):
            name = unquote(items.get(reference.get("idref"), "?"))
            where = f"chapter {number} ({name})"
            try:
                data = book.read(posixpath.normpath(posixpath.join(posixpath.dirname(package), name)))
            except KeyError:
                source.notes.append(f"{where} of {source.name} is missing")
                continue
            yield Piece(html_text(source.part(data, where), source.name, source.notes), where)


def pdf_text(source: Source) -> Iterator[Piece]:
    """Read page by page: the print, the notes on it, and after the last page the fields of the form."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # its warnings go to the terminal; gaps are noted here
    unknown = 0
    with source.open() as stream:
        reader = PdfReader(stream)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("encrypted; save a copy without a password")
        for number, page in enumerate(reader.pages, 1):
            where = f"page {number}"
            try:
                text = _print_of(page, f"{where} of {source.name}", source.notes)
            except Exception as broken:  # pypdf raises almost anything for a broken page
                source.notes.append(f"{where} of {source.name} cannot be read: {one_line(broken)[:200]}")
                continue
            text = _UNKNOWN.sub("\ufffd", whole_characters(text).translate(_SPELLED))
            unknown += text.count("\ufffd")
            yield Piece(f"{text}\n", where)
        fields = {name: found.value for name, found in (reader.get_fields() or {}).items() if found.value}
        form = "".join(f"{name}: {str(value).removeprefix('/')}\n" for name, value in fields.items())
        yield Piece(form, "form")
        if reader.attachments:
            source.notes.append(f"files inside {source.name} left out: {', '.join(reader.attachments)}")
    source.note_replaced(unknown, "could not be read")


def _print_of(page: Any, where: str, notes: list[str]) -> str:
    """Return a page's text. A scan has none, or hardly any on a picture that covers the page."""
    pictures = [0.0]

    def measure(operator: bytes, operands: Any, matrix: Sequence[float], text_matrix: Any) -> None:
        if operator == b"Do":  # a picture fills the unit square of its matrix
            pictures.append(abs(matrix[0] * matrix[3] - matrix[1] * matrix[2]))

    text = page.extract_text(visitor_operand_before=measure).rstrip()
    is_covered = max(pictures) > float(page.mediabox.width * page.mediabox.height) / 2
    if not text.strip():
        notes.append(f"{where} has no text (a scan?)")
    elif is_covered and len(text) < STAMP_CHARS:
        notes.append(f"{where} is a picture with almost no text (a scan?)")
    written = [note.get_object().get("/Contents") for note in page.get("/Annots") or []]
    return text + "".join(f"\n[note: {words}]" for words in written if words)


# Mail.


def mail_text(source: Source) -> Iterator[Piece]:
    """Read a message, or each message of a mailbox: the headers that a person reads, the body, what is attached.

    Of a body in plain text and in HTML, the plain text is read if it has most of the words of the HTML; many plain
    bodies contain only "please view in HTML". An attachment is converted by its own format, or reported as left out.
    """
    data = source.read().removeprefix(b"\xef\xbb\xbf")
    mails = _NEXT_MAIL.split(data.partition(b"\n")[2]) if data.startswith(b"From ") else [data]
    for number, mail in enumerate(mails, 1):
        where = f"mail {number}" if len(mails) > 1 else ""
        try:
            message = email.message_from_bytes(mail, policy=email.policy.default)
            yield from [Piece(_headers(message), where), *_parts(message, where, source)]
        except Exception as broken:  # the standard library fails at some malformed headers
            source.notes.append(f"{where or 'the mail'} of {source.name} cannot be read: {one_line(broken)[:200]}")


def _headers(mail: EmailMessage) -> str:
    return "".join(f"{name}: {one_line(mail[name])}\n" for name in MAIL_HEADERS if mail[name]) + "\n"


def _parts(part: EmailMessage, where: str, source: Source) -> Iterator[Piece]:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        (inner,) = part.get_payload()
        yield Piece(_headers(inner), where)
        yield from _parts(inner, where, source)
    elif part.is_multipart():
        alternatives = [list(_parts(child, where, source)) for child in part.iter_parts()]
        if kind == "multipart/alternative":
            alternatives = [_fullest(alternatives)]
        yield from (piece for pieces in alternatives for piece in pieces)
    # A multipart without its boundary is text.
    elif part.is_attachment() or part.get_content_maintype() not in ("text", "multipart") or part.get_filename():
        yield from _attached(part, where, source)
    elif kind not in ("text/css", "text/javascript"):
        yield Piece(f"{_body(part, where, source).rstrip()}\n", where)


def _fullest(alternatives: list[list[Piece]]) -> list[Piece]:
    """Return the first alternative, the plain text, unless the richest of the others has many words that it lacks."""
    words = [set(re.findall(r"\w+", "".join(text for text, _ in pieces))) for pieces in alternatives]
    others = range(1, len(words))
    richest = max(others, key=lambda number: len(words[number]), default=0)
    return alternatives[0 if len(words[0] & words[richest]) >= SAME_WORDS * len(words[richest]) else richest]


def _body(part: EmailMessage, where: str, source: Source) -> str:
    data = part.get_payload(decode=True) or b""
    name = f"{where} of {source.name}" if where else source.name
    text = source.part(data, name, part.get_content_charset()).replace("\r\n", "\n")
    return html_text(text, name, source.notes) if part.get_content_subtype() == "html" else text


def _attached(part: EmailMessage, where: str, source: Source) -> Iterator[Piece]:
    name = part.get_filename() or part.get_content_type()
    here = f"{where}, attachment {name}".removeprefix(", ")
    data = part.get_payload(decode=True) or b""
    try:
        found = converted(Source(name, lambda: io.BytesIO(data), source.encoding or part.get_content_charset()))
    except Unreadable as reason:
        source.notes.append(f"{here} of {source.name} left out: it is {reason}")
        return
    source.notes += [f"{note} ({source.name})" for note in found.notes]
    yield Piece(f"\n[{name}]\n", here)
    for text, inside in found.pieces():
        yield Piece(text, f"{here}, {inside}".removesuffix(", "))


CONVERTERS: dict[str, tuple[Callable[[Source], Any], str]] = {
    "csv": (csv_text, ""),
    "docx": (word_text, "docx2python"),
    "epub": (book_text, "inscriptis"),
    "html": (page_text, "inscriptis"),
    "ipynb": (notebook_text, "nbformat"),
    "json": (json_text, ""),
    "mail": (mail_text, ""),
    "pdf": (pdf_text, "pypdf"),
    "rtf": (rtf_text, "striprtf"),
    "spreadsheet": (spreadsheet_text, "calamine"),
    "text": (plain_text, ""),
}
"""The converter of each format, and the library that does the work."""
