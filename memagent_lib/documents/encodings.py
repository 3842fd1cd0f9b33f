"""A file's bytes, and its text: in the encoding of its byte order mark, UTF-8, as declared, or as chardet guesses."""

from __future__ import annotations

import codecs
import io
import itertools
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import webencodings

CONFIDENCE = 0.4
"""The least confidence of chardet, from 0 to 1. Of guesses that are less certain, about one in ten is right."""
MOST_BYTES = 1 << 29
"""The largest file that is converted in memory. Plain text and CSV have no limit."""
SAMPLE_LINES = 2000
LINE_BYTES = 1 << 13  # longer lines are read in parts, which bounds memory
GUESSED_BYTES = 1 << 20
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_LABEL = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)


class Unreadable(ValueError):
    """The file cannot be read. The message completes a sentence that begins with "FILE is"."""


class Piece(NamedTuple):
    """Part of a file's text, and its position: ``page 3``, ``sheet Rent``, or "" in a file without parts."""

    text: str
    where: str = ""


class Converted(NamedTuple):
    """A file's text, which ``pieces`` yields as often as it is called, and one note for each flaw in it.

    ``characters`` is the text's length, or about that for a file that is read as a stream. ``by`` names the library
    that converted the file.
    """

    pieces: Callable[[], Iterable[Piece]]
    notes: list[str]
    characters: int
    by: str = ""


@dataclass
class Source:
    """Bytes with a name: a file, or a part of one. Converters add ``notes``; the user may name the ``encoding``."""

    name: str
    open: Callable[[], BinaryIO]
    encoding: str | None = None
    notes: list[str] = field(default_factory=list)

    def read(self) -> bytes:
        with self.open() as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise Unreadable(f"larger than {MOST_BYTES >> 20:,} MB, the most that is converted; split it")
        return data

    def text(self) -> str:
        data = self.read()
        return self._decoded(data, self.encoding or encoding_of(io.BytesIO(data)))

    def part(self, data: bytes, name: str, label: str | None = None) -> str:
        """Return the text of a part, such as a chapter, which is not refused if its encoding is uncertain.

        ``label`` is the encoding that is declared outside of the part.
        """
        try:
            codec = label if label and decodes(data, label) else encoding_of(io.BytesIO(data))
        except Unreadable:
            codec = self.encoding or "cp1252"
            if not self.encoding:
                self.notes.append(f"the encoding of {name} is uncertain; it is read as CP1252 (see --encoding)")
        return self._decoded(data, codec)

    def _decoded(self, data: bytes, codec: str) -> str:
        text = data.decode(codec, "replace").removeprefix("\ufeff")
        if not decodes(data, codec):
            self.note_replaced(text.count("\ufffd"), f"stand for bytes that are not valid {codec.upper()}")
        return text

    def note_replaced(self, number: int, why: str) -> None:
        if number:
            characters = "a character" if number == 1 else f"{number:,} characters"
            self.notes.append(f"{characters} of {self.name} {why}")


def archive_of(stream: BinaryIO) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(stream)
    except zipfile.BadZipFile as broken:
        raise Unreadable(f"a damaged zip archive ({broken}); save it again") from broken
    if sum(info.file_size for info in archive.infolist()) > 4 * MOST_BYTES:
        raise Unreadable(f"more than {4 * MOST_BYTES >> 20:,} MB when unpacked; split it")
    return archive


def encoding_of(stream: BinaryIO) -> str:
    """Return the codec of a text of any size by its first lines beyond ASCII. Raises :class:`Unreadable` if uncertain.

    Text with at least three valid characters beyond ASCII for each invalid byte is UTF-8. That comes before what the
    text declares, because pages often declare another encoding than the one they are in.
    """
    import chardet

    head = stream.read(4096)
    marked = mark_of(head)
    if marked:
        return marked
    stream.seek(0)
    lines = (line for line in iter(lambda: stream.readline(LINE_BYTES), b"") if not line.isascii())
    sample = b"".join(itertools.islice(lines, SAMPLE_LINES))
    invalid = sample.decode("utf-8", "replace").count("\ufffd") - sample.count("\ufffd".encode())
    beyond_ascii = len(sample.decode("utf-8", "ignore")) - len(sample.decode("ascii", "ignore"))
    if not invalid or beyond_ascii >= 3 * invalid:
        return "utf-8"
    # As browsers do: latin-1 means cp1252, gb2312 means gbk.
    label = _LABEL.search(head)
    declared = label and webencodings.lookup(label[1].decode())
    if declared and decodes(sample, declared.codec_info.name):
        return declared.codec_info.name
    guess = chardet.detect(sample[:GUESSED_BYTES], encoding_era=chardet.EncodingEra.MODERN_WEB)
    if guess["confidence"] >= CONFIDENCE and decodes(sample, guess["encoding"] or "?"):
        return guess["encoding"]
    perhaps = f"not UTF-8, and its encoding is uncertain (perhaps {guess['encoding']})"
    raise Unreadable(f"{perhaps}; name it with --encoding, or save the text as UTF-8")


def mark_of(data: bytes) -> str | None:
    """Return the codec that a byte order mark names."""
    return next((codec for mark, codec in MARKS.items() if data.startswith(mark)), None)


def decodes(data: bytes, codec: str) -> bool:
    try:
        data.decode(codec)
    except (UnicodeDecodeError, LookupError):
        return False
    return True
