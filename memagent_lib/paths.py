"""Where things are and how they are written: the project's root, models by name, whole files or none.

Notebooks work alike from JupyterLab (opened in ``notebooks/``) and from papermill (run from the root), because every
relative path they are given is relative to :func:`root`.
"""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from memagent_lib.errors import MissingFile

PACKAGE = Path(__file__).parent
_MARKS = ("pyproject.toml", "notebooks")


def root() -> Path:
    """The first folder from the working directory upward that holds ``pyproject.toml`` and ``notebooks``.

    Where there is none (the library was installed, not cloned) it is the folder itself.
    """
    here = Path.cwd().resolve()
    return next((p for p in (here, *here.parents) if all((p / mark).exists() for mark in _MARKS)), here)


def absolute(path: str | Path) -> Path:
    """An absolute path; a relative one is relative to :func:`root`."""
    return root() / Path(path).expanduser()


def display(path: Path) -> str:
    """A path as people give it: from :func:`root` where it lies below."""
    return str(path.relative_to(root()) if path.is_relative_to(root()) else path)


def require_replaceable(*paths: str | Path) -> None:
    """:class:`ValueError` where something stands that is no file, such as a folder, or where no file may be."""
    for path in map(Path, paths):
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no file that could be replaced; give another path")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        if not above.is_dir():
            raise ValueError(f"{above} is a file, so {path} cannot be in it; give another path")
        if not os.access(above, os.W_OK):
            raise ValueError(f"{path} cannot be written: {above} is not yours to write in; give another path")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; its file becomes ``path`` when the block ends without an error."""
    path = Path(path)
    require_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    except OSError as failure:
        if unfinished.name not in str(failure):
            raise
        why = os.strerror(failure.errno) if failure.errno else type(failure).__name__
        raise type(failure)(f"{path} cannot be written ({why}); give another path") from failure
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file that others see whole or not at all; its folder is made. Lone surrogates in a text become "?"."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with replacing(path) as unfinished:
        unfinished.write_bytes(data)
    return Path(path)


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """The JSON lines of a file, none where there is none. A last line that was cut short is left out."""
    return read_lines_from(path, 0)[0]


def read_lines_from(path: str | Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """:func:`read_lines` of a file that another process may be appending to, and the offset to continue from."""
    if not Path(path).is_file():
        return [], 0
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], offset + len(whole)


def first_model(names: Sequence[str]) -> str:
    """The first of some model folders that is there, by the name it was given."""
    found = next((name for name in names if (absolute(name) / "config.json").is_file()), None)
    if found is None:
        raise MissingFile(f"no model at {', '.join(map(str, names))}; `make demo` trains one")
    return found


def model_path(name: str) -> str:
    """A model folder as an absolute path, or a hub name as it is.

    A folder that is not below :func:`root` is looked for beside the library too: a clone's own models, from anywhere.
    """
    folders = (absolute(name), PACKAGE.parent / name)
    return next((str(folder) for folder in folders if folder.is_dir()), name)


def default_model() -> str:
    """The model of commands that name none: ``[tool.memagent] model`` in the project's ``pyproject.toml``."""
    for folder in (root(), PACKAGE.parent):
        project = folder / "pyproject.toml"
        table = tomllib.loads(project.read_text(encoding="utf-8")) if project.is_file() else {}
        if name := table.get("tool", {}).get("memagent", {}).get("model", ""):
            return model_path(name)
    raise MissingFile(
        f"no model is named, and {root()} has no pyproject.toml with a [tool.memagent] model; "
        "give --model: a folder or a hub name"
    )


def bytes_of(folder: str | Path, pattern: str = "**/*") -> int:
    """The size of all files of a folder that match."""
    return sum(path.stat().st_size for path in Path(folder).glob(pattern) if path.is_file())
