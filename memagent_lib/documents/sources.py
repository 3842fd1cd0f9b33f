"""Files and folders as one document: text, Markdown, HTML and PDF in, a stream of text with positions out.

Markdown is read as it is: models read its marks well, and offsets then point into the file itself. Offsets into HTML
and PDF point into the text that Beautiful Soup and pypdf extract. Text is UTF-8, or UTF-16 or UTF-32 with a byte order
mark; invalid bytes are read as U+FFFD and counted, and never stop a reading. Knows no tokenizer and no model.
"""

from __future__ import annotations

import codecs
import os
import stat
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from memagent_lib.errors import UserError

BLOCK_BYTES = 1 << 18
NAMED_FILES = 10
_HEAD_BYTES = 1 << 16
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\x1b\x08")
_MARKS = {  # UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HTML_BLOCKS = (  # noqa: SIM905
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header "
    "hr li main nav ol p pre section table tr ul"
).split()
_HTML_NOISE = ["script", "style", "noscript", "template", "head"]


class DocumentError(UserError, ValueError):
    """A file that cannot be read as text; the message names it, the reason and the fix."""


class SourcePosition(NamedTuple):
    """The position of a character in its file; ``page`` counts from 1, ``None`` in files without pages."""

    name: str
    offset: int
    page: int | None

    def __str__(self) -> str:
        page = f", page {self.page}" if self.page else ""
        return f"{self.name}{page}, character {self.offset:,}"


class SkippedFile(NamedTuple):
    """A file or folder that is not read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a document from one file or page; it begins at ``start``, which is ``offset`` of the file."""

    name: str
    start: int
    offset: int = 0
    page: int | None = None


class Document:
    """Files and folders, read in order as one text.

    A single file is its text and nothing else; each of several follows a line with its name, which the model sees too.
    ``start`` is where this document begins after one that was read before, whose ``parts`` are ``previous``.
    """

    def __init__(self, paths: Sequence[str | Path], start: int = 0, previous: Iterable[Part] = ()):
        self.paths, self.left_out = _files([Path(path) for path in paths])
        self._start = start
        self._previous = tuple(previous)
        self.parts: list[Part] = list(self._previous)
        self.replaced: Counter[str] = Counter()
        """How many characters of each file stand for bytes that were not valid text."""
        self.names = _names(self.paths)

    @property
    def warnings(self) -> list[str]:
        """:meth:`warned` of the first :data:`NAMED_FILES` files of each kind, and how many more there are."""
        warnings = self.warned(NAMED_FILES)
        more = len(self.replaced) + len(self.left_out) - len(warnings)
        if more:
            warnings.append(f"and {more:,} more files are left out or hold bytes that are not valid text")
        return warnings

    def warned(self, most: int | None = None) -> list[str]:
        """Return what is missing from the text that a person would expect in it; complete after all blocks are read."""
        invalid = [
            f"{number:,} characters of {name} stand for bytes that were not valid text"
            for name, number in self.replaced.most_common(most)
        ]
        return invalid + [f"left out: {_printable(path)} ({reason})" for path, reason in self.left_out[:most]]

    def blocks(self) -> Iterator[str]:
        """Yield the text, a block at a time; ``parts`` and ``replaced`` grow with it. Starts over at each call."""
        self.parts = list(self._previous)
        self.replaced = Counter()
        at = self._start
        has_text = False
        is_headed = len(self.paths) > 1 or self._start > 0
        for path, name in zip(self.paths, self.names, strict=True):
            if is_headed:
                head = "\n\n" * (at > 0) + f"[{name}]\n"
                self.parts.append(Part(name, at, -len(head)))  # a position in this line is the file's beginning
                yield head
                at += len(head)
            for block, offset, page in self._blocks_of(path, name):
                if offset is not None:
                    self.parts.append(Part(name, at, offset, page))
                at += len(block)
                has_text = has_text or bool(block.strip())
                yield block
        if not has_text:
            raise DocumentError(
                f"{_listed(self.paths)}: no text at all; a scanned PDF needs text recognition (OCR) first"
            )

    def locate(self, offset: int) -> SourcePosition:
        """Return the file and position of character ``offset`` of the document, which must have been read."""
        at = bisect_right(self.parts, offset, key=lambda part: part.start) - 1
        if at < 0:
            raise ValueError(f"nothing has been read at character {offset:,}")
        part = self.parts[at]
        return SourcePosition(part.name, max(0, offset - part.start + part.offset), part.page)

    def _blocks_of(self, path: Path, name: str) -> Iterator[tuple[str, int | None, int | None]]:
        """Yield a file's blocks; the first of a file or page comes with its offset in the file and its page."""
        kind = _kind(path)
        if kind == "pdf":
            yield from _pdf(path)
        elif kind == "html":
            yield _html(path.read_bytes()), 0, None
        else:
            yield "", 0, None
            for block, replaced in _text(path):
                if replaced:
                    self.replaced[name] += replaced
                yield block, None, None


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[SkippedFile]]:
    """Return the files to read, folders opened in the order of their names, and what is left out of folders."""
    if not paths:
        raise DocumentError("no file to read; give at least one file or folder")
    files: list[Path] = []
    left_out: list[SkippedFile] = []
    for path in paths:
        if not path.exists():
            stdin = "; a pipe is not read: write its output to a file and give that" if str(path) == "-" else ""
            raise DocumentError(f"no file or folder {str(path)!r}{stdin}")
        if path.is_dir():
            _add_folder(path, files, left_out)
            continue
        reason = _unreadable(path)
        if reason:
            raise DocumentError(f"{str(path)!r} is {reason}")
        files.append(path)
    if not files:
        reasons = ", ".join(f"{skipped.path.name} is {skipped.reason}" for skipped in left_out[:3])
        raise DocumentError(f"nothing to read in {_listed(paths)}: {reasons}")
    return files, left_out


