"""Files and folders as one document: a stream of text in which every character has a known position in a file.

Making a :class:`Document` opens every file and converts all but plain text and CSV, so unreadable files, and text that
converted files lack, are reported before a model sees the first word. Plain text and Markdown are read unchanged, so
offsets point into the file itself; other offsets point into the text that the converter extracted. This module does not
depend on tokenizers or models.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.documents.converters import (
    Converted,
    ConverterOptions,
    Source,
    Unreadable,
    convert,
    format_of,
    natural_order,
    printable,
    require_ocr,
)
from memagent_lib.errors import UserError

MOST_WARNINGS = 10
_NOT_YOURS = "not yours to read (no permission)"


class DocumentError(UserError, ValueError):
    """A file or folder is missing or cannot be read as text. The message gives its name, the reason and the fix."""


class SourcePosition(NamedTuple):
    """The position of a character in its file's text. ``where`` is ``page 3``, ``sheet Rent``, or ""."""

    name: str
    offset: int
    where: str = ""

    def __str__(self) -> str:
        file = self.name
        if self.where:
            file = f"{self.where} of {file}"
        return f"{file}, character {self.offset:,}"


class SkippedFile(NamedTuple):
    """A file or folder that is not read, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a document's text, from one file, or from one page, sheet or other part of a file.

    It begins at ``start`` in the document and at ``offset`` in the file's text.
    """

    name: str
    start: int
    offset: int = 0
    where: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Part:
        """Restore a saved part.

        Old saved readings have ``page`` instead of ``where``, because only parts of PDF files had a position then.
        """
        rest = dict(record)
        page = rest.pop("page", None)
        if page:
            rest["where"] = f"page {page}"
        return cls(**rest)


