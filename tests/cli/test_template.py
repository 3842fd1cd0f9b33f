"""Prompts of another project's source file become a template, word for word, and nothing in that file is run."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from memagent_lib.cli import main
from memagent_lib.prompts import Template
from memagent_lib.text import Chunk
from memagent_lib.trace import Kind, Prompt

SOURCE = r'''
import no_such_package
raise SystemExit("this file must not be run")

class Reader:
    UPDATE = """Note what serves the problem.
<problem> 
{prompt}
</problem>
<memory>
{memory}
</memory>
<section>
{chunk}
</section>

New "memory" \\ set {{like this}}:
"""
    FINAL: str = (
        "Answer {prompt} from {memory}"
        " in \\boxed{{}}.\n"
    )
    NO_MEMORY = "No previous " + "memory"
    LABEL = "{prompt} {other}"
'''


def imported(tmp_path: Path, source: str = SOURCE, *options: str) -> tuple[int, Path]:
    (tmp_path / "their.py").write_text(source)
    out = tmp_path / "mine.toml"
    return main(["template", "import", str(tmp_path / "their.py"), "--out", str(out), *options]), out


def test_the_prompts_are_taken_verbatim_and_nothing_is_run(tmp_path, capsys) -> None:
    status, out = imported(tmp_path)
    said = capsys.readouterr().out
    assert status == 0
    template = Template.load(out)
    prompt = Prompt(Kind.READ, "Who?", "", Chunk(0, "a text", 0, 6, 2))
    theirs = {}
    exec(SOURCE[SOURCE.index("class") :], theirs)
    reader = theirs["Reader"]
    assert template.render(prompt) == reader.UPDATE.format(prompt="Who?", memory=reader.NO_MEMORY, chunk="a text")
    answer = Prompt(Kind.ANSWER, "Who?", "It was Ann.")
    assert template.render(answer) == reader.FINAL.format(prompt="Who?", memory="It was Ann.")
    assert Template.load("chunk_first").direct == template.direct
    assert "read          UPDATE: question -> memory -> chunk" in said
    assert "memory before chunk, chunk_first has it the other way" in said
    assert "'No previous memory'" in said


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("x = 1", [], "no text of the file stands alone with placeholders for chunk, memory, question"),
        ("def", [], "their.py is no Python source: invalid syntax (their.py, line 1)"),
        (
            SOURCE.replace("{chunk}", ""),
            [],
            "texts with placeholders: UPDATE (question, memory), FINAL (question, memory)",
        ),
        (SOURCE.replace("NO_MEMORY", "EMPTY"), [], "--empty-memory; short texts: FINAL, EMPTY, LABEL"),
        (SOURCE + "\nOTHER = '{prompt} {memory}'", [], "several texts have placeholders for memory, question: "),
        (SOURCE, ["--read", "FINAL"], "FINAL is no text with placeholders for chunk, memory, question"),
    ],
)
def test_an_error_names_what_is_missing_and_what_was_found(tmp_path, capsys, source, options, says) -> None:
    status, out = imported(tmp_path, source, *options)
    assert status == 2 and says in capsys.readouterr().err
    assert not out.exists()


def test_a_path_with_no_file_is_named(tmp_path, capsys) -> None:
    for name, says in (
        ("nosuch.py", f"no file at {tmp_path / 'nosuch.py'}; give"),
        ("", f"{tmp_path} is a folder; give"),
    ):
        assert main(["template", "import", str(tmp_path / name), "--out", str(tmp_path / "mine.toml")]) == 2
        assert says in capsys.readouterr().err


def test_names_choose_among_several(tmp_path, capsys) -> None:
    more = SOURCE + "\nOTHER = 'Say {query} by {memory}'\nNONE_YET = 'none'"
    status, out = imported(tmp_path, more, "--answer", "OTHER", "--empty-memory", "NONE_YET")
    assert status == 0
    assert (Template.load(out).answer, Template.load(out).empty_memory) == ("Say {question} by {memory}", "none")
    assert "not requested in \\boxed{}" in capsys.readouterr().out


REFERENCE = r'''
READ = """Update the memory.
<problem>
{prompt}
</problem>
<memory>
{memory}
</memory>
<section>
{chunk}
</section>"""
ANSWER = "Answer {prompt} from {memory} in \\boxed{{}}."

class Agent:
    def __init__(self, tokenizer):
        self.template = TokenTemplate(READ, tokenizer)
        self.NO_MEMORY_TOKENS = tokenizer.encode("No previous memory", add_special_tokens=False)
'''


def test_an_empty_memory_that_is_encoded_is_found(tmp_path, capsys) -> None:
    """The form of the reference's ``memory.py``: its text stands only in a call."""
    status, out = imported(tmp_path, REFERENCE)
    assert status == 0
    assert Template.load(out).empty_memory == "No previous memory"
    assert "empty memory  NO_MEMORY_TOKENS: 'No previous memory'" in capsys.readouterr().out


def test_an_unknown_placeholder_gets_its_text_for_nothing(tmp_path, capsys) -> None:
    """The form of ReMemR1's file: a recalled memory beside the memory, each with a text for an empty one."""
    source = REFERENCE.replace("<section>", "<recalled>{recalled_memory}</recalled>\n<section>")
    source = source.replace("Update the memory.", "Write <update>the memory</update>.")
    source += '        self.NO_MEMORY_RECALLED = "None was {recalled}."\n'
    status, out = imported(tmp_path, source)
    assert status == 0
    prompt = Prompt(Kind.READ, "Who?", "Ann.", Chunk(0, "a text", 0, 6, 2))
    assert "<recalled>None was {recalled}.</recalled>\n<section>\na text" in Template.load(out).render(prompt)
    said = capsys.readouterr().out
    assert "{recalled_memory} is always NO_MEMORY_RECALLED, 'None was {recalled}.': no reader of ours fills it" in said
    assert "asks for the memory in <update>; our readers take the whole reply as the memory" in said


def test_the_empty_memory_may_be_a_text_of_ones_own(tmp_path, capsys) -> None:
    source = SOURCE.replace("NO_MEMORY", "EMPTY")
    status, out = imported(tmp_path, source, "--empty-memory", "Nothing noted yet.")
    assert status == 0
    assert Template.load(out).empty_memory == "Nothing noted yet."
    assert imported(tmp_path, source, "--empty-memory", "NO_MEMRY")[0] == 2
    assert "short texts: FINAL, EMPTY, LABEL" in capsys.readouterr().err


def test_prompts_that_format_a_placeholder_are_no_template(tmp_path, capsys) -> None:
    status, _ = imported(tmp_path, SOURCE.replace("{chunk}", "{chunk:>9}"))
    assert status == 2
    assert "texts with placeholders: FINAL (question, memory)" in capsys.readouterr().err


def test_letters_that_the_terminal_lacks_do_not_end_a_command(tmp_path, monkeypatch):
    (tmp_path / "memory.py").write_text(
        'READ = "{prompt} {chunk} {memory}"\nANSWER = "{prompt} {memory}"\nNO_MEMORY = "没有"\n', encoding="utf-8"
    )
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["template", "import", str(tmp_path / "memory.py"), "--out", str(tmp_path / "mine.toml")]) == 0
    terminal.flush()
    assert b"empty memory  NO_MEMORY: '\\u6ca1\\u6709'" in terminal.buffer.getvalue()
