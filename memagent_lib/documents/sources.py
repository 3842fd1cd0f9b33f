"""Files and folders as one document: text, Markdown, HTML and PDF in, a stream of text out, with the place of every
character.

Markdown is read as it is: models read its marks well, and offsets then point into the file itself. Offsets into HTML
and PDF point into the text that a kept library (Beautiful Soup, pypdf) takes out of them. Text is UTF-8, or UTF-16 or
UTF-32 with its mark; bytes that are not are read as U+FFFD and counted, never a reason to stop. Knows no tokenizer and
no model.
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
    """A file that cannot be read as text; says which, why, and what to do."""


class SourcePlace(NamedTuple):
    """Where a character of a document stands in its file; ``page`` counts from 1, ``None`` in files without pages."""

    name: str
    offset: int
    page: int | None

    def __str__(self) -> str:
        return f"{self.name}, {f'page {self.page}, ' if self.page else ''}character {self.offset:,}"


class SkippedFile(NamedTuple):
    """Something in a folder that is not read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a document from one file or page; it begins at ``start``, and at ``offset`` of its file."""

    name: str
    start: int
    offset: int = 0
    page: int | None = None


class Document:
    """Files and folders, read in order as one text.

    A single file is its text and nothing else; where there are more, each is preceded by a line with its name, which
    the model sees too. ``start`` places the document after one that was read before, whose ``parts`` are ``previous``.
    """

    def __init__(self, paths: Sequence[str | Path], start: int = 0, previous: Iterable[Part] = ()):
        self.paths, self.left_out = _files([Path(p) for p in paths])
        self._start, self._previous = start, tuple(previous)
        self.parts: list[Part] = list(self._previous)
        self.replaced: Counter[str] = Counter()
        """How many characters of each file stand for bytes that were not valid text."""
        self.names = _names(self.paths)

    @property
    def warnings(self) -> list[str]:
        """:meth:`warned` of the first :data:`NAMED_FILES` files of each kind, and how many more there are."""
        warned = self.warned(NAMED_FILES)
        more = len(self.replaced) + len(self.left_out) - len(warned)
        return warned + [f"and {more:,} more files are left out or hold bytes that are not valid text"] * bool(more)

    def warned(self, most: int | None = None) -> list[str]:
        """What is not in the text that a person would think is there; complete once all blocks have been read."""
        invalid = [
            f"{number:,} characters of {name} stand for bytes that were not valid text"
            for name, number in self.replaced.most_common(most)
        ]
        return invalid + [f"left out: {_shown(path)} ({reason})" for path, reason in self.left_out[:most]]

    def blocks(self) -> Iterator[str]:
        """The text, a block at a time; ``parts`` and ``replaced`` grow with it. Starts over at each call."""
        self.parts, self.replaced = list(self._previous), Counter()
        at, read = self._start, False
        many = len(self.paths) > 1 or self._start > 0
        for path, name in zip(self.paths, self.names, strict=True):
            if many:
                head = "\n\n" * (at > 0) + f"[{name}]\n"
                self.parts.append(Part(name, at, -len(head)))  # the line with the name stands at the file's beginning
                yield head
                at += len(head)
            for block, offset, page in self._pieces(path, name):
                if offset is not None:
                    self.parts.append(Part(name, at, offset, page))
                at, read = at + len(block), read or bool(block.strip())
                yield block
        if not read:
            raise DocumentError(
                f"{_listed(self.paths)}: no text at all; a scanned PDF needs text recognition (OCR) first"
            )

    def place(self, offset: int) -> SourcePlace:
        """Where character ``offset`` of the document stands; only for what has been read."""
        at = bisect_right(self.parts, offset, key=lambda part: part.start) - 1
        if at < 0:
            raise ValueError(f"nothing has been read at character {offset:,}")
        part = self.parts[at]
        return SourcePlace(part.name, max(0, offset - part.start + part.offset), part.page)

    def _pieces(self, path: Path, name: str) -> Iterator[tuple[str, int | None, int | None]]:
        """Blocks of one file; the first of a file or page says at which character of the file it begins."""
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
    """The files to read, folders opened in the order of their names, and what is left out of folders."""
    if not paths:
        raise DocumentError("no file to read; give at least one file or folder")
    files: list[Path] = []
    left_out: list[SkippedFile] = []
    for path in paths:
        if not path.exists():
            stdin = "; what a pipe says is not read: write it to a file and give that" if str(path) == "-" else ""
            raise DocumentError(f"no file or folder {str(path)!r}{stdin}")
        if not path.is_dir():
            if reason := _unreadable(path):
                raise DocumentError(f"{str(path)!r} is {reason}")
            files.append(path)
            continue
        inside = sorted(_walk(path))
        if not inside:
            raise DocumentError(f"the folder {str(path)!r} holds no files")
        for file in inside:
            if reason := _unreadable(file, path):
                left_out.append(SkippedFile(file, reason))
            else:
                files.append(file)
    if not files:
        told = ", ".join(f"{left.path.name} is {left.reason}" for left in left_out[:3])
        raise DocumentError(f"nothing to read in {_listed(paths)}: {told}")
    return files, left_out


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, and those folders that are not entered: hidden ones and links."""
    for where, folders, names in os.walk(folder):
        at = Path(where)
        closed = [name for name in folders if name.startswith(".") or (at / name).is_symlink()]
        folders[:] = [name for name in folders if name not in closed]
        yield from (at / name for name in (*names, *closed))


