"""Tables from result rows: rates with intervals, accuracy per group, overviews of evaluations, and paired comparisons.

This module depends on frames of result rows, not on agents or stores of runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_lib.evaluation.lines import (
    ALL_TASKS,
    LINE,
    in_several_files,
    keyed,
    lines_of,
    natural,
    question_columns,
    rows_of,
    with_all_tasks,
    with_memory,
)
from memagent_lib.evaluation.results import COLUMNS, Result
from memagent_lib.scoring import judge_name

if TYPE_CHECKING:
    import pandas as pd


class Rate(NamedTuple):
    """A share of successes among ``n`` trials, with its 95 % Wilson interval. Its texts are in percent."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.percent} (n={self.n})" if self.n else self.percent

    @property
    def percent(self) -> str:
        """The share with its unit and interval, ``54.2 % [50.1, 58.0]``."""
        return f"{100 * self.value:.1f} % {self.interval}" if self.n else "none scored"

    @property
    def short(self) -> str:
        """The share and its interval in percent without the unit, for columns that name it."""
        return f"{100 * self.value:.1f} {self.interval}" if self.n else "none scored"

    @property
    def interval(self) -> str:
        """The interval alone, in percent without the unit."""
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: float, n: int) -> Rate:
    """Return the Wilson score interval of a share (Wilson 1927). ``successes`` may be a sum of fractional scores."""
    if n < 1:
        return Rate(math.nan, math.nan, math.nan, 0)
    # 1.96: 2.5 % of a normal distribution lies above it.
    z = NormalDist().inv_cdf(0.975)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounded, because the end of an interval around 0 or 1 is off by 1e-17.
    return Rate(share, max(0.0, round(centre - half, 12)), min(1.0, round(centre + half, 12)), n)


def summarise(frame: pd.DataFrame, by: Sequence[str] = ("reader", "chunks")) -> pd.DataFrame:
    """Return one row per group: accuracy with its 95 % Wilson interval, counts, and means of other columns.

    :data:`COLUMNS` declares which columns are averaged. The accuracy is NaN if every example of the group failed.
    """
    import pandas as pd

    # Rows that were saved by an older version lack newer columns.
    averaged = [name for name in mean_columns() if name in frame]
    rows = []
    for key, group in frame.groupby(list(by), dropna=False):
        # Failed readings have no score: they are counted as failed, not as wrong.
        scored = group["score"].dropna()
        rate = wilson(scored.sum(), len(scored))
        means = group[averaged].astype(float).mean()
        rows.append((*key, rate.value, rate.low, rate.high, rate.n, int(group["error"].notna().sum()), *means))
    return pd.DataFrame(rows, columns=[*by, "accuracy", "low", "high", "scored", "failed", *averaged])


def mean_columns() -> list[str]:
    """Return the names of the columns that summaries average."""
    return [name for name, column in COLUMNS.items() if column.mean]


BAD_MEMORIES = "bad memories"
BY_MODEL = "by the model judge"
DIFFERENCE = ["left", "right", "chunks", "difference", "low", "high", "n", "right_only", "left_only"]
"""The columns of paired differences."""


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Tabulate accuracy with interval, n and failures: a row per line and judge, a column per length.

    Rows name policy, reader and, if any varied, the settings. With several tasks, the first rows are over all tasks,
    and each task's rows follow. If a reply was no memory, a last column counts the turns with one.
    """
    rows = overall_first(by_judge(with_all_tasks(keyed(results), LINE)))
    names = [*(name for name in LINE if name != "varied" or rows["varied"].any()), "judge"]
    if rows["task"].nunique() > 1:
        names.insert(0, "task")
    summary = summarise(rows, by=(*names, "chunks"))
    summary["cell"] = [_rate_cell(row) for row in summary.to_dict("records")]
    wide = summary.pivot(index=names, columns="chunks", values="cell").fillna("")
    # pivot sorts by name, but lines stay in the order of the rows.
    order = list(rows[names].drop_duplicates().itertuples(index=False, name=None))
    wide = wide.reindex(order).rename(columns=_length_name).rename_axis(columns=None).reset_index()
    return _with_bad_memories(wide, rows, names).rename(columns={"varied": "settings"})


def _length_name(chunks: float) -> str:
    if math.isnan(chunks):  # files of other projects are not made for a length in chunks
        return "of no set length"
    return f"{int(chunks):,} chunks"


def _with_bad_memories(wide: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Add a column that counts the turns whose reply was no memory, if there are any."""
    if "bad_memories" not in rows or not rows["bad_memories"].fillna(0).any():  # rows of an older version lack it
        return wide
    counts = rows.groupby(list(by), dropna=False)["bad_memories"].sum().astype(int)
    return wide.merge(counts.rename(BAD_MEMORIES).reset_index(), on=list(by), how="left")


