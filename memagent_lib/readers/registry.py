"""Every reader by its name, whether it can continue a reading, and how many memories its prompts show.

A new reader is a module with a generator, and its line in :data:`MEMORY_READERS`; one that shows several memories at
once, or asks with other kinds of prompt than reads and answers, has a line in ``_SHOWS`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from inspect import signature

from memagent_lib.readers.baselines import blind, full, retrieved, truncated
from memagent_lib.readers.gated import gated
from memagent_lib.readers.map_merge import map_merge
from memagent_lib.readers.multislot import SLOTS, multislot
from memagent_lib.readers.overwrite import overwrite
from memagent_lib.readers.recall import recall
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt, Trace, Turn

ReaderSession = Generator[Prompt | tuple[Prompt, ...], Turn | tuple[Turn, ...], Trace]
Reader = Callable[[str, Iterable[Chunk]], ReaderSession]

MEMORY_READERS: dict[str, Reader] = {
    "overwrite": overwrite,
    "gated": gated,
    "recall": recall,
    "multislot": multislot,
    "map_merge": map_merge,
}
BASELINES: dict[str, Reader] = {"full": full, "truncated": truncated, "retrieved": retrieved, "blind": blind}
READERS: dict[str, Reader] = MEMORY_READERS | BASELINES
_SHOWS_ONE = {Kind.READ: 1, Kind.ANSWER: 1}
_SHOWS: dict[str, dict[Kind, int]] = {
    "gated": {Kind.GATE: 1, Kind.ANSWER: 1},
    "recall": {Kind.RECALL: 2, Kind.ANSWER: 2},
    "multislot": {Kind.READ: 1, Kind.ANSWER: SLOTS},
    "map_merge": {Kind.READ: 1, Kind.MERGE: 1, Kind.ANSWER: 1},
    "blind": {Kind.BLIND: 1},
}


def reader_named(name: str) -> Reader:
    if name not in READERS:
        raise ValueError(f"no reader {name!r}; choose from {', '.join(sorted(READERS))}")
    return READERS[name]


def continues(reader: Reader) -> bool:
    """Whether a reader takes ``previous``, a trace to continue."""
    return "previous" in signature(reader).parameters


def shows(reader: Reader) -> Mapping[Kind, int]:
    """How many memories a reader shows in each kind of prompt it asks: what the window it needs follows from."""
    return _SHOWS.get(reader.__name__, _SHOWS_ONE)
