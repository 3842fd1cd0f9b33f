"""Find the project's root and its models, and write files that never appear half written.

:func:`absolute` and :func:`input_path` resolve a relative path against :func:`root`, so that a notebook finds the same
files in JupyterLab (opened in ``notebooks/``) and in papermill (run from the root).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import IO, Any

from memagent_lib.errors import MissingFile, nearest_path

PACKAGE = Path(__file__).parent
_MARKS = ("pyproject.toml", "notebooks")


def root() -> Path:
    """Return the project's root: the nearest folder upwards that has ``pyproject.toml`` and ``notebooks``.

    If there is none (neither a clone nor a folder of ``memagent init``), return the working directory.
    """
    # Search from the working directory, not from this file: the library may be installed elsewhere.
    here = Path.cwd().resolve()
    return next((folder for folder in (here, *here.parents) if _is_project(folder)), here)


def clone() -> Path | None:
    """Return the root of the clone that the library runs from, or ``None`` if it was installed from a wheel."""
    return PACKAGE.parent if _is_project(PACKAGE.parent) else None


def shipped() -> Path | None:
    """Return the folder of the notebooks, recipes and models that came with the library: its clone, or a wheel's files.

    Returns ``None`` if the library was copied without them.
    """
    return clone() or _from_wheel()


def _is_project(folder: Path) -> bool:
    return all((folder / mark).exists() for mark in _MARKS)


@lru_cache(maxsize=1)
def _from_wheel() -> Path | None:
    try:
        installed = files("memagent-lib") or []
    except PackageNotFoundError:
        return None
    # Not below sys.prefix where pip installed for one user, so the wheel's own record decides.
    marks = (file for file in installed if file.parts[-3:] == ("share", "memagent", _MARKS[0]))
    found = [Path(os.path.abspath(file.locate())).parent for file in marks]
    return next(filter(_is_project, found), None)


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` or ``~USER`` at its beginning replaced, unless it is a file such as ``~$draft.docx``."""
    # Path.expanduser() raises an error for a user that does not exist.
    return Path(os.path.expanduser(path))


def absolute(path: str | Path) -> Path:
    """Return an absolute path; a relative one is resolved against :func:`root`."""
    return root() / expanded(path)


def shortest_ends(paths: Iterable[str | Path]) -> dict[str | Path, str]:
    """Return for each path the shortest end of it that no other path has, such as ``a/test.parquet``."""
    parts = {path: Path(path).parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        lengths = range(1, len(own) + 1)
        shared = next((n for n in lengths if all(other[-n:] != own[-n:] for other in others)), len(own))
        names[path] = str(Path(*own[-shared:]))
    return names


def display(path: Path) -> str:
    """Return a path as text to display: relative to :func:`root` if possible, else unchanged."""
    # Printed paths can be pasted into a command, which also resolves them against the root.
    if path.is_relative_to(root()):
        path = path.relative_to(root())
    return str(path)


def lock_beside(path: Path) -> IO[bytes]:
    """Wait until no other process or thread holds the lock of ``path``, and return it. Closing the file releases it.

    The lock is a hidden file of its own, because a file that is replaced takes its locks along. Missing folders are
    created.
    """
    import fcntl  # not on Windows, where the commands still have to load

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path.with_name(f".{path.name}.lock"), "wb")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def require_replaceable(path: str | Path) -> None:
    """Raise :class:`ValueError` if ``path`` cannot be written, for example because it is a folder."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file and cannot be replaced; choose another path")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"{path} cannot be written: {above} is not a folder that you may write to")


def require_apart(outputs: Mapping[str, str | Path | None], inputs: Iterable[str | Path]) -> None:
    """Raise :class:`ValueError` if a file to be written is read too, is in a folder that is read, or is named twice.

    ``outputs`` maps options to their paths; ``None`` and "" are options that are not set.
    """
    read = [Path(os.path.realpath(path)) for path in inputs]
    written: dict[Path, str] = {}
    for option, name in outputs.items():
        if not name:
            continue
        path = Path(os.path.realpath(name))
        if path in written:
            raise ValueError(f"{written[path]} and {option} both name {name}; choose two files")
        written[path] = option
        if path in read:
            raise ValueError(f"{option} names {name}, which is read and would be overwritten; choose another file")
        folder = next((folder for folder in read if folder in path.parents), None)
        if folder:
            raise ValueError(f"{option} names {name}, in the folder {folder.name} that is read; choose another")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename it to ``path`` when the block ends without an error.

    After an error, the temporary file is deleted and ``path`` is unchanged.
    """
    path = Path(path)
    require_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, because a rename is atomic only within one file system; the thread's id, because threads share a pid.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file so that other processes see all of it or none of it.

    Its folder is created if missing, and lone surrogates become "?".
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)
    return Path(path)


