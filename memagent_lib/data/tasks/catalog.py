"""All generated data sets by name, and :func:`make`, which generates them."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

from memagent_lib import settings
from memagent_lib.data.examples import Example
from memagent_lib.data.layout import ExampleKey, Length, Meter
from memagent_lib.data.tasks import (
    babi,
    changes,
    counting,
    document_questions,
    keychain,
    multihop,
    needles,
    prose_questions,
    retrieval,
)
from memagent_lib.data.tasks.presets import Preset, Task
from memagent_lib.errors import nearest
from memagent_lib.plugins import is_plugin, load_plugin, plugin_name
from memagent_lib.scoring import judge_named
from memagent_lib.system import die_with_parent
from memagent_lib.text import Tokenizer

FAMILIES = (needles, retrieval, counting, document_questions, multihop, keychain, babi, changes, prose_questions)
"""All families of tasks. A new one is a module with ``PRESETS``, and an entry here."""
TASKS: Mapping[str, Preset] = {name: preset for family in FAMILIES for name, preset in family.PRESETS.items()}
"""All tasks that are not in a user's file; ``memagent data --list`` prints them."""


def preset(name: str) -> Preset:
    """Return the preset called ``name``; ``FILE.py:NAME`` means a variable of that file or a key of its ``PRESETS``.

    Raises ``ValueError`` if there is no such preset.
    """
    if is_plugin(name):
        return _preset_in_file(name)
    if name not in TASKS:
        near = nearest(name, TASKS)
        known = ", ".join(TASKS)
        raise ValueError(f"no task {name!r}; choose from {known}, or name one in a file, FILE.py:NAME{near}")
    return TASKS[name]


def _preset_in_file(name: str) -> Preset:
    found = load_plugin(name, "PRESETS")
    if not isinstance(found, Preset):
        raise ValueError(f"{name} is a {type(found).__name__}; a task in a file is a memagent_lib.data.Preset")
    if not is_dataclass(found.task) or isinstance(found.task, type):
        raise ValueError(
            f"{name} has {found.task!r:.60} as its task; a task is an instance of a frozen dataclass, whose fields are "
            "its parameters"
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
    for argument, value in (("n", n), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")
    if rule:
        judge_named(rule)
    if chunk_tokens is None:
        chunk_tokens = preset(name).chunk_tokens
    length = Length(tokens=length_tokens, chunks=chunks, documents=documents, chunk_tokens=chunk_tokens)
    job = _Job(name, parameters, seed, length, rule)
    if workers == 1:
        return _in_this_process(job, n, tokenizer)
    return _in_processes(job, n, tokenizer, min(workers, n))


@dataclass(frozen=True)
class _Job:
    name: str
    parameters: Mapping[str, Any]
    seed: int
    length: Length
    rule: str | None

    def example(self, task: Task, index: int, meter: Meter) -> Example:
        key = ExampleKey(plugin_name(self.name), self.seed, index, self.length)
        try:
            example = task.plan(key).example(key, meter)
        except ValueError as error:
            raise ValueError(f"task {self.name!r}: {error}") from error
        if self.rule:
            return replace(example, rule=self.rule)
        return example


def _in_this_process(job: _Job, n: int, tokenizer: Tokenizer) -> Iterator[Example]:
    task = configured(job.name, **job.parameters)
    meter = Meter(tokenizer)
    for index in range(n):
        yield job.example(task, index, meter)


def _in_processes(job: _Job, n: int, tokenizer: Tokenizer, workers: int) -> Iterator[Example]:
    """Yield examples in order. At most two per worker are made in advance, so workers wait for a slow consumer."""
    backend = tokenizer.backend
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of a notebook or a trainer
    with ProcessPoolExecutor(workers, context, _start_worker, (job, backend, os.getpid())) as pool:
        under_way: deque[Any] = deque()
        for index in range(n):
            under_way.append(pool.submit(_work, index))
            if len(under_way) >= 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


_worker: SimpleNamespace = SimpleNamespace()


def _start_worker(job: _Job, backend: Any, parent: int) -> None:
    die_with_parent(parent)
    # Only the Rust tokenizer travels: importing transformers in every worker costs seconds and hundreds of megabytes.
    _worker.job = job
    _worker.task = configured(job.name, **job.parameters)  # by name: a class in a user's file cannot be pickled
    _worker.meter = Meter(Tokenizer(SimpleNamespace(backend_tokenizer=backend)))


def _work(index: int) -> Example:
    return _worker.job.example(_worker.task, index, _worker.meter)
