"""What a question cost, beside how often its answer was right. This module depends on frames of result rows only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memagent_lib.evaluation.lines import keyed, question_columns, with_all_tasks
from memagent_lib.evaluation.tables import by_length, by_task, grouping_of, rate_of, with_text_lengths

if TYPE_CHECKING:
    import pandas as pd

COSTS = {
    "tokens": "prompt and reply tokens, mean",
    "turns": "replies of the model, mean",
    "seconds": "seconds of a question, median",
    "seconds_95": "seconds of a question, 95th percentile",
    "gflops": "arithmetic operations of the model in billions, mean",
}
"""The costs of a question, and what they are. Tokens count even if a prefix cache has saved their computation.

Seconds are those of one reading among all that ran at the same time, or a question's part of a reading for several.
"""


def costs(results: pd.DataFrame, by: Sequence[str] = ("line", "chunks")) -> pd.DataFrame:
    """Return one row per group with its number of questions ``n`` and :data:`COSTS`.

    Groups have the order of the rows, but the values of the last column, such as lengths, ascend. Failed readings are
    left out, because they were stopped early. ``gflops`` is a column only if some row has its FLOPs, which are unknown
    without the model's shape.
    """
    rows = keyed(results) if {"line", "variant", "varied"} & set(by) else results
    rows = with_costs(rows[rows["turns"].notna()])
    grouped = rows.groupby(list(by), sort=False, dropna=False)
    table = grouped.size().rename("n").to_frame()
    for name in ("tokens", "turns"):
        table[name] = grouped[name].mean()
    table["seconds"] = grouped["seconds"].median()
    table["seconds_95"] = grouped["seconds"].quantile(0.95)
    if rows["gflops"].notna().any():
        table["gflops"] = grouped["gflops"].mean()
    table = table.reset_index()
    if len(by) > 1:  # rows have the longest documents first, as they are read
        table = by_length(table, by)
    return table


def with_costs(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns ``tokens`` and ``gflops``; a number that is not known is NaN."""
    columns = results.reindex(columns=["turns", "seconds", "prompt_tokens", "reply_tokens", "flops"]).astype(float)
    return results.assign(
        turns=columns["turns"],
        seconds=columns["seconds"],
        tokens=columns["prompt_tokens"] + columns["reply_tokens"],
        gflops=columns["flops"] / 1e9,
    )


def cost_overview(results: pd.DataFrame) -> pd.DataFrame:
    """Return the costs per task, reader and file or length, the rows of :func:`overview`, as text for a terminal."""
    by = ["task", "reader", grouping_of(results)]
    counted = with_all_tasks(results, ["reader"], by[-1:])
    table = with_text_lengths(by_task(costs(counted, by), results, by), by[-1])
    for name in COSTS:
        if name in table:
            table[name] = [amount(value) for value in table[name]]
    return table.rename(columns={"seconds": "seconds (median)", "seconds_95": "(95 %)", "gflops": "GFLOPs"})


def amount(value: float) -> str:
    """Return a cost as text: whole numbers from 10 on, else two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def score_and_cost(results: pd.DataFrame, cost: str = "tokens") -> pd.DataFrame:
    """Return one row per line: ``cost``, ``accuracy`` with its 95 % interval, ``n``, ``documents`` and ``pareto``.

    Only the questions that every line has scored count, so all lines answer the same questions. ``pareto`` is whether
    no other line is at least as good for less, or better at the same cost. Raises ``ValueError`` for an unknown cost,
    for rows without it, and if no document was scored by every line.
    """
    import pandas as pd

    if cost not in COSTS:
        raise ValueError(f"no cost {cost!r}; choose from {', '.join(COSTS)}")
    rows = keyed(results)
    rows = rows[rows["score"].notna()]
    lines_of_document = rows.groupby(question_columns(rows))["line"].transform("nunique")
    rows = rows[lines_of_document == rows["line"].nunique()]
    if rows.empty:
        raise ValueError("no document was scored by every line; select lines that have read the same data")
    measured = costs(rows, ["line"]).set_index("line")
    if cost not in measured:
        raise ValueError(f"the rows have no {cost} ({COSTS[cost]}); evaluate with a model whose shape is known")
    made = []
    for line, group in rows.groupby("line", sort=False):
        rate = rate_of(group)
        made.append(
            {"line": line, "reader": group["reader"].iloc[0], cost: measured.loc[line, cost], "accuracy": rate.value}
            | {"low": rate.low, "high": rate.high, "n": rate.n, "documents": rate.documents}
        )
    table = pd.DataFrame(made)
    table["pareto"] = [not _is_beaten(row, made, cost) for row in made]
    return table


def _is_beaten(row: dict, others: Sequence[dict], cost: str) -> bool:
    """Return whether another line has no lower accuracy and no higher cost, and differs in one of the two."""
    mine = (row["accuracy"], row[cost])
    return any(
        other["accuracy"] >= row["accuracy"] and other[cost] <= row[cost] and (other["accuracy"], other[cost]) != mine
        for other in others
    )
