"""What a module has to declare about the file format that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of other projects' files.

    ``files`` describes its files in words. A record is recognised by its ``fields`` and by ``fits``, which checks
    their values if many projects use the same names. ``read`` yields the examples of a file; its parameters after
    the path are the format's options. ``pool`` reads all documents of a file, so that longer ones can be built from
    them. ``unanswerable`` and ``note`` take the same options as ``read``: the first counts a file's questions that have
    no answer, the second returns a remark on how the file was read, or an empty text.
    """

    name: str
    files: str
    fields: tuple[str, ...]
    read: Callable[..., Iterator[Example]]
    fits: Callable[[Mapping[str, Any]], bool] = lambda fields: True
    pool: Callable[[str | Path], Pool] | None = None
    note: Callable[..., str] = lambda path, **options: ""
    unanswerable: Callable[..., int] = lambda path, **options: 0

    def recognises(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record looks like one of this format."""
        return set(self.fields) <= record.keys() and self.fits(record)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that ``read`` accepts after the path."""
        return tuple(signature(self.read).parameters)[1:]
