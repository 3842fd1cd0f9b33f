"""The house's rules, proved from the source of every module: imports go down only, through doors, and each name stands
once.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import memagent_lib

LIBRARY = Path(memagent_lib.__file__).parent
# From the ground up: a room may import what stands before it. Rooms in one row do not know each other.
ROWS = (
    ("errors", "thinking", "bad_memory"),
    ("paths", "tokenizer", "settings"),
    ("system",),
    ("models",),
    ("provenance", "plugins", "pages", "status_line"),
    ("text",),
    ("trace",),
    ("prompts",),
    ("readers", "scoring"),
    ("backends",),
    ("journal", "driver"),
    ("agent",),
    ("data",),
    ("diagnostics",),
    ("evaluation", "documents"),
    ("tracking",),
    ("rl", "serve", "plots"),
    ("sft", "publishing"),
    ("sweeps",),
    ("inspector", "notebook"),
    ("panel",),
    ("cli",),
)
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}
# The code lines that a room may have. They trade with each other; the sum stays.
BUDGET = {
    "modules at the root": 2_399,
    "readers": 338,
    "backends": 1_052,
    "models": 389,
    "scoring": 692,
    "diagnostics": 535,
    "data": 2_248,
    "evaluation": 1_230,
    "documents": 1_090,
    "tracking": 817,
    "rl": 2_664,
    "sft": 465,
    "inspector": 748,
    "plots": 464,
    "panel": 388,
    "sweeps": 519,
    "serve": 366,
    "publishing": 152,
    "cli": 1_195,
}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WITHOUT_DOOR = ("rl.run", "rl.verl")  # their modules are programs or load other libraries; a door would load them all


class Import(NamedTuple):
    """``module`` imports ``target`` (a module or a door) at ``line``."""

    module: str
    target: str
    line: int


def modules() -> dict[str, Path]:
    """Every module of the library by its dotted name below it; a door has its folder's name, the front door ``""``."""
    found = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports() -> Iterator[Import]:
    """Every import of the library by the library: both forms, at any depth, lazy ones and those for type checkers
    included.
    """
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}:{node.lineno} imports by a relative path"
                named = [_target(name, node.module or "", alias.name) for alias in node.names]
            else:
                continue
            for full in dict.fromkeys(named):
                if full == "memagent_lib" or full.startswith("memagent_lib."):
                    yield Import(name, full.removeprefix("memagent_lib").removeprefix("."), node.lineno)


def _target(importer: str, module: str, name: str) -> str:
    """``from memagent_lib.rl import config`` names a module, ``from memagent_lib.rl import launch`` a door."""
    below = f"{module}.{name}"
    is_module = below.removeprefix("memagent_lib.") in MODULES
    of_itself = module == f"memagent_lib.{importer}"  # a door that offers a room inside its own
    return below if is_module and (of_itself or name not in listed(module)) else module


def listed(module: str) -> list[str]:
    """What a door's ``__all__`` names; a reader's function and its module share a name."""
    path = MODULES.get(module.removeprefix("memagent_lib").removeprefix("."))
    tree = ast.parse(path.read_text(encoding="utf-8")) if path and path.name == "__init__.py" else ast.Module([], [])
    values = [n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"]
    return ast.literal_eval(values[0]) if values and isinstance(values[0], ast.List) else []


def room(module: str) -> str:
    return module.partition(".")[0]


def folder(module: str) -> str:
    """The folder that a module stands in; a door stands in its own."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


IMPORTS = list(imports())


def test_every_room_has_its_row_and_the_readme_lists_them_from_the_ground_up() -> None:
    assert {room(module) for module in MODULES if module} <= set(RANK)
    text = (LIBRARY / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| room |") : text.index("`constraints/`")]
    folders = re.findall(r"^\| `(\w+)/`", table, re.MULTILINE)
    (core,) = re.findall(r"^\| modules at the root \|(.*)", table, re.MULTILINE)
    assert {*folders, *re.findall(r"`([a-z_]+)`", core)} == set(RANK)
    assert [RANK[room] for room in folders] == sorted(RANK[room] for room in folders)
    assert len(folders) <= 25


def code_lines(source: str) -> int:
    """Lines with code: no comment, no docstring, no empty line."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        can_have_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if can_have_one and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_every_room_keeps_its_budget() -> None:
    """Whoever needs more lines takes something away, here or in another room."""
    size = Counter()
    for name, path in MODULES.items():
        place = room(name) if (LIBRARY / room(name)).is_dir() and name else "modules at the root"
        size[place] += code_lines(path.read_text(encoding="utf-8"))
    assert set(size) == set(BUDGET)
    assert {place: (lines, BUDGET[place]) for place, lines in size.items() if lines > BUDGET[place]} == {}


def test_imports_go_down_only() -> None:
    up = [
        f"{i.module}:{i.line} imports {i.target or 'the front door'}"
        for i in IMPORTS
        if i.module
        and (not i.target or (room(i.module) != room(i.target) and RANK[room(i.target)] >= RANK[room(i.module)]))
    ]
    assert up == []


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = defaultdict(set)
    for one in IMPORTS:
        graph[one.module].add(one.target)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        pytest.fail(f"a circle of imports: {' <- '.join(circle.args[1])}")


def test_what_lies_in_another_room_is_imported_from_its_door() -> None:
    """A door is the nearest folder that both do not share: siblings import each other by their full path."""
    past = []
    for one in IMPORTS:
        if not one.module or not one.target:
            continue
        own, shared = folder(one.module).split("."), []
        for mine, theirs in zip(own, one.target.split("."), strict=False):
            if mine != theirs:
                break
            shared.append(mine)
        door = ".".join(one.target.split(".")[: len(shared) + 1])
        if one.target != door and door not in WITHOUT_DOOR:
            past.append(f"{one.module}:{one.line} imports {one.target}; import it from {door}")
    assert past == []


def test_a_door_has_a_docstring_and_lists_what_others_may_use() -> None:
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{name} has no docstring"
        if not name or name in WITHOUT_DOOR:
            continue
        brought = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        assert {*listed(name), "annotations"} == brought | {"annotations"}, f"{name}: __all__ differs"
        kept = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
        assert all(isinstance(n, kept) for n in tree.body), f"{name} defines something"


def test_no_two_modules_and_no_two_public_classes_share_a_name() -> None:
    files, classes = defaultdict(list), defaultdict(list)
    for name, path in MODULES.items():
        if not path.name.startswith("__"):
            files[path.name].append(name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
    assert {name: where for name, where in (files | classes).items() if len(where) > 1} == {}


def test_lines_and_functions_stay_short() -> None:
    long = []
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        long += [
            f"{name}:{i} has {len(line)} characters" for i, line in enumerate(text.splitlines(), 1) if len(line) > 120
        ]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                long += [f"{name}:{node.lineno} {node.name} has {lines} lines"] if lines > 60 else []
    assert long == []
