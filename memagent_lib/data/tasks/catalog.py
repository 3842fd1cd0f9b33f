"""All generated data sets by name, and :func:`make`, which generates them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from memagent_lib import settings
from memagent_lib.data.examples import Example
from memagent_lib.data.layout import Length, Meter
from memagent_lib.data.plans import ExampleKey, Preset, Task
from memagent_lib.data.tasks import changes, counting, multihop, needles, prose_questions, retrieval
from memagent_lib.errors import nearest
from memagent_lib.plugins import is_plugin, load_plugin, plugin_name
from memagent_lib.scoring import judge_named
from memagent_lib.system import die_with_parent
from memagent_lib.text import Tokenizer

FAMILIES = (needles, retrieval, counting, multihop, changes, prose_questions)
"""All families of tasks. A new one is a module with ``PRESETS``, and an entry here."""
TASKS: Mapping[str, Preset] = {name: preset for family in FAMILIES for name, preset in family.PRESETS.items()}
"""All tasks that are not in a user's file; ``memagent data --list`` prints them."""


def preset(name: str) -> Preset:
    """Return the preset called ``name``; ``FILE.py:NAME`` means a variable of that file or a key of its ``PRESETS``.

    Raises ``ValueError`` if there is no such preset.
    """
    found = load_plugin(name, "PRESETS") if is_plugin(name) else TASKS.get(name)
    if not isinstance(found, Preset):
        raise ValueError(
            f"no task {name!r}; choose from {', '.join(TASKS)}, or name a memagent_lib.data.Preset in a file, "
            f"FILE.py:NAME{nearest(name, TASKS)}"
        )
    return found


def configured(name: str, **parameters: Any) -> Task:
    """Return the task called ``name``, with ``parameters`` instead of its preset values."""
    task = preset(name).task
    if not parameters:
        return task
    return settings.parse(type(task), asdict(task) | parameters, f"task {name!r}")


def make(
    name: str,
    n: int,
    seed: int,
    tokenizer: Tokenizer,
    *,
    length_tokens: int | None = None,
    chunks: int | None = None,
    documents: int | None = None,
    chunk_tokens: int | None = None,
    workers: int = 1,
    rule: str | None = None,
    **parameters: Any,
) -> Iterator[Example]:
    """Return an iterator over ``n`` examples of a task. The length is in tokens, chunks or, for a pool, documents.

    A seed yields the same examples for any number of ``workers`` and, except for the task ``needle``, the same
    questions at every length. ``rule`` replaces the task's judge. Invalid arguments raise an error at once; a missing
    file, or a length that the task cannot have, raises one only at the first example.
    """
    configured(name, **parameters)  # only to raise for wrong parameters now; each worker configures its own task
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if rule:
        judge_named(rule)
    if chunk_tokens is None:
        chunk_tokens = preset(name).chunk_tokens
    length = Length(tokens=length_tokens, chunks=chunks, documents=documents, chunk_tokens=chunk_tokens)
    job = (name, parameters, seed, length, rule)
    if workers > 1:
        return _in_processes(job, n, tokenizer, min(workers, n))
    return map(_Maker(*job, tokenizer).example, range(n))


class _Maker:
    """A task that makes the examples of a data set, with its counts of tokens."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        seed: int,
        length: Length,
        rule: str | None,
        tokenizer: Tokenizer,
    ):
        self.task = configured(name, **parameters)
        self.key = ExampleKey(plugin_name(name), seed, 0, length)
        self.rule = rule
        self.meter = Meter(tokenizer)

    def example(self, index: int) -> Example:
        key = self.key._replace(index=index)
        try:
            example = self.task.plan(key).example(key, self.meter)
        except ValueError as error:
            raise ValueError(f"task {key.name!r}: {error}") from error
        return replace(example, rule=self.rule) if self.rule else example


def _in_processes(job: tuple[Any, ...], n: int, tokenizer: Tokenizer, workers: int) -> Iterator[Example]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of a notebook or a trainer
    with ProcessPoolExecutor(workers, context, _start_worker, (job, tokenizer.backend, os.getpid())) as pool:
        yield from pool.map(_work, range(n))


_worker: SimpleNamespace = SimpleNamespace()


def _start_worker(job: tuple[Any, ...], backend: Any, parent: int) -> None:
    die_with_parent(parent)
    # Only the Rust tokenizer travels: importing transformers in every worker costs seconds and hundreds of megabytes.
    # The task travels by name: a class in a user's file cannot be pickled.
    _worker.maker = _Maker(*job, Tokenizer(SimpleNamespace(backend_tokenizer=backend)))


def _work(index: int) -> Example:
    return _worker.maker.example(index)
