"""``memagent template import``: make a template from the prompts in another project's source file.

The file is parsed and never run. The two prompts are recognised among its string constants by their placeholders. A
placeholder that none of our readers fills, such as ReMemR1's ``recalled_memory``, is replaced by the file's own text
for an empty value.
"""

from __future__ import annotations

import argparse
import ast
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memagent_lib.cli.arguments import Verbs, add_verb, option, require_own
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
EXAMPLES = """\
The file needs two string constants: one with placeholders for question, chunk and memory, and one for question and
memory. Nothing in it is run. If several fit, --read and --answer choose among them. The text for an empty memory is a
constant like NO_MEMORY, or what --empty-memory says. The prompts of the baselines (document at once, question alone)
are those of our own template.

example:
  memagent template import memory.py --out mine.toml
  memagent read book.txt --question "Who did it?" --model MODEL --template mine.toml
"""


class FoundPrompt(NamedTuple):
    """A prompt found in a source file: the constant's name, its text with our placeholders, and their names in order.

    ``fixed`` maps each placeholder that none of our readers fills to the name of the constant that replaces it.
    """

    name: str
    text: str
    parts: tuple[str, ...]
    fixed: Mapping[str, str]


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "template", run, "take the prompts of another project's source file as a template", EXAMPLES)
    verb.add_argument("action", choices=["import"], help="the only action")
    verb.add_argument("file", metavar="FILE.py", help="your copy of the source file with the prompts")
    option(verb, "--out", "FILE.toml", "the file to write", required=True)
    option(verb, "--read", "NAME", "the constant with the prompt for a new memory, if several fit")
    option(verb, "--answer", "NAME", "the constant with the prompt for the answer, if several fit")
    empty = "the text used while the memory is still empty: a constant of the file, or the text itself"
    option(verb, "--empty-memory", "NAME or TEXT", empty)


def run(a: argparse.Namespace) -> int:
    from memagent_lib.paths import write_atomically
    from memagent_lib.prompts import Template

    if not a.out.endswith(".toml"):
        raise ValueError(f"a template is a .toml file, and --out is {a.out!r}; write --out NAME.toml")
    require_own("--out", a.out, IMPORTED_BY, "template")
    constants = string_constants(Path(a.file))
    texts, sources = template_texts(constants, a.read, a.answer, a.empty_memory)
    ours = Template.load(OURS)
    template = Template.of({"name": Path(a.out).stem, **texts, "direct": ours.direct, "blind": ours.blind})
    write_atomically(a.out, to_toml(template, a.file))
    print(
        "\n".join(
            [
                *sources,
                *_losses(template),
                *differences(template, ours),
                f"wrote {a.out}; use it with --template {a.out}",
            ]
        )
    )
    return 0


