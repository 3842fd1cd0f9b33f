"""The types that all converters share: a source of bytes goes in, and pieces of text with their positions come out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_BYTES = 1 << 29
"""The largest file, or unpacked archive, that is converted in memory. Plain text and CSV have no limit."""
# Libraries put whole dumps into their errors.
LONGEST_REASON = 300
_NUMBER_DIGITS = 32


def printable(text: object) -> str:
    """Return ``text`` on one readable line, with line breaks and bytes that are not text escaped."""
    line = str(text)
    if line.isprintable():
        return line
    return repr(line)[1:-1]


def natural_order(name: str) -> str:
    """Return a sort key by which the numbers in names sort by their value: ``chapter 2`` before ``chapter 10``."""
    return re.sub(r"[0-9]+", lambda number: number[0].zfill(_NUMBER_DIGITS), name)


class Unreadable(ValueError):
    """No converter can read the file. The message completes a sentence that begins with "FILE is"."""

    def __init__(self, reason: str):
        super().__init__(printable(" ".join(reason.split()))[:LONGEST_REASON])


class Piece(NamedTuple):
    """Part of a file's text, and its position: ``page 3``, ``sheet Rent``, or "" in a file without parts."""

    text: str
    where: str = ""


class Converted(NamedTuple):
    """A file's text, as pieces that can be iterated over repeatedly, and ``notes``: one line for each flaw in it.

    Most flaws are things left out; others are, for instance, invalid bytes and text that was only recognised.
    """

    pieces: Iterable[Piece]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """Bytes with a name: a file, or a part of one. ``open`` returns a seekable stream at its beginning.

    ``label`` is the encoding that is declared outside of the bytes, by the e-mail to which they are attached.
    """

    name: str
    open: Callable[[], BinaryIO]
    label: str | None = None

    @classmethod
    def file(cls, path: Path, name: str | None = None) -> Source:
        return cls(name or path.name, lambda: open(path, "rb"))

    @classmethod
    def memory(cls, name: str, data: bytes, label: str | None = None) -> Source:
        return cls(name, lambda: io.BytesIO(data), label)

    def read(self) -> bytes:
        """Read all bytes. Raises :class:`Unreadable` if there are too many to convert in memory."""
        with self.open() as stream:
            # One byte more than allowed shows that there is more.
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Unreadable(
                f"larger than {MAX_BYTES >> 20:,} MB, the most that is converted; split it, or save it as text"
            )
        return data


@dataclass(frozen=True)
class ConverterOptions:
    """Options for reading files, set by the user."""

    encoding: str | None = None
    """The encoding of text files, of subtitles, and of HTML and XML files, whatever they declare.

    It is also the encoding of those parts of mail, books and notebooks that declare none and are not UTF-8. By default,
    an encoding is detected from the bytes.
    """
    ocr: str | None = None
    """The language of scanned pages, as tesseract names it (``eng``, ``deu+fra``); by default they are not read."""


@dataclass(frozen=True)
class Lazily:
    """Pieces that are computed anew at each iteration, so that the text need not fit into memory."""

    make: Callable[[], Iterator[Piece]]

    def __iter__(self) -> Iterator[Piece]:
        return self.make()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 page``, ``1,200 pages``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"