def by_judge(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the rule as their ``judge``, then those that a model judged, with its verdict as score.

    Rows that :func:`with_all_tasks` returned have a judge already.
    """
    import pandas as pd

    rows = results if "judge" in results else results.assign(judge=results["rule"].fillna("").map(judge_name))
    if "model_verdict" not in results:
        return rows
    by_model = rows[rows["model_judge"].notna()]
    by_model = by_model.assign(judge=by_model["model_judge"], score=by_model["model_verdict"].astype(float))
    return pd.concat([rows, by_model], ignore_index=True)


def judges(results: pd.DataFrame) -> str:
    """Return the judges, each with the number of rows it judged, most rows first: ``contains (12), items (3)``."""
    counts = results["rule"].map(judge_name, na_action="ignore").value_counts()
    return ", ".join(f"{rule} ({count:,})" for rule, count in counts.items())


def overview(results: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task, reader and file or length: judges, n, failures, score with interval, evidence.

    With several tasks, the first rows, one per reader, are over all of them. ``capture`` is the share of the evidence
    that was captured, and ``retention`` the share of that which was retained. A model judge has a column with its own
    scores. If a reply was no memory, a last column counts the turns with one.
    """
    import pandas as pd

    by = ["task", "reader", grouping_of(results)]
    results = with_all_tasks(results, ["reader"], by[-1:])
    summary = summarise(results, by)
    summary["score"] = [_rate_cell(row) for row in summary.to_dict("records")]
    summary["n"] = summary["scored"] + summary["failed"]
    for name in ("capture", "retention"):
        summary[name] = ["" if pd.isna(share) else f"{100 * share:.1f} %" for share in summary[name]]
    rules = results.groupby(by, dropna=False)["rule"].agg(lambda rules: ", ".join(_judge_names(rules)))
    summary = summary.merge(rules.rename("judge").reset_index(), on=by)
    summary = by_task(summary, results, by)
    columns = [*by, "judge", "n", "failed", "score", "capture", "retention"]
    if "model_verdict" in results and results["model_verdict"].notna().any():
        verdicts = results.groupby(by, dropna=False)["model_verdict"].agg(_verdict_cell)
        summary = summary.merge(verdicts.rename(BY_MODEL).reset_index(), on=by)
        columns.insert(columns.index("score") + 1, BY_MODEL)
    return with_text_lengths(_with_bad_memories(summary[columns], results, by), by[-1])


def with_text_lengths(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a table with its column of files or lengths as text, which is empty in rows over all tasks."""
    as_text = table[name].map(lambda value: value if isinstance(value, str) else f"{int(value):,}", na_action="ignore")
    return table.assign(**{name: as_text.astype(object).fillna("")})


def _verdict_cell(verdicts: pd.Series) -> str:
    """Return a table cell with the rate of a model judge's verdicts; undecided ones are left out."""
    decided = verdicts.dropna().astype(float)
    return str(wilson(decided.sum(), len(decided))) if len(decided) else "none decided"


def by_task(table: pd.DataFrame, results: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sort rows by task, reader and length or file, the columns of ``by``; readers in the order of the results.

    Rows over all tasks come first.
    """
    task, reader, _ = by
    readers = list(results[reader].unique())
    order = sorted(table.index, key=lambda at: (natural(table.at[at, task]), readers.index(table.at[at, reader])))
    return overall_first(by_length(table.loc[order], by))


def overall_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Move rows over all tasks to the top; keep the order otherwise."""
    return rows.sort_values("task", key=lambda tasks: tasks != ALL_TASKS, kind="stable", ignore_index=True)


def by_length(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sort rows by the last column of ``by``, a length or a file: ``test_4`` before ``test_16``, unknown ones last.

    Groups of the other columns stay in the order in which they first appear.
    """
    *others, last = by
    group = table.groupby(others, sort=False, dropna=False).ngroup()
    order = sorted(table.index, key=lambda at: (group[at], natural(str(table.at[at, last]))))
    return table.loc[order].reset_index(drop=True)


def grouping_of(results: pd.DataFrame) -> str:
    """Return the column by which an overview tells documents apart: their file, or their length."""
    # Rows of another origin may lack files or lengths in chunks; only characters are always known.
    return next((name for name in ("file", "chunks") if results[name].notna().all()), "document_chars")


def _rate_cell(row: Mapping[str, Any]) -> str:
    """Return a table cell: a rate with its interval and n, and how many failed; no rate if all failed."""
    cell = str(Rate(row["accuracy"], row["low"], row["high"], row["scored"]))
    if row["failed"]:
        cell += f", {row['failed']} failed"
    return cell


def bad_memory_notes(results: pd.DataFrame) -> list[str]:
    """Return a sentence per reader with replies that were no memories: how many, and in how many of its readings."""
    notes: list[str] = []
    if "bad_memories" not in results:  # rows of an older version
        return notes
    for reader, rows in results.groupby("reader", sort=False):
        count = int(rows["bad_memories"].sum())
        if count:
            readings = int((rows["bad_memories"] > 0).sum())
            notes.append(
                f"{reader}: in {count:,} turns of {readings:,} readings a reply was no memory; the column "
                "bad_memory_kinds has the reasons"
            )
    return notes


def failure_reasons(results: pd.DataFrame) -> list[str]:
    """Return why readings failed, the most frequent reason first. Reasons that differ only in numbers count as one."""
    failed = results[["reader", "error"]].dropna()
    without_numbers = failed["error"].str.replace(r"\d[\d.,]*", "#", regex=True)
    groups = failed.groupby(["reader", without_numbers])["error"]
    reasons = sorted(((len(errors), reader, errors.iloc[0]) for (reader, _), errors in groups), reverse=True)
    return [f"{count} failed ({reader}): {reason}" for count, reader, reason in reasons]


def mixtures(results: pd.DataFrame) -> list[str]:
    """Return warnings about rows that differ in more than their columns say.

    They were judged by several rules for one task, or by several versions of the code, a server refused a sampling
    setting, or documents are in several data files.
    """
    warnings = []
    for task, rows in results.groupby("task", sort=False):
        rules = _judge_names(rows["rule"])
        if len(rules) > 1:
            warnings.append(f"{task} was judged by several rules: {', '.join(rules)}")
    codes = sorted(results["code"].dropna().unique())
    if len(codes) > 1:
        warnings.append(f"results of {len(codes)} versions of the code are mixed: {', '.join(codes)}")
    if "sampling_left_out" in results:  # earlier files lack it
        for settings, count in results["sampling_left_out"].value_counts().items():
            warnings.append(f"the server refused {settings} in {count:,} of {len(results):,} readings")
    if "policy" in results:
        repeated = int(in_several_files(results).sum())
        if repeated:
            warnings.append(f"{repeated:,} readings are of documents that are in several data files; they count once")
    return warnings


def _judge_names(rules: pd.Series) -> list[str]:
    return sorted(set(map(judge_name, rules.dropna())))


def fates_at_the_end(readings: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """Return one row per policy: how many readings ended with the evidence in memory, lost, or never noted."""
    import pandas as pd

    counts = {}
    for policy, found in readings.items():
        ends = [str(r.diagnosis.fate) for r in found if r.trace and r.diagnosis.fate]
        counts[policy] = pd.Series(ends, dtype=object).value_counts()
    return pd.DataFrame(counts).T.fillna(0).astype(int).rename_axis("at the end the evidence is")


def paired(results: pd.DataFrame, left: str, right: str, reader: str = "") -> pd.DataFrame:
    """Compare the line ``right`` with the line ``left`` on the documents that both have read, one row per length.

    A line is given by its own name, or by that of its policy and the ``reader``. Columns: ``left`` and ``right``, the
    ``difference`` of the mean scores (right minus left), its 95 % interval ``low, high``, the number of questions
    ``n``, and the numbers of documents on which one line scored higher (``right_only``, ``left_only``). A document that
    failed for either line is left out.
    """
    rows = keyed(results)
    names = [rows_of(rows, name, reader)["line"].iloc[0] for name in (left, right)]
    made = _differences(rows[rows["score"].notna()], *names)
    if made.empty:
        raise ValueError(
            f"{names[0]!r} and {names[1]!r} have read no document in common; evaluate both on the same data"
        )
    made.attrs["names"] = tuple(names)
    return made


def against(results: pd.DataFrame, baseline: str = "") -> pd.DataFrame:
    """Compare every line with ``baseline``, as :func:`paired` does, one row per line and length.

    The default is the first line whose reader has a memory, or else the first line. Lines that have read no document in
    common with it are left out.
    """
    import pandas as pd

    rows = keyed(results)
    if not baseline:
        memories = with_memory(rows)
        baseline = lines_of(memories if len(memories) else rows)[0]
    left = rows_of(rows, baseline)["line"].iloc[0]
    scored = rows[rows["score"].notna()]
    compared = [_differences(scored, left, right) for right in lines_of(rows) if right != left]
    found = [frame for frame in compared if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=DIFFERENCE)


def _differences(scored: pd.DataFrame, left: str, right: str) -> pd.DataFrame:
    """Return a row per length with the paired difference of two lines; none without a document in common."""
    import pandas as pd

    sides = [scored[scored["line"] == name] for name in (left, right)]
    of_left, of_right = (side.set_index(question_columns(*sides)) for side in sides)
    both = of_left[["chunks"]].assign(left=of_left["score"]).join(of_right["score"].rename("right"), how="inner")
    made = []
    for chunks, pairs in both.groupby("chunks", dropna=False):
        low, high = paired_interval(pairs["left"].tolist(), pairs["right"].tolist())
        comparison = {
            "left": left,
            "right": right,
            "chunks": math.nan if math.isnan(chunks) else int(chunks),
            "difference": pairs["right"].mean() - pairs["left"].mean(),
            "low": low,
            "high": high,
            "n": len(pairs),
            "right_only": int((pairs["right"] > pairs["left"]).sum()),
            "left_only": int((pairs["left"] > pairs["right"]).sum()),
        }
        made.append(comparison)
    return pd.DataFrame(made, columns=DIFFERENCE)


def paired_interval(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of mean(right) - mean(left) for scores of the same documents (Newcombe 1998, method 10).

    The method combines Wilson's intervals of the two shares by their correlation. It is valid for few documents and for
    shares of 0 and 1, where a bootstrap has nothing to resample. It was designed for shares, but is also used here for
    fractional scores.
    """
    n = len(left)
    a = wilson(sum(left), n)
    b = wilson(sum(right), n)
    joint = n * sum(x * y for x, y in zip(left, right, strict=True)) - sum(left) * sum(right)
    if joint > 0:
        joint = max(0.0, joint - n / 2)  # the continuity correction of method 10
    spread = math.sqrt(sum(left) * (n - sum(left)) * sum(right) * (n - sum(right)))
    correlation = joint / spread if spread else 0.0

    def half(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up * up - 2 * correlation * up * down + down * down))

    difference = b.value - a.value
    low = difference - half(b.value - b.low, a.high - a.value)
    high = difference + half(b.high - b.value, a.value - a.low)
    return low, high
