"""Convert a PDF to text, page by page: the printed text, then the values of form fields and the page's notes.

A page that has no text, or on which the PDF library fails, is reported as left out; the others are read. A page with a
picture and almost no text is reported too, because a scan may bear a printed stamp or page number. Characters for
which the file gives no meaning (unpaired surrogates, private-use codes) become U+FFFD and are counted.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.documents.converters.converted import Converted, ConverterOptions, Piece, Source, Unreadable, counted
from memagent_lib.documents.converters.scanned_pages import recognise_pages
from memagent_lib.errors import one_line
from memagent_lib.text import whole_characters

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
_BULLETS = dict.fromkeys((0xF0B7, 0xF0A7, 0xF0D8, 0xF076, 0xF0FC), "•")  # Word writes its lists with Wingdings
_UNKNOWN = re.compile(r"[\x00-\x08\x0e-\x1f\ue000-\uf8ff\U000f0000-\U0010ffff]")
_UNWRITTEN = frozenset({"/Popup", "/Link", "/Widget"})
_MAX_PARENTS = 32
_NAMED_FILES = 5
_STAMP_CHARS = 100
"""On a page that a picture covers, less printed text than this may be a stamp or page number on a scan."""
_SCAN_SHARE = 0.5
"""A scan covers at least this share of its page."""


class _Page(NamedTuple):
    text: str
    is_scan: bool = False
    failure: str = ""


def pdf_text(source: Source, options: ConverterOptions) -> Converted:
    """Convert every page of a PDF. If ``options.ocr`` is set, text recognition reads pages that may be scans.

    Raises :class:`Unreadable` if the file is damaged, is encrypted or has no pages, and ``MissingTool`` if text
    recognition is needed and not installed.
    """
    pages: list[_Page] = []
    with source.open() as stream, _warnings_of_pypdf() as warnings:
        reader = _open(stream)
        is_xfa = _is_xfa(reader)
        inside = _files_inside(reader)
        for page in _pages(reader):
            warnings.clear()
            if isinstance(page, str):
                pages.append(_Page("", failure=page))
            else:
                pages.append(_read(page))
            # Without this, a page that pypdf failed to decode would be reported as blank.
            if warnings and not pages[-1].text and not pages[-1].is_scan and not pages[-1].failure:
                pages[-1] = pages[-1]._replace(failure=warnings[0])
    texts = [page.text for page in pages]
    scans = [n for n, page in enumerate(pages, 1) if page.is_scan or not (page.text or page.failure)]
    recognised = recognise_pages(source, scans, options.ocr) if options.ocr else {}
    for number, text in recognised.items():
        texts[number - 1] = "\n".join(filter(None, (texts[number - 1], text)))
    cleaned = [_readable(text) for text in texts]
    notes = _notes(source.name, pages, texts, sum(unknown for _, unknown in cleaned), sorted(recognised))
    if is_xfa:
        notes.append(f"{source.name} has an XFA form, whose values may be missing; print it to PDF to have them")
    if inside:
        names = ", ".join(inside[:_NAMED_FILES]) + ", ..." * (len(inside) > _NAMED_FILES)
        notes.append(f"{counted(len(inside), 'file')} inside {source.name} left out: {names}")
    pieces = [Piece(f"{text}\n", f"page {number}") for number, (text, _) in enumerate(cleaned, 1) if text.strip()]
    return Converted(pieces, notes)


def _open(stream: Any) -> PdfReader:
    from pypdf import PdfReader

    try:
        reader = PdfReader(stream, strict=False)
        # Many PDFs have an empty user password: they only forbid printing or copying.
        is_locked = reader.is_encrypted and not reader.decrypt("")
        count = 0 if is_locked else len(reader.pages)
    except Exception as broken:  # pypdf raises anything from KeyError to RecursionError at broken files
        raise Unreadable(
            f"no PDF that pypdf can read: {_reason(broken)}; export it again, or give its text"
        ) from broken
    if is_locked:
        raise Unreadable("encrypted; save a copy without a password")
    if not count:
        raise Unreadable("a PDF without pages; export it again, or give its text")
    return reader


def _is_xfa(reader: PdfReader) -> bool:
    """Return whether the form is in Adobe's XFA, which other programs do not display."""
    try:
        return "/XFA" in reader.trailer["/Root"].get("/AcroForm", {})
    except Exception:  # pypdf raises almost anything for a broken file, here and below
        return False


