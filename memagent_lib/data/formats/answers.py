"""Turn a record's accepted answers, in any of the shapes that data sets use, into one tuple of texts.

========================================================  ==========================================================
shape                                                     accepted answers
========================================================  ==========================================================
a text, or a list of texts                                the texts
a number                                                  its digits: ``3.0`` is ``3``, ``0.1`` is ``0.1``
a date                                                    the date in ISO format: ``2024-05-01``
a truth value                                             ``yes`` and ``true``, or ``no`` and ``false``
an object with ``text``, ``value``, ``answer`` or         its value, and its ``aliases``; the answers of a list of such
``spans``                                                 objects are combined (SQuAD, TriviaQA, NQ, DROP)
an object with ``extractive_spans`` (Qasper)              as in Qasper's evaluator: the spans joined by commas, else
                                                          yes or no, else the free answer
a text that is one of these lists or objects in JSON,     the answers in that list or object
Python or NumPy notation
========================================================  ==========================================================

Everything else raises an error: null, NaN, an empty text, a list of lists, a text split into its letters, a text that
is a list of numbers only, a worked solution, and so on.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

from memagent_lib.scoring import boxed

_KEYS = ("text", "value", "answer", "spans")
_ALIASES = "aliases"
# An opening bracket, then the beginning of an entry (a quote, a number, another bracket, null), and at the end the
# closing bracket.
_NOTATION = re.compile(
    r"""(\[\s*(?:['"\[{\d\]-]|array\(|null|None|nan).*(?<=\])|\{\s*['"}].*(?<=\})|\(\s*['"].*(?<=\))|array\(.*\))$""",
    re.DOTALL,
)
_SPLIT_LETTERS = 3
_SOLUTION = re.compile(r"\n#### \S")


class NoAnswer(ValueError):
    """A record states, in its data set's own form, that its document does not answer the question."""


def accepted_answers(value: Any, where: str) -> tuple[str, ...]:
    """Return the distinct answers in ``value``. ``where`` is the position of ``value`` in words, for error messages.

    Raises :class:`NoAnswer` for an empty list ``text``, as in SQuAD v2, and for a question that Qasper marks as
    unanswerable, and ``ValueError`` for any other value from which no answer can be taken.
    """
    if isinstance(value, str):
        value = _noted(value, where)
    answers = list(dict.fromkeys(_final(answer, where) for answer in _answers(value, where)))
    if not answers or not all(answer.strip() for answer in answers):
        raise ValueError(f"{where}: there is no answer, or an empty one: {value!r:.60}; state what is right")
    return tuple(answers)


def scalar_answer(value: Any, where: str) -> str:
    """Return a text, finite number or date as text. Raises ``ValueError`` for anything else."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{where}: an answer is {'null' if value is None else value}; remove it or state the answer")
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _digits(value)
    if isinstance(value, date):  # and datetime, which Arrow and spreadsheets use for both
        return value.isoformat().removesuffix("T00:00:00")
    raise ValueError(
        f"{where}: an answer is {value!r:.60}; it must be a text, a number, or an object with "
        f"{', '.join(_KEYS[:-1])} or {_KEYS[-1]}"
    )


def _final(answer: str, where: str) -> str:
    """Return an answer without a box around all of it. Raises ``ValueError`` for a worked solution, as in GSM8K."""
    inside = boxed(answer)
    if inside is not None and answer.strip() == f"\\boxed{{{inside}}}":
        return inside
    if inside is not None or _SOLUTION.search(answer):
        raise ValueError(
            f"{where}: the answer is a worked solution, which no reply will repeat: ...{answer[-40:]!r}; keep only the "
            "final answer"
        )
    return answer


def _answers(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, bool):
        yield from ("yes", "true") if value else ("no", "false")
    elif isinstance(value, Mapping):
        yield from _of_object(value, where)
    elif isinstance(value, list | tuple):
        yield from _of_list(value, where)
    else:
        yield scalar_answer(value, where)


def _of_list(values: Sequence[Any], where: str) -> Iterator[str]:
    if any(isinstance(value, list | tuple) for value in values):
        raise ValueError(
            f"{where}: the answers are a list of lists: {values!r:.60}. Write one list of the wordings that are "
            "right; an answer of several parts is one text"
        )
    if _is_split_text(values):
        raise ValueError(f"{where}: the answers look like one text split into its letters: {values!r:.60}; join them")
    if values and all(isinstance(value, Mapping) for value in values):
        yield from _of_objects(values, where)
        return
    for value in values:
        yield from _answers(value, where)


def _of_objects(values: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """Yield the answers of several annotators. Raises :class:`NoAnswer` only if none of them has an answer."""
    found = False
    for value in values:
        try:
            yield from _of_object(value, where)
            found = True
        except NoAnswer as nothing:
            without = nothing
    if not found:
        raise without


def _of_object(value: Mapping[str, Any], where: str) -> Iterator[str]:
    if "extractive_spans" in value:
        yield from _of_qasper(value, where)
        return
    key = next((key for key in _KEYS if key in value), None)
    if key is None:
        raise ValueError(
            f"{where}: the answer is an object with {', '.join(map(str, value)) or 'nothing in it'}; expected one "
            f"with {', '.join(_KEYS[:-1])} or {_KEYS[-1]} (and perhaps {_ALIASES}), or a text"
        )
    if value[key] == [] and key == "text":
        raise NoAnswer(f"{where}: the answer's list of texts is empty, as where SQuAD v2 has no answer")
    yield from _answers(value[key], where)
    yield from _answers(value.get(_ALIASES) or [], where)


def _of_qasper(value: Mapping[str, Any], where: str) -> Iterator[str]:
    if value.get("unanswerable"):
        raise NoAnswer(f"{where}: the question is marked as unanswerable")
    spans = value["extractive_spans"]
    if spans:
        yield ", ".join(scalar_answer(span, where) for span in spans)
    elif value.get("yes_no") is not None:
        yield from _answers(bool(value["yes_no"]), where)
    else:
        yield scalar_answer(value.get("free_form_answer"), where)


def _is_split_text(values: Sequence[Any]) -> bool:
    # Capitals are the letters of options, digits are numbers: neither is a split text.
    letters = all(isinstance(value, str) and len(value) == 1 for value in values)
    return letters and len(values) >= _SPLIT_LETTERS and any(value.islower() for value in values)


def _digits(value: float | Decimal) -> str:
    text = f"{Decimal(str(value)):f}"
    if "." in text:
        return text.rstrip("0").rstrip(".")
    return text


def _noted(text: str, where: str) -> Any:
    """Return the list or object that ``text`` contains in JSON, Python or NumPy notation, or ``text`` if it has none.

    Raises ``ValueError`` if it looks like one but cannot be read.
    """
    stripped = text.strip()
    if not _NOTATION.match(stripped):
        return text  # brackets of its own included, such as [redacted]
    value = written_value(stripped)
    if value is not None and not _is_numbers(value):
        return value
    if stripped[0] == "(":  # more likely a remark than a tuple
        return text
    raise ValueError(
        f"{where}: the answer {text!r:.60} looks like a list or an object; write a list as JSON, such as "
        '["Odo", "O."], and a text with such brackets as the only entry of a list'
    )


def written_value(text: str) -> list[Any] | tuple[Any, ...] | dict[Any, Any] | None:
    """Return the list or object that a text is in JSON, Python or NumPy notation, or None if it is none."""
    for read in (json.loads, _python_value):  # JSON first, because null and true are no Python
        with suppress(ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
            value = read(text)
            if isinstance(value, list | tuple | dict):
                return value
    return None


def _is_numbers(value: Any) -> bool:
    """Return whether a list has only numbers. It is then ambiguous: ``[1, 2]`` may be an interval, a single answer."""
    return bool(value) and isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value)


def _python_value(text: str) -> Any:
    """Evaluate Python literals and printed NumPy arrays.

    Commas are inserted between texts, because NumPy prints none, and Python would join the texts.
    """
    words: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and words and words[-1][0] == tokenize.STRING:
            words.append((tokenize.OP, ","))
        if token.type not in (tokenize.NL, tokenize.NEWLINE):
            words.append((token.type, token.string))
    tree = ast.parse(tokenize.untokenize(words).strip(), mode="eval").body
    return ast.literal_eval(_ArraysAsLists().visit(tree))


class _ArraysAsLists(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
        return self.visit(node.args[0]) if is_array else node
