"""All readers that ship with the library, and the loading of readers from files (``FILE.py:NAME``)."""

from __future__ import annotations

from dataclasses import replace
from inspect import isgeneratorfunction

from memagent_lib.errors import nearest
from memagent_lib.plugins import PluginError, is_plugin, load_plugin, plugin_name, shipped_names, shipped_plugin
from memagent_lib.readers.baselines import blind, full, retrieved, truncated
from memagent_lib.readers.declaration import Reader
from memagent_lib.readers.with_memory import map_merge, multislot, overwrite

READERS: dict[str, Reader] = {
    each.name: each for each in (overwrite, multislot, map_merge, full, truncated, retrieved, blind)
}
BASELINES = tuple(name for name, each in READERS.items() if not each.has_memory)
"""The names of the readers without a memory."""


def reader_named(name: str) -> Reader:
    """Return the reader called ``name``: the library's, that of ``experiments/readers/NAME.py``, or ``FILE.py:NAME``.

    A generator function without the decorator becomes a reader with MemAgent's prompts. Raises :class:`ValueError` for
    an unknown name, and :class:`~memagent_lib.plugins.PluginError` for a file that defines no such reader.
    """
    if name in READERS:
        return READERS[name]
    file = name if is_plugin(name) else shipped_plugin("readers", name)
    if file is None:
        known = sorted({*READERS, *shipped_names("readers")})
        listed = ", ".join(known)
        raise ValueError(f"no reader {name!r}; choose from {listed}, or give FILE.py:NAME{nearest(name, known)}")
    found = load_plugin(file)
    if isinstance(found, Reader):
        return replace(found, file=file)
    if isgeneratorfunction(found):
        return Reader(plugin_name(file), found, file=file)
    raise PluginError(f"{file} is {type(found).__name__}; put @reader({{...}}) above a generator function")


def signal_in_words(reader: str, signal: str) -> str:
    """Return a reply's signal as pages display it: ``"looks back for: the owl"`` for ``"recall: the owl"``.

    If the reader's file is gone, return the signal itself.
    """
    command, _, request = signal.partition(": ")
    try:
        words = reader_named(reader).commands.get(command, command) if signal else ""
    except (ValueError, OSError):
        words = command
    return f"{words}: {request}" if request else words


def can_continue(name: str) -> bool:
    """Return whether the reader with this name can be opened on this machine and can continue a reading."""
    try:
        return reader_named(name).continues
    except (ValueError, OSError):  # several questions in one pass, or a file that is no longer here
        return False


def require_continues(reader: Reader) -> None:
    """Raise :class:`ValueError` if the reader cannot continue a reading."""
    if not reader.continues:
        able = ", ".join(name for name, each in READERS.items() if each.continues)
        raise ValueError(f"the reader {reader.source!r} cannot continue a reading; choose from {able}")
