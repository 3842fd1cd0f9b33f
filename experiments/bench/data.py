"""How fast long data is made, beside a naive generator that tokenises the whole document at each step of its bisection.

Both make the same examples; the naive one is run on fewer of them, because it is slow.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.data import Example, make, preset, save
from memagent_lib.data.drafting import DraftPlan, ExampleKey, Length, weave
from memagent_lib.data.tasks import configured
from memagent_lib.text import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    "task",
    "generator",
    "workers",
    "examples",
    "tokens",
    "seconds",
    "seconds_per_example",
    "tokens_per_second",
    "peak_mb",
    "file_mb",
]


class Measured(NamedTuple):
    """What one run of a generator took; ``peak_mb`` is the resident memory of all its processes with the caller's."""

    examples: int
    tokens: int
    seconds: float
    peak_mb: float
    file_mb: float


def bench_data(
    tokenizer: Tokenizer,
    task: str = "multihop_2",
    length_tokens: int = 3_500_000,
    n: int = 128,
    workers: int = 2,
    naive_n: int = 1,
    seed: int = 0,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """One row for ours (made by ``workers``, written to parquet), one for the naive generator (``naive_n`` examples).

    ``speedup`` is the ratio of their seconds per example; ours has the writing in it.
    """
    import pandas as pd

    with tempfile.TemporaryDirectory(dir=folder) as place:
        examples = make(task, n, seed, tokenizer, length_tokens=length_tokens, workers=workers)
        rows = [_row(task, "ours", workers, measure(examples, Path(place) / "ours.parquet"))]
    if naive_n:
        rows.append(_row(task, "naive", 1, _measured_naive(tokenizer, task, length_tokens, naive_n, seed)))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.assign(speedup=frame["seconds_per_example"].iloc[-1] / frame["seconds_per_example"])


def measure(examples: Iterable[Example], path: Path | None = None) -> Measured:
    """Make all examples, keep none, and write them to ``path`` where one is given."""
    seen: list[int] = []

    def counted() -> Iterator[Example]:
        for example in examples:
            seen.append(example.metadata["tokens"])
            yield example

    with _PeakMemory() as memory:
        started = time.perf_counter()
        if path is None:
            for _ in counted():
                pass
        else:
            save(counted(), path)
        seconds = time.perf_counter() - started
    size = path.stat().st_size / 1e6 if path is not None else 0.0
    return Measured(len(seen), sum(seen), seconds, memory.peak / 1e6, size)


def _measured_naive(tokenizer: Tokenizer, task: str, length_tokens: int, n: int, seed: int) -> Measured:
    """In a process of its own, so that neither generator's memory is counted as the other's."""
    backend = tokenizer.backend
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_naive_alone, backend, task, length_tokens, n, seed).result()


def _naive_alone(backend: Any, task: str, length_tokens: int, n: int, seed: int) -> Measured:
    return measure(naive(Tokenizer(SimpleNamespace(backend_tokenizer=backend)), task, length_tokens, n, seed))


def naive(tokenizer: Tokenizer, task: str, length_tokens: int, n: int, seed: int) -> Iterator[Example]:
    """The same tasks the obvious way: build the document, tokenise all of it, and bisect on how much filler goes in."""
    for index in range(n):
        plan = configured(task).plan(ExampleKey(task, seed, index, Length(tokens=length_tokens)))
        if not isinstance(plan, DraftPlan):
            raise ValueError(
                f"the naive generator knows tasks of facts in filler, not {task!r} ({preset(task).family})"
            )
        text = _naive_text(plan, tokenizer, length_tokens)
        facts = {"tokens": tokenizer.count(text)}
        yield Example(
            id=f"naive-{index}", task=task, question="(not asked)", document=text, answers=("-",), metadata=facts
        )


def _naive_text(plan: DraftPlan, tokenizer: Tokenizer, limit: int) -> str:
    stock = list(islice(plan.filler.units(), limit))

    def build(n: int) -> str:
        return weave(stock[: min(n, len(stock))], plan).text

    return build(_bisected(build, len(stock), tokenizer, limit))


def _bisected(build: Any, most: int, tokenizer: Tokenizer, limit: int) -> int:
    return min(most, fit(lambda n: tokenizer.count(build(n)) + max(0, n - most), limit))


class _PeakMemory:
    """The largest sum of the resident memory of this process and its children, looked at ten times a second."""

    def __enter__(self) -> _PeakMemory:
        self.peak, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        self._look()
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> None:
        import psutil

        me, total = psutil.Process(os.getpid()), 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.peak = max(self.peak, total)


def _row(task: str, name: str, workers: int, result: Measured) -> dict[str, Any]:
    return {
        "task": task,
        "generator": name,
        "workers": workers,
        "examples": result.examples,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 2),
        "seconds_per_example": result.seconds / max(1, result.examples),
        "tokens_per_second": result.tokens / max(1e-9, result.seconds),
        "peak_mb": round(result.peak_mb, 1),
        "file_mb": round(result.file_mb, 1),
    }


def fit(measure: Callable[[int], int], limit: int) -> int:
    """The largest ``n >= 0`` for which ``measure(n) <= limit``, where ``measure`` grows with ``n``; by doubling, then
    bisection.

    Raises ``ValueError`` when not even ``measure(0)`` fits.
    """
    if (least := measure(0)) > limit:
        raise ValueError(
            f"the shortest possible text has length {least:,}, and {limit:,} was asked for; ask for at least {least:,}"
        )
    low, high = 0, 1
    while measure(high) <= limit:
        low, high = high, 2 * high
        if high > 1 << 40:
            raise ValueError("the text does not grow with its number of parts")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle) <= limit else (low, middle)
    return low
