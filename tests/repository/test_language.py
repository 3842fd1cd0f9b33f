"""The language of the code: plain words of the field, statements of one thing each, tests that name their claim.

The limits are counts over a whole tree, so that a single natural use never fails a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "memagent_lib"
DIALECT = ("asked", "said", "told", "shown", "held", "kept", "facts", "place")
WRITTEN = {".py", ".toml", ".html", ".js", ".css", ".md"}


def nodes(folder: Path) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT), node


def thousands_of_lines(folder: Path) -> float:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py")) / 1000


@pytest.mark.parametrize("word", DIALECT)
def test_dialect_words_are_rare_in_the_library(word: str) -> None:
    """Whole words, in names too: ``_asked`` and ``was_asked`` count as ``asked``."""
    pattern = re.compile(rf"(?<![a-z]){word}(?![a-z])")
    files = [path for path in sorted(LIBRARY.rglob("*")) if path.suffix in WRITTEN]
    found = {str(path): len(pattern.findall(path.read_text(encoding="utf-8").lower())) for path in files}
    assert sum(found.values()) < 20, {path: count for path, count in found.items() if count}


def test_assignments_of_the_library_are_not_packed() -> None:
    """``a, b = f(x), g(y)`` is two statements."""
    packed = [
        f"{path}:{node.lineno}"
        for path, node in nodes(LIBRARY)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(packed) < 3 * thousands_of_lines(LIBRARY), packed


def test_assignments_inside_expressions_are_rare() -> None:
    walrus = [f"{path}:{node.lineno}" for path, node in nodes(LIBRARY) if isinstance(node, ast.NamedExpr)]
    assert len(walrus) < 3 * thousands_of_lines(LIBRARY), walrus


def private(name: str) -> bool:
    """``_name``; not ``__name__`` and not ``_repr_html_``, by which Python and IPython call an object."""
    return name.startswith("_") and not name.endswith("_")


def methods_that_verl_calls() -> set[str]:
    """The private methods of verl's classes that ours override: verl's interface, and the tests' way in."""
    table = (LIBRARY / "rl" / "verl" / "VERL.md").read_text(encoding="utf-8")
    return set(re.findall(r"`\w+\.(_[a-z]\w*)`", table))


def test_tests_seldom_reach_into_private_names() -> None:
    """``from memagent_lib.x import _y`` and ``x._y``; what a class of a test calls its own attributes is its affair."""
    allowed = methods_that_verl_calls()
    reached = []
    for path, node in nodes(ROOT / "tests"):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memagent_lib"):
            reached += [f"{path}:{node.lineno} {alias.name}" for alias in node.names if private(alias.name)]
        elif isinstance(node, ast.Attribute) and private(node.attr):
            own = getattr(node.value, "id", "") == "self"
            reached += [] if own or node.attr in allowed else [f"{path}:{node.lineno} {ast.unparse(node)}"]
    assert len(reached) < 15, "\n".join(reached)
