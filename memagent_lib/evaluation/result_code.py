"""Hash the code that a result depends on; the files that matter are found automatically.

These are the files of the rooms (folders and modules of the library) that read or judge, and of all rooms that they
import, directly or indirectly, and the library's prompt templates. No list is maintained by hand, so none can miss a
file. Comments, docstrings and layout do not change the hash.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from memagent_lib.journal import digest
from memagent_lib.paths import PACKAGE
from memagent_lib.plugins import plugin_hash
from memagent_lib.scoring import judge_hash

# All that reads is imported by the agent; all that judges, by these two.
READING_ROOMS = ("agent",)
JUDGING_ROOMS = ("scoring", "diagnostics")
_HASH_CHARS = 8


def code_of_replies() -> str:
    """Return 8 hex digits that change with any code or prompt template that can change a reply."""
    return hash_of_rooms(READING_ROOMS)


def code_of_results(rule: str, reader_file: str = "") -> str:
    """Return 8 hex digits that change with any code that can change a reply, its diagnosis or its score by ``rule``.

    ``reader_file`` is the ``FILE.py:NAME`` of your own reader; a rule may name such a file too.
    """
    code = hash_of_rooms(READING_ROOMS + JUDGING_ROOMS)
    own = [judge_hash(rule), plugin_hash(reader_file) if reader_file else ""]
    if not any(own):
        return code
    return digest(" ".join([code, *own]))[:_HASH_CHARS]


def files_behind(*rooms: str) -> list[Path]:
    """Return the source files of ``rooms`` and of every room that they import, and the library's TOML files.

    All files of a room are included, because backends are imported by a name that is known only at run time.
    """
    found: dict[str, list[Path]] = {}
    waiting = list(rooms)
    while waiting:
        room = waiting.pop()
        if room in found:
            continue
        folder = PACKAGE / room
        found[room] = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        for file in found[room]:
            # Imports inside functions count too: engines are imported when they are opened.
            waiting += _imported_rooms(_parsed(file))
    sources = [file for files in found.values() for file in files]
    # Templates are TOML files, and their words change replies.
    return sorted([*sources, *PACKAGE.rglob("*.toml")])


@cache
def hash_of_rooms(rooms: tuple[str, ...]) -> str:
    """Return 8 hex digits for the code behind ``rooms``.

    The result is cached for the process, because computing it parses dozens of files.
    """
    parts = []
    for file in files_behind(*rooms):
        parts.append(str(file.relative_to(PACKAGE)))
        is_code = file.suffix == ".py"
        parts.append(_without_comments(_parsed(file)) if is_code else file.read_text(encoding="utf-8"))
    return digest("\0".join(parts))[:_HASH_CHARS]


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _imported_rooms(tree: ast.Module) -> Iterator[str]:
    """Yield the rooms of the library that a module imports, at any depth of its code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name:
            names = [f"{PACKAGE.name}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            package, _, below = name.partition(".")
            if package == PACKAGE.name and below:
                yield below.partition(".")[0]


def _without_comments(tree: ast.Module) -> str:
    """Return a module's code in one layout, without comments and docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a string alone is a docstring, or documents the name above it
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
