"""Objects from a user's own files: which file, which module, and what is wrong with one that cannot be used."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from memagent_lib.agent import Agent, open_agent
from memagent_lib.backends import Scripted
from memagent_lib.plugins import PluginError, absolute_plugin, load_plugin, plugin_hash
from memagent_lib.readers import ReaderError, can_continue, reader_named
from memagent_lib.rl.config import ReadingConfig
from memagent_lib.trace import Trace

TWICE = """
from memagent_lib.readers import reader
from memagent_lib.trace import Kind, Prompt, Trace

CHECK = Kind("check", frozenset({"question", "memory"}), words="{question}\\n{memory}\\nIs this enough?", after="")


@reader({Kind.READ: 1, CHECK: 1, Kind.ANSWER: 1})
def checked(question, chunks, previous=None):
    turns = list(previous.reads) if previous else []
    for chunk in chunks:
        turn = yield Prompt(Kind.READ, question, turns[-1].reply.text if turns else "", chunk)
        turns.append(turn)
    check = yield Prompt(CHECK, question, turns[-1].reply.text)
    answer = yield Prompt(Kind.ANSWER, question, check.reply.text)
    return Trace(question, (*turns, check, answer))


def bare(question, chunks):
    answer = yield Prompt(Kind.ANSWER, question)
    return Trace(question, (answer,))


