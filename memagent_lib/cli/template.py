"""``memagent template import``: make a template from the prompts in another project's source file.

The file is parsed and never run. The two prompts are recognised among its string constants by their placeholders.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from memagent_lib.cli.options import require_own
from memagent_lib.settings import toml_value

# The names that other projects use for our placeholders.
PART_NAMES = {
    "question": ("question", "prompt", "problem", "query", "input"),
    "chunk": ("chunk", "section", "context", "document", "article", "passage"),
    "memory": ("memory", "previous_memory", "current_memory"),
}
PARTS = {name: part for part, names in PART_NAMES.items() for name in names}
OURS = "chunk_first"
IMPORTED_BY = "by `memagent template import`"
EPILOG = """\
The file needs two string constants: one with placeholders for question, chunk and memory, and one for question and
memory. If several fit, --read and --answer choose among them. The prompts of the baselines (document at once, question
alone) are those of our own template.

\b
example:
  memagent template import memory.py --out mine.toml
  memagent read book.txt --question "Who did it?" --model MODEL --template mine.toml
"""


class FoundPrompt(NamedTuple):
    """A prompt in a source file: the constant's name, its text with our placeholders, and their names in order."""

    name: str
    text: str
    parts: tuple[str, ...]


@click.command(epilog=EPILOG)
@click.argument("action", type=click.Choice(["import"]))
@click.argument("file", metavar="FILE.py")
@click.option("--out", metavar="FILE.toml", required=True, help="The file to write.")
@click.option("--read", metavar="NAME", help="The constant with the prompt for a new memory, if several fit.")
@click.option("--answer", metavar="NAME", help="The constant with the prompt for the answer, if several fit.")
@click.option("--empty-memory", metavar="NAME or TEXT", help="The text of an empty memory: a constant, or the text.")
def template(action: str, file: str, out: str, read: str | None, answer: str | None, empty_memory: str | None) -> None:
    """Take the prompts of another project's source file FILE.py as a template."""
    from memagent_lib.paths import write_atomically
    from memagent_lib.prompts import Template

    if not out.endswith(".toml"):
        raise ValueError(f"--out {out} names no template; end its name in .toml")
    require_own("--out", out, IMPORTED_BY, "template")
    constants = string_constants(Path(file))
    prompts = [found for name, text in constants.items() if (found := _prompt(name, text))]
    reading = _chosen(prompts, {"question", "chunk", "memory"}, read, "--read")
    answering = _chosen(prompts, {"question", "memory"}, answer, "--answer")
    empty = _empty_memory(constants, empty_memory)
    ours = Template.load(OURS)
    texts = {"read": reading.text, "answer": answering.text, "empty_memory": empty}
    made = Template.of({"name": Path(out).stem, **texts, "direct": ours.direct, "blind": ours.blind})
    write_atomically(out, to_toml(made, file))
    print(f"read          {reading.name}: {' -> '.join(reading.parts)}")
    print(f"answer        {answering.name}: {' -> '.join(answering.parts)}")
    print(f"empty memory  {empty!r}")
    if "boxed" not in made.answer:
        print("the answer is not requested in \\boxed{}, which the strict judges need")
    print(f"wrote {out}; use it with --template {out}")


def string_constants(path: Path) -> dict[str, str]:
    """Return the string constants of a Python file, by name, at any depth. The last assignment to a name wins.

    Attributes (``self.NO_MEMORY = "none"``) and encoded texts (``NO_MEMORY = tokenizer.encode("none")``) are included.
    """
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as failure:
        raise ValueError(f"{path} is not Python source: {failure}") from failure
    found = {}
    for node in ast.walk(tree):  # at any depth: prompts may be attributes set in a method
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        text = _text(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if text is not None and isinstance(target, ast.Name | ast.Attribute):
                found[target.id if isinstance(target, ast.Name) else target.attr] = text
    return found


def _text(node: ast.expr | None) -> str | None:
    """Return the text of a string constant, of several joined with ``+``, or of one passed to ``encode``; else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "encode":
        return _text(node.args[0]) if node.args else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
        return None if None in parts else "".join(parts)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _prompt(name: str, text: str) -> FoundPrompt | None:
    """Return the constant as a prompt, or ``None`` if a placeholder in it is not one of ours under another name."""
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError:  # braces that are no placeholders
        return None
    fields = [field for _, field, _, _ in pieces if field is not None]
    if not fields or not set(fields) <= PARTS.keys() or any(form or conversion for _, _, form, conversion in pieces):
        return None
    ours = ""
    for literal, field, _, _ in pieces:
        ours += literal.replace("{", "{{").replace("}", "}}")
        if field is not None:
            ours += f"{{{PARTS[field]}}}"
    return FoundPrompt(name, ours, tuple(PARTS[field] for field in fields))


def _chosen(prompts: list[FoundPrompt], parts: set[str], name: str | None, option: str) -> FoundPrompt:
    fitting = [p for p in prompts if set(p.parts) == parts and name in (None, p.name)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{p.name} ({', '.join(p.parts)})" for p in fitting or prompts) or "none"
    needs = f"placeholders for {', '.join(sorted(parts))}"
    raise ValueError(f"{len(fitting)} texts with {needs}; choose one with {option}; texts with placeholders: {there}")


def _empty_memory(constants: Mapping[str, str], stated: str | None) -> str:
    """Return the text of an empty memory: the constant ``stated``, or that text, or the constant named NO_MEMORY."""
    if stated is not None:
        return constants.get(stated, stated)
    named = {text for name, text in constants.items() if {"no", "memory"} <= set(name.lower().split("_"))}
    if len(named) != 1:
        raise ValueError("no constant is called NO_MEMORY; give --empty-memory, a constant's name or the text")
    return named.pop()


def to_toml(template, source: str) -> str:
    """Return a template as TOML text. The key ``verbatim`` in it preserves white space around the prompts."""
    lines = [f"# The prompts of {Path(source).name}, {IMPORTED_BY}.", "verbatim = true"]
    for name in ("empty_memory", "read", "answer", "direct", "blind"):
        lines.append(f"{name} = {_toml_text(getattr(template, name))}")
    return "\n".join(lines) + "\n"


def _toml_text(text: str) -> str:
    # TOML's long strings allow no control characters.
    if "\n" not in text or any(not c.isprintable() and c not in "\n\t" for c in text):
        return toml_value(text)
    return '"""\n' + text.replace("\\", "\\\\").replace('"', '\\"') + '"""'