def _unreadable(path: Path, folder: Path | None = None) -> str | None:
    """Why a file is not read, or ``None``; nothing that could block is opened. A hidden one is read where named."""
    if folder is not None and path.name.startswith("."):
        return "hidden"
    if path.is_dir():
        return "a link to a folder"
    if not path.exists():
        return "a link to nothing"
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        return "a pipe or device; write what it says to a file and read that"
    if not facts.st_size:
        return "empty; there is nothing to read"
    try:
        why = _binary(path)
    except PermissionError:
        return "not yours to read (no permission)"
    return f"a binary file ({why}); give text, Markdown, HTML or PDF" if why else None


def _binary(path: Path) -> str | None:
    """Why a file is no text, or ``None``."""
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith((b"%PDF-", *_MARKS)):
        return None
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive, as .docx, .pptx, .xlsx, .odt and .epub are"
    if (at := head.find(0)) >= 0:
        return f"a zero byte at {at:,}"
    odd = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    return f"{odd:,} control bytes in the first {len(head):,}" if odd > len(head) / 50 else None


def _kind(path: Path) -> str:
    with open(path, "rb") as file:
        head = file.read(1024)
    if head.startswith(b"%PDF-"):
        return "pdf"
    looks = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    return "html" if looks or path.suffix.lower() in (".html", ".htm", ".xhtml") else "text"


def _text(path: Path) -> Iterator[tuple[str, int]]:
    """Decoded blocks, and how many characters of each stand for bytes that were not valid."""
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(0)
        encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8-sig")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        tail = b""
        while raw := file.read(BLOCK_BYTES):
            block = decoder.decode(raw)
            written = (tail + raw).count("\ufffd".encode()) if encoding == "utf-8-sig" else 0
            tail = raw[-2:]
            yield block, max(0, block.count("\ufffd") - written)
        yield (last := decoder.decode(b"", final=True)), last.count("\ufffd")


def _html(raw: bytes) -> str:
    """A page's words, a line per block of the page; scripts and styles left out."""
    from bs4 import BeautifulSoup, NavigableString
    from bs4.element import PreformattedString

    page = BeautifulSoup(raw, "html.parser")
    for noise in page(_HTML_NOISE):
        noise.decompose()
    for words in list(page.find_all(string=True)):
        if isinstance(words, PreformattedString):
            words.extract()
        elif words.find_parent("pre") is None:
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
    """The shortest names that tell the files apart: from the folder that they share."""
    if len(paths) == 1:
        return [_shown(paths[0].name)]
    parents = [str(path.absolute().parent) for path in paths]
    shared = os.path.commonpath(parents)
    return [_shown(os.path.relpath(path.absolute(), shared)) for path in paths]


def _shown(name: str | Path) -> str:
    """A name as a person and a model can read it: line breaks and bytes that are no text are escaped."""
    return text if (text := str(name)).isprintable() else repr(text)[1:-1]


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(repr(str(p)) for p in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