number = 7
"""


@pytest.fixture
def own_reader(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(TWICE)
    return f"{file}:checked"


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"value = {folder!r}\n")
    assert [load_plugin(f"{tmp_path}/{folder}/same.py:value") for folder in ("a", "b")] == ["a", "b"]


def test_a_file_in_a_package_imports_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "neighbour.py").write_text("value = 3\n")
    (package / "mine.py").write_text("from own_package.neighbour import value\n")
    assert load_plugin(f"{package}/mine.py:value") == 3
    assert sys.modules["own_package.mine"].value == 3


def test_a_file_anywhere_imports_what_is_shipped(tmp_path):
    (tmp_path / "mine.py").write_text("from experiments.readers.gated import gated\n")
    code = "from memagent_lib.plugins import load_plugin; print(load_plugin('mine.py:gated'))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "gated" in found.stdout, found.stderr


@pytest.mark.parametrize("package", [True, False])
def test_an_edited_file_is_loaded_anew(tmp_path, monkeypatch, package):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"edited_{package}" / "mine.py"
    file.parent.mkdir()
    if package:
        (file.parent / "__init__.py").write_text("")
    for value in (1, 22, 22):
        beside = "from edited_True.other import number\nvalue = [number]" if package else f"value = [{value}]"
        file.write_text(beside)
        (file.parent / "other.py").write_text(f"number = {value}\n")
        found = load_plugin(f"{file}:value")
        assert found == [value] and load_plugin(f"{file}:value") is found


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n1 / 0\n", r"mine\.py cannot be imported: ZeroDivisionError: division by zero, line 2$"),
        ("def broken(:\n", r"mine\.py cannot be imported: SyntaxError: .*line 1"),
        ("from os import path\nimport sys\nvalue = 1\n_own = 2\n", r"mine\.py has no 'NAME'; it has value$"),
        ("", r"mine\.py has no 'NAME'; it has nothing$"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained_in_the_error(tmp_path, code, message):
    (tmp_path / "mine.py").write_text(code)
    for _ in range(2):  # a second try finds no half-imported module
        with pytest.raises(PluginError, match=message):
            load_plugin(f"{tmp_path}/mine.py:NAME")


def test_a_second_thread_waits_for_a_file_whose_code_is_running(tmp_path):
    (tmp_path / "mine.py").write_text("import time\ntime.sleep(0.2)\nvalue = 3\n")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(load_plugin, [f"{tmp_path}/mine.py:value"] * 2)) == [3, 3]


def test_an_entry_of_a_table_is_found_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text("PRESETS = {'small': 1}\n")
    assert load_plugin(f"{tmp_path}/mine.py:small", "PRESETS") == 1
    with pytest.raises(PluginError, match="has no 'small'; it has PRESETS"):
        load_plugin(f"{tmp_path}/mine.py:small")


def test_a_reader_of_your_own_reads_with_its_own_kind_of_prompt(own_reader, tokenizer, encoder):
    backend = Scripted(lambda text: "yes" if "Is this enough?" in text else "note")
    agent = open_agent(
        backend=backend, reader=own_reader, tokenizer=tokenizer, template=encoder.template, budget=encoder.budget
    )
    trace = agent.read("One. Two.", "What?")
    assert backend.requests[-2].text == "What?\nnote\nIs this enough?"
    assert [turn.prompt.kind.name for turn in trace.turns] == ["read", "check", "answer"]
    assert trace.reader == own_reader
    assert Trace.from_record(trace.to_record()) == trace
    assert can_continue(trace.reader)
    assert agent.read("Three.", "What?", previous=trace).memories == ("note", "note")


def test_an_agents_identity_has_the_hash_of_its_readers_file(own_reader, encoder):
    identity = Agent(encoder, Scripted(lambda text: ""), reader_named(own_reader)).identity
    assert (identity["reader"], identity["reader_file"]) == ("checked", plugin_hash(own_reader))
    assert identity["template"]["check"] == "{question}\n{memory}\nIs this enough?"
    assert "reader_file" not in Agent(encoder, Scripted(lambda text: "")).identity


def test_a_template_may_word_a_kind_and_a_misspelt_kind_is_named(own_reader, tokenizer, encoder):
    parts = {"backend": Scripted(lambda text: ""), "tokenizer": tokenizer, "budget": encoder.budget}
    template = replace(encoder.template, kinds={"check": "{memory}: enough for {question}"})
    agent = open_agent(**parts, reader=own_reader, template=template)
    agent.read("One.", "What?")
    assert agent.backend.requests[-2].text.endswith(": enough for What?")
    with pytest.raises(ValueError, match="question"):
        open_agent(**parts, reader=own_reader, template=replace(template, kinds={"check": "{memory}"}))


def test_a_recipe_trains_a_reader_of_your_own(own_reader):
    assert {kind.name for kind in ReadingConfig(reader=own_reader).shows} == {"read", "check", "answer"}
    assert absolute_plugin(own_reader) == own_reader
    with pytest.raises(PluginError, match="has no 'other'"):
        ReadingConfig(reader=own_reader.replace("checked", "other"))


def test_a_bare_generator_function_is_a_reader_a_number_is_not(own_reader):
    bare = reader_named(own_reader.replace("checked", "bare"))
    assert (bare.name, bare.continues) == ("bare", False)
    with pytest.raises(PluginError, match="number"):
        reader_named(own_reader.replace("checked", "number"))


@pytest.mark.parametrize("yielded", ["'a text'", "[Prompt(Kind.BLIND, question)]", "None"])
def test_a_reader_that_yields_no_prompt_is_told_what_to_yield(tmp_path, encoder, yielded):
    lines = ["from memagent_lib.trace import Kind, Prompt", "def odd(question, chunks):", f"    yield {yielded}"]
    (tmp_path / "odd.py").write_text("\n".join(lines))
    agent = Agent(encoder, Scripted(lambda text: "note"), reader_named(f"{tmp_path / 'odd.py'}:odd"))
    with pytest.raises(ReaderError, match="yields"):
        agent.read("One. Two.", "What?")


def test_a_hash_changes_with_the_files_beside_it_that_are_imported(tmp_path):
    (tmp_path / "mine.py").write_text("from base import x\n")
    for name in ("base", "other"):
        (tmp_path / f"{name}.py").write_text("import mine\nx = 1\n")
    before = plugin_hash(f"{tmp_path}/mine.py:x")
    (tmp_path / "other.py").write_text("x = 2\n")
    assert plugin_hash(f"{tmp_path}/mine.py:x") == before
    (tmp_path / "base.py").write_text("x = 2\n")
    assert plugin_hash(f"{tmp_path}/mine.py:x") != before
