"""The tables of the study of readers: the form of replies after the warm start, scores with differences, and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pandas as pd

from experiments.pocket.teacher import statements_in
from memagent_lib.evaluation import Rate, Result, against, costs, line_name, summarise, wilson
from memagent_lib.trace import Turn

RIGHT = "right form"
OTHER_WORDS = "a memory with other words than statements"
NO_BOX = "an answer without a box"
EMPTY = ("", "nothing yet")
BASELINE = "overwrite"


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
    """Return Markdown with a line per reader: its turns, the share of the right form, and the other forms by kind."""
    lines = ["| reader | turns | right form (95 % interval) | other forms |", "|---|---|---|---|"]
    for reader, found in counts.items():
        rate = wilson(found[RIGHT], found.total())
        others = ", ".join(f"{n} {kind}" for kind, n in found.most_common() if kind != RIGHT)
        lines.append(f"| {reader} | {rate.n:,} | {rate.percent} | {others or 'none'} |")
    return "\n".join(lines)


def score_table(rows: pd.DataFrame) -> str:
    """Return Markdown with a line per policy, reader and length: score, paired difference, evidence and costs.

    The difference is to :data:`BASELINE` of the same policy, on the documents that both have read. A cell with a
    percentage has its 95 % interval.
    """
    lines = [
        "| policy | reader | chunks | score in % | difference | capture | retention | turns | tokens | seconds | n |",
        "|---" * 11 + "|",
    ]
    for policy, own in rows.groupby("policy", sort=False):
        differences = _differences(own, policy)
        spent = costs(own, ["reader", "chunks"]).set_index(["reader", "chunks"])
        for row in summarise(own).itertuples(index=False):
            key = (row.reader, int(row.chunks))
            cost = spent.loc[[key]].iloc[0]
            score = Rate(row.accuracy, row.low, row.high, row.scored)
            lines.append(
                f"| {policy} | {row.reader} | {int(row.chunks)} | {score.short} "
                f"| {differences.get(key, '')} | {_percent(row.capture)} | {_percent(row.retention)} "
                f"| {cost['turns']:.1f} | {cost['tokens']:,.0f} | {cost['seconds']:.2f} | {row.scored} |"
            )
    return "\n".join(lines)


def _differences(rows: pd.DataFrame, policy: str) -> dict[tuple[str, int], str]:
    readers = {line_name(policy, reader): reader for reader in rows["reader"].unique()}
    baseline = line_name(policy, BASELINE)
    if baseline not in readers:
        return {}
    return {
        (readers[row.right], int(row.chunks)): _points(row.difference, row.low, row.high)
        for row in against(rows, baseline).itertuples(index=False)
    }


def _points(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _percent(value: float) -> str:
    return "" if pd.isna(value) else f"{100 * value:.1f}"
