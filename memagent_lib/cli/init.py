"""``memagent init``: a folder with the notebooks, recipes, small policies and demo, for a library without a clone."""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path

import click

from memagent_lib.errors import MissingFile
from memagent_lib.paths import shipped, write_atomically

SHARE = "share/memagent"
MOST_NAMED = 5
PROJECT = """\
# Commands that run in this folder, or below it, look here for notebooks, experiments and runs.
[tool.memagent]
# What they take where no model is named.
model = "{model}"
"""
README = Path(__file__).with_name("init_folder.md")


@click.command()
@click.argument("folder")
def init(folder: str) -> None:
    """Make FOLDER with the notebooks, recipes, small policies and demo; files that it already has are never changed."""
    target = Path(folder).expanduser().absolute()
    contents = starter()
    differing = [name for name, content in contents.items() if not _absent_or_same(target / name, content)]
    missing = [name for name in contents if not os.path.lexists(target / name)]
    for name in missing:
        write_atomically(target / name, contents[name])
    print(f"{len(missing)} files written to {target}, {len(contents) - len(missing)} were there")
    if differing:
        named = ", ".join(differing[:MOST_NAMED]) + ", ..." * (len(differing) > MOST_NAMED)
        print(f"not changed, although {len(differing)} of them differ from the library's: {named}")
    print(f"next: cd {shlex.quote(folder)}, then memagent lab, or memagent doctor to see what the machine lacks")


def starter() -> dict[str, bytes]:
    """Return the files of a new folder by their paths in it.

    Raises :class:`MissingFile` if the library was installed without them.
    """
    source = shipped()
    if source is None:
        raise MissingFile("the library's notebooks and recipes are not installed; install its wheel, or run in a clone")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contents = {"pyproject.toml": PROJECT.format(model=project["memagent"]["model"]).encode()}
    contents["README.md"] = README.read_bytes()
    for target, patterns in project["setuptools"]["data-files"].items():
        if target == SHARE:  # pyproject.toml, which is for building the library
            continue
        for path in sorted(path for pattern in patterns for path in source.glob(pattern)):
            if path.name.startswith(".") or not path.is_file():
                continue
            contents[path.relative_to(source).as_posix()] = path.read_bytes()
    return contents


def _absent_or_same(path: Path, content: bytes) -> bool:
    return not os.path.lexists(path) or (path.is_file() and path.read_bytes() == content)
