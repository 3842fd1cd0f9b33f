"""Files and folders as one document: a stream of text in which every character has a known position in a file.

Making a :class:`Document` opens every file and converts all but plain text and CSV, so unreadable files, and text that
converted files lack, are reported before a model sees the first word. Plain text and Markdown are read unchanged, so
offsets point into the file itself; other offsets point into the text that the converter extracted. This module does not
depend on tokenizers or models.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from memagent_lib.documents.converters import convert
from memagent_lib.documents.encodings import Converted, Unreadable
from memagent_lib.errors import UserError, nearest_path

MOST_WARNINGS = 10


class DocumentError(UserError, ValueError):
    """A file or folder is missing or cannot be read as text. The message gives its name, the reason and the fix."""


class SourcePosition(NamedTuple):
    """The position of a character in its file's text. ``where`` is ``page 3``, ``sheet Rent``, or ""."""

    name: str
    offset: int
    where: str = ""

    def __str__(self) -> str:
        file = f"{self.where} of {self.name}" if self.where else self.name
        return f"{file}, character {self.offset:,}"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a document's text, from one file, or from one page, sheet or other part of a file.

    It begins at ``start`` in the document and at ``offset`` in the file's text.
    """

    name: str
    start: int
    offset: int = 0
    where: str = ""


class Document:
    """Files and folders, read in order as one text.

    The text of each file follows a line with the file's name, which the model sees too. Only a single file that
    continues no reading has no such line. To continue a reading, set ``start`` to the length of the text that has been
    read, and ``previous`` to the ``parts`` of that text. ``encoding`` is that of text files; by default it is detected.

    Raises :class:`DocumentError` if a named file cannot be read or if no text is found. Unreadable files in a folder
    are left out and reported.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        start: int = 0,
        previous: Iterable[Part] = (),
        *,
        encoding: str | None = None,
        on_file: Callable[[str], None] | None = None,
    ):
        names = [paths] if isinstance(paths, str | Path) else paths
        paths = [Path(name) for name in names]
        missing = [str(name) for name in names if not (str(name) and Path(name).exists())]  # "" would be this folder
        if missing or not paths:
            near = nearest_path(missing[0]) if missing else ""
            raise DocumentError(f"no file or folder {missing}; give at least one that exists; a pipe is not read{near}")
        self.notes: list[str] = []
        """One line for each file that is not read, and for each gap in the text of others, such as a scanned page."""
        self._files: list[tuple[str, Converted]] = []
        files = [file for path in paths for file in (self._inside(path) if path.is_dir() else [path])]
        if len({os.path.abspath(file) for file in files}) < len(files):
            raise DocumentError(f"a file of {list(map(str, paths))} would be read twice; name it once")
        for file, name in zip(files, _names(files), strict=True):
            self._add(file, name, encoding, is_named=file in paths)
            if on_file:
                on_file(name)
        self.names = [name for name, _ in self._files]
        if not any(converted.characters for _, converted in self._files):
            raise self._no_text()
        self.begins_at = start
        """The position of the first character of :meth:`blocks`: the length of the text that was read before."""
        self.ends_at: int | None = None
        """The position after the last character, once :meth:`blocks` has yielded all of them."""
        # A reading that its model ended has parts that were not read.
        self._previous = tuple(part for part in previous if part.start < start)
        self.parts: list[Part] = list(self._previous)

    def _inside(self, folder: Path) -> list[Path]:
        """Return the files of a folder, in natural order, without hidden ones and linked folders, as in a shell."""
        found = []
        for where, folders, names in os.walk(folder, onerror=lambda error: self._leave_out(error.filename, error)):
            at = Path(where)
            links = [name for name in folders if (at / name).is_symlink()]
            unread = {name for name in (*folders, *names) if name.startswith(".")}.union(links)
            for name in sorted(unread):
                self._leave_out(at / name, "hidden, or a link to a folder")
            # The list itself is changed, so that os.walk does not enter the removed folders.
            folders[:] = [name for name in folders if name not in unread]
            found += [at / name for name in names if name not in unread]
        # The names themselves decide between ``1.txt`` and ``01.txt``.
        return sorted(found, key=lambda path: ([_natural_order(part) for part in path.parts], path))

    def _leave_out(self, path: str | Path, reason: object) -> None:
        self.notes.append(f"left out: {_printable(path)} ({reason})")

    def _add(self, file: Path, name: str, encoding: str | None, is_named: bool) -> None:
        try:
            if not file.is_file():  # nothing that could block is opened
                raise Unreadable("not a file (a pipe, a device, a broken link); write its text to a file")
            converted = convert(file, name, encoding)
        except (Unreadable, PermissionError) as reason:
            if is_named:
                raise DocumentError(f"{str(file)!r} is {_printable(reason)}") from reason
            self._leave_out(file, _printable(reason))
            return
        self._files.append((name, converted))
        self.notes += map(_printable, converted.notes)

    @property
    def about_characters(self) -> int:
        """About how many characters the text has. Plain text and CSV count by bytes, as they are read as streams."""
        return sum(converted.characters for _, converted in self._files)

    @property
    def converters(self) -> dict[str, str]:
        """The library that converted each file; files without an entry are read as they are."""
        return {name: converted.by for name, converted in self._files if converted.by}

    @property
    def warnings(self) -> list[str]:
        """The first :data:`MOST_WARNINGS` of ``notes``, and how many more there are."""
        more = len(self.notes) - MOST_WARNINGS
        last = [f"and {more:,} more files or pages are left out or incomplete"] if more > 0 else []
        return self.notes[:MOST_WARNINGS] + last

    def blocks(self) -> Iterator[str]:
        """Yield the text block by block and extend ``parts`` accordingly. Each call starts from the beginning.

        Raises :class:`DocumentError` at the end if there was no text.
        """
        self.parts = list(self._previous)
        self.ends_at = None
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
            for text, where in converted.pieces():
                # Pieces of the same page or sheet share one part.
                if at == begin or self.parts[-1].where != where:
                    self.parts.append(Part(name, at, at - begin, where))
                at += len(text)
                has_text = has_text or bool(text.strip())
                yield text
        self.ends_at = at
        if not has_text:
            raise self._no_text()

    def _no_text(self) -> DocumentError:
        reasons = "; ".join(self.notes[:3])
        return DocumentError(f"no text to read in {self.names[:3]}: {reasons or 'they are blank'}")

    def locate(self, offset: int) -> SourcePosition:
        """Return the file and position of character ``offset``. The document must have been read at least that far."""
        at = bisect_right(self.parts, offset, key=lambda part: part.start) - 1
        if at < 0:
            raise ValueError(f"nothing has been read at character {offset:,}")
        part = self.parts[at]
        return SourcePosition(part.name, max(0, offset - part.start + part.offset), part.where)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the files' paths relative to the deepest folder that contains them all; the bare name of a single file."""
    if len(paths) < 2:
        return [_printable(path.name) for path in paths]
    # Enough of the path to tell files of equal name apart.
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [_printable(os.path.relpath(path.absolute(), shared)) for path in paths]


def _printable(text: object) -> str:
    """Return ``text`` on one readable line, with line breaks and bytes that are not text escaped."""
    line = str(text)
    return line if line.isprintable() else repr(line)[1:-1]


def _natural_order(name: str) -> str:
    """Return a sort key by which the numbers in names sort by their value: ``chapter 2`` before ``chapter 10``."""
    return re.sub(r"[0-9]+", lambda number: number[0].zfill(32), name)
