"""The dozen names of ``memagent_lib``: lazy, complete, and a mistake lists them."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import memagent_lib

HEAVY = ["torch", "verl", "mlflow", "ipywidgets", "vllm", "transformers", "pandas"]
ROOMS = "agent backends data diagnostics documents paths prompts readers system text trace"


def loaded_by(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after ``code``."""
    code += f"\nimport sys; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_library_loads_no_other_module():
    assert loaded_by("import memagent_lib, sys; assert not [m for m in sys.modules if 'memagent_lib.' in m]") == set()


def test_public_names_and_lower_rooms_load_nothing_heavy():
    assert loaded_by("from memagent_lib import *") == set()
    assert loaded_by("".join(f"import memagent_lib.{room}\n" for room in ROOMS.split())) == set()


def test_every_name_is_there_listed_and_known_to_type_checkers():
    tree = ast.parse(Path(memagent_lib.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname: node.module for node in checked.body for alias in node.names}
    assert sorted(typed) == memagent_lib.__all__
    for name in memagent_lib.__all__:
        assert getattr(memagent_lib, name) is getattr(import_module(typed[name]), name)
        assert getattr(memagent_lib, name).__name__ == name
        assert name in dir(memagent_lib)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(AttributeError, match=r"memagent_lib has no 'open_agnet'; it has Agent, Budget, .*open_agent"):
        memagent_lib.open_agnet  # noqa: B018
