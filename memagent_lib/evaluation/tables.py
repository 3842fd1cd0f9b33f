"""Tables from result rows: accuracy with its interval per group, overviews of evaluations, and paired comparisons.

This module depends on frames of result rows, not on agents or stores of runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memagent_lib.evaluation.intervals import RATE, Rate, paired_interval, rate
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


def summarise(frame: pd.DataFrame, by: Sequence[str] = ("reader", "chunks")) -> pd.DataFrame:
    """Return one row per group: accuracy with its 95 % interval, counts, and means of other columns.

    ``scored_documents`` counts the documents of the ``scored`` questions, from which
    :func:`~memagent_lib.evaluation.intervals.rate` has the interval. :data:`COLUMNS` declares which columns are
    averaged. The accuracy is NaN if every example of the group failed.
    """
    import pandas as pd

    # Rows that were saved by an older version lack newer columns.
    averaged = [name for name in mean_columns() if name in frame]
    rows = []
    for key, group in frame.groupby(list(by), dropna=False):
        means = group[averaged].astype(float).mean()
        rows.append((*key, *rate_of(group), *_without_score(group), *means))
    return pd.DataFrame(rows, columns=[*by, *RATE, "failed", "undecided", *averaged])


def _without_score(rows: pd.DataFrame) -> tuple[int, int]:
    """Return how many readings failed, and how many have an answer on which the judge, a model, did not decide."""
    failed = rows["error"].notna()
    return int(failed.sum()), int((rows["score"].isna() & ~failed).sum())


def rate_of(rows: pd.DataFrame, column: str = "score") -> Rate:
    """Return the mean of a column with its interval, of the rows that have a value there.

    Failed readings have no score: they are counted as failed, not as wrong.
    """
    rows = rows[rows[column].notna()]
    return rate(rows[column].astype(float).tolist(), documents_of(rows))


def documents_of(rows: pd.DataFrame) -> list[Hashable]:
    """Return the document of each row, by its hash. A row of an older version, without one, counts as a document."""
    if "document" not in rows:
        return list(range(len(rows)))
    return rows["document"].astype(object).where(rows["document"].notna(), list(range(len(rows)))).tolist()


def mean_columns() -> list[str]:
    """Return the names of the columns that summaries average."""
    return [name for name, column in COLUMNS.items() if column.mean]


BAD_MEMORIES = "bad memories"
BY_MODEL = "by the model judge"
DIFFERENCE = ["left", "right", "chunks", "difference", "low", "high", "n", "documents", "right_only", "left_only"]
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
        verdicts = [(*key, _verdict_cell(rows)) for key, rows in results.groupby(by, dropna=False)]
        summary = summary.merge(pd.DataFrame(verdicts, columns=[*by, BY_MODEL]), on=by)
        columns.insert(columns.index("score") + 1, BY_MODEL)
    return with_text_lengths(_with_bad_memories(summary[columns], results, by), by[-1])


def with_text_lengths(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a table with its column of files or lengths as text, which is empty in rows over all tasks."""
    as_text = table[name].map(lambda value: value if isinstance(value, str) else f"{int(value):,}", na_action="ignore")
    return table.assign(**{name: as_text.astype(object).fillna("")})


def _verdict_cell(rows: pd.DataFrame) -> str:
    """Return a table cell with the rate of a model judge's verdicts; undecided ones are left out."""
    judged = rows[rows["model_judge"].notna() & rows["error"].isna()]
    decided = rate_of(judged, "model_verdict")
    cell = str(decided) if decided.n else "none decided"
    left = len(judged) - decided.n
    return f"{cell}, {left:,} undecided" if left and decided.n else cell


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
    """Return a table cell: a rate with its interval and n, and how many have no score; no rate if none has one."""
    cell = str(Rate.of(row))
    for why in ("failed", "undecided"):
        if row[why]:
            cell += f", {row[why]:,} {why}"
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
    ``n`` and of their ``documents``, and the numbers of questions on which one line scored higher (``right_only``,
    ``left_only``). A question that failed for either line is left out.
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
    both = both.reset_index()
    made = []
    for chunks, pairs in both.groupby("chunks", dropna=False):
        documents = documents_of(pairs)
        low, high = paired_interval(pairs["left"].tolist(), pairs["right"].tolist(), documents)
        comparison = {
            "left": left,
            "right": right,
            "chunks": math.nan if math.isnan(chunks) else int(chunks),
            "difference": pairs["right"].mean() - pairs["left"].mean(),
            "low": low,
            "high": high,
            "n": len(pairs),
            "documents": len(set(documents)),
            "right_only": int((pairs["right"] > pairs["left"]).sum()),
            "left_only": int((pairs["left"] > pairs["right"]).sum()),
        }
        made.append(comparison)
    return pd.DataFrame(made, columns=DIFFERENCE)
