"""Zip archives that documents are made of (Word, Excel, EPUB), with a limit on what they unpack to."""

from __future__ import annotations

import zipfile
from typing import BinaryIO

from memagent_lib.documents.converters.converted import MAX_BYTES, Unreadable

_PICTURES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".emf",
    ".wmf",
    ".tif",
    ".tiff",
    ".svg",
    ".ttf",
    ".otf",
    ".woff",
    ".mp3",
    ".mp4",
)
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


def open_archive(stream: BinaryIO) -> zipfile.ZipFile:
    """The archive, if the texts in it are of a size that can be read. Raises :class:`Unreadable`."""
    try:
        archive = zipfile.ZipFile(stream)
    except _ZIP_ERRORS as broken:
        raise Unreadable(f"a damaged zip archive ({broken}); save it again") from broken
    size = sum(info.file_size for info in archive.infolist() if not info.filename.lower().endswith(_PICTURES))
    if size > MAX_BYTES:
        raise Unreadable(
            f"unpacked {size >> 20:,} MB, and {MAX_BYTES >> 20:,} MB are the most; split it, or save it as text"
        )
    if any(info.flag_bits & 1 for info in archive.infolist()):
        raise Unreadable("encrypted; save a copy without a password")
    return archive


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One file of an archive; :class:`Unreadable` if it is missing or damaged."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable("missing") from None
    except (*_ZIP_ERRORS, zipfile.zlib.error) as broken:
        raise Unreadable(f"damaged ({broken})") from broken