def apply_umask(folder: Path) -> None:
    """Give the weights in ``folder`` (safetensors files) the permissions that any new file has.

    safetensors leaves them readable by their owner only, so that a server under another account could not load them.
    """
    for file in folder.glob("*.safetensors"):
        # The process's umask cannot be read without setting it for all threads, so a new file shows its effect.
        probe = file.with_name(f".{file.name}.{os.getpid()}.mode")
        probe.touch()
        shutil.copymode(probe, file)
        probe.unlink()


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """Return the parsed lines of a JSON-lines file, without an incomplete last one. A missing file has no lines."""
    return read_lines_from(path, 0)[0]


def read_lines_from(path: str | Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON lines of a growing file from byte ``offset`` on, and the offset at which to continue later.

    A missing file has no lines, and the offset is 0. Raises ``ValueError`` for a damaged line.
    """
    if not Path(path).is_file():
        return [], 0
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    # A line without its end is still being written; the next call reads it.
    whole = data[: data.rfind(b"\n") + 1]
    rows = []
    for line in whole.splitlines():
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as damaged:
            raise ValueError(f"{path} has a damaged line, {line[:60]!r} ({damaged}); remove that line") from None
    return rows, offset + len(whole)


def first_model(names: Sequence[str]) -> str:
    """Return the first of ``names`` that is a model folder. Raises :class:`MissingFile` if none is."""
    found = next((name for name in names if (absolute(name) / "config.json").is_file()), None)
    if found is None:
        near = nearest_path(absolute(names[0])) if names else ""
        raise MissingFile(f"no model at {', '.join(map(str, names))}; `memagent demo` trains one{near}")
    return found


def input_path(path: str | Path) -> Path:
    """Return the absolute path of a file or folder to read.

    If it does not exist below :func:`root`, it is looked up in :func:`shipped`, so that the library's own recipes,
    sweeps, notebooks and models are found from anywhere. A path that exists in neither folder is resolved against the
    root.
    """
    path = expanded(path)
    mine = absolute(path)
    library = shipped()
    if library is None or mine.exists() or not (library / path).exists():
        return mine
    return library / path


def model_path(name: str) -> str:
    """Return a model folder in the project or the working folder as an absolute path; return other names unchanged."""
    folders = (input_path(name), expanded(name).absolute())
    return next((str(folder) for folder in folders if folder.is_dir()), name)


def default_model() -> str:
    """Return the model that commands use by default.

    The ``pyproject.toml`` of the project, or else of :func:`shipped`, names it as ``[tool.memagent] model``. Raises
    :class:`MissingFile` if neither does.
    """
    for folder in filter(None, (root(), shipped())):
        project = folder / "pyproject.toml"
        table = tomllib.loads(project.read_text(encoding="utf-8")) if project.is_file() else {}
        name = table.get("tool", {}).get("memagent", {}).get("model", "")
        if name:
            return model_path(name)
    raise MissingFile(f"no model is named, here or in {root()}/pyproject.toml; give --model, or memagent init FOLDER")
