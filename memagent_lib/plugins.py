"""Load objects from a Python file, named as ``FILE.py:NAME``: a task, a reader or a judge of your own.

A file inside a package is imported under its package's name, so that every import gets the same module and the file can
import its neighbours. Any other file gets a unique module name. Loading a file runs its code, once per process and
version of the file.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import traceback
from importlib import import_module, util
from inspect import isclass, isroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from memagent_lib.errors import MissingFile, UserError, nearest, nearest_path
from memagent_lib.paths import input_path, root, shipped

SEPARATOR = ".py:"
_VERSION = "_memagent_version"  # an attribute of modules of packages: the hash of the files that they were loaded from
_IMPORTING = threading.RLock()  # else a second thread would find a module whose code is still running
_IMPORTS = re.compile(rb"^\s*(?:from|import)\s.*", re.MULTILINE)


class PluginError(UserError, ValueError):
    """The file cannot be imported or does not define the name."""


def is_plugin(name: str) -> bool:
    """Return whether ``name`` has the form ``FILE.py:NAME``; other names belong to the library."""
    return SEPARATOR in name


def plugin_name(name: str) -> str:
    """Return the ``NAME`` in ``FILE.py:NAME``; return any other name unchanged."""
    return name.rpartition(SEPARATOR)[2]


def plugin_hash(name: str) -> str:
    """Return a hash (16 hex digits) of the file and of the files beside it that it imports, for cache keys."""
    contents: dict[Path, bytes] = {}
    waiting = [plugin_file(name)]
    while waiting:
        file = waiting.pop()
        if file not in contents:
            contents[file] = file.read_bytes()
            imported = set(re.findall(rb"\w+", b" ".join(_IMPORTS.findall(contents[file]))))
            waiting += [other for other in file.parent.glob("*.py") if other.stem.encode() in imported]
    return hashlib.sha256(b"".join(contents[file] for file in sorted(contents))).hexdigest()[:16]


def plugin_file(name: str) -> Path:
    """Return the path of the file in ``FILE.py:NAME``, looked up by :func:`~memagent_lib.paths.input_path`."""
    file = input_path(name.rpartition(":")[0]).resolve()
    if not file.is_file():
        raise MissingFile(f"no file {file}, which {name!r} names; give FILE.py:NAME{nearest_path(file)}")
    return file


def absolute_plugin(name: str) -> str:
    """Return ``FILE.py:NAME`` with an absolute path, for a process with another working directory."""
    return f"{plugin_file(name)}:{plugin_name(name)}"


def shipped_plugin(folder: str, name: str) -> str | None:
    """Return ``FILE.py:NAME`` for the idea in ``experiments/FOLDER/NAME.py``, or ``None`` if there is no such file.

    The project's own file comes before the one that came with the library, so a bare name works in a clone and in a
    folder of ``memagent init``.
    """
    files = [path / f"{name}.py" for path in _idea_folders(folder)]
    return next((f"{file}:{name}" for file in files if file.is_file()), None)


def shipped_module(folder: str, name: str) -> ModuleType | None:
    """Return the module ``experiments/FOLDER/NAME.py``, or ``None`` if there is no such file."""
    found = shipped_plugin(folder, name)
    return _load(plugin_file(found)) if found else None


def shipped_names(folder: str) -> list[str]:
    """Return the names of the files that :func:`shipped_plugin` finds."""
    files = [file for path in _idea_folders(folder) for file in path.glob("*.py")]
    return sorted({file.stem for file in files} - {"__init__"})


def _idea_folders(folder: str) -> list[Path]:
    """Return ``experiments/FOLDER`` of the project, and then of what came with the library."""
    return [above / "experiments" / folder for above in (root(), shipped()) if above]


def load_plugin(name: str, table: str = "") -> Any:
    """Load the object that ``FILE.py:NAME`` names: a variable of the file, or an entry of its mapping ``table``."""
    module = _load(plugin_file(name))
    entries = getattr(module, table, {}) if table else {}
    wanted = plugin_name(name)
    if wanted in entries:
        return entries[wanted]
    if not hasattr(module, wanted):
        known = sorted({*entries, *_own_names(module)})
        listed = ", ".join(known) or "nothing"
        raise PluginError(f"{module.__file__} has no {wanted!r}; it has {listed}{nearest(wanted, known)}")
    return getattr(module, wanted)


def _own_names(module: ModuleType) -> list[str]:
    """Return the public names that a module defines, without those it imports from other modules."""
    return [
        name for name, value in vars(module).items() if not name.startswith("_") and not _is_imported(value, module)
    ]


def _is_imported(value: Any, module: ModuleType) -> bool:
    if isclass(value) or isroutine(value):
        return value.__module__ != module.__name__
    return isinstance(value, ModuleType)  # any other value may be the module's own, whatever the module of its class


def _load(file: Path) -> ModuleType:
    sys.path += [str(above) for above in (root(), shipped()) if above and str(above) not in sys.path]
    package = []
    folder = file.parent
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    try:
        if package:
            return _import_from_package(file, ".".join([*package, file.stem]), folder)
        with _IMPORTING:
            return _import_alone(file)
    except PluginError:
        raise
    except Exception as failure:  # whatever the user's code raises
        raise PluginError(f"{file} cannot be imported: {_describe(failure, file)}") from failure


def _import_from_package(file: Path, name: str, above: Path) -> ModuleType:
    if str(above) not in sys.path:
        sys.path.append(str(above))
    module = import_module(name)
    version = plugin_hash(f"{file}:")
    if vars(module).setdefault(_VERSION, version) != version:  # this file, or one beside it, was edited since
        for other in list(sys.modules):
            if other.rpartition(".")[0] == name.rpartition(".")[0]:
                del sys.modules[other]
        module = import_module(name)
        setattr(module, _VERSION, version)
    imported = Path(module.__file__).resolve()
    if imported != file:  # a package of this name was on the path before
        raise PluginError(f"{file} cannot be imported: the module {name} is already {imported}; rename the package")
    return module


def _import_alone(file: Path) -> ModuleType:
    # A file that was edited is another module, so that an open notebook runs what the hashes of its results say.
    name = f"memagent_plugin_{hashlib.sha256(bytes(file) + file.read_bytes()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, file)
        module = util.module_from_spec(spec)
        sys.modules[name] = module  # before its code runs: dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _describe(failure: Exception, file: Path) -> str:
    """Describe an error in one line, with the line of the user's file that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == str(file)]
    where = f", line {lines[-1]}" if lines else ""
    return f"{type(failure).__name__}: {failure}{where}"
