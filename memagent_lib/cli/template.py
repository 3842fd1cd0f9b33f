"""``memagent template import``: make a template from the prompts in another project's source file.

The file is parsed and never run. The two prompts are recognised among its string constants by their placeholders.
"""

from __future__ import annotations

import ast
import string
from pathlib import Path
from typing import NamedTuple

import click

from memagent_lib.cli.options import require_own
from memagent_lib.paths import write_atomically
from memagent_lib.settings import toml_value

# The names that other projects use for our placeholders.
PART_NAMES = {
    "question": ("question", "prompt", "problem", "query", "input"),
    "chunk": ("chunk", "section", "context", "document", "article", "passage"),
    "memory": ("memory", "previous_memory", "current_memory"),
}
PARTS = {name: part for part, names in PART_NAMES.items() for name in names}
IMPORTED_BY = "by `memagent template import`"


class FoundPrompt(NamedTuple):
    """A prompt in a source file: its text with our placeholders, and their names in order."""

    text: str
    parts: tuple[str, ...]


@click.command()
@click.argument("action", type=click.Choice(["import"]))
@click.argument("file", metavar="FILE.py")
@click.option("--out", metavar="FILE.toml", required=True, help="The file to write.")
@click.option("--read", metavar="NAME", help="The constant with the prompt for a new memory, if several fit.")
@click.option("--answer", metavar="NAME", help="The constant with the prompt for the answer, if several fit.")
@click.option("--empty-memory", metavar="NAME or TEXT", help="The text of an empty memory.  [default: NO_MEMORY]")
def template(action: str, file: str, out: str, read: str | None, answer: str | None, empty_memory: str | None) -> None:
    """Take the prompts of another project's source file FILE.py as a template.

    The file needs two string constants: one with placeholders for question, chunk and memory, and one for question and
    memory. If several fit, --read and --answer choose among them. --empty-memory is the name of a constant, or the text
    itself. The prompts of the baselines (document at once, question alone) are those of our own template.

    \b
    example:
      memagent template import memory.py --out mine.toml
      memagent read book.txt --question "Who did it?" --model MODEL --template mine.toml
    """
    from memagent_lib.prompts import Template

    if not out.endswith(".toml"):
        raise ValueError(f"--out {out} names no template; end its name in .toml")
    require_own("--out", out, IMPORTED_BY, "template")
    constants = string_constants(Path(file))
    prompts = {name: found for name, text in constants.items() if (found := _prompt(text))}
    reading = _chosen(prompts, {"question", "chunk", "memory"}, read, "--read")
    answering = _chosen(prompts, {"question", "memory"}, answer, "--answer")
    if empty_memory is None and "NO_MEMORY" not in constants:
        raise ValueError("no constant is called NO_MEMORY; give --empty-memory, a constant's name or the text")
    ours = Template.load("chunk_first")
    entries = {
        "empty_memory": constants.get(empty_memory or "NO_MEMORY", empty_memory),
        "read": prompts[reading].text,
        "answer": prompts[answering].text,
        "direct": ours.direct,
        "blind": ours.blind,
    }
    Template.of({"name": Path(out).stem, **entries})  # checks the placeholders of every entry
    lines = [f"# The prompts of {Path(file).name}, {IMPORTED_BY}.", "verbatim = true"]
    lines += [f"{name} = {toml_value(text)}" for name, text in entries.items()]
    write_atomically(out, "\n".join(lines) + "\n")
    print(f"read          {reading}: {' -> '.join(prompts[reading].parts)}")
    print(f"answer        {answering}: {' -> '.join(prompts[answering].parts)}")
    print(f"empty memory  {entries['empty_memory']!r}")
    if "boxed" not in entries["answer"]:
        print("the answer is not requested in \\boxed{}, which the strict judges need")
    print(f"wrote {out}; use it with --template {out}")


def string_constants(path: Path) -> dict[str, str]:
    """Return the string constants that a Python file assigns to names, at any depth. The last assignment wins."""
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as failure:
        raise ValueError(f"{path} is not Python source: {failure}") from failure
    return {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _prompt(text: str) -> FoundPrompt | None:
    """Return the text as a prompt, or ``None`` if a placeholder in it is not one of ours under another name."""
    ours = ""
    parts = []
    try:
        for literal, field, form, conversion in string.Formatter().parse(text):
            ours += literal.replace("{", "{{").replace("}", "}}")
            if field is None:
                continue
            if field not in PARTS or form or conversion:
                return None
            parts.append(PARTS[field])
            ours += f"{{{PARTS[field]}}}"
    except ValueError:  # braces that are no placeholders
        return None
    return FoundPrompt(ours, tuple(parts)) if parts else None


def _chosen(prompts: dict[str, FoundPrompt], parts: set[str], name: str | None, option: str) -> str:
    """Return the name of the only prompt with these ``parts``, or of that called ``name``."""
    fitting = [each for each, prompt in prompts.items() if set(prompt.parts) == parts and name in (None, each)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{each} ({', '.join(prompts[each].parts)})" for each in fitting or prompts) or "none"
    needs = f"placeholders for {', '.join(sorted(parts))}"
    raise ValueError(f"{len(fitting)} texts with {needs}; choose one with {option}; texts with placeholders: {there}")