def _files_inside(reader: PdfReader) -> list[str]:
    """Return the names of the files attached to the PDF or to one of its pages. A portfolio consists of them."""
    names = []
    try:
        names += [str(file.alternative_name or file.name) for file in reader.attachment_list]
        for page in reader.pages:
            notes = [reference.get_object() for reference in page.get("/Annots") or []]
            files = [note["/FS"] for note in notes if note and note.get("/Subtype") == "/FileAttachment"]
            names += [str(file.get("/UF") or file.get("/F") or "without a name") for file in files]
    except Exception:
        # What was found until here.
        return names
    return names


def _pages(reader: PdfReader) -> Iterator[PageObject | str]:
    """Yield the pages in order; for a page that is listed but missing, yield why it cannot be read.

    pypdf omits missing pages, so the pages after them would have wrong numbers.
    """
    by_number = {page.indirect_reference.idnum: page for page in reader.pages if page.indirect_reference}
    try:
        listed = list(_listed_pages(reader))
    except Exception:
        listed = []
    # The page tree is odd too, so pypdf's own list is the better one.
    if len(by_number) != len(reader.pages) or not set(by_number) <= set(listed):
        yield from reader.pages
        return
    for number in listed:
        yield by_number.get(number, f"object {number} of the file is missing")


def _listed_pages(reader: PdfReader) -> Iterator[int]:
    """Yield the object numbers of all pages in the page tree."""
    seen = set()
    waiting = [reader.trailer["/Root"].raw_get("/Pages")]
    while waiting:
        reference = waiting.pop()
        node = reference.get_object()
        if not (isinstance(node, dict) and "/Kids" in node):
            yield reference.idnum
        # A broken tree may contain itself.
        elif reference.idnum not in seen:
            seen.add(reference.idnum)
            waiting += reversed(node["/Kids"])


def _read(page: PageObject) -> _Page:
    largest = 0.0

    def measure(operator: bytes, operands: Any, matrix: Sequence[float], text_matrix: Any) -> None:
        nonlocal largest
        # An image fills the unit square of its matrix.
        if operator in (b"Do", b"INLINE IMAGE"):
            largest = max(largest, abs(matrix[0] * matrix[3] - matrix[1] * matrix[2]))

    try:
        printed = page.extract_text(visitor_operand_before=measure)
    except Exception as broken:
        return _Page("", failure=_reason(broken))
    try:
        written = list(_annotations(page))
    except Exception as broken:
        written = [f"[a form or note of this page cannot be read: {_reason(broken)}]"]
    text = "\n".join([printed.rstrip(), *written]).strip("\n")
    if printed.strip():
        # Resources say little here: pages may share them, and a title page may have a logo.
        return _Page(text, len(printed.strip()) < _STAMP_CHARS and largest > _SCAN_SHARE * _area(page))
    return _Page(text if text.strip() else "", _has_image(page))


def _area(page: PageObject) -> float:
    """Return a page's area; infinity if its box cannot be read, which is no reason to lose its text."""
    try:
        return max(1.0, float(page.mediabox.width) * float(page.mediabox.height))
    except Exception:
        return math.inf


def _has_image(page: PageObject) -> bool:
    try:
        return bool(page.images.keys())
    except Exception:
        return False


def _annotations(page: PageObject) -> Iterator[str]:
    """Yield the values of the page's form fields (``signer: Odo Blau``), and the notes on it (``[note: ...]``)."""
    for reference in page.get("/Annots") or []:
        annotation = reference.get_object()
        if annotation is None:
            continue
        subtype = annotation.get("/Subtype")
        if subtype == "/Widget":
            yield from _field(annotation)
        elif subtype not in _UNWRITTEN and str(annotation.get("/Contents") or "").strip():
            yield f"[note: {annotation['/Contents']}]"


def _field(widget: Any) -> Iterator[str]:
    """Yield a form field's name and value. Both may be inherited from the fields that contain it."""
    family = [widget]
    while "/Parent" in family[-1] and len(family) < _MAX_PARENTS:
        family.append(family[-1]["/Parent"].get_object())
    name = ".".join(str(field["/T"]) for field in reversed(family) if "/T" in field)
    kind = _inherited(family, "/FT")
    value = _inherited(family, "/V")
    if kind == "/Btn":
        state = str(widget.get("/AS", value) or "").removeprefix("/")
        text = ""
        if state:
            mark = "[ ]" if state == "Off" else "[x]"
            text = f"{mark} ({state})"
    elif kind == "/Ch":
        text = ", ".join(_choices(value, _inherited(family, "/Opt") or []))
    elif kind == "/Sig":
        text = str(value.get("/Name", "signed")) if value else ""
    else:
        text = _string(value) or _appearance(widget)
    if text.strip():
        yield f"{name}: {text}" if name else text


