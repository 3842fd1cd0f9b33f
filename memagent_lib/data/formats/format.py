"""What a format declares about itself, in the file that reads it."""

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
    """A format of other projects' files: its ``name``, its files in words, and the ``fields`` that identify a record.

    ``fits`` returns whether the values of those fields are of this format, for names that many projects use.
    ``read`` yields the examples of a file; its parameters beside the path are the format's options. A format with a
    ``pool`` can build longer documents. ``unanswerable``, with the same options, counts the questions of a file that
    nothing answers; ``note``, too, returns what is to be known about how a file was read, or nothing.
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
        """Whether a record is of this format."""
        return set(self.fields) <= record.keys() and self.fits(record)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that ``read`` takes beside the path."""
        return tuple(signature(self.read).parameters)[1:]
