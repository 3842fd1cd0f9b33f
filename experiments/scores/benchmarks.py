"""Score our results with the benchmarks' own metrics, and list published numbers of other models beside them.

RULER's tasks use RULER's own match, and have an average, as LongBench's have. Questions with short answers use strict
and lenient sub-EM. Published numbers are data: ``experiments/benchmarks/published.csv`` has the set, the model, the
source and the judge of each (arXiv 2507.02259, v1 for RULER and table 1 of v2 for HotpotQA; arXiv 2603.29493 for
MemFactory's). This module depends on results, not on agents.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_lib.evaluation import COLUMNS, Result, rate, sample_size
from memagent_lib.scoring import judge_name, score

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = Path(__file__).parents[1] / "benchmarks" / "published.csv"
RULER_TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
AVERAGE = "RULER average"
AVERAGE_OF_TEN = "RULER average of 10"
LONGBENCH_AVERAGE = "LongBench average"
STRICT = "sub-EM strict"
LENIENT = "sub-EM lenient"
MATCH = "RULER match"
ANY_LENGTH = "any length"
_HQA = ("hotpot", "hotpotqa", "ruler_hqa")  # HotpotQA's questions over documents of its pool, under three names
_LONGBENCH = ("longbench/", "longbench_v2")
_SUB_EM = ("boxed", "contains", "exact", "sub_em", "lenient", "f1")
_LENGTHS = {"7K": 7e3, "14K": 14e3, "28K": 28e3, "56K": 56e3, "112K": 112e3, "224K": 224e3, "448K": 448e3,
            "896K": 896e3, "1.75M": 1.75e6, "3.5M": 3.5e6}  # fmt: skip
"""The lengths of MemAgent's HotpotQA sets in tokens; all others are powers of two."""
_ROW = ["task", "metric", "reader", "length", "score", "low", "high", "n", "documents"]
_TOKEN_CHARS = 4.4  # of English, where a reader counted no tokens


def benchmark_task(task: str) -> str:
    """Return the benchmark's name for a task. RULER's own files and our generated ones thus count as one task."""
    name = task.removeprefix("ruler/")
    return "hotpotqa" if name in _HQA else name


def metrics_of(result: Result) -> dict[str, float]:
    """Return a scored result's metrics, by name.

    RULER's tasks have its own match. Other questions with short answers, apart from LongBench's, have strict and
    lenient sub-EM; anything else has the score of its own judge.
    """
    example = result.example
    task = benchmark_task(example.task)
    rules = {judge_name(example.rule): ""}
    if task in RULER_TASKS:
        # RULER scores its two QA tasks by any answer, all others by the share of the answers.
        rules = {MATCH: "match_part" if task.startswith("qa_") else "match_all"}
    elif example.rule in _SUB_EM and not task.startswith(_LONGBENCH):
        rules = {STRICT: "sub_em", LENIENT: "lenient"}
    reply = result.trace.answer
    return {
        name: score(rule, reply, example.answers).value if rule else result.score.value for name, rule in rules.items()
    }


