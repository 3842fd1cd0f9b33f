"""Readers x backends x examples: bounded concurrency, one error boundary, results as a tidy frame.

A failed example is an error result that keeps its reason; it is never an empty answer scored as wrong.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.agent import Agent, gather, run_sync
from memagent_lib.backends import BackendError
from memagent_lib.data.examples import Example
from memagent_lib.diagnostics import Diagnosis, diagnose
from memagent_lib.prompts import BudgetError
from memagent_lib.scoring import Score, score
from memagent_lib.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

RESULT_COLUMNS = [
    "example", "task", "reader", "chunks", "document_chars", "depth", "score", "answer", "answers", "reason", "error",
    "capture", "retention", "turns", "cut_memories", "prompt_tokens", "reply_tokens", "cached_tokens", "seconds",
]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One example's score and trace, or the error that stopped it."""

    example: Example = field(repr=False)
    reader: str
    seconds: float
    trace: Trace | None = field(default=None, repr=False)
    score: Score | None = None
    error: str | None = None

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What became of the facts that the question needs; only where there is a trace."""
        return diagnose(self.trace, self.example.evidence, self.example.answers, self.example.document)

    def row(self) -> dict[str, Any]:
        """The result as one row of :data:`RESULT_COLUMNS`."""
        e, t, s = self.example, self.trace, self.score
        return {
            "example": e.id,
            "task": e.task,
            "reader": self.reader,
            "chunks": e.metadata.get("chunks"),
            "document_chars": len(e.document),
            "depth": depth(e),
            "score": s.value if s else None,
            "answer": s.answer if s else None,
            "answers": " | ".join(e.answers),
            "reason": s.reason if s else None,
            "error": self.error,
            "capture": self.diagnosis.capture if t else None,
            "retention": self.diagnosis.retention if t else None,
            "turns": len(t.turns) if t else None,
            "cut_memories": t.cut_memories if t else None,
            "prompt_tokens": t.prompt_tokens if t else None,
            "reply_tokens": t.reply_tokens if t else None,
            "cached_tokens": sum(turn.reply.cached_tokens for turn in t.turns) if t else None,
            "seconds": round(self.seconds, 3),
        }


class Rate(NamedTuple):
    """A share of successes with its 95 % Wilson interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}] (n={self.n})"


def wilson(successes: float, n: int, confidence: float = 0.95) -> Rate:
    """Wilson's score interval for a share (Wilson 1927). ``successes`` may be a sum of fractional scores."""
    if n < 1:
        return Rate(math.nan, math.nan, math.nan, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Rate(share, max(0.0, round(centre - half, 12)), min(1.0, round(centre + half, 12)), n)


def depth(example: Example) -> float | None:
    """Where the last needed fact begins, as a share of the document; ``None`` where the example records no evidence."""
    if not example.evidence:
        return None
    return max(span.start for span in example.evidence) / len(example.document)


async def aevaluate(
    agent: Agent, examples: Sequence[Example], concurrency: int = 64, on_result: Callable[[Result], None] | None = None
) -> list[Result]:
    """A result for every example, in their order. At most ``concurrency`` are read at a time."""
    places = asyncio.Semaphore(concurrency)

    async def one(example: Example) -> Result:
        async with places:
            result = await _result(agent, example)
        if on_result:
            on_result(result)
        return result

    return await gather(map(one, examples))


def evaluate(
    agent: Agent,
    examples: Sequence[Example],
    concurrency: int = 64,
    journal: str | Path | None = None,
    progress: bool = True,
) -> list[Result]:
    """Evaluate an agent. With a ``journal``, finished examples are kept there line by line and not read again.

    Errors are not kept: calling again retries just those.
    """
    kept = _from_journal(journal, examples) if journal else {}
    todo = [e for e in examples if e.id not in kept]
    sinks: list[Callable[[Result], None]] = [_journal_writer(journal)] if journal else []
    with _progress(len(todo), progress) as advance:
        fresh = run_sync(aevaluate(agent, todo, concurrency, lambda r: [sink(r) for sink in (*sinks, advance)]))
    by_id = kept | {r.example.id: r for r in fresh}
    return [by_id[e.id] for e in examples]


async def _result(agent: Agent, example: Example) -> Result:
    reader, started = agent.reader.__name__, time.monotonic()
    try:
        trace = await agent.aread(example.document, example.question)
    except (BackendError, BudgetError) as failure:
        return Result(example, reader, time.monotonic() - started, error=f"{type(failure).__name__}: {failure}")
    return Result(
        example, reader, time.monotonic() - started, trace, score(example.rule, trace.answer, example.answers)
    )


def to_frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per result, columns :data:`RESULT_COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([r.row() for r in results], columns=RESULT_COLUMNS)


def summarise(frame: pd.DataFrame, by: Sequence[str] = ("reader", "chunks")) -> pd.DataFrame:
    """Accuracy with its 95 % Wilson interval, capture, retention, and how many examples were scored and failed, per group."""
    import pandas as pd

    def summary(group: pd.DataFrame) -> pd.Series:
        scored = group["score"].dropna()
        rate = wilson(scored.sum(), len(scored))
        facts = {
            "accuracy": rate.value,
            "low": rate.low,
            "high": rate.high,
            "scored": len(scored),
            "failed": int(group["error"].notna().sum()),
        }
        means = {
            name: group[name].astype(float).mean()
            for name in ("capture", "retention", "turns", "cut_memories", "prompt_tokens")
        }
        return pd.Series(facts | means)

    table = frame.groupby(list(by), dropna=False).apply(summary, include_groups=False).reset_index()
    return table.astype({"scored": int, "failed": int})


def _journal_writer(path: str | Path) -> Callable[[Result], None]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)

    def write(result: Result) -> None:
        if result.trace is None:
            return
        line = json.dumps({"example": result.example.id, "seconds": result.seconds, "trace": result.trace.to_record()})
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    return write


def _from_journal(path: str | Path, examples: Sequence[Example]) -> dict[str, Result]:
    """Results of an earlier call. Scores are derived again; a line that a killed process left half written is read anew."""
    known = {e.id: e for e in examples}
    kept: dict[str, Result] = {}
    if not Path(path).exists():
        return kept
    whole, broken, _ = Path(path).read_text(encoding="utf-8").rpartition("\n")
    Path(path).write_text(whole + broken, encoding="utf-8")
    for line in whole.splitlines():
        record = json.loads(line)
        if (example := known.get(record["example"])) is not None:
            trace = Trace.from_record(record["trace"])
            kept[example.id] = Result(
                example, trace.reader, record["seconds"], trace, score(example.rule, trace.answer, example.answers)
            )
    return kept


class _progress:
    """A bar for the terminal or the notebook, silent when the output is neither."""

    def __init__(self, total: int, wanted: bool):
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, unit="document", disable=None if wanted and total else True)

    def __enter__(self) -> Callable[[Result], None]:
        return lambda _: self._bar.update()

    def __exit__(self, *_: object) -> None:
        self._bar.close()
