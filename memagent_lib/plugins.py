"""Objects from a Python file, named ``FILE.py:NAME``: a task, a reader or a judge of one's own without an edit here.

A file that stands in a package is imported by its package's name, so that it is the same module for everybody who
imports it and can import its neighbours. Loading a file runs its code. Knows nothing of what is loaded.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from memagent_lib.errors import MissingFile, UserError
from memagent_lib.paths import absolute

SEPARATOR = ".py:"


class PluginError(UserError, ValueError):
    """A file that cannot be imported, or has no such name."""


def is_plugin(name: str) -> bool:
    """Whether ``name`` names an object in a file rather than something that ships with the library."""
    return SEPARATOR in name


def plugin_name(name: str) -> str:
    """``NAME`` of ``FILE.py:NAME``; any other name as it is."""
    return name.rpartition(SEPARATOR)[2]


def plugin_hash(name: str) -> str:
    """16 hex digits of the file's content: what a cache is keyed by beside the name."""
    return hashlib.sha256(plugin_file(name).read_bytes()).hexdigest()[:16]


def plugin_file(name: str) -> Path:
    """The file of ``FILE.py:NAME``; :class:`MissingFile` where there is none."""
    file = absolute(name.rpartition(":")[0])
    if not file.is_file():
        raise MissingFile(f"no file {file}, which {name!r} names; give FILE.py:NAME")
    return file


def load_plugin(name: str) -> Any:
    """The object that ``FILE.py:NAME`` names. A relative path is relative to the project's root.

    Where the module has no such variable, an entry of its ``PRESETS`` table is taken.
    """
    module = _module(plugin_file(name))
    wanted = plugin_name(name)
    presets = getattr(module, "PRESETS", {})
    if wanted in presets:
        return presets[wanted]
    if not hasattr(module, wanted):
        public = sorted({*presets, *(each for each in vars(module) if not each.startswith("_"))})
        raise PluginError(f"{module.__file__} has no {wanted!r}; it has {', '.join(public)}")
    return getattr(module, wanted)


def _module(file: Path) -> ModuleType:
    package = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    try:
        if len(package) == 1:
            return _alone(file)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return import_module(".".join(package))
    except Exception as broken:
        raise PluginError(f"{file} cannot be imported ({type(broken).__name__}: {broken})") from broken


def _alone(file: Path) -> ModuleType:
    """Import a file that is in no package, under a name that no other file has."""
    name = f"memagent_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, file)
        module = util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
