"""The tables of the study of readers: the form of replies after the warm start, scores, differences and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from experiments.pocket.teacher import statements_in
from memagent_lib.evaluation import Rate, Result, against, costs, line_name, summarise, wilson
from memagent_lib.trace import Turn

RIGHT = "right form"
OTHER_WORDS = "a memory with other words than statements"
NO_BOX = "an answer without a box"
EMPTY = ("", "nothing yet")
BASELINE = "overwrite"
TASK_CHUNKS = (2, 16, 64)
"""The lengths at which tasks have scores of their own."""
COST_CHUNKS = 16
"""The length at which readers' costs are compared."""


def form(turn: Turn) -> str:
    """Return :data:`RIGHT` if a turn's reply has the form of its reader and of the world, or else what is wrong.

    A memory consists of whole statements of the world or of the words for an empty one, beside commands that the reader
    parses; an answer has a box.
    """
    if turn.bad_memory is not None:
        return str(turn.bad_memory.fault)
    text = turn.reply.text
    if turn.prompt.kind.answers:
        return RIGHT if r"\boxed{" in text else NO_BOX
    rest = text
    for statement in statements_in(text):
        rest = rest.replace(statement, "", 1)
    return RIGHT if rest.strip() in EMPTY else OTHER_WORDS


def forms(results: Iterable[Result]) -> Counter[str]:
    """Count the turns of results by :func:`form`."""
    return Counter(form(turn) for result in results if result.trace for turn in result.trace.turns)


def form_table(counts: dict[str, Counter[str]]) -> str:
    """Return Markdown with a line per reader: its turns, the share of the right form, and the other forms by kind.

    The intervals take turns as independent, although several are of one reading.
    """
    lines = ["| reader | turns | right form (95 % interval) | other forms |", "|---|---|---|---|"]
    for reader, found in counts.items():
        rate = wilson(found[RIGHT], found.total())
        others = ", ".join(f"{n} {kind}" for kind, n in found.most_common() if kind != RIGHT)
        lines.append(f"| {reader} | {rate.n:,} | {rate.percent} | {others or 'none'} |")
    return "\n".join(lines)


def tables(rows: pd.DataFrame) -> str:
    """Return all tables of scores and costs as Markdown, with a line per policy and reader."""
    parts = {
        "Score in % (95 % interval), by length in chunks": score_table(rows),
        f"Difference to `{BASELINE}` on the same documents, in points (95 % interval)": difference_table(rows),
        "Score in % by task and length in chunks": task_table(rows),
        f"Evidence and costs of a question at {COST_CHUNKS} chunks": cost_table(rows),
    }
    return "\n\n".join(f"**{title}**\n\n{made}" for title, made in parts.items())


def score_table(rows: pd.DataFrame) -> str:
    """Return the score at each length, over all tasks, with its 95 % interval."""
    summary = summarise(rows, by=("policy", "reader", "chunks"))
    cells = {
        (row.policy, row.reader, int(row.chunks)): Rate.of(row._asdict()).short
        for row in summary.itertuples(index=False)
    }
    return _grid(rows, cells)


def difference_table(rows: pd.DataFrame) -> str:
    """Return the paired difference to :data:`BASELINE` of the same policy, on the documents that both have read."""
    cells = {}
    for policy, own in rows.groupby("policy", sort=False):
        readers = {line_name(policy, reader): reader for reader in own["reader"].unique()}
        baseline = line_name(policy, BASELINE)
        if baseline in readers:
            for row in against(own, baseline).itertuples(index=False):
                cells[policy, readers[row.right], int(row.chunks)] = _points(row.difference, row.low, row.high)
    return _grid(rows, cells)


def task_table(rows: pd.DataFrame) -> str:
    """Return the score of each task at each of :data:`TASK_CHUNKS`."""
    summary = summarise(rows[rows["chunks"].isin(TASK_CHUNKS)], by=("policy", "reader", "task", "chunks"))
    cells = {
        (row.policy, row.reader, f"{row.task.removeprefix('fair_')}, {int(row.chunks)}"): _percent(row.accuracy)
        for row in summary.itertuples(index=False)
    }
    return _grid(rows, cells)


def cost_table(rows: pd.DataFrame) -> str:
    """Return capture, retention and the costs of a question at :data:`COST_CHUNKS`."""
    rows = rows[rows["chunks"] == COST_CHUNKS]
    evidence = summarise(rows, by=("policy", "reader")).set_index(["policy", "reader"])
    cells = {}
    for row in costs(rows, ("policy", "reader")).itertuples(index=False):
        line = (row.policy, row.reader)
        cells[*line, "capture in %"] = _percent(evidence.loc[line, "capture"])
        cells[*line, "retention in %"] = _percent(evidence.loc[line, "retention"])
        cells[*line, "turns"] = f"{row.turns:.1f}"
        cells[*line, "tokens"] = f"{row.tokens:,.0f}"
        cells[*line, "seconds (median, 95th percentile)"] = f"{row.seconds:.2f}, {row.seconds_95:.2f}"
    return _grid(rows, cells)


def _grid(rows: pd.DataFrame, cells: Mapping[tuple[str, str, Any], str]) -> str:
    """Return Markdown with a line per policy and reader, in order of the rows, and a column per last part of a key."""
    columns = list(dict.fromkeys(column for *_, column in cells))
    if all(isinstance(column, int) for column in columns):
        columns.sort()
    lines = [f"| policy | reader | {' | '.join(map(str, columns))} |", "|---" * (len(columns) + 2) + "|"]
    for policy, reader in rows[["policy", "reader"]].drop_duplicates().itertuples(index=False):
        values = [cells.get((policy, reader, column), "") for column in columns]
        if any(values):
            lines.append(f"| {policy} | {reader} | {' | '.join(values)} |")
    return "\n".join(lines)


def _points(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _percent(value: float) -> str:
    return "" if pd.isna(value) else f"{100 * value:.1f}"
