"""All readers that ship with the library, and the loading of readers from your own files (``FILE.py:NAME``)."""

from __future__ import annotations

from dataclasses import replace
from inspect import isgeneratorfunction

from memagent_lib.errors import nearest
from memagent_lib.plugins import PluginError, is_plugin, load_plugin, plugin_name
from memagent_lib.readers.baselines import blind, full, retrieved, truncated
from memagent_lib.readers.declaration import Reader
from memagent_lib.readers.gated import DONE, KEEP, gated
from memagent_lib.readers.map_merge import map_merge
from memagent_lib.readers.multislot import multislot
from memagent_lib.readers.overwrite import overwrite
from memagent_lib.readers.recall import RECALL_COMMAND, recall
from memagent_lib.readers.retrieving import SEARCH_COMMAND, retrieving

READERS: dict[str, Reader] = {
    each.name: each
    for each in (overwrite, gated, recall, retrieving, multislot, map_merge, full, truncated, retrieved, blind)
}  # fmt: skip
BASELINES = tuple(name for name, each in READERS.items() if not each.has_memory)
"""The names of the readers without a memory."""
READ_KINDS = frozenset(kind.name for each in READERS.values() for kind in each.prompts if kind.reads)
"""The names of the kinds of prompt that display a part of the document."""

_IN_WORDS = {KEEP: "left its memory unchanged", DONE: "stopped reading here"}
_REQUESTS = {RECALL_COMMAND: "looks back for", SEARCH_COMMAND: "searches the document for"}


def signal_in_words(signal: str) -> str:
    """Return a reply's signal as pages display it: ``"looks back for: the owl"`` for ``"recall: the owl"``."""
    command, colon, words = signal.partition(": ")
    if colon and command in _REQUESTS:
        return f"{_REQUESTS[command]}: {words}"
    return _IN_WORDS.get(signal, signal)


def reader_named(name: str) -> Reader:
    """Return the reader called ``name``, or the one that ``FILE.py:NAME`` defines.

    A generator function without the decorator becomes a reader with MemAgent's prompts. Raises :class:`ValueError` for
    an unknown name, and :class:`~memagent_lib.plugins.PluginError` for a file that defines no such reader.
    """
    if is_plugin(name):
        return _from_file(name)
    if name not in READERS:
        known = ", ".join(sorted(READERS))
        raise ValueError(f"no reader {name!r}; choose from {known}, or give FILE.py:NAME{nearest(name, READERS)}")
    return READERS[name]


def can_continue(name: str) -> bool:
    """Return whether the reader with this name can be opened on this machine and can continue a reading."""
    try:
        return reader_named(name).continues
    except (ValueError, OSError):  # several questions in one pass, or a file that is no longer here
        return False


def require_continues(reader: Reader) -> None:
    """Raise :class:`ValueError`, with the readers to choose from, if the reader cannot continue a reading."""
    if not reader.continues:
        able = ", ".join(name for name, each in READERS.items() if each.continues)
        raise ValueError(f"the reader {reader.source!r} cannot continue a reading; choose from {able}")


def _from_file(name: str) -> Reader:
    found = load_plugin(name)
    if isinstance(found, Reader):
        return replace(found, file=name)
    if isgeneratorfunction(found):
        return Reader(plugin_name(name), found, file=name)
    raise PluginError(
        f"{name} is no reader but {type(found).__name__}; put @reader({{Kind.READ: 1, Kind.ANSWER: 1}}) "
        "from memagent_lib.readers above a generator function"
    )
