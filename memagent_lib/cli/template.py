"""``memagent template import``: a template of one's own from the prompts in another project's source file.

The file is parsed, never run: its string constants are looked at, and the two prompts are known by their placeholders.
"""

from __future__ import annotations

import argparse
import ast
import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memagent_lib.cli.arguments import Verbs, add_verb, option

PART_NAMES = {
    "question": ("question", "prompt", "problem", "query", "input"),
    "chunk": ("chunk", "section", "context", "document", "article", "passage"),
    "memory": ("memory", "previous_memory", "current_memory"),
}
PARTS = {name: part for part, names in PART_NAMES.items() for name in names}
OURS = "chunk_first"
EXAMPLES = """\
The file needs two string constants: one with placeholders for question, chunk and memory, and one for question and
memory. Nothing in it is run. Where several fit, --read and --answer name the right ones. The prompts of the baselines
(document at once, question alone) are taken from our own template.

example:
  memagent template import memory.py --out mine.toml
  memagent read book.txt --question "Who did it?" --model MODEL --template mine.toml
"""


class FoundPrompt(NamedTuple):
    """A string constant that is a prompt: its name in the file, its words with our placeholders, and their order."""

    name: str
    words: str
    parts: tuple[str, ...]


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "template", run, "take the prompts of another project's source file as a template", EXAMPLES)
    verb.add_argument("action", choices=["import"], help="what to do")
    verb.add_argument("file", metavar="FILE.py", help="your copy of the source file that holds the prompts")
    option(verb, "--out", "FILE.toml", "where the template goes", required=True)
    option(verb, "--read", "NAME", "the constant that asks for a new memory")
    option(verb, "--answer", "NAME", "the constant that asks for the answer")
    option(verb, "--empty-memory", "NAME", "the constant that stands for a memory with nothing in it")


def run(a: argparse.Namespace) -> int:
    from memagent_lib.paths import write_atomically
    from memagent_lib.prompts import Template

    if not a.out.endswith(".toml"):
        raise ValueError(f"a template is a .toml file, and --out is {a.out!r}")
    constants = string_constants(Path(a.file))
    words, said = template_words(constants, a.read, a.answer, a.empty_memory)
    ours = Template.load(OURS)
    template = Template.of({"name": Path(a.out).stem, **words, "direct": ours.direct, "blind": ours.blind})
    write_atomically(a.out, to_toml(template, a.file))
    print("\n".join([*said, *differences(template, ours), f"wrote {a.out}; use it with --template {a.out}"]))
    return 0


def string_constants(path: Path) -> dict[str, str]:
    """Every name in a Python file that is given a text, at any depth; of one name the last."""
    if not path.is_file():
        what = f"{path} is a folder" if path.is_dir() else f"no file at {path}"
        raise FileNotFoundError(f"{what}; give the Python source file that holds the prompts")
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as failure:
        raise ValueError(
            f"{path} is no Python source: {failure}; give the .py file that holds the prompts"
        ) from failure
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(text := _text(node.value), str):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: text for target in targets if isinstance(target, ast.Name)}
    return found


def _text(node: ast.expr | None) -> str | None:
    """A constant, or constants put together with ``+``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def template_words(
    constants: Mapping[str, str], read: str | None, answer: str | None, empty_memory: str | None
) -> tuple[dict[str, str], list[str]]:
    """The words of a template, and a line on where each is from."""
    prompts = list(_prompts(constants))
    reading = _chosen(prompts, {"question", "chunk", "memory"}, read, "--read")
    answering = _chosen(prompts, {"question", "memory"}, answer, "--answer")
    said = [f"read          {reading.name}: {' -> '.join(reading.parts)}"]
    said += [f"answer        {answering.name}: {' -> '.join(answering.parts)}"]
    empty = _empty_memory(constants, empty_memory)
    said += [f"empty memory  {empty}: {constants[empty]!r}"]
    words = {"read": reading.words, "answer": answering.words, "empty_memory": constants[empty]}
    return words, said


def _prompts(constants: Mapping[str, str]) -> Iterator[FoundPrompt]:
    for name, text in constants.items():
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError:  # braces that are no placeholders
            continue
        fields = [field for _, field, _, _ in pieces if field is not None]
        if fields and all(field in PARTS for field in fields):
            words = "".join(
                literal.replace("{", "{{").replace("}", "}}") + (f"{{{PARTS[field]}}}" if field else "")
                for literal, field, _, _ in pieces
            )
            yield FoundPrompt(name, words, tuple(PARTS[field] for field in fields))


def _chosen(prompts: list[FoundPrompt], parts: set[str], name: str | None, option: str) -> FoundPrompt:
    fitting = [p for p in prompts if set(p.parts) == parts and name in (None, p.name)]
    needs = f"placeholders for {', '.join(sorted(parts))}"
    if not fitting:
        there = ", ".join(f"{p.name} ({', '.join(p.parts)})" for p in prompts) or "none"
        what = f"{name} is no text" if name else "no text of the file stands alone"
        raise ValueError(f"{what} with {needs}; texts with placeholders: {there}")
    if len(fitting) > 1:
        raise ValueError(f"several texts have {needs}: {', '.join(p.name for p in fitting)}; choose one with {option}")
    return fitting[0]


def _empty_memory(constants: Mapping[str, str], name: str | None) -> str:
    fitting = [name] if name else [n for n in constants if "no" in n.lower().split("_") and "memory" in n.lower()]
    if len(fitting) != 1 or fitting[0] not in constants:
        there = ", ".join(n for n, text in constants.items() if len(text) < 60) or "none"
        raise ValueError(f"say which text stands for an empty memory with --empty-memory; short texts: {there}")
    return fitting[0]


def differences(template, ours) -> list[str]:
    """What differs from our own template, in lines."""
    order = "chunk before memory" if template.chunk_first else "memory before chunk"
    said = [
        f"order         {order}"
        + ("" if template.chunk_first == ours.chunk_first else f", {OURS} has it the other way")
    ]
    if not template.chunk_first:
        said += ["              rollouts of one question share no chunk in the prefix cache"]
    for name in ("read", "answer"):
        own, other = getattr(template, name), getattr(ours, name)
        said += [f"{name:<14}{len(own.split())} words, {OURS} has {len(other.split())}"]
    if "boxed" not in template.answer:
        said += ["              the answer is not asked for in \\boxed{}, which the strict judges want"]
    return [*said, f"direct, blind, gate, recall are those of {OURS}"]


def to_toml(template, source: str) -> str:
    """A template as its file. White space at the edges of its words is part of them."""
    lines = [f"# The prompts of {Path(source).name}, by `memagent template import`.", "verbatim = true"]
    for name in ("empty_memory", "read", "answer", "direct", "blind"):
        lines.append(f"{name} = {_toml_text(getattr(template, name))}")
    return "\n".join(lines) + "\n"


def _toml_text(text: str) -> str:
    if "\n" not in text or any(not c.isprintable() and c not in "\n\t" for c in text):
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return '"""\n' + text.replace("\\", "\\\\").replace('"', '\\"') + '"""'