def string_constants(path: Path) -> dict[str, str]:
    """Return the string constants of a Python file, by name, at any depth. The last assignment to a name wins.

    Attributes (``self.NO_MEMORY = "none"``) and encoded texts (``NO_MEMORY = tokenizer.encode("none")``) are included.
    Raises ``FileNotFoundError`` for a missing file, and ``ValueError`` for one that is not Python source.
    """
    if not path.is_file():
        what = f"{path} is a folder" if path.is_dir() else f"no file at {path}"
        raise FileNotFoundError(f"{what}; give the Python source file with the prompts")
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as failure:
        raise ValueError(f"{path} is no Python source: {failure}; give the .py file with the prompts") from failure
    found = {}
    for node in ast.walk(tree):  # at any depth: prompts may be attributes set in a method
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        text = _text(node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if text is not None:
            found |= {target.id: text for target in targets if isinstance(target, ast.Name)}
            found |= {target.attr: text for target in targets if isinstance(target, ast.Attribute)}
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


def template_texts(
    constants: Mapping[str, str], read: str | None, answer: str | None, empty_memory: str | None
) -> tuple[dict[str, str], list[str]]:
    """Return the texts of a template by key, and one line per text that names the constant it comes from.

    ``read`` and ``answer`` name constants, ``empty_memory`` names one or is the text itself. Each may be ``None`` if
    exactly one constant fits. Raises ``ValueError`` for a text that cannot be found or chosen.
    """
    prompts = list(_prompts(constants))
    reading = _chosen(prompts, {"question", "chunk", "memory"}, read, "--read")
    answering = _chosen(prompts, {"question", "memory"}, answer, "--answer")
    source, empty = _empty_memory(constants, empty_memory)
    sources = [
        f"read          {reading.name}: {' -> '.join(reading.parts)}",
        f"answer        {answering.name}: {' -> '.join(answering.parts)}",
        f"empty memory  {source}: {empty!r}",
    ]
    for field, constant in (reading.fixed | answering.fixed).items():
        sources.append(
            f"fixed         {{{field}}} is always {constant}, {constants[constant]!r}: no reader of ours fills it"
        )
    return {"read": reading.text, "answer": answering.text, "empty_memory": empty}, sources


def _prompts(constants: Mapping[str, str]) -> Iterator[FoundPrompt]:
    for name, text in constants.items():
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError:  # braces that are no placeholders
            continue
        fields = [field for _, field, _, _ in pieces if field is not None]
        # A field that is not ours is no obstacle if the file has a text for its empty value.
        fixed = {field: _nothing_in(field, constants) for field in fields if field not in PARTS}
        if not fields or None in fixed.values() or any(form or conversion for _, _, form, conversion in pieces):
            continue
        ours = ""
        for literal, field, _, _ in pieces:
            ours += _escaped(literal)
            if field in PARTS:
                ours += f"{{{PARTS[field]}}}"
            elif field:
                ours += _escaped(constants[fixed[field]])
        yield FoundPrompt(name, ours, tuple(PARTS[field] for field in fields if field in PARTS), fixed)


def _escaped(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")


def _nothing_in(field: str, constants: Mapping[str, str]) -> str | None:
    """Return the name of the constant for an empty value: ``NO_RECALLED_MEMORY`` for ``recalled_memory``."""
    words = {"no", *field.lower().split("_")}
    return next((name for name in constants if words <= set(name.lower().split("_"))), None)


def _chosen(prompts: list[FoundPrompt], parts: set[str], name: str | None, option: str) -> FoundPrompt:
    fitting = [p for p in prompts if set(p.parts) == parts and name in (None, p.name)]
    needs = f"placeholders for {', '.join(sorted(parts))}"
    if not fitting:
        there = ", ".join(f"{p.name} ({', '.join(p.parts)})" for p in prompts) or "none"
        what = "no text of the file stands alone"
        if name:
            what = f"{name} is no text"
        raise ValueError(f"{what} with {needs}; texts with placeholders: {there}")
    if len(fitting) > 1:
        raise ValueError(f"several texts have {needs}: {', '.join(p.name for p in fitting)}; choose one with {option}")
    return fitting[0]


def _empty_memory(constants: Mapping[str, str], stated: str | None) -> tuple[str, str]:
    """Return the source and the text of an empty memory: ``stated``, else the only constant named like NO_MEMORY."""
    if stated in constants:
        return stated, constants[stated]
    # A word in capitals is a misspelt name rather than a text; as a text, the prompt would contain the name.
    if stated and not re.fullmatch(r"[A-Z0-9]*_[A-Z0-9_]*", stated):
        return "--empty-memory", stated
    fitting = {}
    for name, text in constants.items():
        words = set(name.lower().split("_"))
        if {"no", "memory"} <= words and "recalled" not in words:
            fitting[text] = name
    if stated or len(fitting) != 1:
        short = ", ".join(each for each, text in constants.items() if len(text) < 60) or "none"
        raise ValueError(f"name the text for an empty memory, or write it, with --empty-memory; short texts: {short}")
    text, name = next(iter(fitting.items()))
    return name, text


def _losses(template) -> list[str]:
    """Return a warning if a prompt requests tags around the memory, because no reader extracts a memory from tags."""
    tags = re.findall(r"<(update|new_memory|updated_memory|memory_update)>", template.read)
    if not tags:
        return []
    return [
        f"reply         asks for the memory in <{tags[0]}>; our readers take the whole reply as the memory, tags too"
    ]


def differences(template, ours) -> list[str]:
    """Compare a template with our own in order and length, and return the lines to print."""
    order = "memory before chunk"
    if template.chunk_first:
        order = "chunk before memory"
    if template.chunk_first != ours.chunk_first:
        order += f", {OURS} has it the other way"
    lines = [f"order         {order}"]
    if not template.chunk_first:
        lines.append("              rollouts of one question share no chunk in the prefix cache")
    for name in ("read", "answer"):
        own = len(getattr(template, name).split())
        lines.append(f"{name:<14}{own} words, {OURS} has {len(getattr(ours, name).split())}")
    if "boxed" not in template.answer:
        lines.append("              the answer is not requested in \\boxed{}, which the strict judges need")
    return [*lines, f"direct, blind, gate, recall are those of {OURS}"]


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