def benchmark_rows(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row per ``task, metric, reader, length``, with ``score, low, high`` in per cent, ``n``, ``documents``.

    Failed readings are left out. The benchmarks' averages, which have no interval, come first.
    """
    import pandas as pd

    found: defaultdict[tuple[str, str, str, str], list[tuple[float, str]]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            task = benchmark_task(result.example.task)
            for metric, value in metrics_of(result).items():
                found[task, metric, result.reader, length_of(result)].append((value, result.document))
    rows = []
    for key, values in found.items():
        share, low, high, *counts = rate(*zip(*values, strict=True))
        rows.append(dict(zip(_ROW, (*key, 100 * share, 100 * low, 100 * high, *counts), strict=True)))
    return pd.DataFrame(_averages(rows) + rows, columns=_ROW)


def benchmark_table(results: Sequence[Result], name: str) -> pd.DataFrame:
    """Return one row per task, metric and model, with one column per length.

    Our rows, one per reader, are labelled ``name, reader``; their cells have the score, its interval and n. Published
    scores for the same tasks and lengths follow those of each task; their metric is the judge that their source names.
    """
    import pandas as pd

    published = pd.read_csv(PUBLISHED)
    known = {*RULER_TASKS, *published["task"]}
    tasks = [benchmark_task(result.example.task) for result in results]
    ours = benchmark_rows(compress(results, (task in known or task.startswith(_LONGBENCH) for task in tasks)))
    rows = []
    for task, group in ours.groupby("task", sort=False):
        for (metric, reader), scores in group.groupby(["metric", "reader"], sort=False):
            cells = {row["length"]: _score_cell(row) for row in scores.to_dict("records")}
            rows.append({"task": task, "metric": metric, "model": f"{name}, {reader}", **cells})
        # The paper's average leaves three of RULER's tasks out; both are displayed, under their own names.
        names = [AVERAGE, AVERAGE_OF_TEN] if task == AVERAGE else [task]
        others = published[published["task"].isin(names) & published["length"].isin(set(group["length"]))]
        for (model, source, judge), scores in others.groupby(["model", "source", "judge"], sort=False):
            cells = {row["length"]: f"{row['score']:.1f}" for row in scores.to_dict("records")}
            rows.append({"task": task, "metric": judge, "model": f"published: {model} ({source})", **cells})
    lengths = {name for row in rows for name in row} - {"task", "metric", "model"}
    columns = ["task", "metric", "model", *sorted(lengths, key=lambda name: (_tokens_of(name), name))]
    return pd.DataFrame(rows, columns=columns).fillna("")


def length_of(result: Result) -> str:
    """Return a document's length as benchmarks write it (``8K``, ``3.5M``): the nearest published length in tokens.

    If none is near, return the power of two that is nearest to the length that the document was made for, which is the
    same for all documents of a file, or, if that is unknown, to its own length. Documents of LongBench and LongBench v2
    have no length (:data:`ANY_LENGTH`).
    """
    task = benchmark_task(result.example.task)
    metadata = result.example.metadata
    if task.startswith(_LONGBENCH):
        return ANY_LENGTH
    # The length that the file has is that of baselines too, which do not read the whole document.
    made_for = metadata.get("tokens") or (task in RULER_TASKS and metadata.get("length"))
    tokens = made_for or COLUMNS["document_tokens"].value(result) or result.characters / _TOKEN_CHARS
    if task not in RULER_TASKS:
        doublings_apart = {name: abs(math.log2(length / max(1, tokens))) for name, length in _LENGTHS.items()}
        nearest = min(doublings_apart, key=doublings_apart.__getitem__)
        if doublings_apart[nearest] < 0.5:  # nearer to this length than to the next power of two
            return nearest
    if {"chunks", "chunk_tokens"} <= metadata.keys():
        tokens = metadata["chunks"] * metadata["chunk_tokens"]
    power = 2 ** round(math.log2(max(1, tokens)))
    sizes = ((1024**2, "M"), (1024, "K"), (1, ""))
    return next(f"{power // size}{unit}" for size, unit in sizes if power >= size)


def _averages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return RULER's and LongBench's averages for each reader and length with at least two tasks."""
    groups: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        average = AVERAGE if row["task"] in RULER_TASKS else LONGBENCH_AVERAGE
        if average == AVERAGE or row["task"].startswith("longbench/"):
            groups[average, row["reader"], row["length"]].append(row)
    averages = []
    for (average, reader, length), tasks in groups.items():
        if len(tasks) > 1:
            mean = sum(row["score"] for row in tasks) / len(tasks)
            n = sum(row["n"] for row in tasks)
            # No interval: the tasks' metrics differ, so n documents are no sample of one share.
            values = (average, f"of {len(tasks)} tasks", reader, length, mean, math.nan, math.nan, n, math.nan)
            averages.append(dict(zip(_ROW, values, strict=True)))
    return averages


def _score_cell(row: dict[str, Any]) -> str:
    if math.isnan(row["low"]):  # an average over tasks
        return f"{row['score']:.1f} (n={row['n']:,})"
    n = sample_size(row["n"], int(row["documents"]))
    return f"{row['score']:.1f} [{row['low']:.1f}, {row['high']:.1f}] (n={n})"


def _tokens_of(name: str) -> float:
    if name == ANY_LENGTH:
        return math.inf
    # Only for sorting columns, so the difference between 1,000 and 1,024 does not matter.
    return float(name.rstrip("KM")) * {"K": 1e3, "M": 1e6}.get(name[-1], 1)