class Document:
    """Files and folders, read in order as one text.

    The text of each file follows a line with the file's name, which the model sees too. Only a single file that
    continues no reading has no such line. To continue a reading, set ``start`` to the length of the text that has been
    read, and ``previous`` to the ``parts`` of that text.

    Raises :class:`DocumentError` if a named file cannot be read or if no text is found; unreadable files in a folder
    are left out and reported. Raises ``MissingTool`` if ``options.ocr`` is set and cannot be used.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        start: int = 0,
        previous: Iterable[Part] = (),
        *,
        options: ConverterOptions | None = None,
        on_file: Callable[[str], None] | None = None,
    ):
        options = options or ConverterOptions()
        if options.ocr:
            require_ocr(options.ocr)
        paths = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        # All files are opened before any is converted, so that a missing one is reported at once.
        found, self.left_out = _files(paths, options)
        names = _names([file.path for file in found])
        self._files: list[tuple[str, Converted]] = []
        self._bytes: list[int] = []
        self.notes: list[str] = []
        """One line for each flaw in the text of the files that are read: pages without text, hidden passages, ..."""
        for file, name in zip(found, names, strict=True):
            self._add(file, name, options)
            if on_file:
                on_file(name)
        if not self._files:
            raise DocumentError(_nothing_to_read(paths, self.left_out))
        # Plain text is known to be empty only at the end of ``blocks``.
        if all(_is_without_text(converted) for _, converted in self._files):
            raise self._no_text()
        self.names = [name for name, _ in self._files]
        self.begins_at = start
        """The position of the first character of :meth:`blocks`: the length of the text that was read before."""
        # A reading that its model ended has parts that were not read.
        self._previous = tuple(part for part in previous if part.start < start)
        self.parts: list[Part] = list(self._previous)

    def _add(self, file: _File, name: str, options: ConverterOptions) -> None:
        try:
            converted = convert(Source.file(file.path, name), options, file.kind)
        except Unreadable as reason:
            if not file.is_in_folder:
                raise DocumentError(f"{str(file.path)!r} is {reason}") from reason
            self.left_out.append(SkippedFile(file.path, str(reason)))
            return
        self._files.append((name, converted))
        self._bytes.append(file.path.stat().st_size)
        self.notes += converted.notes
        if _is_without_text(converted) and not converted.notes:
            self.notes.append(f"{name} has no text")

    @property
    def about_characters(self) -> int:
        """About how many characters the text has. Plain text and CSV count by bytes, as they are read as streams."""
        total = 0
        for (_, converted), size in zip(self._files, self._bytes, strict=True):
            pieces = converted.pieces
            total += sum(len(text) for text, _ in pieces) if isinstance(pieces, list) else size
        return total

    @property
    def warnings(self) -> list[str]:
        """The first :data:`MOST_WARNINGS` lines of each kind in :meth:`warned`, and how many more there are."""
        warnings = self.warned(MOST_WARNINGS)
        more = len(self.notes) + len(self.left_out) - len(warnings)
        if more:
            warnings.append(f"and {more:,} more files or pages are left out or incomplete")
        return warnings

    def warned(self, most: int | None = None) -> list[str]:
        """Return one line for each flaw in the text of the files that are read (``notes``), and for each file left out.

        The lines are known before the document is read. ``most`` limits the lines of each of these two kinds.
        """
        skipped = [f"left out: {printable(path)} ({reason})" for path, reason in self.left_out[:most]]
        return self.notes[:most] + skipped

    def blocks(self) -> Iterator[str]:
        """Yield the text block by block and extend ``parts`` accordingly. Each call starts from the beginning.

        Raises :class:`DocumentError` at the end if there was no text.
        """
        self.parts = list(self._previous)
        at = self.begins_at
        has_text = False
        # A single file has no head line, so that offsets are those of the file itself.
        is_headed = len(self._files) > 1 or self.begins_at > 0
        for name, converted in self._files:
            if is_headed:
                head = "\n\n" * (at > 0) + f"[{name}]\n"
                self.parts.append(Part(name, at, -len(head)))  # a position in this line is the file's beginning
                yield head
                at += len(head)
            begin = at
            for text, where in converted.pieces:
                last = self.parts[-1] if at > begin else None
                # Pieces of the same page or sheet share one part.
                if last is None or last.where != where:
                    self.parts.append(Part(name, at, at - begin, where))
                at += len(text)
                has_text = has_text or bool(text.strip())
                yield text
        if not has_text:
            raise self._no_text()

    def _no_text(self) -> DocumentError:
        names = ", ".join(repr(name) for name, _ in self._files[:3])
        hint = ""
        if any("(a scan?)" in note for note in self.notes):
            hint = "; a scanned PDF needs text recognition (OCR): --ocr eng"
        return DocumentError(f"{names}: no text at all{hint}")

    def locate(self, offset: int) -> SourcePosition:
        """Return the file and position of character ``offset``. The document must have been read at least that far."""
        # Parts are in the order of their start.
        at = bisect_right(self.parts, offset, key=lambda part: part.start) - 1
        if at < 0:
            raise ValueError(f"nothing has been read at character {offset:,}")
        part = self.parts[at]
        return SourcePosition(part.name, max(0, offset - part.start + part.offset), part.where)


class _File(NamedTuple):
    path: Path
    kind: str
    is_in_folder: bool


def _is_without_text(converted: Converted) -> bool:
    """Return whether a converted file has no text. For plain text this is known only once it has been read."""
    pieces = converted.pieces
    return isinstance(pieces, list) and not any(text.strip() for text, _ in pieces)


def _files(paths: Sequence[Path], options: ConverterOptions) -> tuple[list[_File], list[SkippedFile]]:
    """Return the files to read and the files left out. Files in a folder are in natural order."""
    if not paths:
        raise DocumentError("no file to read; give at least one file or folder")
    files: list[_File] = []
    left_out: list[SkippedFile] = []
    for path in paths:
        if not path.exists():
            stdin = ""
            if str(path) == "-":
                stdin = "; a pipe is not read: write its output to a file and give that"
            raise DocumentError(f"no file or folder {str(path)!r}{stdin}")
        if path.is_dir():
            _add_folder(path, options, files, left_out)
            continue
        try:
            files.append(_File(path, _kind(path, options), is_in_folder=False))
        except Unreadable as reason:
            raise DocumentError(f"{str(path)!r} is {reason}") from reason
    if not files:
        raise DocumentError(_nothing_to_read(paths, left_out))
    times = Counter(os.path.abspath(file.path) for file in files)
    repeated = [Path(path) for path, number in times.items() if number > 1]
    if repeated:
        raise DocumentError(f"{_listed(repeated)} would be read twice; name each file once, itself or with its folder")
    return files, left_out


def _nothing_to_read(paths: Sequence[Path], left_out: Sequence[SkippedFile]) -> str:
    reasons = ", ".join(f"{skipped.path.name} is {skipped.reason}" for skipped in left_out[:3])
    return f"nothing to read in {_listed(paths)}: {reasons}"


def _add_folder(folder: Path, options: ConverterOptions, files: list[_File], left_out: list[SkippedFile]) -> None:
    closed: list[SkippedFile] = []
    # The names themselves decide between ``1.txt`` and ``01.txt``.
    inside = sorted(_walk(folder, closed), key=lambda path: ([natural_order(part) for part in path.parts], path))
    left_out += closed
    if not inside and not closed:
        raise DocumentError(f"the folder {str(folder)!r} holds no files")
    for path in inside:
        try:
            # As in a shell. A hidden file is read only if it is named itself.
            if path.name.startswith("."):
                raise Unreadable("hidden")
            files.append(_File(path, _kind(path, options), is_in_folder=True))
        except Unreadable as reason:
            left_out.append(SkippedFile(path, str(reason)))


def _walk(folder: Path, closed: list[SkippedFile]) -> Iterator[Path]:
    """Yield the files below a folder, and the folders that are not entered: hidden folders and links.

    Folders that cannot be listed are added to ``closed``.
    """

    def skip(error: OSError) -> None:
        reason = _NOT_YOURS if isinstance(error, PermissionError) else f"a folder that cannot be listed ({error})"
        closed.append(SkippedFile(Path(error.filename or folder), reason))

    for where, folders, names in os.walk(folder, onerror=skip):
        at = Path(where)
        unentered = [name for name in folders if name.startswith(".") or (at / name).is_symlink()]
        # The list itself is changed, so that os.walk does not enter the removed folders.
        folders[:] = [name for name in folders if name not in unentered]
        yield from (at / name for name in (*names, *unentered))


def _kind(path: Path, options: ConverterOptions) -> str:
    """Return a file's format. Nothing that could block, such as a pipe, is opened."""
    try:
        if path.is_dir():
            raise Unreadable("a link to a folder")
        if not path.exists():
            raise Unreadable("a link to nothing")
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("a pipe or device; write its output to a file and read that")
        return format_of(Source.file(path), options)
    except PermissionError:  # of the file, or of the folder that holds it
        raise Unreadable(_NOT_YOURS) from None


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the files' paths relative to the deepest folder that contains them all; the bare name of a single file."""
    if len(paths) == 1:
        return [printable(paths[0].name)]
    parents = [str(path.absolute().parent) for path in paths]
    # Enough of the path to tell files of equal name apart.
    shared = os.path.commonpath(parents)
    return [printable(os.path.relpath(path.absolute(), shared)) for path in paths]


def _listed(paths: Sequence[Path]) -> str:
    named = ", ".join(repr(str(path)) for path in paths[:3])
    more = len(paths) - 3
    if more > 0:
        named += f" and {more:,} more"
    return named
