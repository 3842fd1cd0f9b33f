"""Open zip archives that are documents (Word, Excel, EPUB), with a limit on their unpacked size."""

from __future__ import annotations

import re
import zipfile
import zlib
from typing import BinaryIO

from memagent_lib.documents.converters.converted import MAX_BYTES, Unreadable

_IS_MEDIA = re.compile(r"\.(?:png|jpe?g|gif|emf|wmf|tiff?|svg|[ot]tf|woff2?|mp[34])$", re.IGNORECASE)
_ZIP_ERRORS = (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, OSError, RuntimeError, ValueError, zlib.error)


def open_archive(stream: BinaryIO) -> zipfile.ZipFile:
    """Open an archive. Raises :class:`Unreadable` if it is damaged, encrypted or too large when unpacked."""
    try:
        archive = zipfile.ZipFile(stream)
    except _ZIP_ERRORS as broken:
        raise Unreadable(f"a damaged zip archive ({broken}); save it again") from broken
    size = sum(info.file_size for info in archive.infolist() if not _IS_MEDIA.search(info.filename))
    if size > MAX_BYTES:
        raise Unreadable(
            f"unpacked {size >> 20:,} MB, and {MAX_BYTES >> 20:,} MB are the most; split it, or save it as text"
        )
    if any(info.flag_bits & 1 for info in archive.infolist()):
        raise Unreadable("encrypted; save a copy without a password")
    return archive


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read one file of an archive. Raises :class:`Unreadable` if it is missing or damaged."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable("missing") from None
    except _ZIP_ERRORS as broken:
        raise Unreadable(f"damaged ({broken})") from broken
