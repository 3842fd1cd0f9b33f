"""The hash of the code behind a result: complete by construction, blind to comments, and what results are keyed by."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memagent_lib.agent import Agent
from memagent_lib.backends import Scripted
from memagent_lib.evaluation import code_of_replies, code_of_results, evaluate, evaluator, result_code

LOADED = """
import pkgutil, sys
from importlib import import_module
import memagent_lib.agent, memagent_lib.backends, memagent_lib.scoring, memagent_lib.diagnostics
for module in pkgutil.iter_modules(memagent_lib.backends.__path__, "memagent_lib.backends."):
    import_module(module.name)
print(*(module.__file__ for name, module in sys.modules.items() if name.startswith("memagent_lib.")))
"""


def test_every_module_that_reads_or_judges_is_in_the_hash() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout.split()
    hashed = set(map(str, result_code.files_behind("agent", "scoring", "diagnostics")))
    assert set(loaded) <= hashed
    names = {str(Path(file).relative_to(result_code.PACKAGE)) for file in hashed}
    assert {"tokenizer.py", "text.py", "prompts.py", "backends/openai.py", "templates/short.toml"} <= names
    assert not [name for name in names if name.startswith(("plots", "inspector", "panel", "cli", "tracking"))]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library, which the hash is taken of."""
    copy = tmp_path / "memagent_lib"
    shutil.copytree(result_code.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(result_code, "PACKAGE", copy)
    return copy


def hashes() -> tuple[str, str]:
    result_code.hash_of_rooms.cache_clear()
    return code_of_replies(), code_of_results("boxed")


@pytest.fixture(autouse=True)
def fresh_hash():
    yield
    result_code.hash_of_rooms.cache_clear()


def appended(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def test_changed_code_changes_the_hash_and_a_comment_does_not(library: Path) -> None:
    before = hashes()
    appended(library / "tokenizer.py", '\n# A comment.\n"""A text."""\n')
    appended(library / "plots" / "__init__.py", "\nCOLOUR = 'red'\n")
    assert hashes() == before
    appended(library / "scoring" / "replies.py", "\nSTRICT = True\n")
    assert [now == then for now, then in zip(hashes(), before, strict=True)] == [True, False]
    for name in ("tokenizer.py", "templates/short.toml", "backends/openai.py", "readers/gated.py"):
        then = hashes()
        appended(library / name, "\nCHANGED = 1\n")
        assert [now == old for now, old in zip(hashes(), then, strict=True)] == [False, False], name


def test_a_judge_of_ones_own_changes_the_code_of_its_results(kept, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    rules = [f"{file}:judge", f"first_line:{file}:judge"]
    file.write_text("def judge(reply, answers): ...")
    first = [code_of_results(rule) for rule in rules]
    file.write_text("def judge(reply, answers): return None")
    assert len({*first, *map(code_of_results, rules), code_of_results("boxed")}) == 3
    assert code_of_results("boxed", f"{file}:reader") not in (kept.code, *map(code_of_results, rules))
    assert kept.code == code_of_results("boxed") == code_of_results("one_of:a|b")


def test_changed_code_reads_again_in_a_file_of_its_own(encoder, kept, tmp_path: Path, monkeypatch) -> None:
    def requests() -> int:
        backend = Scripted(lambda text: "\\boxed{4711}")
        evaluate(Agent(encoder, backend), [kept.example], folder=tmp_path, progress=False)
        return len(backend.requests)

    first = requests()
    assert first > 0 and requests() == 0
    monkeypatch.setattr(evaluator, "code_of_replies", lambda: "changed")
    assert requests() == first
    assert len([file for file in tmp_path.glob("*.jsonl") if file.name != "documents.jsonl"]) == 2
