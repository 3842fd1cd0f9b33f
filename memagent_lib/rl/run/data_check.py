"""Every example against budget, template and judge, in one pass that reads no document, before anything is started."""

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
from memagent_lib.scoring import score
from memagent_lib.settings import SettingsError
from memagent_lib.text import Tokenizer
from memagent_lib.trace import Kind, Prompt

SHOWN = 5


class BadExample(NamedTuple):
    """An example that cannot be trained on, and why."""

    id: str
    why: str


def bad_examples(path: str | Path, encoder: Encoder) -> Iterator[BadExample]:
    """The examples of a file whose question, answers or judge would fail or teach nothing."""
    for record in stream_records(path):
        if why := _fault(record, encoder):
            yield BadExample(record["extra_info"]["id"], why)


def _fault(record: dict[str, Any], encoder: Encoder) -> str:
    try:
        example = Example.from_record(record | {"document": ""})
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
    """What an engine would return of ``reply``."""
    ids = tokenizer.encode(reply)
    return reply if len(ids) <= tokens else tokenizer.decode(ids[:tokens])


def _right_replies(answers: tuple[str, ...]) -> Iterator[str]:
    """What a judge could want of one who knows the answers: one of them, or all, in a box or bare."""
    for said in (*answers, ", ".join(answers)):
        yield f"\\boxed{{{said}}}"
        yield said


def checked_data(recipe: Recipe, encoder: Encoder, folder: RunFolder) -> Recipe:
    """The recipe, with files that hold its good examples only where ``data.bad_examples`` is ``leave_out``, and copies
    of the files that another program wrote again (:func:`~memagent_lib.data.is_as_saved`).

    :class:`SettingsError` names the bad ones where they are refused, and a training set too small for a step.
    """
    train, tests = recipe.data.files, recipe.data.eval
    good = {path: _checked(Path(path), number, recipe, encoder, folder) for number, path in enumerate((*train, *tests))}
    require_enough(recipe, sum(count(good[path]) for path in train))
    return dataclasses.replace(recipe, data=recipe.data.with_paths(good.__getitem__))


def require_enough(recipe: Recipe, there: int) -> None:
    """:class:`SettingsError` where a step takes more examples than there are."""
    needed = recipe.prompts
    if there < needed:
        raise SettingsError(
            f"{there:,} examples can be trained on and a step takes data.train_batch_size = {needed:,}; "
            "lower it, or make more examples"
        )


def unusable(path: str | Path, bad: Mapping[str, str]) -> str:
    """What is wrong with the first of a file's bad examples, reasons by id, and how many there are."""
    first = "; ".join(f"{id!r}: {why}" for id, why in list(bad.items())[:SHOWN])
    return f"{len(bad):,} of {count(path):,} examples of {path} cannot be used: {first}{'; ...' * (len(bad) > SHOWN)}"


def _checked(path: Path, number: int, recipe: Recipe, encoder: Encoder, folder: RunFolder) -> str:
    bad = dict(bad_examples(path, encoder))
    kept = folder.path / "data" / f"{number}_{path.name}"
    if not bad:
        return str(path if is_as_saved(path) else copy_without(path, bad, kept))
    found = unusable(path, bad)
    if recipe.data.bad_examples == "refuse":
        raise SettingsError(f'{found}. Mend them, or set data.bad_examples = "leave_out"')
    if len(bad) == count(path):
        raise SettingsError(f"{found}. Nothing would be left")
    copy_without(path, bad, kept)
    write_atomically(kept.with_suffix(".left_out.json"), json.dumps(bad, indent=2))
    print(f"left out: {found}. All of them are in {kept.with_suffix('.left_out.json')}", flush=True)
    return str(kept)