def _inherited(family: Sequence[Any], key: str) -> Any:
    value = next((field[key] for field in family if key in field), None)
    return value.get_object() if hasattr(value, "get_object") else value


def _string(value: Any) -> str:
    """Return a text that is stored as a string or, if it is long, as a stream."""
    if hasattr(value, "get_data"):
        return value.get_data().decode("utf-8", errors="replace")
    return "" if value is None else str(value)


def _choices(value: Any, options: Any) -> list[str]:
    """Return the visible texts of the selected options. A form stores only their export values."""
    pairs = [option.get_object() for option in options]
    visible = {str(pair[0]): str(pair[1]) for pair in pairs if isinstance(pair, list)}
    if value is None:
        return []
    selected = value if isinstance(value, list) else [value]
    return [visible.get(str(item), str(item)) for item in selected]


def _appearance(widget: Any) -> str:
    """Return the text that a field without a value draws."""
    normal = widget.get("/AP", {}).get("/N")
    if normal is None or not hasattr(normal.get_object(), "get_data"):
        return ""
    # Tj is the PDF operator that prints a string.
    strings = re.findall(rb"\(((?:[^()\\]|\\.)*)\)\s*Tj", normal.get_object().get_data())
    return " ".join(re.sub(rb"\\(.)", rb"\1", string).decode("cp1252", errors="replace") for string in strings)


def _readable(text: str) -> tuple[str, int]:
    """Return ``text`` without ligatures and with U+FFFD for each unknown character, and how many of those there are."""
    # A soft hyphen is invisible, and would split a word for a search.
    text = whole_characters(text).translate(_LIGATURES).translate(_BULLETS).replace("\xad", "")
    text = _UNKNOWN.sub("\ufffd", text)
    return text, text.count("\ufffd")


def _notes(name: str, pages: list[_Page], texts: list[str], unknown: int, recognised: list[int]) -> list[str]:
    empty = [number for number, page in enumerate(pages, 1) if not texts[number - 1] and not page.failure]
    scans = [number for number in empty if pages[number - 1].is_scan]
    blank = [number for number in empty if not pages[number - 1].is_scan]
    notes = []
    for numbers, guess in ((scans, "a scan?"), (blank, "blank?")):
        if numbers:
            verb = "has" if len(numbers) == 1 else "have"
            notes.append(f"{page_numbers(numbers)} of {name} {verb} no text ({guess})")
    stamped = [n for n, page in enumerate(pages, 1) if page.text and page.is_scan and n not in recognised]
    if stamped:
        verb = "is a picture" if len(stamped) == 1 else "are pictures"
        notes.append(f"{page_numbers(stamped)} of {name} {verb} with almost no text (a scan?)")
    for number, page in enumerate(pages, 1):
        if page.failure:
            notes.append(f"page {number} of {name} cannot be read: {page.failure}")
    if unknown:
        characters = "a character" if unknown == 1 else f"{unknown:,} characters"
        notes.append(f"{characters} of {name} could not be read")
    if recognised:
        notes.append(f"{counted(len(recognised), 'page')} of {name} read by text recognition, which makes mistakes")
    return notes


def page_numbers(numbers: Sequence[int]) -> str:
    """Return page numbers as text: ``page 2``, ``pages 2, 5 to 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    listed: list[str] = []
    for run in runs:
        if len(run) > 2:
            listed.append(f"{run[0]} to {run[-1]}")
        else:
            listed += map(str, run)
    noun = "page" if len(numbers) == 1 else "pages"
    return f"{noun} {', '.join(listed)}"


def _reason(error: Exception) -> str:
    return one_line(error)[:200] or type(error).__name__


@contextmanager
def _warnings_of_pypdf() -> Iterator[list[str]]:
    """Collect what pypdf logs. For a stream that it cannot decode, pypdf logs a warning and returns no text."""
    messages: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(" ".join(record.getMessage().split())[:200])

    logger = logging.getLogger("pypdf")
    handler = Collecting()
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
