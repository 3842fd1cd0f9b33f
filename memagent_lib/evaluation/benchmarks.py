"""A benchmark's own metrics on our results, with published numbers of other models beside them, marked as such.

RULER's tasks by RULER's own match, LongBench's each by its own metric, and their averages; questions with short answers
by sub-EM, strict and lenient. Published numbers are data (``published.csv``, from the tables of arXiv 2507.02259).
Knows results; knows no agent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.evaluation.results import Result
from memagent_lib.evaluation.tables import wilson
from memagent_lib.scoring import score

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = Path(__file__).parent / "published.csv"
RULER_TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
AVERAGE, AVERAGE_OF_TEN, LONGBENCH_AVERAGE = "RULER average", "RULER average of 10", "LongBench average"
STRICT, LENIENT, MATCH = "sub-EM strict", "sub-EM lenient", "RULER match"
_HQA = ("hotpot", "hotpotqa", "ruler_hqa")  # all ask HotpotQA's questions over documents of its pool
_LONGBENCH, ANY_LENGTH = "longbench/", "any length"
_METRICS = {
    "f1": "F1",
    "rouge_l": "ROUGE-L",
    "classes": "accuracy",
    "number_share": "accuracy",
    "similar": "similarity",
}
_SUB_EM = ("boxed", "contains", "exact", "lenient", "f1", "f1_hotpot")
_OF_QUESTIONS = {"7K": 7e3, "14K": 14e3, "28K": 28e3, "56K": 56e3, "112K": 112e3, "224K": 224e3, "448K": 448e3,
                 "896K": 896e3, "1.75M": 1.75e6, "3.5M": 3.5e6}  # fmt: skip
_OF_RULER = {f"{k}K": 1024 * k for k in (4, 8, 16, 32, 64, 128, 256, 512, 1024)}
_ROW = ["task", "metric", "reader", "length", "score", "low", "high", "n"]
_TOKEN_CHARS = 4.4  # of English, where a reader counted no tokens


def benchmark_task(task: str) -> str:
    """What a benchmark calls a task: RULER's own files and our generated ones are of one task, and so is RULER-HQA."""
    name = task.removeprefix("ruler/")
    return "hotpotqa" if name in _HQA else name


def metrics_of(result: Result) -> dict[str, float]:
    """The metrics of the benchmark that a scored result belongs to; its own judge's score where it belongs to none."""
    example, reply = result.example, result.trace.answer
    if (task := benchmark_task(example.task)) in RULER_TASKS:
        rule = "match_part" if task.startswith("qa_") else "match_all"
        return {MATCH: score(rule, reply, example.answers).value}
    if task.startswith(_LONGBENCH):
        rule = example.rule.removeprefix("first_line:").partition(":")[0]
        return {f"LongBench {_METRICS.get(rule, rule)}": result.score.value}
    if example.rule in _SUB_EM:
        rules = {STRICT: "contains", LENIENT: "lenient"}
        return {name: score(rule, reply, example.answers).value for name, rule in rules.items()}
    return {example.rule: result.score.value}


def benchmark_rows(results: Iterable[Result]) -> pd.DataFrame:
    """One row per ``task, metric, reader, length``, with ``score, low, high`` in per cent and ``n``."""
    import pandas as pd

    found: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for result in results:
        if result.score is None:
            continue
        for metric, value in metrics_of(result).items():
            found[benchmark_task(result.example.task), metric, result.reader, length_of(result)].append(value)
    rows = []
    for key, values in found.items():
        rate = wilson(sum(values), len(values))
        rows.append(dict(zip(_ROW, (*key, 100 * rate.value, 100 * rate.low, 100 * rate.high, rate.n), strict=True)))
    return pd.DataFrame(rows + _averages(rows), columns=_ROW)


def benchmark_table(results: Sequence[Result], name: str = "ours") -> pd.DataFrame:
    """Our scores with interval and n beside those published for the same task and length, one row per model."""
    import pandas as pd

    published = pd.read_csv(PUBLISHED)
    known = {*RULER_TASKS, *published["task"]}
    tasks = {task: benchmark_task(task) for task in {result.example.task for result in results}}
    told = {task for task, name in tasks.items() if name in known or name.startswith(_LONGBENCH)}
    ours = benchmark_rows(result for result in results if result.example.task in told)
    rows = []
    for (task, metric), group in ours.groupby(["task", "metric"], sort=False):
        for reader, line in group.groupby("reader", sort=False):
            shown = {row["length"]: _shown(row) for row in line.to_dict("records")}
            rows.append({"task": task, "metric": metric, "model": f"{name}, {reader}", **shown})
        there = published[published["task"].isin([task, *([AVERAGE_OF_TEN] if task == AVERAGE else [])])]
        there = there[there["length"].isin(set(group["length"]))]
        for (model, source), line in there.groupby(["model", "source"], sort=False):
            shown = {row["length"]: f"{row['score']:.1f}" for row in line.to_dict("records")}
            rows.append({"task": task, "metric": metric, "model": f"published: {model} ({source})", **shown})
    lengths = sorted({name for row in rows for name in row} - {"task", "metric", "model"}, key=_tokens_of)
    return pd.DataFrame(rows, columns=["task", "metric", "model", *lengths]).fillna("")


def length_of(result: Result) -> str:
    """The length of a document as benchmarks name it (``8K``, ``3.5M``): the published length nearest to its tokens;
    where none is near, the power of two nearest to what it was made to have, which all documents of a file share.
    """
    task = benchmark_task(result.example.task)
    if task.startswith(_LONGBENCH):
        return ANY_LENGTH
    read = sum(t.prompt.chunk.tokens for t in result.trace.reads if t.prompt.chunk) if result.trace else 0
    tokens = max(1, read or result.characters / _TOKEN_CHARS)
    known = _OF_RULER if task in RULER_TASKS else _OF_QUESTIONS
    apart = {name: abs(math.log2(length / tokens)) for name, length in known.items()}
    if apart[nearest := min(apart, key=apart.__getitem__)] < 0.5:
        return nearest
    made = result.example.metadata
    planned = made["chunks"] * made["chunk_tokens"] if {"chunks", "chunk_tokens"} <= made.keys() else tokens
    return _named(2 ** round(math.log2(planned)))


def _averages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """RULER's and LongBench's averages over their tasks at each length, where there are at least two."""
    groups: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["task"] in RULER_TASKS or row["task"].startswith(_LONGBENCH):
            average = AVERAGE if row["task"] in RULER_TASKS else LONGBENCH_AVERAGE
            groups[average, row["reader"], row["length"]].append(row)
    made = []
    for (average, reader, length), of in groups.items():
        if len(of) > 1:
            mean, n = sum(row["score"] for row in of) / len(of), sum(row["n"] for row in of)
            told = (average, f"of {len(of)} tasks", reader, length, mean, math.nan, math.nan, n)
            made.append(dict(zip(_ROW, told, strict=True)))
    return made


def _shown(row: dict[str, Any]) -> str:
    interval = f" [{row['low']:.1f}, {row['high']:.1f}]" if row["low"] == row["low"] else ""
    return f"{row['score']:.1f}{interval} (n={row['n']})"


def _named(power_of_two: int) -> str:
    for unit, size in (("M", 1024**2), ("K", 1024)):
        if power_of_two >= size:
            return f"{power_of_two // size}{unit}"
    return str(power_of_two)


def _tokens_of(name: str) -> float:
    if name == ANY_LENGTH:
        return math.inf
    return float(name.rstrip("KM")) * {"K": 1e3, "M": 1e6}.get(name[-1], 1)