def _add_folder(folder: Path, files: list[Path], left_out: list[SkippedFile]) -> None:
    inside = sorted(_walk(folder))
    if not inside:
        raise DocumentError(f"the folder {str(folder)!r} holds no files")
    for file in inside:
        reason = _unreadable(file, folder)
        if reason:
            left_out.append(SkippedFile(file, reason))
        else:
            files.append(file)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and the folders that are not entered: hidden ones and links."""
    for where, folders, names in os.walk(folder):
        at = Path(where)
        closed = [name for name in folders if name.startswith(".") or (at / name).is_symlink()]
        folders[:] = [name for name in folders if name not in closed]
        yield from (at / name for name in (*names, *closed))


def _unreadable(path: Path, folder: Path | None = None) -> str | None:
    """Return why a file is not read, or ``None``. A hidden file is read when it is named itself.

    Nothing that could block, such as a pipe, is opened.
    """
    if folder is not None and path.name.startswith("."):
        return "hidden"
    if path.is_dir():
        return "a link to a folder"
    if not path.exists():
        return "a link to nothing"
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return "a pipe or device; write its output to a file and read that"
    if not status.st_size:
        return "empty; there is nothing to read"
    try:
        binary = _binary(path)
    except PermissionError:
        return "not yours to read (no permission)"
    return f"a binary file ({binary}); give text, Markdown, HTML or PDF" if binary else None


def _binary(path: Path) -> str | None:
    """Return why a file is no text, or ``None``."""
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith((b"%PDF-", *_MARKS)):
        return None
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive, as .docx, .pptx, .xlsx, .odt and .epub are"
    zero = head.find(0)
    if zero >= 0:
        return f"a zero byte at {zero:,}"
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if controls > len(head) / 50:  # some stray ones stand in old logs and listings
        return f"{controls:,} control bytes in the first {len(head):,}"
    return None


def _kind(path: Path) -> str:
    with open(path, "rb") as file:
        head = file.read(1024)
    if head.startswith(b"%PDF-"):
        return "pdf"
    is_html = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    if is_html or path.suffix.lower() in (".html", ".htm", ".xhtml"):
        return "html"
    return "text"


def _text(path: Path) -> Iterator[tuple[str, int]]:
    """Yield decoded blocks, and how many characters of each stand for bytes that were not valid."""
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(0)
        encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8-sig")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        before = b""
        for raw in iter(lambda: file.read(BLOCK_BYTES), b""):
            block = decoder.decode(raw)
            # U+FFFD that the file itself has, in UTF-8, stands for nothing; two bytes of it may be in the last block.
            genuine = (before + raw).count("\ufffd".encode()) if encoding == "utf-8-sig" else 0
            before = raw[-2:]
            yield block, max(0, block.count("\ufffd") - genuine)
        last = decoder.decode(b"", final=True)
        yield last, last.count("\ufffd")


def _html(raw: bytes) -> str:
    """Return a page's words, a line per block of the page; scripts and styles are left out."""
    from bs4 import BeautifulSoup, NavigableString
    from bs4.element import PreformattedString

    page = BeautifulSoup(raw, "html.parser")
    for noise in page(_HTML_NOISE):
        noise.decompose()
    for words in list(page.find_all(string=True)):
        if isinstance(words, PreformattedString):
            words.extract()
        elif words.find_parent("pre") is None:  # a blank at either end stays one blank
            words.replace_with(NavigableString(" ".join(f".{words}.".split())[1:-1]))
    for block in page(_HTML_BLOCKS):
        block.insert_before("\n")
        block.insert_after("\n")
    lines = (line.strip() for line in page.get_text().split("\n"))
    return "\n".join(line for line in lines if line) + "\n"


def _pdf(path: Path) -> Iterator[tuple[str, int, int]]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    offset = 0
    try:
        reader = PdfReader(path, strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError(f"{str(path)!r} is encrypted; save a copy without a password")
        for number, page in enumerate(reader.pages, 1):
            text = page.extract_text() + "\n"
            text = text if text.strip() else ""
            yield text, offset, number
            offset += len(text)
    except (PyPdfError, OSError, KeyError, TypeError) as broken:
        raise DocumentError(
            f"{str(path)!r} is no PDF that pypdf can read: {broken}; export it again, or give its text"
        ) from broken


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest names that differ: from the folder that the files share."""
    if len(paths) == 1:
        return [_printable(paths[0].name)]
    parents = [str(path.absolute().parent) for path in paths]
    shared = os.path.commonpath(parents)
    return [_printable(os.path.relpath(path.absolute(), shared)) for path in paths]


def _printable(name: str | Path) -> str:
    """Return a name that a person and a model can read: line breaks and bytes that are no text are escaped."""
    text = str(name)
    return text if text.isprintable() else repr(text)[1:-1]


def _listed(paths: Sequence[Path]) -> str:
    named = ", ".join(repr(str(path)) for path in paths[:3])
    more = len(paths) - 3
    return f"{named} and {more} more" if more > 0 else named
