"""``VERL.md`` lists every method of verl that is overridden, every registry entry and every replaced attribute."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("vllm")

import memagent_lib.rl
from memagent_lib.rl.verl.cpu_platform import answer_for_vllm

answer_for_vllm()  # verl asks for a version of vLLM while it is imported
ROOM = Path(memagent_lib.rl.__file__).parent
TABLE = (ROOM / "verl" / "VERL.md").read_text(encoding="utf-8")
FILES = sorted(ROOM.rglob("*.py"))
WHOLE_INTERFACES = ("CpuPlatform",)
FOREIGN = ("verl", "vllm", "torch", "importlib")


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = TABLE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def imported(tree: ast.Module, packages: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Names in a module that come from some packages: from which module, and by which name (empty for a module)."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages:
            names |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in packages:
                    names[alias.asname or alias.name.split(".")[0]] = (alias.name, "")
    return names


def classes() -> Iterator[tuple[ast.ClassDef, ast.Module]]:
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from ((node, tree) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def base_of(node: ast.ClassDef, tree: ast.Module, ours: dict[str, tuple[ast.ClassDef, ast.Module]]) -> Any:
    """The class of verl's that a class of ours extends, directly or through another of ours."""
    for base in node.bases:
        root = ast.unparse(base).split(".")[0]
        names = imported(tree, ("verl",))
        if root in names:
            module, name = names[root]
            return eval(ast.unparse(base), {root: getattr(importlib.import_module(module), name)})
        if root in ours:
            found = base_of(*ours[root], ours)
            if found is not None:
                return found
    return None


def overridden() -> set[str]:
    ours = {node.name: (node, tree) for node, tree in classes()}
    found = set()
    for name, (node, tree) in ours.items():
        base = base_of(node, tree, ours)
        if base is None:
            continue
        if name in WHOLE_INTERFACES:
            found.add(f"{name}.*")
            continue
        methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
        found |= {f"{name}.{method}" for method in methods if hasattr(base, method)}
    return found


def private_names() -> set[str]:
    """Private methods of verl that a class of ours calls on itself and does not override."""
    ours = {node.name: (node, tree) for node, tree in classes()}
    found = set()
    for node, tree in ours.values():
        base = base_of(node, tree, ours)
        own = {child.name for child in ast.walk(node) if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
        used = {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)} - own
        found |= {name for name in used if name.startswith("_") and name[1:2] != "_" and hasattr(base, name)}
    return found


def registered_and_replaced() -> set[str]:
    """Decorators and calls that register with verl, and attributes of other packages that are assigned."""
    found = set()
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = set(imported(tree, FOREIGN))
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                modules = ast.unparse(node.value).startswith("importlib.import_module")
                names |= {target.id for target in node.targets if isinstance(target, ast.Name) and modules}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).partition("(")[0]
                if called.split(".")[0] in names and "register" in called:
                    found.add(called)
            for target in node.targets if isinstance(node, ast.Assign) else ():
                text = ast.unparse(target).partition("[")[0]
                if isinstance(target, ast.Attribute | ast.Subscript) and text.split(".")[0] in names:
                    found.add(text)
    return found


def test_every_overridden_method_of_verl_is_listed() -> None:
    listed = [row[0].strip("`") for row in rows("Overridden methods")]
    assert set(listed) == overridden() and len(listed) <= 25


def test_every_private_method_of_verl_that_is_called_is_listed() -> None:
    listed = {name for row in rows("Private names that are used") for name in re.findall(r"`(\w+)`", row[0])}
    assert private_names() - listed == set()


def test_every_registry_entry_and_replaced_attribute_is_listed() -> None:
    assert {row[0].strip("`") for row in rows("Registries and replaced attributes")} == registered_and_replaced()


def test_every_row_names_a_test_that_exists() -> None:
    for heading in ("Overridden methods", "Registries and replaced attributes", "Private names that are used"):
        for row in rows(heading):
            for name in re.findall(r"`(test_\w+)`", row[-1]):
                assert (Path(__file__).parent / f"{name}.py").is_file(), row
            assert "`test_" in row[-1], row
