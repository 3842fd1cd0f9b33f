"""The words of a model judge: one prompt for all examples, and LongMemEval's for the questions of that set.

LongMemEval asks its judge by the kind of question, and takes any reply with a ``yes`` in it as right (Wu et al. 2025,
``evaluate_qa.py``). This module depends on examples only.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from memagent_lib.data import Example

PROMPT_FILE = Path(__file__).parent / "judge_prompt.txt"
LONGMEMEVAL_FILE = Path(__file__).parent / "judge_longmemeval.toml"
PARTS = ("question", "answers", "needed", "reply")
"""The placeholders of a judge's prompt; ``needed`` is whether one or all of the answers are needed."""
ABSTENTION = "abstention"
PLAIN = "plain"
_OF_PLAIN = ("single-session-user", "single-session-assistant", "multi-session")
_OWN_PROMPT = ("temporal-reasoning", "knowledge-update", "single-session-preference")
_SETS = ("longmemeval/", "memoryagentbench/longmemeval")
_DATE_LINE = "Current date: "
_PUBLISHED_FUNCTION = "get_anscheck_prompt"


def words_of(prompt: str | Path = "") -> tuple[str, Mapping[str, str]]:
    """Return the words for any example, and LongMemEval's by kind of question (empty: they are not used).

    ``prompt`` is a file with words for all examples, or LongMemEval's ``evaluate_qa.py``, whose published words replace
    our own ones. Raises ``ValueError`` if the file is not UTF-8, or such a Python file lacks any of these words.
    """
    general = PROMPT_FILE.read_text(encoding="utf-8")
    if not prompt:
        return general, tomllib.loads(LONGMEMEVAL_FILE.read_text(encoding="utf-8"))
    try:
        text = Path(prompt).read_text(encoding="utf-8-sig")  # editors of Windows write a byte order mark
    except UnicodeDecodeError as broken:
        raise ValueError(f"the judge's prompt {prompt} is not UTF-8 ({broken.reason}); save it as UTF-8") from None
    if Path(prompt).suffix == ".py":
        return general, _published_words(text, prompt)
    return text, {}


def longmemeval_kind(example: Example) -> str:
    """Return the entry of LongMemEval's prompts for an example; "" for an example of another set."""
    if not example.task.startswith(_SETS):
        return ""
    if example.task.endswith(ABSTENTION):
        return ABSTENTION
    category = example.metadata.get("category", "")
    if category in _OF_PLAIN:
        return PLAIN
    return category if category in _OWN_PROMPT else ""


def longmemeval_question(example: Example) -> str:
    """Return a question as LongMemEval's judge reads it: without the line with the current date."""
    if example.question.startswith(_DATE_LINE):
        return example.question.partition("\n")[2]
    return example.question


def _published_words(text: str, path: str | Path) -> dict[str, str]:
    """Return the prompts in LongMemEval's ``evaluate_qa.py`` by kind of question. The file is parsed, not run."""
    found: dict[str, str] = {}
    with suppress(SyntaxError):  # no Python, and so without prompts
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == _PUBLISHED_FUNCTION:
                for kinds, words in _branches(node.body):
                    found |= dict.fromkeys(kinds, words)
    found[PLAIN] = found.get(_OF_PLAIN[0], "")
    wanted = (PLAIN, *_OWN_PROMPT, ABSTENTION)
    missing = [kind for kind in wanted if found.get(kind, "").count("{}") != 3]
    if missing:
        raise ValueError(
            f"{path} has no prompt with three braces for {', '.join(missing)}; give src/evaluation/evaluate_qa.py of "
            "xiaowu0162/LongMemEval, or a text file with your own prompt"
        )
    return {kind: _with_names(found[kind]) for kind in wanted}


def _branches(body: list[ast.stmt], kinds: tuple[str, ...] = (ABSTENTION,)) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the kinds that each branch of nested conditions names, and the text that it assigns to ``template``.

    A branch that names no kind of its own is that of abstention.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            named = tuple(
                node.value
                for node in ast.walk(statement.test)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            yield from _branches(statement.body, named or kinds)
            yield from _branches(statement.orelse, kinds)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            yield kinds, str(statement.value.value)


def _with_names(words: str) -> str:
    for part in ("question", "answers", "reply"):
        words = words.replace("{}", f"{{{part}}}", 1)
    return words
