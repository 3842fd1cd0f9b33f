"""Check every example against budget, template and judge before training starts. Documents are not read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memagent_lib.data import Example, copy_without, count, is_as_saved, stream_records
from memagent_lib.paths import write_atomically
from memagent_lib.prompts import BudgetError, Encoder
from memagent_lib.rl.config import Recipe
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.scoring import guess_warning, score
from memagent_lib.settings import SettingsError
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Kind, Prompt

MOST_NAMED = 5


class BadExample(NamedTuple):
    """The id of an example that cannot be trained on, and the reason."""

    id: str
    why: str


def bad_examples(path: str | Path, encoder: Encoder) -> Iterator[BadExample]:
    """Yield the examples of a file that cannot be trained on.

    In such an example the question exceeds its budget, or the record is invalid, or the judge scores even a correct
    answer as 0.
    """
    for record in stream_records(path):
        why = _fault(record, encoder)
        if why:
            yield BadExample(record["extra_info"]["id"], why)


def _fault(record: dict[str, Any], encoder: Encoder) -> str:
    try:
        example = Example.from_record(record | {"document": ""})
        # Only the question can be too long: a document is cut into chunks, and a memory has its own limit.
        encoder.encode(Prompt(Kind.ANSWER, example.question, ""))
    except (BudgetError, ValueError) as error:
        return str(error)
    most = encoder.budget.answer_tokens
    replies = (_cut(reply, most, encoder.tokenizer) for reply in _right_replies(example.answers))
    if any(score(example.rule, reply, example.answers).value > 0 for reply in replies):
        return ""
    stated = f"a reply of at most {most:,} tokens (answer_tokens) that states its answer {example.answers[0][:80]!r}"
    return f"its judge {example.rule!r} gives nothing to {stated}"


def _cut(reply: str, tokens: int, tokenizer: Tokenizer) -> str:
    """Return ``reply`` as an engine with this limit of tokens would truncate it."""
    ids = tokenizer.encode(reply)
    if len(ids) <= tokens:
        return reply
    return tokenizer.decode(ids[:tokens])


def _right_replies(answers: tuple[str, ...]) -> Iterator[str]:
    """Yield the correct replies that a judge could accept: one answer or all of them, in a box or bare."""
    for answer in (*answers, ", ".join(answers)):
        yield f"\\boxed{{{answer}}}"
        yield answer


def checked_data(recipe: Recipe, encoder: Encoder, folder: RunFolder) -> Recipe:
    """Return the recipe with data files that contain only usable examples.

    If ``data.bad_examples`` is ``leave_out``, a file with bad examples is copied to the run's folder without them. A
    file that another program wrote is copied in our layout (:func:`~memagent_lib.data.is_as_saved`). Raises
    :class:`SettingsError` if there are bad examples and the setting is ``refuse``, if a file has no usable example, or
    if the training set is smaller than one step.
    """
    good = {}
    for number, path in enumerate((*recipe.data.files, *recipe.data.eval)):
        good[path] = _checked(Path(path), number, recipe, encoder, folder)
    for warning in guessable(recipe):
        print(f"warning: {warning}", flush=True)
    require_enough(recipe, sum(count(good[path]) for path in recipe.data.files))
    return dataclasses.replace(recipe, data=recipe.data.with_paths(good.__getitem__))


def guessable(recipe: Recipe) -> list[str]:
    """Return a warning for each training file with examples whose judge accepts a reply that lists many guesses."""
    lines = []
    for path in recipe.data.files:
        if Path(path).is_file():
            rules = (record["extra_info"].get("rule", "") for record in stream_records(path))
            warning = guess_warning(rule for rule in rules if rule)
            if warning:
                lines.append(f"{path}: {warning}")
    return lines


def require_examples(path: str | Path) -> None:
    """Raise :class:`SettingsError` if a data file has no examples."""
    if not count(path):
        raise SettingsError(f"{path} has no examples; make some, or leave the file out of [data]")


def require_enough(recipe: Recipe, there: int) -> None:
    """Raise :class:`SettingsError` if one step of the recipe needs more examples than ``there``."""
    needed = recipe.prompts
    if there < needed:
        raise SettingsError(
            f"{there:,} examples can be trained on and a step takes data.train_batch_size = {needed:,}; "
            "lower it, or make more examples"
        )


def unusable(path: str | Path, bad: Mapping[str, str]) -> str:
    """Return a sentence that counts a file's bad examples and names the first few. ``bad`` maps ids to reasons."""
    first = "; ".join(f"{id!r}: {why}" for id, why in list(bad.items())[:MOST_NAMED])
    return (
        f"{len(bad):,} of {count(path):,} examples of {path} cannot be used: {first}{'; ...' * (len(bad) > MOST_NAMED)}"
    )


def _checked(path: Path, number: int, recipe: Recipe, encoder: Encoder, folder: RunFolder) -> str:
    require_examples(path)
    bad = dict(bad_examples(path, encoder))
    copy = folder.path / "data" / f"{number}_{path.name}"  # numbered, because files of two folders may share a name
    if not bad:
        return str(path if is_as_saved(path) else copy_without(path, bad, copy))
    found = unusable(path, bad)
    if recipe.data.bad_examples == "refuse":
        raise SettingsError(f'{found}. Mend them, or set data.bad_examples = "leave_out"')
    if len(bad) == count(path):
        raise SettingsError(f"{found}. Nothing would be left; raise the budget in [reading], or make other examples")
    copy_without(path, bad, copy)
    report = copy.with_suffix(".left_out.json")
    write_atomically(report, json.dumps(bad, indent=2))
    print(f"left out: {found}. All of them are in {report}", flush=True)
    return str(copy)
