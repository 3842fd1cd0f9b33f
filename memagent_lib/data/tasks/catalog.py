"""Every data set that can be generated, by name; and :func:`make`, which makes any of them with any number of workers."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

from memagent_lib.data.examples import Example
from memagent_lib.data.tasks.babi import Story
from memagent_lib.data.tasks.changes import Ordering, Updates
from memagent_lib.data.tasks.counting import CommonWords, FrequentWords
from memagent_lib.data.tasks.document_questions import DocumentQuestions
from memagent_lib.data.tasks.drafting import Length, Meter
from memagent_lib.data.tasks.generation import Task
from memagent_lib.data.tasks.keychain import KeyChain
from memagent_lib.data.tasks.multihop import MultiHop
from memagent_lib.data.tasks.needles import NeedleTask, make_needle
from memagent_lib.data.tasks.ruler import Niah, Tracing
from memagent_lib.text import Tokenizer

CHUNK_TOKENS = 5000
_NEEDLE = NeedleTask()


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketNeedles:
    """The pocket policy's task (:mod:`memagent_lib.data.tasks.needles`); its length is given in chunks."""

    distractors: float = _NEEDLE.distractors
    half_matching: float = _NEEDLE.half_matching
    half_alike: float = _NEEDLE.half_alike
    digits: int = _NEEDLE.digits

    def __post_init__(self) -> None:
        self.needles()

    def needles(self, **size: int) -> NeedleTask:
        return NeedleTask(**{f.name: getattr(self, f.name) for f in fields(self)}, **size)

    def example(self, name: str, seed: int, index: int, length: Length, meter: Meter) -> Example:
        if length.chunks is None:
            raise ValueError(
                f"task {name!r} is made in whole chunks; give chunks (and chunk_tokens) instead of {length.label}"
            )
        task = self.needles(chunks=length.chunks, chunk_tokens=length.chunk_tokens)
        return make_needle(task, f"{seed}-{index}", meter.tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A task of the catalogue: its parameters, what it asks, what files it needs, and what a guess scores."""

    task: Task
    asks: str
    family: str
    needs: str = ""
    chance: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS


def _ruler(asks: str, task: Task, needs: str = "") -> Preset:
    return Preset(task=task, asks=asks, family="RULER", needs=needs)


_ESSAYS, _SQUAD, _HOTPOT = (
    "haystack_path: essays",
    "pool_path: SQuAD dev-v2.0.json",
    "pool_path: HotpotQA dev distractor JSON",
)

TASKS: dict[str, Preset] = {
    "needle": Preset(
        task=PocketNeedles(), asks="a code among codes of other things", family="pocket", chunk_tokens=128
    ),
    "niah_single_1": _ruler("one number in noise", Niah(haystack="noise")),
    "niah_single_2": _ruler("one number in essays", Niah(haystack="essays"), _ESSAYS),
    "niah_single_3": _ruler("one identifier in essays", Niah(haystack="essays", value_kind="uuids"), _ESSAYS),
    "niah_multikey_1": _ruler("one of four needles in essays", Niah(haystack="essays", keys=4), _ESSAYS),
    "niah_multikey_2": _ruler("one needle among needles", Niah(haystack="needles")),
    "niah_multikey_3": _ruler(
        "one pair of identifiers among such pairs", Niah(haystack="needles", key_kind="uuids", value_kind="uuids")
    ),
    "niah_multivalue": _ruler("all four values of one key", Niah(haystack="essays", values=4), _ESSAYS),
    "niah_multiquery": _ruler("the values of four keys", Niah(haystack="essays", keys=4, asked=4), _ESSAYS),
    "vt": _ruler("all variables that take over a value", Tracing()),
    "cwe": _ruler("the ten most common words of a list", CommonWords()),
    "fwe": _ruler("the three most frequent code words", FrequentWords()),
    "qa_1": _ruler("SQuAD questions", DocumentQuestions(kind="squad", rule="match_part"), _SQUAD),
    "qa_2": _ruler("HotpotQA questions", DocumentQuestions(kind="hotpot", rule="match_part"), _HOTPOT),
    "ruler_hqa": Preset(
        task=DocumentQuestions(kind="hotpot"),
        asks="HotpotQA questions over 50 to 25,600 documents",
        family="RULER-HQA",
        needs=_HOTPOT,
    ),
    "multihop_2": Preset(
        task=MultiHop(), asks="bridge questions over two documents of a generated world", family="world"
    ),
    "multihop_3": Preset(task=MultiHop(hops=3, shape="chain"), asks="chains of three documents", family="world"),
    "multihop_4": Preset(task=MultiHop(hops=4, shape="chain"), asks="chains of four documents", family="world"),
    "comparison": Preset(task=MultiHop(shape="comparison"), asks="which of two came first", family="world", chance=0.5),
    "comparison_4": Preset(
        task=MultiHop(hops=4, shape="comparison"),
        asks="which of two, by way of their makers",
        family="world",
        chance=0.5,
    ),
    "keychain": Preset(
        task=KeyChain(inner=MultiHop()), asks="a bridge question hidden behind a chain of keys", family="KeyChain"
    ),
    "qa1": Preset(task=Story(number=1), asks="where a person is", family="BABILong-style", chance=1 / 16),
    "qa2": Preset(task=Story(number=2), asks="where a thing is", family="BABILong-style", chance=1 / 16),
    "qa3": Preset(task=Story(number=3), asks="where a thing was before", family="BABILong-style", chance=1 / 15),
    "qa4": Preset(task=Story(number=4), asks="what lies next to what", family="BABILong-style", chance=1 / 15),
    "qa5": Preset(task=Story(number=5), asks="who gave what to whom", family="BABILong-style", chance=1 / 7),
    "updates": Preset(task=Updates(), asks="a value after all its changes", family="stress"),
    "ordering": Preset(task=Ordering(), asks="the n-th event of a kind", family="stress"),
}
"""What ``memagent data --list`` shows."""


def describe(only: str | None = None) -> list[dict[str, str]]:
    """One row per task, or that of one: name, family, what is asked, what files it needs, what a guess scores, its parameters."""
    chosen = TASKS if only is None else {only: preset(only)}
    return [
        {
            "task": name,
            "family": about.family,
            "asks for": about.asks,
            "needs": about.needs or "nothing",
            "chance": f"{100 * about.chance:.0f} %",
            "parameters": ", ".join(f"{f.name}={_shown(getattr(about.task, f.name))}" for f in fields(about.task)),
        }
        for name, about in chosen.items()
    ]


def preset(name: str) -> Preset:
    """The preset called ``name``; ``ValueError`` with the known names otherwise."""
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; choose from {', '.join(TASKS)}")
    return TASKS[name]


def configured(name: str, **parameters: Any) -> Task:
    """The task called ``name`` with some of its parameters changed."""
    task = preset(name).task
    known = {f.name for f in fields(task)}
    if unknown := sorted(set(parameters) - known):
        raise ValueError(f"task {name!r} has no parameter {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return replace(task, **parameters)


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
    keychain_links: int = 0,
    **parameters: Any,
) -> Iterator[Example]:
    """``n`` examples of a task, in order, at a length in tokens, chunks or (where the task has a pool) documents.

    The same seed gives the same examples on any number of ``workers``, and the same questions at every length. ``rule`` changes
    the judge, ``keychain_links`` hides the question behind that many keys. Wrong arguments raise here, not at the first example.
    """
    task = configured(name, **parameters)
    for what, value in (("n", n), ("workers", workers)):
        if value < 1:
            raise ValueError(f"{what} must be at least 1, got {value}")
    length = Length(
        tokens=length_tokens, chunks=chunks, documents=documents, chunk_tokens=chunk_tokens or preset(name).chunk_tokens
    )
    if keychain_links:
        task, name = KeyChain(inner=task, links=keychain_links), f"{name}+keychain"
    job = _Job(task, name, seed, length)
    examples = _alone(job, n, tokenizer) if workers == 1 else _together(job, n, tokenizer, workers)
    return (replace(e, rule=rule) for e in examples) if rule else examples


@dataclass(frozen=True)
class _Job:
    task: Task
    name: str
    seed: int
    length: Length

    def example(self, index: int, meter: Meter) -> Example:
        return self.task.example(self.name, self.seed, index, self.length, meter)


def _alone(job: _Job, n: int, tokenizer: Tokenizer) -> Iterator[Example]:
    meter = Meter(tokenizer)
    for index in range(n):
        yield job.example(index, meter)


def _together(job: _Job, n: int, tokenizer: Tokenizer, workers: int) -> Iterator[Example]:
    """In order, with at most two examples per worker under way: a reader slower than the makers holds them up."""
    backend = getattr(tokenizer.hf, "backend_tokenizer", tokenizer.hf)
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of a notebook or a trainer
    with ProcessPoolExecutor(min(workers, n), context, _start_worker, (job, backend)) as pool:
        under_way: deque[Any] = deque()
        for index in range(n):
            under_way.append(pool.submit(_work, index))
            if len(under_way) >= 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


_worker: SimpleNamespace = SimpleNamespace()


def _start_worker(job: _Job, backend: Any) -> None:
    # Only the Rust tokenizer travels: importing transformers in every worker costs seconds and hundreds of megabytes.
    _worker.job, _worker.meter = job, Meter(Tokenizer(SimpleNamespace(backend_tokenizer=backend)))


def _work(index: int) -> Example:
    return _worker.job.example(index, _worker.meter)


def _shown(value: Any) -> str:
    return type(value).__name__ if hasattr(value, "example") else repr(value)
