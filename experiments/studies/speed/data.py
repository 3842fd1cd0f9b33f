"""Compare our generator of long documents with a naive one, which tokenises the whole document at each bisection step.

Both make examples of the same task and seed; the naive generator makes fewer, because it is slow.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.studies.speed.processes import peak_memory
from experiments.studies.speed.results import Measured, Ratio
from memagent_lib.data import DocumentPlan, Example, ExampleKey, Length, configured, insert, make, preset, save
from memagent_lib.settings import require_at_least
from memagent_lib.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBench:
    """Sizes of the measurement: ``workers`` write ``n`` examples to parquet; the naive generator makes ``naive_n``.

    ``model`` provides the tokenizer.
    """

    model: str = "experiments/pocket/warm_start"
    task: str = "multihop_2"
    length_tokens: int = 3_500_000
    n: int = 128
    workers: int = 2
    naive_n: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "n", "naive_n")


def bench_data(settings: DataBench, report: Callable[[str], None] = print) -> dict[str, Measured]:
    """Return one row per generator: examples, tokens, seconds (ours include writing) and peak resident memory in MB.

    The memory is that of the calling process and of all processes that it starts.
    """
    s = settings
    tokenizer = Tokenizer.load(settings.model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.parquet"
        report(f"ours: {s.n} examples")
        examples = make(s.task, s.n, s.seed, tokenizer, length_tokens=s.length_tokens, workers=s.workers)
        ours = _measured(examples, lambda made: save(made, path)) | {"file_mb": path.stat().st_size / 1e6}
    report(f"naive: {s.naive_n} examples")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:  # memory of its own
        theirs = process.submit(_naive_alone, s).result()
    rows = [{"generator": name, **row} for name, row in (("ours", ours), ("naive", theirs))]
    each = [row["seconds"] / row["examples"] for row in rows]
    notes = (
        f"{row['generator']} {row['tokens'] / row['seconds']:,.0f} tokens/s, {row['peak_mb']:,.0f} MB" for row in rows
    )
    what = f"naive over ours, seconds of an example of {s.length_tokens:,} tokens"
    return {"data": Measured([Ratio("data", what, (each[1] / each[0],))], rows, "; ".join(notes))}


def _measured(examples: Iterable[Example], use: Callable[[Iterator[Example]], Any]) -> dict[str, float]:
    tokens: list[int] = []

    def counted() -> Iterator[Example]:
        for example in examples:
            tokens.append(example.metadata["tokens"])
            yield example

    with peak_memory() as peak_mb:
        started = time.perf_counter()
        use(counted())
        seconds = time.perf_counter() - started
    return {"examples": len(tokens), "tokens": sum(tokens), "seconds": seconds, "peak_mb": peak_mb()}


def _naive_alone(s: DataBench) -> dict[str, float]:
    return _measured(naive(Tokenizer.load(s.model), s.task, s.length_tokens, s.naive_n, s.seed), list)


def naive(tokenizer: Tokenizer, task: str, length_tokens: int, n: int, seed: int) -> Iterator[Example]:
    """Make examples the obvious way: build the document, tokenise all of it, and bisect on the amount of filler."""
    for index in range(n):
        plan = configured(task).plan(ExampleKey(task, seed, index, Length(tokens=length_tokens)))
        if not isinstance(plan, DocumentPlan):
            raise ValueError(
                f"the naive generator knows tasks with statements in filler, not {task!r} ({preset(task).family})"
            )
        text = _naive_text(plan, tokenizer, length_tokens)
        metadata = {"tokens": tokenizer.count(text)}
        yield Example(
            id=f"naive-{index}", task=task, question="(none)", document=text, answers=("-",), metadata=metadata
        )


def _naive_text(plan: DocumentPlan, tokenizer: Tokenizer, limit: int) -> str:
    stock = list(islice(plan.filler.units(), limit // 4))  # more than fit, because every unit has over four tokens

    def build(n: int) -> str:
        return insert(stock[:n], plan.statements, plan.separator, plan.numbered).text

    # Every probe tokenises the whole document, which makes this generator slow.
    fit = bisect_right(range(len(stock) + 1), limit, key=lambda n: tokenizer.count(build(n)))
    return build(max(0, fit - 1))
