"""Prompts of another project's source file become a template, word for word, and nothing in that file is run."""

from __future__ import annotations

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
    FINAL = (
        "Answer {prompt} from {memory}"
        " in \\boxed{{}}.\n"
    )
    NO_MEMORY = "No previous memory"
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
    assert "UPDATE: question -> memory -> chunk" in said and "'No previous memory'" in said


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("x = 1", [], "--read"),
        (SOURCE.replace("{chunk}", ""), [], "UPDATE (question, memory)"),
        (SOURCE.replace("NO_MEMORY", "EMPTY"), [], "--empty-memory"),
        (SOURCE + "\nOTHER = '{prompt} {memory}'", [], "--answer"),
    ],
)
def test_an_error_names_what_is_missing(tmp_path, capsys, source, options, says) -> None:
    status, out = imported(tmp_path, source, *options)
    assert status == 2 and says in capsys.readouterr().err
    assert not out.exists()


def test_names_choose_among_several(tmp_path, capsys) -> None:
    more = SOURCE + "\nOTHER = 'Say {query} by {memory}'\nNONE_YET = 'none'"
    status, out = imported(tmp_path, more, "--answer", "OTHER", "--empty-memory", "NONE_YET")
    assert status == 0
    assert (Template.load(out).answer, Template.load(out).empty_memory) == ("Say {question} by {memory}", "none")
    assert "not requested in \\boxed{}" in capsys.readouterr().out
