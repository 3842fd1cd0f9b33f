"""The pocket world and the readers are plug-ins like a user's own: they use only the library's doors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pocket import POCKET

import memagent_lib

LIBRARY = Path(memagent_lib.__file__).parent


def imported(path: Path) -> list[str]:
    """The modules that a file imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or ".")
    return found


FILES = sorted([*POCKET.glob("*.py"), *(POCKET.parent / "readers").glob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_plugins_use_only_the_librarys_doors(path):
    deep = [module for module in imported(path) if module.startswith("memagent_lib.") and module.count(".") > 1]
    assert deep == []
    own = [module for module in imported(path) if module.split(".")[0] == "experiments"]
    assert all(module.startswith(f"experiments.{path.parent.name}") for module in own)


def test_the_library_does_not_know_the_pocket_world():
    texts = [path for path in LIBRARY.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".md")]
    assert len(texts) > 100
    naming = [path for path in texts if "pocket" in path.read_text(encoding="utf-8", errors="replace").lower()]
    assert naming == []
